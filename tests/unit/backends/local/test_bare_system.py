"""A machine without /proc or its loopback interface, as a minimal container or sandbox is: one line says so."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

UNSHARE = ["unshare", "--map-root-user"]
POOL = 'launcher = "pool"\ncommand = ["true"]\n[pool]\ncount = 1\n'
REFUSED = "spotmpi: --on = 'local': "


def run_spotmpi(folder: Path, namespace: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*UNSHARE, *namespace, sys.executable, "-m", "spotmpi", "run", "--runs", "runs", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=folder)


def test_a_machine_without_proc_starts_nothing_whose_processes_it_could_not_find(tmp_path: Path) -> None:
    """Those that leave their session, as by setsid, would outlive the run."""
    hidden = ["--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]
    if not shutil.which("unshare") or subprocess.run([*UNSHARE, *hidden, "true"], capture_output=True).returncode:
        pytest.skip("may not mount here")
    result = run_spotmpi(tmp_path, hidden, "--", "true")
    needs = "runs on this machine need /proc, where their processes are found: mount -t proc proc /proc"
    assert (result.returncode, result.stderr) == (2, f"{REFUSED}{needs}\n")


def test_a_machine_without_a_loopback_interface_runs_what_needs_none(tmp_path: Path) -> None:
    if not shutil.which("unshare") or subprocess.run([*UNSHARE, "--net", "true"], capture_output=True).returncode:
        pytest.skip("needs a network namespace: unshare of util-linux, and a kernel that lets its user have one")
    (tmp_path / "pool.toml").write_text(POOL)
    result = run_spotmpi(tmp_path, ["--net"], "pool.toml")
    needs = "ranks and workers on this machine find each other at 127.0.0.1, which is down: ip link set lo up"
    assert (result.returncode, result.stderr) == (2, f"{REFUSED}{needs}\n")
    assert run_spotmpi(tmp_path, ["--net"], "--", "true").returncode == 0
