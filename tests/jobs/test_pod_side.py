"""What runs beside the ranks: lines, progress, diagnoses, records and requests. Standard library only."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from jobs import names
from jobs.pod import diagnosis, protocol, requests
from jobs.pod.lines import LONGEST, Line, LineSplitter
from jobs.pod.progress import Progress
from jobs.pod.record import Record
from tests.contract.living import wait_until

POD = sorted((names.PROJECT / "jobs" / "pod").glob("*.py"))


@pytest.mark.parametrize("path", POD, ids=lambda path: path.name)
def test_the_pod_side_imports_the_standard_library_and_itself_only(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(), feature_version=(3, 8))):
        imported: list[str] = []
        if isinstance(node, ast.Import):
            imported = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            imported = [node.module or ""]
        for name in imported:
            top = name.partition(".")[0]
            assert top in sys.stdlib_module_names or top == "__future__", f"{path.name} imports {name}"


def cut(*pieces: bytes, stream: str = "o") -> list[Line]:
    splitter = LineSplitter(stream)
    found = [line for piece in pieces for line in splitter.feed(piece)]
    return found + splitter.end()


@pytest.mark.parametrize(
    ("pieces", "texts"),
    [
        ([b"a\nb\n"], ["a", "b"]),
        ([b"a", b"b\nc"], ["ab", "c"]),
        ([b"\n\n"], ["", ""]),
        ([], []),
        (["é\n".encode()[:1], "é\n".encode()[1:]], ["é"]),
        ([b"\xff\n"], ["\ufffd"]),
        ([b"0%\r50%\r100%\n"], ["100%"]),
        ([b"dos\r\n"], ["dos"]),
        ([b"\r\r\n"], [""]),
        ([b"bar 99%\r\n", b"next"], ["bar 99%", "next"]),
    ],
)
def test_bytes_become_lines_wherever_they_are_cut(pieces: list[bytes], texts: list[str]) -> None:
    assert [line.text for line in cut(*pieces)] == texts
    together = b"".join(pieces)
    assert [line.text for line in cut(*(together[i : i + 1] for i in range(len(together))))] == texts


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"[1,3]<stdout>: hello", Line(3, "o", "hello")),
        (b"[4711,0]<stderr>: hello", Line(0, "e", "hello")),
        (b"[1,0]<stdout>:hello", Line(0, "o", "hello")),
        (b"[1,0]<stdout>: ", Line(0, "o", "")),
        (b"plain [1,0]<stdout>: no", Line(None, "o", "plain [1,0]<stdout>: no")),
    ],
)
def test_mpirun_s_tag_becomes_rank_and_stream(text: bytes, line: Line) -> None:
    assert cut(text + b"\n") == [line]


def test_a_line_in_parts_is_put_together_per_rank_and_stream() -> None:
    parts = b"[0,0]<stdout>+: he\n[0,1]<stdout>+: wo\n[0,0]<stderr>: no\n[0,0]<stdout>: llo\n[0,1]<stdout>+: r\n"

    assert cut(parts) == [Line(0, "e", "no"), Line(0, "o", "hello"), Line(1, "o", "wor")]


def test_tagged_ranks_may_share_a_pipe_and_no_line_of_theirs_mixes() -> None:
    reading, writing = os.pipe()
    path = names.PROJECT / "jobs" / "pod" / "starter.py"
    code = "import os\nfor i in range(300): print(os.environ['RANK'], i, 'x' * (i * 40), 'end')\nprint('half', end='')"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-I", "-S", str(path), "--tag", "python3", "-u", "-c", code],
            stdout=writing,
            env={**os.environ, "RANK": str(rank)},
        )
        for rank in range(3)
    ]
    os.close(writing)
    splitter = LineSplitter("o")
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        lines = [line for data in iter(lambda: pipe.read(65536), b"") for line in splitter.feed(data)] + splitter.end()

    assert [rank.wait() for rank in ranks] == [0, 0, 0]
    for rank in range(3):
        said = [line.text for line in lines if line.rank == rank]
        assert said == [*(f"{rank} {i} {'x' * (i * 40)} end" for i in range(300)), "half"]


def test_a_line_without_end_is_cut_and_nothing_of_it_is_lost() -> None:
    data = b"x" * (3 * LONGEST + 5)
    found = cut(*(data[i : i + 65536] for i in range(0, len(data), 65536)))

    assert "".join(line.text for line in found) == data.decode() and len(found) == 4


PRTERUN = """\
--------------------------------------------------------------------------
prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-host-123@1,1]
   Exit code:    {code}
