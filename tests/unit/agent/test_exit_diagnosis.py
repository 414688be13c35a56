"""The reason why a launcher ended, from its exit code and last lines."""

from __future__ import annotations

import pytest

from spotmpi.agent import launcher_output
from spotmpi.agent.launcher_output import Line


def banner(text: str) -> str:
    """A message as Open MPI prints it, between two rules."""
    return f"{'-' * 74}\n{text}{'-' * 74}"


PRTERUN = banner("""\
prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-host-123@1,1]
   Exit code:    {code}
""")
OPEN_MPI_4 = banner("""\
mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[46239,1],2]
  Exit code:    3
""")
KILLED = banner("""\
prterun noticed that process rank 1 with PID 4711 on node host exited on
signal 9 (Killed).
""")
KILLED_4 = """\
--------------------------------------------------------------------------
Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
--------------------------------------------------------------------------
--------------------------------------------------------------------------
mpirun noticed that process rank 0 with PID 0 on node digits-1-node-0-0 exited on signal 11 (Segmentation fault).
--------------------------------------------------------------------------"""
ABORTED = banner("""\
prterun has exited due to process rank 1 with PID 0 on node host calling
"abort". This may have caused other processes in the application to be
terminated by signals sent by prterun (as reported here).
""")
ABORTED_4 = banner("""\
MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD
with errorcode 3.

NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.
You may or may not see output from other processes, depending on
exactly when Open MPI kills them.
""")
ABORTED_WITH_MPIRUN_4 = "[host:15437] [[20659,0],0] ORTE_ERROR_LOG: Out of resource in file show_help.c at line 501"
WRONG_USE_4 = """\
[host:15619] *** An error occurred in MPI_Send
[host:15619] *** on communicator MPI_COMM_WORLD
[host:15619] *** MPI_ERR_RANK: invalid rank
[host:15619] *** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,
[host:15619] ***    and potentially your MPI job)"""
DEPARTURE = banner("""\
prterun has exited due to process rank 1 with PID 16991 on node host exiting
improperly. There are three reasons this could occur:

You can avoid this message by specifying -quiet on the prterun command
line.
""")
DEPARTURE_4 = banner("""\
mpirun has exited due to process rank 1 with PID 17639 on
node host exiting improperly. There are three reasons this could occur:

You can avoid this message by specifying -quiet on the mpirun command line.
""")
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
_OTHER, _ROOT = TORCHRUN.index("[1]:"), TORCHRUN.index("Root Cause")
TORCHRUN_ALONE = f"{TORCHRUN[:_OTHER]}  <NO_OTHER_FAILURES>\n{TORCHRUN[_ROOT:]}"

LOST = banner("""\
{family} has lost communication with a remote daemon.

  HNP daemon   : [prterun-digits-1-node-0-0-14@0,0] on node digits-1-node-0-0
  Remote daemon: [prterun-digits-1-node-0-0-14@0,1] on node digits-1-node-0-1

This is usually due to either a failure of the TCP network
connection to the node, or possibly an internal failure of
the daemon itself. We cannot recover from this failure, and
therefore will terminate the job.
""")
DAEMON = "lost digits-1-node-0-1: mpirun's daemon on it no longer answers"

# Open MPI 5.0.11 on Slurm 24.11, whose mpirun exited with 0 after `scontrol requeue`, with the text of srun's status.
SRUN = banner("""\
srun returned non-zero exit status ({status}) from launching
the per-node daemon. You may debug this problem further
by augmenting the cmd line with:

* "--debug-daemons"
* "--leave-session-attached"
* "--prtemca plm_base_verbose N" where N > 0
""")
NO_CONTROLLER = "srun: error: Unable to create step for job 7: Unable to contact slurm controller (connect failure)"
ALONE = " without slurmctld, which did not answer it"
SRUN_END = "the srun of mpirun's daemons "


# Open MPI 5 on the test cluster.
FASTER_CHILD = "[r-node-0-0:00013] plm:ssh: Warning: setpgid(16,16) failed in parent with errno=Permission denied(13)"
LAUNCHER = "the launcher on node 2"
SIGNALED = (
    "mpirun on node 2 exited with 1 and named no rank, as after SIGTERM, SIGINT or SIGHUP from outside of the run"
)


