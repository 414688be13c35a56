"""Output of any kind and amount, and what a program on this machine gets to see."""

from __future__ import annotations

import json
import pwd
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import protocol, record
from spotmpi.agent.plan import COORDINATOR
from spotmpi.backends.local import backend
from spotmpi.images import wheels
from spotmpi.spec.source import from_values
from tests.contract.conftest import BackendHarness
from tests.contract.event_values import texts
from tests.unit.backends.local_runs import python, shell
from tests.unit.runs import hostile


def test_output_of_any_kind_becomes_lines(local: BackendHarness) -> None:
    code = r"""
import shlex
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
    output = texts(local.all_events(python(code)))

    longest = [text for text in output if text.startswith(("long", "xxx"))]
    assert "".join(longest) == "long " + "x" * 3_000_000
    assert output[len(longest) :] == [
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


@pytest.mark.parametrize(("ending", "state"), [(0, "succeeded"), (3, "failed")])
def test_a_run_ends_as_its_program_does_whatever_that_has_written(
    local: BackendHarness, tmp_path: Path, ending: int, state: str
) -> None:
    (tmp_path / "all").write_bytes(b"\n".join([*hostile.LINES.values(), b"that is all\n"]))
    output = f"cat {tmp_path}/all; cat {tmp_path}/all >&2; exit {ending}"
    pattern = {"pattern": r"(?P<iteration>\d+) (?P<loss>\S+)"}
    events = local.all_events(shell(output, limits={"failures": 0}, metrics=pattern))

    assert events[-1].kind == state
    assert texts(events).count("that is all") == 2
    assert local.backend.list()[0].state == state


def test_what_functions_of_spotmpi_report_is_no_output_of_a_program_whose_lines_a_pattern_reads(
    local: BackendHarness,
) -> None:
    """`spotmpi.checkpoint.save` showed a line of JSON among those of the program."""
    reports = (protocol.encode(protocol.CHECKPOINT, iteration=1), protocol.encode(protocol.RESULT, loss=0.5))
    lines = ("step 1", reports[0], "step 2", reports[1], '{"spotmpi": ["metric"]}')
    output = "; ".join(f"echo {shlex.quote(line)}" for line in lines)
    events = local.all_events(shell(output, metrics={"pattern": r"step (?P<iteration>\d+)"}))
    assert texts(events) == ["step 1", "step 2", lines[-1]]
    assert [event.values["kind"] for event in events if event.kind == record.METRIC] == [
        protocol.METRIC,
        protocol.CHECKPOINT,
        protocol.METRIC,
        protocol.RESULT,
    ]


def test_a_progress_bar_without_line_ends_is_a_sign_of_life_and_of_progress(local: BackendHarness) -> None:
    code = "import time\nfor i in range(40): print(f'\\r{i}', end='', flush=True); time.sleep(0.1)"
    state = local.wait_for_state(local.submit(python(code, limits={"start": "20s", "no_progress": "3s"})), "succeeded")

    assert state.attempt == 1


RECOGNIZED = {
    "lines": "print(f'step {step} loss {1 / step:.2f}')",
    "a bar": "print(f'\\r{step}%|#| {step}/5 [00:01<00:02, 3it/s, loss={1 / step:.2f}]', end='', flush=True)",
}


@pytest.mark.parametrize("form", RECOGNIZED)
def test_progress_in_a_well_known_form_needs_no_pattern(local: BackendHarness, form: str) -> None:
    events = local.all_events(python(f"import time\nfor step in range(1, 6): {RECOGNIZED[form]}; time.sleep(0.02)"))

    (recognized,) = [event for event in events if event.kind == record.RECOGNIZED]
    assert "loss" in recognized.values["line"]
    metrics = [event for event in events if event.kind == record.METRIC]
    iterations = [metric.values["iteration"] for metric in metrics]
    if form == "a bar":  # of what is read at once, the last state counts
        assert iterations == sorted(set(iterations)) and iterations[-1] == 5
    else:
        assert iterations == [1, 2, 3, 4, 5]
    times = [metric.time for metric in metrics]
    assert times == sorted(times) and times[-1] - times[0] > 0.03, "each has the time of its own line"
    assert texts(events)[-1].endswith(("loss 0.20", "loss=0.20]")), "output stays output"
    (state,) = local.backend.list()
    assert (state.state, state.iteration) == ("succeeded", 5)


def test_scalars_of_a_program_may_have_any_name(local: BackendHarness) -> None:
    code = """print('{"spotmpi":"metric","iteration":1,"t":5,"member":"node/7","kind":"x","attempt":9,"event":"e"}')"""
    events = local.all_events(python(code))

    metric = next(event for event in events if event.kind == record.METRIC)
    assert (metric.attempt, metric.member, metric.values["kind"]) == (1, COORDINATOR, "metric")
    assert metric.values["iteration"] == 1
    assert events[-1].kind == "succeeded"


def test_the_program_gets_the_users_environment_without_variables_of_an_outer_launcher(
    local: BackendHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "LOCAL_RANK", "OMPI_MCA_ess_base_vpid", "OMPI_MCA_orte_hnp_uri"}
    outer |= {"PMI_RANK", "SLURM_JOBID", "SLURM_JOB_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURMD_NODENAME"}
    outer |= {"PBS_ENVIRONMENT", "PBS_NODEFILE", "PE_HOSTFILE", "LSB_JOBID", "LSB_MCPU_HOSTS", "LSB_DJOB_HOSTFILE"}
    own = {"PYTHONPATH": "/mine", "OMPI_MCA_pml": "ob1", "SLURM_JOB_ID": "7", "SLURM_TMPDIR": "/scratch/7"}
    own |= {"PBS_JOBID": "7", "PBS_O_WORKDIR": "/mine", "JOB_ID": "7"}
    for name, value in {**dict.fromkeys(outer, "3"), **own}.items():
        monkeypatch.setenv(name, value)
    code = "import json, os; print(json.dumps(dict(os.environ)))"

    environment = json.loads(texts(local.all_events(python(code)))[0])

    assert own.items() <= environment.items() and not outer & set(environment)


@pytest.mark.parametrize("home", ["/home/me", None], ids=["known", "of a user whom the machine does not know"])
def test_the_program_has_a_home_folder_where_the_terminal_names_none(
    local: BackendHarness, monkeypatch: pytest.MonkeyPatch, home: str | None
) -> None:
    """mpirun of Open MPI 5 ends at once without: "Unable to get the user home directory"."""

    def getpwuid(user: int) -> pwd.struct_passwd:
        if home is None:
            raise KeyError(f"getpwuid(): uid not found: {user}")
        return pwd.struct_passwd(("me", "x", user, user, "", home, "/bin/sh"))

    monkeypatch.setattr(pwd, "getpwuid", getpwuid)
    monkeypatch.delenv("HOME")
    assert texts(local.all_events(shell("echo ${HOME-none}"))) == [home or "/"]


def test_a_resumed_run_starts_in_its_first_folder(
    local: BackendHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = shell("pwd; test -e go-on", limits={"failures": 0})
    run = local.submit(job)
    local.wait_for_state(run, "failed")
    (tmp_path / "go-on").touch()
    monkeypatch.chdir("/")

    local.resume(run, job)

    local.wait_for_state(run, "succeeded")
    assert texts(local.events(run)) == [str(tmp_path)] * 2


@pytest.fixture
def interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A python3 without Dask, for which the wheels are unpacked to /wheels/True where the command names it."""
    path = tmp_path / "python3"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)

    def unpack_for(python: str, echo: object, command: str | None) -> Path | None:
        return Path(f"/wheels/{command is not None}") if python == str(path) else None

    monkeypatch.setattr(wheels, "unpack_for", unpack_for)
    return path