--------------------------------------------------------------------------"""
OPEN_MPI_4 = """\
--------------------------------------------------------------------------
mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[46239,1],2]
  Exit code:    3
--------------------------------------------------------------------------"""
KILLED = """\
--------------------------------------------------------------------------
prterun noticed that process rank 1 with PID 4711 on node host exited on
signal 9 (Killed).
--------------------------------------------------------------------------"""
TORCHRUN = """\
E1121 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: 1) local_rank: 0 (pid: 1) of binary: x
Traceback (most recent call last):
  File "/x/torch/distributed/run.py", line 900, in run
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-21_08:00:00
  host      : host
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 4710)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 4710
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_08:00:00
  host      : host
  rank      : 1 (local_rank: 1)
  exitcode  : {code} (pid: 4711)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================"""


def said(text: str, rank: int | None = None) -> list[Line]:
    return [Line(rank, "e", line) for line in text.splitlines()]


@pytest.mark.parametrize(
    ("code", "lines", "reason", "meant"),
    [
        (137, said(KILLED), "rank 1 was killed by SIGKILL", 137),
        (3, said(PRTERUN.format(code=3)), "rank 1 ended with exit code 3", 3),
        (3, said(OPEN_MPI_4), "rank 2 ended with exit code 3", 3),
        (
            1,
            [*said("ValueError: other", 0), *said("KeyError: 'conv1'", 1), *said(PRTERUN.format(code=1))],
            "rank 1 ended with exit code 1: KeyError: 'conv1'",
            1,
        ),
        (1, said(TORCHRUN.format(code=-9)), "rank 1 was killed by SIGKILL", -9),
        (
            1,
            [*said("ValueError: mine", 1), *said("KeyError: 'other'", 0), *said(TORCHRUN.format(code=78))],
            "rank 1 ended with exit code 78: ValueError: mine",
            78,
        ),
        (-9, [], "the launcher on node 2 was killed by SIGKILL", -9),
        (137, [], "the launcher on node 2 ended with exit code 137 (SIGKILL)", 137),
        (200, [], "the launcher on node 2 ended with exit code 200", 200),
        (127, said("x: no such command on PATH"), "the launcher on node 2 ended with exit code 127: x: no such", 127),
        (1, said("a.b.MyError: why\n---"), "the launcher on node 2 ended with exit code 1: a.b.MyError: why", 1),
        (4, [Line(None, "o", "stdout is no reason")], "the launcher on node 2 ended with exit code 4", 4),
    ],
)
def test_the_reason_of_an_end_is_told_from_code_and_last_lines(
    code: int, lines: list[Line], reason: str, meant: int
) -> None:
    assert diagnosis.describe(2, code, lines).startswith(reason)
    assert diagnosis.exit_code(code, lines) == meant


def test_a_launcher_that_succeeded_meant_it_whatever_it_printed() -> None:
    assert diagnosis.exit_code(0, said(TORCHRUN.format(code=3))) == 0


def test_progress_counts_iterations_and_signs_of_life() -> None:
    progress = Progress(100.0)
    assert not progress.alive

    progress.heard(101.0)
    assert progress.alive and progress.moved == 101.0
    progress.take(0, Line(0, "o", protocol.encode(protocol.METRIC, iteration=10, seconds=[0.1] * 10)), 110.0)
    assert (progress.first_iteration, progress.iteration, progress.moved) == (1, 10, 110.0)
    progress.heard(120.0)
    progress.take(0, Line(0, "o", protocol.encode(protocol.METRIC, iteration=10, seconds=[0.1])), 121.0)
    assert progress.moved == 110.0, "neither talk nor a repeated iteration is progress"


def test_a_pattern_reads_rank_zero_of_node_zero_and_each_iteration_once() -> None:
    progress = Progress(0.0, r"step (?P<iteration>\S+) loss (?P<loss>\S+)(?: lr (?P<lr>\S+))?")

    def take(node: int, rank: int | None, text: str) -> Any:
        return progress.take(node, Line(rank, "o", text), 1.0)

    assert take(0, None, "step 1 loss 0.5") == ("metric", {"iteration": 1, "loss": 0.5})
    assert take(0, None, "step 1 loss 0.6") is None, "another rank's"
    assert take(0, 1, "step 2 loss 0.6") is None
    assert take(1, 0, "step 2 loss 0.6") is None
    assert take(0, 0, "step 2 loss nan lr 1e-3") == ("metric", {"iteration": 2, "loss": None, "lr": 0.001})
    assert take(0, 0, "step three loss 1") is None
    assert take(0, 0, "step nan loss 1") is None
    assert take(0, 0, "step 4.0 loss x") == ("metric", {"iteration": 4, "loss": "x"})


@pytest.mark.parametrize(
    "text",
    ["", "{", "{}", '{"spotmpi": 1}', '{"spotmpi": "new kind"}', '{"spotmpi": "metric"', ' {"spotmpi": "metric"}'],
)
def test_what_is_no_protocol_line_is_plain_output(text: str) -> None:
    assert protocol.decode(text) is None


def test_a_protocol_line_has_no_number_that_json_lacks() -> None:
    text = protocol.encode(protocol.METRIC, iteration=1, loss=float("nan"), seconds=[float("inf"), 1.0])

    assert protocol.decode(text) == ("metric", {"iteration": 1, "loss": None, "seconds": [None, 1.0]})


def test_attempt_numbers_are_taken_once_even_by_two_agents(tmp_path: Path) -> None:
    first, second = Record(str(tmp_path)), Record(str(tmp_path))

    assert [first.take_attempt(), second.take_attempt(), first.take_attempt()] == [1, 2, 3]
    (tmp_path / "attempts" / "not a number").mkdir()
    (tmp_path / "attempts" / "41").mkdir()
    assert second.take_attempt() == 42
    first.close()
    second.close()


def test_a_writer_ends_the_torn_line_of_the_one_before_it(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text('{"t": 1, "event": "star')

    written = Record(str(tmp_path), clock=lambda: 2.0)
    written.event("started", attempt=1, reason=None)
    written.close()

    torn, whole = (tmp_path / "events.jsonl").read_text().splitlines()
    assert torn == '{"t": 1, "event": "star' and json.loads(whole) == {"t": 2.0, "event": "started", "attempt": 1}


def test_a_reader_never_meets_half_a_summary(tmp_path: Path) -> None:
    written = Record(str(tmp_path))
    written.replace("summary.json", {"a": 1})

    (tmp_path / "summary.json.part").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        written.replace("summary.json", {"a": 2})

    assert json.loads((tmp_path / "summary.json").read_text()) == {"a": 1}
    written.close()


def test_the_reserve_is_there_while_a_run_lives_and_gone_afterwards(tmp_path: Path) -> None:
    written = Record(str(tmp_path))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) > 100_000

    written.close()

    assert list(tmp_path.iterdir()) == []


def test_a_log_line_holds_time_rank_stream_and_text(tmp_path: Path) -> None:
    written = Record(str(tmp_path), clock=lambda: 1.5)
    written.line(3, 2, Line(1, "e", "two words  é"))
    written.line(3, 2, Line(None, "o", ""))
    written.close()

    text = (tmp_path / "logs" / "3" / "node-2.log").read_text()
    assert text == "1970-01-01T00:00:01.500000Z 1 e two words  é\n1970-01-01T00:00:01.500000Z - o \n"


def test_requests_are_whole_kill_beats_stop_and_clearing_forgets_them(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").touch()
    folder, asked = str(tmp_path), requests.Requests(str(tmp_path))
    assert asked.wanted() is None and not asked.urgent()

    requests.make(folder, requests.STOP, 'a reason with "quotes" and é')
    ending = asked.wanted()
    assert ending and ending.checkpoint_first and ending.outcome.reason == 'a reason with "quotes" and é'
    requests.make(folder, requests.KILL, "now")
    ending = asked.wanted()
    assert ending and not ending.checkpoint_first and asked.urgent()

    requests.clear(folder)
    requests.clear(folder)
    assert asked.wanted() is None


def test_many_may_ask_for_the_same_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as terminals:
        asking = [terminals.submit(requests.make, str(tmp_path), requests.STOP, str(n)) for n in range(200)]

    assert [asked.exception() for asked in asking] == [None] * 200
    assert [path.name for path in (tmp_path / "control").iterdir()] == ["stop"]


def test_an_empty_request_counts_without_a_reason(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").touch()
    (tmp_path / "control").mkdir()
    (tmp_path / "control" / "stop").touch()

    ending = requests.Requests(str(tmp_path)).wanted()

    assert ending and ending.outcome.reason is None


def starter(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    path = names.PROJECT / "jobs" / "pod" / "starter.py"
    return subprocess.run(
        [sys.executable, "-I", "-S", str(path), *arguments], capture_output=True, text=True, timeout=20, **more
    )


def test_the_starter_becomes_the_command(tmp_path: Path) -> None:
    variables = tmp_path / "environment.json"
    variables.write_text(json.dumps({"MINE": "é \n", "PATH": os.environ["PATH"]}))

    done = starter(
        "--env", str(variables), "python3", "-c", "import os, sys; print(os.environ['MINE'], sys.argv)", "a b"
    )

    assert done.returncode == 0 and done.stdout == "é \n ['-c', 'a b']\n"


def test_the_starter_tells_what_cannot_be_started(tmp_path: Path) -> None:
    assert starter("no-such-command").returncode == 127
    assert "no-such-command: no such command on PATH" in starter("no-such-command").stderr
    (tmp_path / "plain").touch()
    refused = starter(str(tmp_path / "plain"))
    assert refused.returncode == 126 and "cannot be run: Permission denied" in refused.stderr


@pytest.mark.parametrize(("code", "ended"), [("exit 7", 7), ("kill -9 $$", -9), ("kill -TERM $$", -15), ("true", 0)])
def test_a_tagged_rank_ends_as_its_command_does(code: str, ended: int) -> None:
    assert starter("--tag", "sh", "-c", code).returncode == ended


def test_a_tagged_rank_hands_signals_on_and_does_not_wait_for_what_its_command_leaves_behind() -> None:
    path = names.PROJECT / "jobs" / "pod" / "starter.py"
    code = "trap 'echo taken; exit 3' TERM; sleep 300 & echo up; wait"
    rank = subprocess.Popen(
        [sys.executable, "-I", "-S", str(path), "--tag", "sh", "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert rank.stdout is not None
    assert rank.stdout.readline() == "[0,0]<stdout>: up\n"

    rank.send_signal(signal.SIGTERM)

    assert rank.wait(timeout=10) == 3 and rank.stdout.read() == "[0,0]<stdout>: taken\n"
    os.killpg(rank.pid, signal.SIGKILL)


def test_a_bar_without_line_end_passes_through_a_tagged_rank() -> None:
    path = names.PROJECT / "jobs" / "pod" / "starter.py"
    rank = subprocess.Popen(
        [sys.executable, "-I", "-S", str(path), "--tag", "sh", "-c", "printf '10%%'; sleep 60"], stdout=subprocess.PIPE
    )
    assert rank.stdout is not None
    assert rank.stdout.readline() == b"[0,0]<stdout>+: 10%\n"
    rank.kill()
    rank.wait()


def test_a_rank_dies_with_its_launcher() -> None:
    path = names.PROJECT / "jobs" / "pod" / "starter.py"
    launcher = subprocess.Popen(
        ["sh", "-c", f"{sys.executable} -I -S {path} sh -c 'echo $$; exec sleep 300' & wait"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert launcher.stdout is not None
    rank = int(launcher.stdout.readline())

    launcher.send_signal(signal.SIGKILL)

    assert launcher.stdout.read() == ""  # the pipe closes when its last holder has gone
    launcher.wait()
    wait_until(lambda: _gone(rank))


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