def err(text: str, rank: int | None = None) -> list[Line]:
    return [Line(rank, "e", line) for line in text.splitlines()]


NO_SCRIPT = "python: can't open file '/code/a b.py': [Errno 2] No such file or directory"  # Python 3.8 to 3.14
NO_MODULE = (
    "/venv/bin/python: Error while finding module specification for 'x.y' (ModuleNotFoundError: No module named 'x')"
)
MINE, OTHER = err("ValueError: mine", 1), err("KeyError: other", 0)
OF_TORCH = err("[rank1]: Traceback (most recent call last):\n[rank1]: RuntimeError: of x:\n[rank1]: \tsize", 1)
OF_ANY_NAME = err("Traceback (most recent call last):\n  File y, line 1\nmy.Odd: of y:\nmore", 1)
SCHEDULER = "node 0: the scheduler was killed by SIGKILL"


@pytest.mark.parametrize(
    ("code", "lines", "reason", "effective"),
    [
        (137, err(KILLED), "rank 1 was killed by SIGKILL", 137),
        (1, err(f"{SCHEDULER}\nCommClosedError: Stream is closed"), SCHEDULER, 1),
        (139, err(KILLED_4), "rank 0 was killed by SIGSEGV", 139),
        (3, err(PRTERUN.format(code=3)), "rank 1 ended with exit code 3", 3),
        (3, err(OPEN_MPI_4), "rank 2 ended with exit code 3", 3),
        (1, [*OTHER, *MINE, *err(PRTERUN.format(code=1))], "rank 1 ended with exit code 1: ValueError: mine", 1),
        (3, [*OTHER, *err(PRTERUN.format(code=3))], "rank 1 ended with exit code 3", 3),
        (1, [*OF_TORCH, *err(TORCHRUN.format(code=1))], "rank 1 ended with exit code 1: RuntimeError: of x:", 1),
        (1, [*OF_ANY_NAME, *err(TORCHRUN.format(code=1))], "rank 1 ended with exit code 1: my.Odd: of y:", 1),
        (2, [*err(NO_SCRIPT, 1), *err(PRTERUN.format(code=2))], f"rank 1 ended with exit code 2: {NO_SCRIPT}", 2),
        (1, [*err(NO_MODULE, 1), *err(PRTERUN.format(code=1))], f"rank 1 ended with exit code 1: {NO_MODULE}", 1),
        (134, err(KILLED.replace("signal 9 (Killed)", "signal 99")), "rank 1 was killed by signal 99", 134),
        (3, err(ABORTED), "rank 1 called MPI_Abort with 3", 3),
        (3, [*err(ABORTED), *OTHER], "rank 1 called MPI_Abort with 3", 3),
        (78, [*MINE, *err(ABORTED_4)], "rank 1 called MPI_Abort with 78: ValueError: mine", 78),
        (1, [*OTHER, *err(ABORTED_WITH_MPIRUN_4)], f"{LAUNCHER} ended with exit code 1: KeyError: other", 1),
        (6, [*err(WRONG_USE_4, 1), *err(ABORTED)], "rank 1 called MPI_Abort with 6: MPI_ERR_RANK: invalid rank", 6),
        (6, err(WRONG_USE_4), f"{LAUNCHER} ended with exit code 6: MPI_ERR_RANK: invalid rank", 6),
        (75, err(f"{ABORTED_4}\n{LOST}"), DAEMON, 75),
        (1, err(DEPARTURE), "rank 1 ended without MPI_Finalize", 1),
        (1, err(DEPARTURE_4), "rank 1 ended without MPI_Finalize", 1),
        (1, err(TORCHRUN.format(code=-9)), "rank 1 was killed by SIGKILL", -9),
        (1, [*MINE, *OTHER, *err(TORCHRUN.format(code=78))], "rank 1 ended with exit code 78: ValueError: mine", 78),
        (1, err(TORCHRUN_ALONE.format(code=4)), "rank 1 ended with exit code 4", 4),
        (0, err(LOST.format(family="PRTE")), DAEMON, 75),
        (205, err(LOST.format(family="ORTE")), DAEMON, 75),
        (137, err(f"{KILLED}\n{LOST}"), "rank 1 was killed by SIGKILL", 137),
        (0, err(SRUN.format(status=143 << 8)), f"{SRUN_END}ended with exit code 143 (SIGTERM)", 75),
        (0, err(SRUN.format(status=9)), f"{SRUN_END}was killed by SIGKILL", 75),
        (0, err(SRUN.format(status=1 << 8)), f"{SRUN_END}ended with exit code 1", 1),
        (0, err(f"{NO_CONTROLLER}\n{SRUN.format(status=1 << 8)}"), f"{SRUN_END}ended with exit code 1{ALONE}", 75),
        (213, err(SRUN.format(status=1 << 8)), f"{SRUN_END}ended with exit code 1", 213),
        (137, err(f"{KILLED}\n{SRUN.format(status=137 << 8)}"), "rank 1 was killed by SIGKILL", 137),
        (-9, [], f"{LAUNCHER} was killed by SIGKILL", -9),
        (137, [], f"{LAUNCHER} ended with exit code 137 (SIGKILL)", 137),
        (129, [], f"{LAUNCHER} ended with exit code 129 (SIGHUP)", 129),
        (200, [], f"{LAUNCHER} ended with exit code 200", 200),
        (0, [], f"{LAUNCHER} ended with exit code 0", 0),
        (127, err("x: command not found"), f"{LAUNCHER} ended with exit code 127: x: command not found", 127),
        (1, err("a.b.MyError: why\n---"), f"{LAUNCHER} ended with exit code 1: a.b.MyError: why", 1),
        (1, err("not found: x\n - \n"), f"{LAUNCHER} ended with exit code 1: not found: x", 1),
        (1, err(f"unknown host x\n{FASTER_CHILD}"), f"{LAUNCHER} ended with exit code 1: unknown host x", 1),
        (4, [Line(None, "o", "stdout is not a reason")], f"{LAUNCHER} ended with exit code 4", 4),
    ],
)
def test_the_reason_of_an_end_comes_from_the_exit_code_and_the_last_lines(
    code: int, lines: list[Line], reason: str, effective: int
) -> None:
    assert launcher_output.describe(2, code, lines) == reason
    assert launcher_output.effective_exit_code(code, lines) == effective


