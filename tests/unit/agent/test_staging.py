"""A data set on its way to a node's own disk or memory."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from spotmpi.agent import protocol
from spotmpi.agent.readiness import Staging
from spotmpi.core.errors import InputError
from spotmpi.spec.source import from_values
from tests.contract.processes import wait_until
from tests.transient_errors import READS_OF_A_COPY, TransientErrors


@pytest.fixture
def shared_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    for number in range(40):
        path = folder / f"class-{number % 3}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number]) * 1000)
    return folder


def stage_data(source: Path, target: Path, stage: str = "node", cgroup: Path | None = None) -> Staging:
    """The copy, once it has ended."""
    staging = Staging({"from": str(source), "to": str(target), "stage": stage}, str(cgroup or target / "none"))
    wait_until(lambda: not staging.busy)
    return staging


def test_every_file_is_copied_to_its_place(shared_folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "node" / "data"
    staging = stage_data(shared_folder, target)
    assert staging.failure is None and str(staging) == "100 % of 0.0 GB of data copied"
    files, copies = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.jpg")}
        for folder in (shared_folder, target)
    )
    assert copies == files
    assert stage_data(shared_folder, target).failure is None, "again, in a restarted container"


def test_nothing_to_stage_is_done_at_once() -> None:
    assert not Staging(None, "").busy


def test_data_that_does_not_fit_is_refused_before_a_byte_is_copied(shared_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("60000\n")
    (tmp_path / "memory.current").write_text("30000\n")
    staging = stage_data(shared_folder, tmp_path / "memory", "memory", tmp_path)
    assert staging.failure is not None and staging.failure.reason is not None
    assert staging.failure.reason.endswith("it has 0.0 GB, 0.0 GB are free in the memory of this pod")
    assert not list((tmp_path / "memory").rglob("*.jpg"))
    (tmp_path / "memory.max").write_text("max\n")
    assert stage_data(shared_folder, tmp_path / "memory", "memory", tmp_path).failure is None


def test_a_missing_folder_ends_the_run_with_its_name(tmp_path: Path) -> None:
    failure = stage_data(tmp_path / "voc", tmp_path / "node").failure
    assert failure and failure.exit_code == protocol.NOT_RETRYABLE
    assert failure.reason == f"data {tmp_path}/voc cannot be staged: {tmp_path}/voc: No such file or directory"


def test_data_that_cannot_be_read_for_a_moment_can_be_staged_by_another_attempt(
    shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    TransientErrors(monkeypatch.setattr).add("read", "*/7.jpg", errno.EIO, READS_OF_A_COPY)
    broken, again = (stage_data(shared_folder, tmp_path / "node") for _ in range(2))
    assert broken.failure is not None and broken.failure.exit_code == protocol.INTERRUPTED
    assert again.failure is None


def test_a_path_alone_is_the_same_as_a_table_with_it() -> None:
    short, long = from_values({"data": "voc"}), from_values({"data": {"path": "voc"}})
    assert short == long and short.canonical()["data"] == "voc"
    spec = from_values({"data": "voc"}, ["data.stage=node"])
    assert spec.data is not None and (spec.data.path, spec.data.stage) == ("voc", "node")
    assert from_values(spec.canonical()) == from_values(spec.model_dump(exclude_defaults=True)) == spec
    with pytest.raises(InputError, match=r"data\.stge = 'node': unknown key; did you mean stage\?"):
        from_values({"data": "voc"}, ["data.stge=node"])
