"""The plan of a run on one machine, whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import launch, launchers
from spotmpi.core import names
from spotmpi.core.errors import InputError
from spotmpi.plan.local import Machine, local_plan, preview
from spotmpi.spec.source import from_values

MACHINE = Machine(
    folder="/home/ann/work it's",
    path="/usr/local/bin:/usr/bin",
    source="/checkout/jobs",
    mpirun="/image/bin/mpirun",
    mpirun_family=5,
    image_bin="/image/bin",
    cores=4,
)
COLON = "/data/2026-11-23T21:43"
BARE = Machine("/home/ann", "/usr/bin", "/checkout/jobs", "/usr/bin/mpirun", 4, None, 2)
PATHS = names.RunPaths(Path("/runs/digits-261121083059-bcdf"))

DIGITS: dict[str, Any] = {"program": "digits", "args": ["--global-batch", "64", "--epochs", "2"]}
PLANS: dict[str, tuple[dict[str, Any], Machine]] = {
    "mpirun-program": ({**DIGITS, "image": "chainermn", "nodes": 3, "slots": 2, "resources": {"cpu": 2}}, MACHINE),
    "mpirun-command-on-open-mpi-4": (
        {"command": ["python3", "train it.py"], "args": ["--x=$HOME", ""], "slots": 2, "env": {"A": "b c"}},
        BARE,
    ),
    "torchrun-program": ({**DIGITS, "image": "pytorch", "launcher": "torchrun", "nodes": 2, "slots": 2}, MACHINE),
    "torchrun-command": (
        {"command": ["python3", "train.py"], "launcher": "torchrun", "image": "pytorch", "data": "/data/voc"},
        MACHINE,
    ),
    "accelerate-program": ({**DIGITS, "image": "pytorch", "launcher": "accelerate", "nodes": 2}, MACHINE),
    "deepspeed-command": (
        {"command": ["python3", "train.py"], "launcher": "deepspeed", "nodes": 2, "slots": 2},
        BARE,
    ),
    "mpirun-with-preload": (
        {"command": ["python3", "-u", "train.py"], "slots": 2, "preload": ["torch", "my.data"]},
        BARE,
    ),
    "program-without-preload": ({**DIGITS, "image": "chainermn", "preload": []}, MACHINE),
    "none-on-every-node": (
        {
            "command": ["./mine", "{spotmpi-port}"],
            "launcher": "none",
            "nodes": 3,
            "checkpoint": {"every": "5m", "keep": 9, "path": "/kept", "grace": "2m", "memory": "30s"},
            "limits": {"start": "1m", "run": "8h", "no_progress": "5m", "failures": 0, "interruptions": 3},
            "resources": {"memory": "2Gi"},
        },
        BARE,
    ),
    "pool": (
        {"launcher": "pool", "pool": {"count": 4, "cpu": 2, "memory": "2Gi"}, "limits": {"driver": "1h"}},
        MACHINE,
    ),
    "pool-with-command": (
        {"launcher": "pool", "pool": {"count": 1}, "command": ["python3", "drive it.py"], "code": "/home/ann/src"},
        BARE,
    ),
    "pool-without-limit": ({"launcher": "pool", "pool": {"count": 1}, "limits": {"driver": "none"}}, BARE),
    "none-with-code-and-files": (
        {"command": ["./mine"], "launcher": "none", "code": "/home/ann/src", "files": ["/home/ann/helper.py"]},
        BARE._replace(folder="/runs/digits-261121083059-bcdf/code", python_path="/home/ann/lib"),
    ),
    "mpirun-with-a-stream": (
        {
            "command": ["python", "train.py"],
            "image": "chainermn",
            "slots": 2,
            "files": ["/home/ann/train.py"],
            "stream": {
                "source": "s3://set/*.parquet",
                "batch": 4096,
                "prepare": "flow:prepare",
                "workers": {"count": 3, "cpu": 1.5},
            },
        },
        MACHINE._replace(folder="/runs/digits-261121083059-bcdf/code"),
    ),
    "none-on-the-first-node": (
        {
            "command": ["./mine"],
            "launcher": "none",
            "nodes": 3,
            "run_on": "first",
            "metrics": {"pattern": "(?P<iteration>.)"},
        },
        BARE,
    ),
}


@pytest.fixture(autouse=True)
def checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent's folder, which the rank wrapper is run from."""
    monkeypatch.setattr(launch, "RANK_WRAPPER", "/checkout/jobs/spotmpi/agent/rank_wrapper.py")
    monkeypatch.setattr(launchers, "LOCAL_RANKS", "/checkout/jobs/spotmpi/agent/local_ranks.py")