def python_path(command: list[str], search: str) -> str:
    plan: Any = {"environment": {"PATH": search, "PYTHONPATH": "/code:/source"}}
    spec = from_values({"launcher": "pool", "pool": {"count": 1}, **({"command": command} if command else {})})
    return backend._with_dask(plan, spec, lambda text: None)["environment"]["PYTHONPATH"]


def test_an_interpreter_without_dask_finds_it_after_the_code_and_spotmpi(interpreter: Path) -> None:
    assert python_path([str(interpreter), "drive.py"], "/usr/bin") == "/code:/source:/wheels/True"
    assert python_path(["sh", "drive.sh"], str(interpreter.parent)) == "/code:/source:/wheels/False", "its python3"


def test_commands_without_such_an_interpreter_are_left_as_they_are(interpreter: Path) -> None:
    assert python_path([sys.executable, "drive.py"], "/usr/bin") == "/code:/source"
    assert python_path(["/no/python3", "drive.py"], str(interpreter.parent)) == "/code:/source"
    assert python_path([], str(interpreter.parent)) == "/code:/source", "there is no command"


@pytest.mark.parametrize("values", [shell("true"), {**shell("true"), "launcher": "pool", "pool": {"count": 1}}])
def test_the_plan_that_is_carried_out_is_the_printed_one(local: BackendHarness, values: dict[str, Any]) -> None:
    spec = local.spec(values)
    planned = local.backend.plan(spec, "same-1", print)
    local.backend.submit(spec, planned, print)
    local.wait_for_state("same-1", "succeeded")
    folder = local.backend.pull("same-1", print)
    assert json.loads((folder / "plan.yaml").read_text()) == json.loads(json.dumps(planned))
