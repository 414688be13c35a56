"""The workers of pytest fork from one process that has collected the tests: what they import is imported once.

Each worker collects them again, as xdist compares what they find, but all modules are there.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

import pytest

from tests import forked_python

_MODULE = "tests.collected"


def fork_workers(config: pytest.Config) -> None:
    """Let workers of this machine fork, instead of starting an interpreter each, where that is possible."""
    if sys.platform != "linux" or not config.option.tx or {*config.option.tx} != {"popen"}:
        return
    arguments = json.dumps({"path": sys.path, "arguments": [str(each) for each in config.invocation_params.args]})
    _, address = forked_python.start_server([_MODULE], [arguments], ["-u"], os.environ)
    if address:
        program = [sys.executable, "-I", "-S", str(Path(forked_python.__file__)), "--fork", address.hex()]
        config.option.tx = [f"popen//python={shlex.join(program)}"] * len(config.option.tx)