def commands(values: dict[str, Any], machine: Machine) -> list[list[str]]:
    """The arguments of what the agent of a run starts at once."""
    plan = local_plan(from_values(values), PATHS, machine, {})
    return [command["arguments"] for command in preview(plan, "/venv/bin/python", root=False)["commands"]]


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_is_json_and_equals_its_golden_file(name: str, golden: Callable[[str, str], None]) -> None:
    values, machine = PLANS[name]
    plan = local_plan(from_values(values), PATHS, machine, {"code": "abc"})
    assert json.loads(json.dumps(plan)) == plan
    shown = preview(plan, "/venv/bin/python", root=machine is BARE)
    values_without_spec = {key: value for key, value in shown.items() if key != "spec"}
    golden(f"plan-{name}.json", json.dumps(values_without_spec, indent=1) + "\n")


@pytest.mark.parametrize("own", ["OMPI_MCA_btl", "FI_PROVIDER"])
def test_a_transport_that_the_user_chooses_for_mpi_stays(own: str) -> None:
    spec = from_values({"command": ["x"]})
    inherited = local_plan(spec, PATHS, MACHINE._replace(variables=frozenset({own})), {})
    assert "OMPI_MCA_btl" not in inherited["environment"]
    of_spec = local_plan(from_values({"command": ["x"], "env": {own: "tcp"}}), PATHS, MACHINE, {})
    assert of_spec["environment"].get("OMPI_MCA_btl") == ("tcp" if own == "OMPI_MCA_btl" else None)


@pytest.mark.parametrize(
    ("values", "notes"),
    [
        ({"slots": 4}, []),
        ({"slots": 5}, ["oversubscribed: 5 threads of 5 ranks share 4 cores"]),
        ({"slots": 1, "resources": {"cpu": 5}}, ["oversubscribed: 5 threads of 1 rank share 4 cores"]),
        ({"launcher": "pool", "pool": {"count": 2, "cpu": 2}}, []),
        (
            {"launcher": "pool", "pool": {"count": 2, "cpu": 3, "memory": "2Gi"}},
            [
                "oversubscribed: 6 threads of 2 workers share 4 cores",
                "pool.memory is not enforced on this machine",
            ],
        ),
        (
            {"data": {"path": "/data", "stage": "memory"}, "resources": {"memory": "2Gi"}},
            [
                "data.stage has no effect on this machine: the data is read from its folder",
                "resources.memory is not enforced on this machine",
            ],
        ),
        (
            {"preload": ["torch"]},
            ['preload has no effect: it needs a command such as ["python", "train.py"] or ["python", "-m", "train"]'],
        ),
    ],
    ids=[
        "as many ranks as cores",
        "more ranks",
        "one rank",
        "as many workers",
        "more workers",
        "data and memory",
        "preload",
    ],
)
def test_what_this_machine_shares_or_does_not_heed_is_noted(values: dict[str, Any], notes: list[str]) -> None:
    plan = local_plan(from_values({"command": ["x"], **values}), PATHS, MACHINE, {})
    assert plan["notes"] == notes
    assert plan["oversubscribed"] == any("oversubscribed" in note for note in notes)


