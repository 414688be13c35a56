"""What happens to runs on this machine when something is killed, hangs, fills up or is deleted."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs import names, runs
from jobs.backends.local import LocalBackend
from jobs.events import Event
from jobs.pod import record, supervisor
from tests.contract import living
from tests.contract.conftest import Somewhere
from tests.contract.fake_program import fake_job
from tests.contract.living import wait_until


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Somewhere]:
    """The local backend in a folder with spaces and quotes in its name; nothing may be left of its runs."""
    folder = tmp_path / 'runs of "O\'Neill" ünd 50%'
    monkeypatch.chdir(tmp_path)
    backend = LocalBackend(folder)
    yield Somewhere(backend)
    for state in backend.list():
        backend.stop(state.id, "the test is over", now=True)
        wait_until(lambda run=state.id: backend.state(run).over)  # type: ignore[misc]
        wait_until(lambda run=state.id: not living.of_run(run))  # type: ignore[misc]


def paths_of(here: Somewhere, run: str) -> names.RunPaths:
    return runs.find(run, here.backend.runs_folder)  # type: ignore[attr-defined]


def shell(text: str, **more: Any) -> dict[str, Any]:
    return {"command": ["sh", "-c", text], "launcher": "none", **more}


def python(code: str, **more: Any) -> dict[str, Any]:
    return {"command": ["python3", "-c", code], "launcher": "none", **more}


def texts(events: list[Event]) -> list[str]:
    return [event.values["text"] for event in events if event.kind == record.LINE]


def events_of(here: Somewhere, run: str) -> list[Event]:
    return list(here.backend.events(run, follow=True))


def rank_of(run: str) -> int:
    """The process of the fake program."""
    return wait_until(lambda: next((pid for pid, said in living.of_run(run).items() if "FAKE_" in said), 0))


def test_a_killed_rank_ends_the_attempt_and_the_next_goes_on_above_zero(here: Somewhere) -> None:
    run = here.submit(fake_job(iterations=40, pause=0.02, every=2))
    here.iteration_once(run, 5)

    os.kill(rank_of(run), signal.SIGKILL)

    state = here.state_once(run, "succeeded")
    assert (state.attempt, state.failures, state.interruptions) == (2, 1, 0)
    first, second = runs.attempts(paths_of(here, run))
    assert "SIGKILL" in first["reason"] and first["last_iteration"] >= 5
    assert second["resumed_iteration"] > 0
    assert second["lost_iterations"] == first["last_iteration"] - second["resumed_iteration"] <= 2


@pytest.mark.parametrize("which", [0, 1], ids=["the guard", "the one that it guards"])
def test_a_killed_supervisor_leaves_no_process_and_a_run_that_can_be_continued(here: Somewhere, which: int) -> None:
    job = fake_job(iterations=200, pause=0.02)
    run = here.submit(job)
    here.iteration_once(run, 3)
    folder = paths_of(here, run).folder
    both = living.supervisors(folder)
    assert len(both) == 2

    os.kill(both[which], signal.SIGKILL)
    if which == 0:  # without its guard it goes on until it is killed as well, and the ranks die with it
        os.kill(both[1], signal.SIGKILL)

    wait_until(lambda: not living.of_run(run) and not living.supervisors(folder))
    assert (here.state_once(run, "lost").iteration or 0) >= 3
    here.resume(run, {**job, "env": {**job["env"], "FAKE_PAUSE": "0.001"}})
    state = here.state_once(run, "succeeded")
    assert (state.attempt, state.iteration) == (2, 200)
    first, second = runs.summary(paths_of(here, run))["attempts"]  # type: ignore[index]
    assert first["cause"] == "interruption" and second["resumed_iteration"] >= 3


def test_a_killed_supervisor_takes_along_what_its_ranks_started_even_in_sessions_of_their_own(here: Somewhere) -> None:
    run = here.submit(shell("setsid sleep 300 & (sleep 301 & exec sleep 302) & echo up; exec sleep 303"))
    wait_until(lambda: len([said for said in living.of_run(run).values() if said.startswith("sleep 30")]) == 4)

    os.kill(living.supervisors(paths_of(here, run).folder)[1], signal.SIGKILL)

    wait_until(lambda: not living.of_run(run))


def test_a_follower_tells_that_the_supervisor_is_gone(here: Somewhere) -> None:
    run = here.submit(fake_job(iterations=1000, pause=0.02))
    here.iteration_once(run, 2)
    events = here.backend.events(run, follow=True)
    next(events)
    os.kill(living.supervisors(paths_of(here, run).folder)[1], signal.SIGKILL)

    last = list(events)[-1]

    assert last.kind == "failed" and f"--resume {run}" in (last.reason or "")


def test_sigterm_to_the_supervisor_is_notice_checkpoint_and_an_end_that_can_be_continued(here: Somewhere) -> None:
    run = here.submit(fake_job(iterations=1000, pause=0.02, every=100_000))
    here.iteration_once(run, 2)

    os.kill(living.supervisors(paths_of(here, run).folder)[0], signal.SIGTERM)

    stopped = here.state_once(run, "stopped")
    assert stopped.interruptions == 1 and "SIGTERM" in (stopped.reason or "")
    assert [event.values["reason"] for event in events_of(here, run) if event.values.get("kind") == "checkpoint"] == [
        "notice"
    ]


def test_a_child_that_ignores_sigterm_is_killed_soon_after(here: Somewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(300)"
    run = here.submit(python(code, checkpoint={"grace": "1s"}))
    wait_until(lambda: "deaf" in texts(list(here.backend.events(run, follow=False))))
    began = time.monotonic()

    here.backend.stop(run, "enough", now=False)

    here.state_once(run, "stopped")
    assert time.monotonic() - began < 8
    wait_until(lambda: not living.of_run(run))


def test_a_child_that_holds_the_pipe_open_does_not_keep_the_run_from_ending(here: Somewhere) -> None:
    run = here.submit(shell("sleep 300 & echo done"))

    assert here.state_once(run, "succeeded").state == "succeeded"
    wait_until(lambda: not living.of_run(run))


def test_a_checkpoint_that_never_becomes_whole_is_waited_for_as_long_as_grace_says(here: Somewhere) -> None:
    code = (
        "import os, signal, time; signal.signal(10, signal.SIG_IGN)\n"
        "open(os.environ['SPOTMPI_PID_FILE'], 'w').write(str(os.getpid())); print('up', flush=True); time.sleep(300)"
    )
    run = here.submit(python(code, checkpoint={"grace": "0.5s"}))
    wait_until(lambda: "up" in texts(list(here.backend.events(run, follow=False))))
    began = time.monotonic()

    here.backend.stop(run, "enough", now=False)

    here.state_once(run, "stopped")
    assert 0.5 < time.monotonic() - began < 5


def test_a_second_request_need_not_wait_for_the_first_ones_checkpoint(here: Somewhere) -> None:
    code = (
        "import os, signal, time; signal.signal(10, signal.SIG_IGN); signal.signal(15, signal.SIG_IGN)\n"
        "open(os.environ['SPOTMPI_PID_FILE'], 'w').write(str(os.getpid())); print('up', flush=True); time.sleep(300)"
    )
    run = here.submit(python(code, checkpoint={"grace": "60s"}))
    wait_until(lambda: "up" in texts(list(here.backend.events(run, follow=False))))
    here.backend.stop(run, "please", now=False)
    time.sleep(0.3)
    began = time.monotonic()

    here.backend.stop(run, "now", now=True)

    here.state_once(run, "stopped")
    assert time.monotonic() - began < 3


def test_two_terminals_may_stop_at_once(here: Somewhere) -> None:
    run = here.submit(fake_job(iterations=1000, pause=0.02))
    here.iteration_once(run, 2)
    command = [str(Path(sys.executable).with_name("spotmpi")), "stop", run, "--json"]
    command += ["--runs", str(here.backend.runs_folder)]  # type: ignore[attr-defined]

    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]

    said = [process.communicate(timeout=30)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert [json.loads(text)["state"] for text in said] == ["stopped", "stopped"]


def test_a_hundred_thousand_quick_lines_all_arrive_in_order(here: Somewhere) -> None:
    events = here.all_events(python("for i in range(100_000): print(i, 'x' * 40)"))

    lines = [event for event in events if event.kind == record.LINE]
    assert [line.values["text"].split()[0] for line in lines] == [str(i) for i in range(100_000)]
    assert [line.number for line in lines] == list(range(1, 100_001))
    assert events[-1].kind == "succeeded"


def test_output_of_any_kind_becomes_lines(here: Somewhere) -> None:
    code = r"""