@pytest.mark.parametrize(
    ("code", "lines", "reason"),
    [
        (1, [], SIGNALED),
        (1, OTHER, SIGNALED),
        (1, err("There are not enough slots"), f"{LAUNCHER} ended with exit code 1: There are not enough slots"),
        (1, err(FASTER_CHILD), SIGNALED),
        (2, [], f"{LAUNCHER} ended with exit code 2"),
        (-9, [], f"{LAUNCHER} was killed by SIGKILL"),
    ],
)
def test_an_mpirun_that_says_nothing_has_got_a_signal(code: int, lines: list[Line], reason: str) -> None:
    """That of Open MPI 5.0.11 exits with 1 then, without a word on the terminal."""
    assert launcher_output.describe(2, code, lines, "mpirun").startswith(reason)


def test_a_command_without_a_launcher_is_called_so() -> None:
    assert launcher_output.describe(2, 3, [], "none") == "the command on node 2 ended with exit code 3"


def test_a_launcher_that_exits_with_0_has_succeeded_whatever_it_printed() -> None:
    assert launcher_output.effective_exit_code(0, err(TORCHRUN.format(code=3))) == 0


@pytest.mark.parametrize("text", [KILLED, KILLED_4, OPEN_MPI_4, ABORTED, TORCHRUN.format(code=-9), LOST])
def test_a_rank_that_prints_what_launchers_print_is_not_taken_for_one(text: str) -> None:
    for lines in (err(text, rank=0), [Line(None, "o", line.text) for line in err(text)]):
        assert launcher_output.effective_exit_code(3, lines) == 3
        assert launcher_output.describe(2, 3, lines).startswith("the launcher on node 2 ended with exit code 3")