@pytest.mark.parametrize(
    ("values", "folders"),
    [
        ({**DIGITS, "image": "chainermn"}, "/checkout/jobs:/lib"),
        ({"launcher": "pool", "pool": {"count": 1}}, "/runs/digits-261121083059-bcdf/code:/checkout/jobs:/lib"),
        ({"command": ["x"], "code": "/home/ann/src"}, "/home/ann/work it's:/lib"),
        ({"command": ["x"]}, "/lib"),
    ],
    ids=["program", "pool", "code", "command"],
)
def test_folders_that_the_program_needs_come_before_those_of_the_specs_python_path(
    values: dict[str, Any], folders: str
) -> None:
    machine = MACHINE._replace(python_path="/home/ann/lib")
    plan = local_plan(from_values({**values, "env": {"PYTHONPATH": "/lib"}}), PATHS, machine, {})
    assert plan["environment"]["PYTHONPATH"] == folders


@pytest.mark.parametrize(
    ("values", "home"),
    [
        ({**DIGITS, "image": "chainermn"}, ""),
        ({**DIGITS, "image": "chainermn", "env": {"PYTHONHOME": "/opt/python"}}, "/opt/python"),
        ({"command": ["x"]}, None),
    ],
    ids=["an image", "an image with one of its own", "the user's Python"],
)
def test_the_python_of_an_image_takes_no_home_of_another_from_the_terminal(
    values: dict[str, Any], home: str | None
) -> None:
    """It would find no module of its own; to Python an empty variable is none (CPython's Python/initconfig.c)."""
    machine = (MACHINE if "image" in values else BARE)._replace(variables=frozenset({"PYTHONHOME"}))
    assert local_plan(from_values(values), PATHS, machine, {})["environment"].get("PYTHONHOME") == home
    environment = local_plan(from_values({**DIGITS, "image": "chainermn"}), PATHS, MACHINE, {})["environment"]
    assert "PYTHONHOME" not in environment, "there is none to take"


def test_python_is_that_of_the_image_or_the_one_on_path() -> None:
    torchrun = {"command": ["x"], "launcher": "torchrun"}
    assert commands(torchrun, BARE)[0][0] == "python3"
    program = {"program": "digits", "image": "chainermn", "launcher": "none"}
    assert commands(program, MACHINE)[0][-3:] == [
        "/image/bin/python",
        "-m",
        names.program_module("chainermn", "digits"),
    ]


@pytest.mark.parametrize(
    ("values", "machine", "paths", "place"),
    [
        ({"command": ["./a"], "code": COLON}, BARE._replace(folder=COLON), PATHS, "code = "),
        ({"command": ["./a"], "files": ["a"]}, BARE, names.RunPaths(Path(COLON, "r-1")), "run folder = "),
        ({"launcher": "pool", "pool": {"count": 1}}, BARE, names.RunPaths(Path(COLON, "r-1")), "run folder = "),
        ({**DIGITS, "image": "chainermn"}, MACHINE._replace(source=COLON), PATHS, "spotmpi = "),
        ({**DIGITS, "image": "chainermn"}, MACHINE._replace(image_bin=COLON), PATHS, "spotmpi = "),
    ],
    ids=["code", "files", "pool", "source", "image"],
)
def test_a_folder_whose_path_has_a_colon_is_refused_where_it_would_be_an_entry_of_a_list(
    values: dict[str, Any], machine: Machine, paths: names.RunPaths, place: str
) -> None:
    spec = from_values(values)
    if spec.files:
        machine = machine._replace(folder=str(paths.code))
    with pytest.raises(InputError, match=r"2026-11-23T21:43.*its path has a colon") as raised:
        local_plan(spec, paths, machine, {})
    assert str(raised.value).startswith(place) and "\n" not in str(raised.value)


def test_a_colon_in_a_path_that_is_in_no_list_and_lists_of_the_user_are_left_alone() -> None:
    machine = BARE._replace(folder=COLON, python_path="/a:/b", path="/c:/d")
    plan = local_plan(from_values({"command": ["./a"]}), names.RunPaths(Path(COLON, "r-1")), machine, {})
    assert plan["folder"] == COLON and "PYTHONPATH" not in plan["environment"]
    plan = local_plan(from_values({"command": ["./a"], "code": "/e"}), PATHS, machine._replace(folder="/e"), {})
    assert (plan["environment"]["PYTHONPATH"], plan["environment"]["PATH"]) == ("/e:/a:/b", "/c:/d")
