"""Run folders on this machine that are torn, deleted, read-only or full."""

from __future__ import annotations

import json
import os
import resource
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import record
from spotmpi.backends.local import backend
from spotmpi.backends.local.backend import LocalBackend
from spotmpi.core import names
from spotmpi.core.errors import SpotmpiError
from spotmpi.runs import reader
from tests import nfs
from tests.contract import processes
from tests.contract.conftest import BackendHarness
from tests.contract.event_values import texts
from tests.contract.fake_program import fake_job
from tests.contract.processes import wait_until
from tests.unit.backends.local_runs import paths_of, python, shell


def test_a_torn_line_in_any_file_of_a_run_hides_nothing_else(local: BackendHarness) -> None:
    run = local.submit(fake_job(iterations=3))
    events = local.events(run)
    paths = paths_of(local, run)
    for path in (paths.events, paths.metrics, paths.logs / "1" / "node-0.log"):
        head, rest = path.read_bytes().split(b"\n", 1)
        path.write_bytes(head + b"\n" + head[: len(head) // 2] + b"\n\xff\xfe\nnull\n[1]\n\n" + rest + b'{"t": 1, "ev')

    again = local.events(run)

    expected = [event.kind for event in events if event.kind != record.LINE]
    assert [event.kind for event in again if event.kind != record.LINE] == expected and "bye" in texts(again)
    assert local.backend.state(run).state == "succeeded" and local.backend.state(run).iteration == 3


def test_a_run_is_resumed_after_a_torn_last_line(local: BackendHarness) -> None:
    job = fake_job(iterations=4, fault={1: [2, "exit 1"]}, limits={"failures": 0})
    run = local.submit(job)
    local.wait_for_state(run, "failed")
    wait_until(lambda: not reader.alive(paths_of(local, run)))
    with paths_of(local, run).metrics.open("a") as file:
        file.write('{"t": 17, "kind": "met')

    local.resume(run, job)

    local.wait_for_state(run, "succeeded")
    metrics = [values for values in reader.lines(paths_of(local, run).metrics) if values["kind"] == "metric"]
    assert [values["iteration"] for values in metrics] == [1, 2, 3, 4]


def test_a_run_whose_folder_is_deleted_ends_and_its_follower_says_why(local: BackendHarness) -> None:
    run = local.submit(fake_job(iterations=10_000, pause=0.01))
    local.wait_for_iteration(run, 2)
    paths = paths_of(local, run)
    events = local.backend.events(run, follow=True)
    next(events)

    paths.folder.rename(paths.folder.with_name("moved away"))

    last = list(events)[-1]
    assert last.kind == "lost" and "was deleted" in (last.reason or "")
    wait_until(lambda: not processes.of_run(run) and not processes.agents(paths.folder))
    assert not paths.events.exists()


def test_a_file_in_place_of_the_run_folder_is_an_error_with_a_remedy(local: BackendHarness) -> None:
    folder: Path = local.backend.runs_folder  # type: ignore[attr-defined]
    folder.write_text("not a folder")

    with pytest.raises(Exception, match=r"Target.*FOLDER"):
        local.submit(shell("true"))

    assert folder.read_text() == "not a folder"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=repr)
def test_a_run_that_could_not_be_started_leaves_no_folder(
    local: BackendHarness, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def refuse(*arguments: Any) -> None:
        raise error

    monkeypatch.setattr(backend, "start_agent", refuse)
    nfs.keep_open_files(monkeypatch)  # where the lock's file is open

    with pytest.raises((SpotmpiError, KeyboardInterrupt)):
        local.submit(shell("true"))

    assert list(local.backend.runs_folder.iterdir()) == []  # type: ignore[attr-defined]


@pytest.fixture
def mount_tmpfs(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a small file system of its own with some options, where this user may."""
    if os.geteuid() != 0:
        pytest.skip("needs root for a file system of its own")
    mounts: list[Path] = []

    def mount(options: str) -> Path:
        folder = tmp_path / f"mounted-{len(mounts)}"
        folder.mkdir()
        result = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True)
        if result.returncode:
            pytest.skip("may not mount here")
        mounts.append(folder)
        return folder

    yield mount
    for folder in mounts:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path, block: int) -> Path:
    """Fill the file system with a file, in blocks of so many bytes; returns that file."""
    filler = folder / "filler"
    with filler.open("wb") as file, pytest.raises(OSError, match="No space left"):
        while True:
            os.write(file.fileno(), b"x" * block)
    return filler


def test_a_read_only_run_folder_is_a_one_line_error_and_nothing_is_started(mount_tmpfs: Callable[[str], Path]) -> None:
    local = BackendHarness(LocalBackend(mount_tmpfs("ro,size=1m")))

    with pytest.raises(Exception, match=r"cannot record the run in .*Read-only file system; use on=Target"):
        local.submit(shell("true"))


def test_a_file_system_without_locks_is_a_one_line_error_and_nothing_is_started(
    local: BackendHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its lock a run would count as lost."""
    monkeypatch.setattr(backend, "lock_file", lambda file: False)

    with pytest.raises(SpotmpiError, match=r"the file system of .* has no locks.*use --runs FOLDER"):
        local.submit(shell("true"))
    assert local.backend.list() == []


def test_a_full_disk_ends_the_run_with_its_reason_and_it_can_be_resumed_later(
    mount_tmpfs: Callable[[str], Path],
) -> None:
    folder = mount_tmpfs("size=2m")
    local = BackendHarness(LocalBackend(folder / "runs"))
    job = fake_job(iterations=10_000, pause=0.001, every=50)
    run = local.submit(job)
    local.wait_for_iteration(run, 100)
    filler = fill(folder, 4096)

    state = local.wait_for_state(run, "failed")

    assert "No space left on device; free some space, then resume the run" in (state.reason or "")
    wait_until(lambda: not processes.of_run(run))
    summary: Any = reader.summary(paths_of(local, run))
    assert summary and summary["attempts"][0]["last_iteration"] >= 100
    filler.unlink()
    local.resume(run, {**job, "env": {**job["env"], "FAKE_ITERATIONS": str(state.iteration or 0)}})
    local.wait_for_state(run, "succeeded")
    assert local.backend.state(run).attempt == 2


def test_a_run_can_be_stopped_while_the_disk_is_full(mount_tmpfs: Callable[[str], Path]) -> None:
    folder = mount_tmpfs("size=2m")
    local = BackendHarness(LocalBackend(folder / "runs"))
    run = local.submit(shell("echo up; sleep 60"))
    wait_until(lambda: (paths_of(local, run).logs / "1" / "node-0.log").exists())
    fill(folder, 512)

    local.backend.stop(run, "by a test", now=False)

    assert local.wait_for_state(run, "stopped").reason == "by a test"


def test_a_disk_that_a_program_has_filled_before_it_failed_is_the_reason(mount_tmpfs: Callable[[str], Path]) -> None:
    folder = mount_tmpfs("size=2m")
    local = BackendHarness(LocalBackend(folder / "runs"))
    run = local.submit(shell(f"cat /dev/zero > {folder}/filler 2> /dev/null; exit 1"))

    state = local.wait_for_state(run, "failed")

    # The first to be refused is the record of the attempt, once the program has ended without a word.
    assert "No space left on device; free some space, then resume the run" in (state.reason or "")
    summary = wait_until(lambda: reader.summary(paths_of(local, run)))
    assert summary and [attempt["cause"] for attempt in summary["attempts"]] == ["not retryable"]


def test_a_disk_with_room_for_little_more_than_the_spec_is_the_reason_of_the_run(
    mount_tmpfs: Callable[[str], Path],
) -> None:
    folder = mount_tmpfs("size=2m")
    local = BackendHarness(LocalBackend(folder / "runs"))
    filler = fill(folder, 4096)
    os.truncate(filler, filler.stat().st_size - 100 * 1024)

    run = local.submit(shell("true"))

    state = local.wait_for_state(run, "failed")
    assert "No space left on device; free some space, then resume the run" in (state.reason or "")
    filler.unlink()
    local.resume(run, shell("true"))
    local.wait_for_state(run, "succeeded")


def test_a_disk_that_is_full_at_the_start_loses_nothing_of_the_run(mount_tmpfs: Callable[[str], Path]) -> None:
    folder = mount_tmpfs("size=2m")
    local = BackendHarness(LocalBackend(folder / "runs"))
    job = fake_job(iterations=3, fault={1: [2, "exit 1"]}, limits={"failures": 0})
    run = local.submit(job)
    local.wait_for_state(run, "failed")
    paths = paths_of(local, run)
    wait_until(lambda: not reader.alive(paths))
    before = {path: path.read_bytes() for path in (paths.spec, paths.plan, paths.metrics)}
    fill(folder, 512)

    with pytest.raises(Exception, match="No space left"):
        local.resume(run, job)

    assert {path: path.read_bytes() for path in before} == before


def test_a_file_that_may_not_grow_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    paths = names.RunPaths(tmp_path / f"limited-{secrets.token_hex(4)}")  # its processes are found by this name
    local = BackendHarness(LocalBackend(tmp_path))
    spec = local.spec(python("while True: print('x' * 1000)"))
    plan = local.backend.plan(spec, paths.id, print)
    paths.folder.mkdir()
    paths.plan.write_text(json.dumps(plan))

    result = subprocess.run(
        [sys.executable, "-m", "spotmpi.agent", str(paths.folder)],
        cwd=names.SOURCE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000)),
        timeout=30,
    )

    assert result.returncode == 78
    last = list(reader.lines(paths.events))[-1]
    assert last["event"] == "failed" and "File too large" in last["reason"]
    assert not processes.of_run(paths.id)
