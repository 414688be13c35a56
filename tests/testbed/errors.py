"""What the testbed raises when a part of it does not come up or a command fails."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence


class TestbedError(Exception):
    """A part of the test cluster that failed, with the reason and the end of its log."""

    __test__ = False


def run_command(command: Sequence[object], environment: Mapping[str, str] | None = None, limit: float = 600.0) -> str:
    """Return what a command printed; TestbedError has the end of its output if it failed."""
    words = list(map(str, command))
    result = subprocess.run(words, capture_output=True, text=True, timeout=limit, check=False, env=environment)
    if result.returncode:
        output = result.stdout[-3000:] + result.stderr[-3000:]
        raise TestbedError(f"{' '.join(words)} failed with {result.returncode}: {output.strip()}")
    return result.stdout
