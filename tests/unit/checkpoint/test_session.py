"""`spotmpi.checkpoint.save` and `load` in a process of their own, as a program that spotmpi knows nothing of."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spotmpi
from spotmpi.agent import protocol
from spotmpi.checkpoint import WrongIdentity, session
from spotmpi.checkpoint.session import Session
from tests.clocks import SetClock


def environment(folder: Path, **variables: str) -> dict[str, str]:
    return {
        protocol.ENV_RUN: "mine-1",
        protocol.ENV_CHECKPOINT_PATH: str(folder / "checkpoints"),
        protocol.ENV_CHECKPOINT_EVERY: "60",
        protocol.ENV_CHECKPOINT_KEEP: "2",
        **variables,
    }


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process as the only rank of a run; the folder of its checkpoints."""
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(session, "_session", None)
    return tmp_path / "checkpoints"


def lines(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, Any]]:
    decoded = [protocol.decode(line) for line in capsys.readouterr().out.splitlines()]
    return [(kind, values.get("iteration")) for kind, values in filter(None, decoded)]


def test_what_was_saved_last_is_loaded_after_a_restart(
    rank: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spotmpi.checkpoint.load() is None
    for iteration in (1, 2, 3):
        spotmpi.checkpoint.save(iteration, {"weights": np.full(3, iteration)}, now=iteration > 1)
    monkeypatch.setattr(session, "_session", None)

    found = spotmpi.checkpoint.load()

    assert found is not None and found.iteration == 3 and found.state["weights"].tolist() == [3, 3, 3]
    assert sorted(path.name for path in rank.iterdir()) == ["iteration-000000002", "iteration-000000003"]
    assert lines(capsys) == [("checkpoint", 2), ("checkpoint", 3), ("resumed", 3)]


def test_a_state_is_asked_for_at_first_and_when_a_checkpoint_is_due(tmp_path: Path) -> None:
    clock = SetClock()
    asked: list[float] = []
    own = Session(environment(tmp_path), "", clock.uptime)

    def state() -> dict[str, int]:
        asked.append(clock.uptime())
        return {}

    for iteration in range(1, 131):
        clock.sleep(1)
        own.save(iteration, state, now=False)

    assert len(asked) == 3 and asked[2] - asked[1] == 60


@pytest.mark.parametrize("variables", [{}, {protocol.ENV_CHECKPOINT_PATH: ""}], ids=["run", "by hand"])
def test_a_state_that_cannot_be_saved_is_an_error_of_the_first_call(tmp_path: Path, variables: dict[str, str]) -> None:
    own = Session(environment(tmp_path, **variables), "", SetClock().uptime)
    with pytest.raises(TypeError, match="the state has a value of type object at optimizer/rng"):
        own.save(1, {"optimizer": {"rng": object()}}, now=False)


def test_arguments_in_the_order_of_torch_save_are_an_error_of_the_first_call(tmp_path: Path) -> None:
    own = Session(environment(tmp_path), "", SetClock().uptime)
    wrong: Any = {"step": 1}
    with pytest.raises(TypeError, match=r"number of iterations, and is of type dict: save\(iteration, state\)"):
        own.save(wrong, {}, now=False)


def test_the_state_of_the_last_call_is_written_even_where_its_iteration_has_a_checkpoint(tmp_path: Path) -> None:
    """As where an iteration is an epoch, after which a checkpoint is always due, and the last state an average."""
    clock = SetClock()
    own = Session(environment(tmp_path), "", clock.uptime)
    clock.sleep(60)
    own.save(7, {"w": 1, "momentum": 2}, now=False)
    own.save(7, {"w": 3}, now=True)

    loaded = own.load()
    assert loaded and (loaded.iteration, loaded.state) == (7, {"w": 3})


def test_a_rank_that_is_killed_as_it_replaces_a_checkpoint_leaves_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old one was removed first, of large states file by file; with checkpoint.keep = 1 nothing was left."""
    own = Session(environment(tmp_path), "", SetClock().uptime)
    own.save(7, {"w": 1}, now=True)
    remove = shutil.rmtree

    def killed(path: str, **options: Any) -> None:
        remove(path, **options)
        raise SystemExit(137)

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr("spotmpi.agent.checkpoint_files.shutil.rmtree", killed)
        own.save(7, {"w": 2}, now=True)

    loaded = Session(environment(tmp_path), "", SetClock().uptime).load()
    assert loaded and (loaded.iteration, loaded.state) == (7, {"w": 2})
    assert [path.name for path in Path(tmp_path, "checkpoints").iterdir()] == ["iteration-000000007"]


def test_a_number_of_numpy_is_the_iteration_of_a_checkpoint(tmp_path: Path) -> None:
    own = Session(environment(tmp_path), "", SetClock().uptime)
    number: Any = np.int64(7)
    own.save(number, {"w": 1}, now=True)
    loaded = own.load()
    assert loaded and (loaded.iteration, loaded.state) == (7, {"w": 1})


def test_a_checkpoint_of_another_identity_is_refused_and_stays(rank: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spotmpi.checkpoint.save(1, {}, identity="small", now=True)
    with pytest.raises(ValueError, match="identity 'large' of this call is not 'small', that of the first one"):
        spotmpi.checkpoint.save(2, {}, identity="large")
    monkeypatch.setattr(session, "_session", None)

    with pytest.raises(WrongIdentity, match=r"iteration-000000001 belongs to identity small \(not large\)"):
        spotmpi.checkpoint.load(identity="large")

    assert (rank / "iteration-000000001" / "manifest.json").exists()


def test_a_checkpoint_that_cannot_be_written_is_a_line_and_not_the_end(
    rank: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "fsync", refuse)
        spotmpi.checkpoint.save(1, {}, now=True)

    problem = f"checkpoint of iteration 1 not written: {rank}: No space left on device; free space there; earlier ones"
    assert problem in capsys.readouterr().err
    assert list(rank.iterdir()) == []


def test_without_a_run_nothing_is_saved_and_a_line_says_so_once(
    rank: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(protocol.ENV_CHECKPOINT_PATH)
    assert spotmpi.checkpoint.load() is None
    spotmpi.checkpoint.save(1, {}, now=True)

    assert capsys.readouterr().err == (
        "no checkpoints: SPOTMPI_CHECKPOINT_PATH is not set, as it is under `spotmpi run`\n"
    )


def test_other_ranks_write_nothing_and_get_what_rank_0_has(rank: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spotmpi.checkpoint.save(7, {"a": 1}, now=True)
    shared: list[Any] = []
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")

    def send(value: Any) -> Any:
        shared.append(value)
        return value

    spotmpi.checkpoint.load(broadcast=send)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setattr(session, "_session", None)

    assert spotmpi.checkpoint.load(broadcast=lambda value: shared[0]) == (7, {"a": 1})
    spotmpi.checkpoint.save(8, {"a": 2}, now=True)
    assert [path.name for path in rank.iterdir()] == ["iteration-000000007"]


def test_an_error_of_rank_0_is_one_of_every_rank(rank: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(WrongIdentity, match="as rank 0"):
        spotmpi.checkpoint.load(broadcast=lambda value: (None, WrongIdentity("as rank 0")))


def test_several_ranks_without_a_way_to_reach_each_other_are_refused(
    rank: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match=r"call init_process_group or import mpi4py\.MPI before, or pass broadcast"):
        spotmpi.checkpoint.load()


NOTICED = """
import os, signal, spotmpi
assert spotmpi.checkpoint.load() is None
spotmpi.checkpoint.save(1, {{}})
os.kill(int(open(os.environ["SPOTMPI_PID_FILE"]).read()), signal.SIGUSR1)
spotmpi.checkpoint.save(2, {{"a": {value}}})
spotmpi.checkpoint.save(3, {{}})
"""


@pytest.mark.parametrize("value", ["b'bytes'", "'text'"])
def test_a_notice_is_a_checkpoint_in_the_next_save_without_numpy_or_any_other_package(
    tmp_path: Path, value: str
) -> None:
    variables = environment(tmp_path, SPOTMPI_PID_FILE=str(tmp_path / "pid"), PYTHONPATH="jobs")
    command = [sys.executable, "-S", "-c", NOTICED.format(value=value)]
    ran = subprocess.run(command, env=variables, capture_output=True, text=True, cwd=spotmpi.__path__[0] + "/../..")

    assert ran.returncode == 0, ran.stderr
    (line,) = map(json.loads, ran.stdout.splitlines())
    assert (line["spotmpi"], line["iteration"], line["reason"]) == ("checkpoint", 2, "notice")


def test_a_programs_own_handler_of_a_notice_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "getsignal", lambda number: print)
    Session(environment(tmp_path, SPOTMPI_PID_FILE=str(tmp_path / "pid")), "")

    assert not (tmp_path / "pid").exists()
