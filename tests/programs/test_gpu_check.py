"""The GPU check says 'not run' with the reason where it cannot run, and never takes a failure for a success."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts import gpu_check
from scripts.gpu_check import CHECKS, Check, command, describe_result, gpus, main
from spotmpi.agent import protocol

DIGITS = Check("pytorch", "digits", ("--backend", "nccl"))


def test_without_nvidias_tool_everything_is_not_run_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert main() == 0

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(CHECKS)
    assert all(line.endswith("not run: no NVIDIA GPU: nvidia-smi is not on PATH") for line in lines)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            "echo No devices were found >&2; exit 6",
            (0, "no NVIDIA GPU: nvidia-smi printed 'No devices were found'"),
        ),
        ("echo 'GPU 0: Tesla V100 (UUID: a)'; echo 'GPU 1: Tesla V100 (UUID: b)'", (2, "")),
    ],
)
def test_gpus_are_counted_and_a_tool_that_finds_none_gives_its_own_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, expected: tuple[int, str]
) -> None:
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{answer}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert gpus() == expected


def test_on_one_gpu_two_ranks_share_it_as_if_on_two_nodes(tmp_path: Path) -> None:
    two = Check("pytorch", "digits", ("--backend", "nccl"), 2)
    shared, apart = command(two, Path("/env"), 1), command(two, Path("/env"), 2)
    assert shared[:3] == apart[:3] == ["/env/bin/mpirun", "-np", "2"]
    place = shared.index("scripts.gpu_rank")
    assert [*shared[:place], *shared[place + 1 :]] == apart


def test_a_rank_that_shares_a_gpu_is_the_only_one_of_a_host_to_nccl_and_chainermn(tmp_path: Path) -> None:
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("from types import SimpleNamespace as MPI\nMPI = MPI()\n")
    (tmp_path / "program.py").write_text(
        "import os, sys; from mpi4py import MPI\n"
        "print(MPI.Get_processor_name(), sys.argv[1:], os.environ['NCCL_HOSTID'])\n"
        "print(os.environ['OMPI_COMM_WORLD_LOCAL_RANK'])\n"
    )
    environment = {"PYTHONPATH": f"{tmp_path}:{Path(gpu_check.__file__).parents[1]}", "OMPI_COMM_WORLD_RANK": "1"}
    rank = [sys.executable, "-m", "scripts.gpu_rank", "program", "--x", "1"]
    done = subprocess.run(rank, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["host-1 ['--x', '1'] host-1", "0"]


def test_only_the_checks_of_one_image_run_on_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_check, "_run", lambda check, count: "ok: here")
    assert main(lambda: (1, ""), ["pytorch"]) == 0
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()} == {"pytorch"}


def test_one_failure_fails_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "_run", lambda check, count: "failed: x" if check is CHECKS[3] else "ok: y")

    assert main(lambda: (2, "")) == 1


def test_every_gpu_gets_a_rank() -> None:
    assert command(DIGITS, Path("/env"), 4)[:3] == ["/env/bin/mpirun", "-np", "4"]
    assert command(DIGITS, Path("/env"), 1)[:3] == ["/env/bin/mpirun", "-np", "1"]


@pytest.mark.parametrize(
    ("output", "code", "verdict"),
    [
        (protocol.encode(protocol.RESULT, accuracy=0.97, loss=0.1), 0, "ok: accuracy 0.97, loss 0.1"),
        (protocol.encode(protocol.RESULT, accuracy=0.5), 0, "failed: accuracy 0.500 after 200 iterations"),
        (protocol.encode(protocol.RESULT, accuracy=0.97), 1, "failed (exit 1): no output"),
        (protocol.encode(protocol.FATAL, reason="no NCCL") + "\nnoise", 78, "failed (exit 78): no NCCL"),
        ("Traceback\nOSError: gone\n", 1, "failed (exit 1): OSError: gone"),
        ("", 0, "failed (exit 0): no output"),
    ],
)
def test_only_a_good_result_is_ok(output: str, code: int, verdict: str) -> None:
    assert describe_result(DIGITS, output, code).startswith(verdict)


def test_every_option_of_the_checks_is_one_that_the_programs_have() -> None:
    programs = Path(gpu_check.__file__).parents[1] / "jobs" / "spotmpi" / "programs"
    for check in CHECKS:
        source = "".join(path.read_text() for path in [*(programs / check.image).glob("*.py"), programs / "options.py"])
        assert all(option in source for option in check.options if option.startswith("--")), check.title
