"""A data set on its way to a node's own disk or memory."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from spotmpi.agent import hardware
from spotmpi.agent.staging import Staging
from spotmpi.core.errors import InputError
from spotmpi.plan.manifests import kubernetes_plan, pod_template
from spotmpi.spec.job import from_values
from tests.unit.plan.test_manifests import NODES, submission


@pytest.fixture
def shared_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    for number in range(40):
        path = folder / f"class-{number % 3}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number]) * 1000)
    return folder


def stage_data(source: Path, target: Path, stage: str = "node") -> Staging:
    return wait_for_end(Staging({"from": str(source), "to": str(target), "stage": stage}))


def wait_for_end(staging: Staging) -> Staging:
    """The copy, once it has ended."""
    deadline = time.monotonic() + 20
    while staging.busy and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not staging.busy
    return staging


def test_every_file_is_copied_to_its_place(shared_folder: Path, tmp_path: Path) -> None:
    staging = stage_data(shared_folder, tmp_path / "node" / "data")
    assert staging.error is None and str(staging) == "100 % of 0.0 GB of data copied"
    copies = {path.relative_to(tmp_path / "node" / "data"): path for path in (tmp_path / "node").rglob("*.jpg")}
    assert len(copies) == 40
    assert all((shared_folder / name).read_bytes() == path.read_bytes() for name, path in copies.items())
    assert stage_data(shared_folder, tmp_path / "node" / "data").error is None  # again, in a restarted container


def test_nothing_to_stage_is_done_at_once() -> None:
    assert not Staging(None).busy


def test_data_that_does_not_fit_is_refused_before_a_byte_is_copied(
    shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "memory.max").write_text("60000\n")
    (tmp_path / "memory.current").write_text("30000\n")
    monkeypatch.setattr(hardware, "CGROUP", str(tmp_path))
    staging = stage_data(shared_folder, tmp_path / "memory", "memory")
    assert staging.error is not None
    assert staging.error.endswith("it has 0.0 GB, 0.0 GB are free in the memory of this pod")
    assert not list((tmp_path / "memory").rglob("*.jpg"))
    (tmp_path / "memory.max").write_text("max\n")
    assert stage_data(shared_folder, tmp_path / "memory", "memory").error is None


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    staging = stage_data(tmp_path / "voc", tmp_path / "node")
    assert staging.error is not None and staging.error.startswith(f"data {tmp_path}/voc cannot be staged: [Errno 2]")


@pytest.mark.parametrize(
    ("stage", "path"),
    [(None, "/spotmpi/volume/voc"), ("node", "/spotmpi/work/data"), ("memory", "/spotmpi/memory/data")],
)
def test_ranks_read_the_data_where_it_is_staged(stage: str | None, path: str) -> None:
    data = {"path": "voc", **({"stage": stage} if stage else {})}
    objects = kubernetes_plan(from_values({"command": ["true"], "data": data}), NODES, submission())
    plan = objects[1]["data"]["plan.json"]
    assert f'"SPOTMPI_DATA": "{path}"' in plan
    assert ('"staging": null' in plan) == (stage is None)
    volumes = [volume["name"] for volume in pod_template(objects[0])["spec"]["volumes"]]
    assert ("memory" in volumes) == (stage == "memory")


def test_a_path_alone_is_the_same_as_a_table_with_it() -> None:
    short, long = from_values({"data": "voc"}), from_values({"data": {"path": "voc"}})
    assert short == long and short.canonical()["data"] == "voc"
    spec = from_values({"data": "voc"}, ["data.stage=node"])
    assert spec.data is not None and (spec.data.path, spec.data.stage) == ("voc", "node")
    assert from_values(spec.canonical()) == spec
    assert from_values(spec.model_dump(exclude_defaults=True)) == spec
    with pytest.raises(InputError, match=r"data\.stge = 'node': unknown key; did you mean stage\?"):
        from_values({"data": "voc"}, ["data.stge=node"])
