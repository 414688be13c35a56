"""Ranks that are started with torchrun's variables: how they end, and what they get."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spotmpi.agent import launchers
from tests.contract.processes import are_gone, wait_until

SHOW = "import json, os; print(json.dumps([dict(os.environ), os.getpid()]), flush=True)"
IGNORES = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(300)"


def start(code: str, ranks: int = 2, node: int = 1) -> subprocess.Popen[str]:
    start = launchers.Start(nodes=3, slots=ranks, node=node, address="10.0.0.1", python=sys.executable)
    own = [part.replace(launchers.PORT, "29400") for part in launchers.LAUNCHERS["torchrun"].arguments(start)]
    return subprocess.Popen(
        [*own, sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env={"SPOTMPI_RUN": "r-1"}
    )


def test_each_rank_knows_its_place_among_all() -> None:
    launcher = start(SHOW)
    output, _ = launcher.communicate(timeout=60)

    assert launcher.returncode == 0
    shown = sorted((json.loads(line)[0] for line in output.splitlines()), key=lambda each: each["RANK"])
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
    assert [[each[name] for name in names] for each in shown] == [
        ["2", "0", "6", "2", "1", "10.0.0.1", "29400"],
        ["3", "1", "6", "2", "1", "10.0.0.1", "29400"],
    ]
    assert {each["TORCHELASTIC_RUN_ID"] for each in shown} == {"r-1"}


@pytest.mark.parametrize(("end", "code"), [("os._exit(75)", 75), ("os.kill(os.getpid(), 9)", 128 + 9)])
def test_a_rank_that_fails_ends_the_others_and_its_code_counts(end: str, code: int) -> None:
    launcher = start(f"{SHOW}\nimport time\nif os.environ['LOCAL_RANK'] == '1': {end}\ntime.sleep(300)")
    output, _ = launcher.communicate(timeout=60)

    assert launcher.returncode == code
    assert are_gone([json.loads(line)[1] for line in output.splitlines()])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_ranks(number: signal.Signals) -> None:
    launcher = start(SHOW + "\nimport time; time.sleep(300)")
    assert launcher.stdout
    ranks = [json.loads(launcher.stdout.readline())[1] for _ in range(2)]
    launcher.send_signal(number)

    assert launcher.wait(60) == 128 + number
    wait_until(lambda: are_gone(ranks))


def test_ranks_that_ignore_sigterm_are_killed_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = tmp_path / "local_ranks.py"
    text = Path(launchers.LOCAL_RANKS).read_text()
    short.write_text(text.replace("_GRACE = 30 ", "_GRACE = 1 "))
    assert short.read_text() != text
    monkeypatch.setattr(launchers, "LOCAL_RANKS", str(short))
    launcher = start(IGNORES)
    assert launcher.stdout
    assert [launcher.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
    launcher.terminate()

    assert launcher.wait(60) == 128 + signal.SIGTERM