import sys
out = sys.stdout.buffer
out.write(b"long " + b"x" * 3_000_000 + b"\n")
out.write(b"not utf-8: \xff\xfe\n")
out.write(b"10%\r 50%\r100%\r\n")
out.write(b"windows\r\n")
out.write(b"\n")
out.write("separators \x0b \x0c \x85 \u2028 stay\n".encode())
out.write(b"zero \0 byte\n")
out.write(b'{"spotmpi": "metric", "iteration": "three"}\n')
out.write(b'{"spotmpi": "metric", "iterat\n')
out.write(b'{"spotmpi": ["metric"]}\n')
out.write(b"no end of line")
"""
    said = texts(here.all_events(python(code)))

    longest = [text for text in said if text.startswith(("long", "xxx"))]
    assert "".join(longest) == "long " + "x" * 3_000_000
    assert said[len(longest) :] == [
        "not utf-8: \ufffd\ufffd",
        "100%",
        "windows",
        "",
        "separators \x0b \x0c \x85 \u2028 stay",
        "zero  byte",
        '{"spotmpi": "metric", "iteration": "three"}',
        '{"spotmpi": "metric", "iterat',
        '{"spotmpi": ["metric"]}',
        "no end of line",
    ]


def test_a_progress_bar_without_line_ends_is_a_sign_of_life_and_of_progress(here: Somewhere) -> None:
    code = "import time\nfor i in range(20): print(f'\\r{i}', end='', flush=True); time.sleep(0.1)"
    state = here.state_once(here.submit(python(code, limits={"start": "1s", "no_progress": "0.8s"})), "succeeded")

    assert state.attempt == 1


def test_a_program_may_name_its_scalars_as_it_likes(here: Somewhere) -> None:
    code = """print('{"spotmpi":"metric","iteration":1,"t":5,"node":7,"kind":"x","attempt":9,"event":"failed"}')"""
    events = here.all_events(python(code))

    metric = next(event for event in events if event.kind == record.METRIC)
    assert (metric.attempt, metric.node, metric.values["kind"], metric.values["iteration"]) == (1, 0, "metric", 1)
    assert events[-1].kind == "succeeded"


def test_the_program_gets_the_users_environment_and_nothing_of_a_launcher_around_it(
    here: Somewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    monkeypatch.setenv("PMIX_RANK", "3")
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setenv("OMPI_MCA_pml", "ob1")
    code = "import json, os; print(json.dumps(dict(os.environ)))"

    told = json.loads(texts(here.all_events(python(code)))[0])

    assert told["PYTHONPATH"] == "/mine" and told["OMPI_MCA_pml"] == "ob1"
    assert not {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "LOCAL_RANK"} & set(told)


def test_a_continued_run_starts_in_the_folder_where_it_started_first(
    here: Somewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = shell("pwd; test -e go-on", limits={"failures": 0})
    run = here.submit(job)
    here.state_once(run, "failed")
    (tmp_path / "go-on").touch()
    monkeypatch.chdir("/")

    here.resume(run, job)

    here.state_once(run, "succeeded")
    assert texts(events_of(here, run)) == [str(tmp_path)] * 2


def test_a_torn_line_in_any_file_of_a_run_hides_nothing_else(here: Somewhere) -> None:
    run = here.submit(fake_job(iterations=3))
    events = events_of(here, run)
    paths = paths_of(here, run)
    for path in (paths.events, paths.metrics, paths.logs / "1" / "node-0.log"):
        head, rest = path.read_bytes().split(b"\n", 1)
        path.write_bytes(head + b"\n" + head[: len(head) // 2] + b"\n\xff\xfe\nnull\n[1]\n\n" + rest + b'{"t": 1, "ev')

    again = events_of(here, run)

    def told(events: list[Event]) -> list[str]:
        return [event.kind for event in events if event.kind != record.LINE]

    assert told(again) == told(events) and "bye" in texts(again)
    assert here.backend.state(run).state == "succeeded" and here.backend.state(run).iteration == 3


def test_a_run_is_continued_behind_a_torn_last_line(here: Somewhere) -> None:
    job = fake_job(iterations=4, fault={1: [2, "exit 1"]}, limits={"failures": 0})
    run = here.submit(job)
    here.state_once(run, "failed")
    wait_until(lambda: not runs.alive(paths_of(here, run)))
    with paths_of(here, run).metrics.open("a") as file:
        file.write('{"t": 17, "kind": "met')

    here.resume(run, job)

    here.state_once(run, "succeeded")
    metrics = [values["iteration"] for values in runs.lines(paths_of(here, run).metrics) if values["kind"] == "metric"]
    assert metrics == [1, 2, 3, 4]


def test_a_run_whose_folder_is_deleted_ends_and_its_follower_says_why(here: Somewhere) -> None:
    run = here.submit(fake_job(iterations=10_000, pause=0.01))
    here.iteration_once(run, 2)
    paths = paths_of(here, run)
    events = here.backend.events(run, follow=True)
    next(events)

    paths.folder.rename(paths.folder.with_name("moved away"))

    last = list(events)[-1]
    assert last.kind == "failed" and "was deleted" in (last.reason or "")
    wait_until(lambda: not living.of_run(run) and not living.supervisors(paths.folder))
    assert not paths.events.exists()


def test_a_file_where_the_run_folder_should_be_is_told_with_a_remedy(here: Somewhere) -> None:
    folder: Path = here.backend.runs_folder  # type: ignore[attr-defined]
    folder.write_text("not a folder")

    with pytest.raises(Exception, match="--runs FOLDER"):
        here.submit(shell("true"))

    assert folder.read_text() == "not a folder"


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a small file system of its own with some options, where this user may."""
    if os.geteuid() != 0:
        pytest.skip("needs root for a file system of its own")
    made: list[Path] = []

    def mount(options: str) -> Path:
        place = tmp_path / f"mounted-{len(made)}"
        place.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], capture_output=True)
        if done.returncode:
            pytest.skip("may not mount here")
        made.append(place)
        return place

    yield mount
    for place in made:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_read_only_run_folder_is_told_in_one_line_and_nothing_is_started(mounted: Callable[[str], Path]) -> None:
    here = Somewhere(LocalBackend(mounted("ro,size=1m")))

    with pytest.raises(Exception, match=r"cannot record the run in .*Read-only file system; use --runs FOLDER"):
        here.submit(shell("true"))


