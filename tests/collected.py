"""Its import collects the tests of a command line of pytest, for the workers that fork from this process."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

# The workers report what is wrong, as each collects the tests again.
_OPTIONS = ("--collect-only", "--numprocesses=0", "-p", "no:cacheprovider")


def _collect() -> None:
    request = json.loads(sys.argv[2])
    sys.path[:] = request["path"]
    output = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    errors = os.dup(2)
    for number in (1, 2):
        os.dup2(nowhere, number)
    pytest.main([*request["arguments"], *_OPTIONS])
    from hypothesis import strategies  # which pytest is to import as a plugin

    strategies.text().validate()  # its table of all characters
    sys.stdout.flush()
    for number, file in ((1, output), (2, errors)):
        os.dup2(file, number)
        os.close(file)
    os.close(nowhere)
    if len([*Path("/proc/self/task").iterdir()]) > 1:
        sys.exit(1)  # an import has started a thread, which forks would lack


_collect()
