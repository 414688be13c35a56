"""The plan that agents of a cluster carry out: where its data is."""

from __future__ import annotations

from typing import Any

import pytest

from spotmpi.agent import boot, pod_context
from spotmpi.plan.agent_plan import AgentInputs, agent_plan
from spotmpi.plan.run_plan import memory_notes
from spotmpi.spec.source import from_values


@pytest.mark.parametrize(("path", "folder"), [("/shared/voc", "/shared/voc"), ("voc", "/spotmpi/volume/voc")])
@pytest.mark.parametrize(
    ("stage", "staged"), [(None, None), ("node", "/spotmpi/work/data"), ("memory", "/spotmpi/memory/data")]
)
def test_ranks_read_data_where_it_is_or_where_it_is_copied_to(
    path: str, folder: str, stage: str | None, staged: str | None
) -> None:
    data: dict[str, Any] = {"path": path, **({"stage": stage} if stage else {})}
    plan = agent_plan(from_values({"command": ["x"], "data": data}), "run-1", AgentInputs({}, {}))
    environment = plan["environment"]["SPOTMPI_DATA"]
    if staged is None:
        assert (environment, plan["staging"]) == (folder, None)
    else:
        assert (environment, plan["staging"]) == (staged, {"from": folder, "to": staged, "stage": stage})


@pytest.mark.parametrize(("path", "folder"), [("/shared/m", "/shared/m"), ("m", "/spotmpi/volume/m")])
def test_ranks_start_from_the_folder_of_a_model(path: str, folder: str) -> None:
    plan = agent_plan(from_values({"command": ["x"], "init": path}), "run-1", AgentInputs({}, {}))
    assert plan["environment"]["SPOTMPI_INIT"] == folder
    assert (
        "SPOTMPI_INIT" not in agent_plan(from_values({"command": ["x"]}), "run-1", AgentInputs({}, {}))["environment"]
    )


@pytest.mark.parametrize("values", [{"code": "/mine"}, {"files": ["/a.py"]}])
def test_code_of_the_users_is_found_before_ours(values: dict[str, Any]) -> None:
    def python_path(**values: Any) -> str:
        plan = agent_plan(from_values({"command": ["x"], **values}), "run-1", AgentInputs({}, {}))
        return plan["environment"]["PYTHONPATH"]

    assert python_path() == boot.CODE
    assert python_path(**values) == f"{pod_context.CODE}:{boot.CODE}"
    assert python_path(env={"PYTHONPATH": "/lib"}, **values) == f"{pod_context.CODE}:{boot.CODE}:/lib"


@pytest.mark.parametrize(
    ("values", "options", "note"),
    [
        ({}, {}, None),
        ({"checkpoint": {"memory": 1}}, {}, "on node 0, in /m"),
        ({"checkpoint": {"memory": 1}, "nodes": 2}, {"copied": True}, "on node 0 and on node 1, in /m"),
        (
            {"checkpoint": {"memory": "9s"}, "resources": {"memory": "4Gi"}},
            {"copied": True},
            "on node 0, in /m, of resources.memory = 4Gi per slot",
        ),
        ({"checkpoint": {"memory": 1}, "resources": {"memory": "4Gi"}}, {"limited": False}, "on node 0, in /m"),
    ],
)
def test_the_plan_says_where_checkpoints_in_memory_take_room(
    values: dict[str, Any], options: dict[str, bool], note: str | None
) -> None:
    notes = memory_notes(from_values({"command": ["x"], **values}), "/m", **options)
    assert notes == ([f"checkpoints in memory take twice the size of a checkpoint {note}"] if note else [])
