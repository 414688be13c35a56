"""The workers of pytest fork from one process that has collected the tests: what they import is imported once.

Each worker collects them again, as xdist compares what they find, but all modules are there.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from execnet.xspec import XSpec

from tests import forked_python

_MODULE = "tests.collected"


def fork_workers(config: pytest.Config, workers: Sequence[XSpec]) -> None:
    """Let the workers of this machine fork, instead of starting an interpreter each, where that is possible."""
    own = [worker for worker in workers if worker.popen and not worker.python]
    if sys.platform != "linux" or not own:
        return
    arguments = json.dumps({"path": sys.path, "arguments": [str(each) for each in config.invocation_params.args]})
    _, address = forked_python.start_server([_MODULE], [arguments], ["-u"], os.environ)
    if address:
        program = [sys.executable, "-I", "-S", str(Path(forked_python.__file__)), "--fork", address.hex()]
        for worker in own:
            worker.python = shlex.join(program)
