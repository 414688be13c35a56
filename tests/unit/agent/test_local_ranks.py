"""Ranks that are started with torchrun's variables: how they end, and what they get."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spotmpi.agent import launchers, local_ranks
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


def test_a_signal_for_ranks_is_theirs() -> None:
    """`scancel --signal=USR1` reaches all processes of a step: what started the ranks ended by it, and they with it."""
    launcher = start(SHOW + "\nimport time; time.sleep(300)")
    assert launcher.stdout
    ranks = [json.loads(launcher.stdout.readline())[1] for _ in range(2)]
    launcher.send_signal(signal.SIGUSR1)
    os.kill(ranks[0], signal.SIGUSR1)

    assert launcher.wait(60) == 128 + signal.SIGUSR1
    wait_until(lambda: are_gone(ranks))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_ranks(number: signal.Signals) -> None:
    launcher = start(SHOW + "\nimport time; time.sleep(300)")
    assert launcher.stdout
    ranks = [json.loads(launcher.stdout.readline())[1] for _ in range(2)]
    launcher.send_signal(number)

    assert launcher.wait(60) == 128 + number
    wait_until(lambda: are_gone(ranks))


DEFAULTS = "accelerate/default_config.yaml"


@pytest.mark.parametrize(
    ("ranks", "file", "variables", "by_us"),
    [
        (2, None, {}, True),
        (1, None, {}, False),
        (2, f".cache/huggingface/{DEFAULTS}", {}, False),
        (2, f"cache/huggingface/{DEFAULTS}", {"XDG_CACHE_HOME": "{home}/cache"}, False),
        (2, DEFAULTS, {"HF_HOME": "{home}"}, False),
        (2, f".cache/huggingface/{DEFAULTS}", {"HF_HOME": "{home}"}, True),
    ],
    ids=["two ranks", "one rank", "defaults", "defaults in a cache", "defaults of Hugging Face", "defaults elsewhere"],
)
def test_accelerate_itself_starts_ranks_whose_variables_follow_from_more_than_its_options(
    tmp_path: Path, ranks: int, file: str | None, variables: dict[str, str], by_us: bool
) -> None:
    package = tmp_path / "packages" / "accelerate" / "commands"
    package.mkdir(parents=True)
    (package / "launch.py").write_text("import sys; print('accelerate', *sys.argv[1:])")
    if file is not None:
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).touch()
    environment = {key: value.format(home=tmp_path) for key, value in variables.items()}
    environment |= {"HOME": str(tmp_path), "PYTHONPATH": str(tmp_path / "packages")}
    own = launchers.LAUNCHERS["accelerate"].arguments(launchers.Start(1, ranks, python=sys.executable))

    output = subprocess.run([*own, "echo", "train"], env=environment, capture_output=True, text=True, check=True).stdout

    options = f"--num_machines=1 --machine_rank=0 --num_processes={ranks} --main_process_ip=127.0.0.1"
    options += f" --main_process_port={launchers.PORT} --mixed_precision=no --dynamo_backend=no --no_python"
    by_accelerate = f"accelerate {'--multi_gpu ' if ranks > 1 else ''}{options} echo train\n"
    assert output == ("train\n" * ranks if by_us else by_accelerate)


@pytest.mark.parametrize(("model", "needed"), [("NVIDIA GeForce RTX 4090", True), ("NVIDIA H100 80GB HBM3", False)])
def test_accelerate_itself_starts_ranks_on_gpus_for_which_it_switches_peer_to_peer_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, needed: bool
) -> None:
    """By `check_cuda_p2p_ib_support` of accelerate 1.15; the file is that of NVIDIA's driver."""
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    (tmp_path / "0000:01:00.0").mkdir()
    (tmp_path / "0000:01:00.0" / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 42\n")
    assert local_ranks.needs_accelerate({"nnodes": "1", "nproc-per-node": "2"}, str(tmp_path)) == needed


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