def test_a_full_disk_ends_the_run_with_its_reason_and_it_goes_on_once_there_is_room(
    mounted: Callable[[str], Path],
) -> None:
    place = mounted("size=2m")
    here = Somewhere(LocalBackend(place / "runs"))
    job = fake_job(iterations=10_000, pause=0.001, every=50)
    run = here.submit(job)
    here.iteration_once(run, 100)
    filler = place / "filler"
    with filler.open("wb") as file, pytest.raises(OSError, match="No space left"):
        while True:
            os.write(file.fileno(), b"x" * 4096)

    state = here.state_once(run, "failed")

    assert "No space left on device; free some space, then --resume" in (state.reason or "")
    wait_until(lambda: not living.of_run(run))
    summary = runs.summary(paths_of(here, run))
    assert summary and summary["attempts"][0]["last_iteration"] >= 100
    filler.unlink()
    here.resume(run, {**job, "env": {**job["env"], "FAKE_ITERATIONS": str(state.iteration or 0)}})
    here.state_once(run, "succeeded")
    assert here.backend.state(run).attempt == 2


def test_a_disk_that_is_full_at_the_start_loses_nothing_of_the_run(mounted: Callable[[str], Path]) -> None:
    place = mounted("size=2m")
    here = Somewhere(LocalBackend(place / "runs"))
    job = fake_job(iterations=3, fault={1: [2, "exit 1"]}, limits={"failures": 0})
    run = here.submit(job)
    here.state_once(run, "failed")
    paths = paths_of(here, run)
    wait_until(lambda: not runs.alive(paths))
    before = {path: path.read_bytes() for path in (paths.spec, paths.plan, paths.metrics)}
    with (place / "filler").open("wb") as file, pytest.raises(OSError, match="No space left"):
        while True:
            os.write(file.fileno(), b"x" * 512)

    with pytest.raises(Exception, match="No space left"):
        here.resume(run, job)

    assert {path: path.read_bytes() for path in before} == before


