"""The script that measures planned reclaims with real agents."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.programs.conftest import prepared_image

pytestmark = [
    pytest.mark.images,
    pytest.mark.nightly("only who measures runs it; it stands on a helper of tests, which changes"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for namespaces"),
    pytest.mark.timeout(900),
]
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "speed-reclaim"


def test_a_switch_is_measured_and_repeats_no_iteration() -> None:
    with prepared_image("chainermn"):
        done = subprocess.run([SCRIPT, "--runs", "1", "--json"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    seconds = json.loads(done.stdout)["seconds"]
    assert len(seconds["pause"]) == 1 and seconds["repeated"] == [0.0]
