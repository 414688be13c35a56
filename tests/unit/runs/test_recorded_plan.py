"""Plans are read from run folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spotmpi.core.errors import InputError
from spotmpi.core.names import RunPaths
from spotmpi.plan.cluster_plan import cached_plan
from spotmpi.plan.local import Machine, local_plan
from spotmpi.runs import reader, recorded_plan
from spotmpi.spec.source import from_values

SPEC = from_values({"command": ["train"], "launcher": "none"})
MACHINE = Machine("/work", "/usr/bin", "/source", None, 5, None, 4)


def write(tmp_path: Path, values: Any) -> RunPaths:
    paths = RunPaths(tmp_path / "run-1")
    paths.folder.mkdir(exist_ok=True)
    paths.plan.write_text(json.dumps(values))
    return paths


def test_a_local_plan_keeps_its_folder_and_work(tmp_path: Path) -> None:
    plan = local_plan(SPEC, RunPaths(tmp_path / "run-1"), MACHINE, {"program": "train"})
    recorded = recorded_plan.read(write(tmp_path, plan))
    assert (recorded.backend, recorded.folder) == ("local", "/work")
    assert recorded.work == {"program": "train"} and recorded.objects == () and recorded.environment is None


def test_a_copy_names_its_cluster_however_deep_its_volumes_are_nested_and_a_local_run_has_none(tmp_path: Path) -> None:
    volume: dict[str, Any] = {"name": "wheels"}
    for _ in range(30):
        volume = {"sources": [volume]}
    plan = {**cached_plan(SPEC.title, "run-1", "lab", "team"), "objects": [volume]}
    assert recorded_plan.cluster_of(write(tmp_path, plan)) == ("lab", "team")
    assert recorded_plan.read(write(tmp_path, plan)).backend == "kubernetes"
    assert recorded_plan.cluster_of(write(tmp_path, {"backend": "kubernetes", "namespace": "here"})) == (None, "here")
    assert recorded_plan.cluster_of(write(tmp_path, {"backend": "local"})) is None


@pytest.mark.parametrize("values", [[], "text", None])
def test_a_plan_that_is_no_object_is_an_input_error(tmp_path: Path, values: Any) -> None:
    with pytest.raises(InputError, match=r"its plan\.yaml cannot be read"):
        recorded_plan.read(write(tmp_path, values))


def test_the_work_of_a_run_is_in_the_plan_of_its_agents_until_its_summary_has_it(tmp_path: Path) -> None:
    work = {"program": "train"}
    config = {"kind": "ConfigMap", "data": {"plan.json": json.dumps({"work": work})}}
    of_cluster = {**cached_plan(SPEC.title, "run-1", "lab", "team"), "objects": [{"kind": "JobSet"}, config]}
    for plan in ({"backend": "local", "work": work}, {"backend": "slurm", "agents": {"work": work}}, of_cluster):
        assert reader.work(write(tmp_path, plan)) == work
    assert reader.work(write(tmp_path, cached_plan(SPEC.title, "run-1", "lab", "team"))) == {}
    RunPaths(tmp_path / "run-1").summary.write_text(json.dumps({"work": {"program": "digits"}}))
    assert reader.work(write(tmp_path, of_cluster)) == {"program": "digits"}