def test_a_file_that_may_not_grow_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    paths = names.RunPaths(tmp_path / "limited")
    here = Somewhere(LocalBackend(tmp_path))
    spec = here.spec(python("while True: print('x' * 1000)"))
    plan = here.backend.plan(spec, paths.id)
    paths.folder.mkdir()
    paths.plan.write_text(json.dumps(plan))

    done = subprocess.run(
        [sys.executable, "-m", "jobs.pod.supervisor", str(paths.folder)],
        cwd=names.PROJECT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000)),
        timeout=30,
    )

    assert done.returncode == 1
    last = list(runs.lines(paths.events))[-1]
    assert last["event"] == "failed" and "File too large" in last["reason"]
    assert not living.of_run(paths.id)


def test_a_command_that_disappears_is_told_by_name(here: Somewhere, tmp_path: Path) -> None:
    program = tmp_path / "mine"
    program.write_text("#!/nowhere/python\n")
    program.chmod(0o755)

    events = here.all_events({"command": [str(program)], "launcher": "none", "limits": {"failures": 0}})

    assert str(program) in (events[-1].reason or "") and "no such command" in (events[-1].reason or "")


def test_the_supervisors_own_fault_ends_the_run_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(self: Any) -> int:
        raise RuntimeError("a bug")

    monkeypatch.setattr(supervisor.Supervisor, "run", broken)
    assert supervisor._supervise(str(tmp_path), {}) == 1

    last = list(runs.lines(tmp_path / "events.jsonl"))[-1]
    assert last["event"] == "failed" and "RuntimeError('a bug')" in last["reason"]
    assert "a bug" in capfd.readouterr().err
