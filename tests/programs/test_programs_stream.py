"""Batches of CPU workers train the same parameters as those of the ranks' own loaders, whatever happens to workers."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spotmpi.agent import protocol, record
from spotmpi.agent.plan import WORKER, Member
from spotmpi.backends.local.pool import kill_pool_process
from spotmpi.programs import shapes
from tests.contract.conftest import BackendHarness, local_harness
from tests.programs.by_day import in_chainermn
from tests.unit.backends.local_runs import attempts_of, paths_of, rank

if TYPE_CHECKING:
    from tests.programs.conftest import Image

pytestmark = [pytest.mark.images, pytest.mark.timeout(900)]

DIGITS = ("--global-batch", "32", "--iterations", "50", "--dropout", "0.2")
STREAM = ("--batches", "stream", "--report-every", "5")


@pytest.fixture
def local(tmp_path: Path) -> Iterator[BackendHarness]:
    """This machine."""
    yield from local_harness(tmp_path / "runs", timeout=900.0)


@pytest.fixture(scope="module")
def checksums() -> dict[Any, str]:
    """The parameters' checksums after training with loaders, by image and options; filled by the first test to ask."""
    return {}


def checksum_with_loaders(image: Image, checksums: dict[Any, str], program: str, *options: str) -> str:
    key = (image.name, program, options)
    if key not in checksums:
        run = image.mpirun(2, *image.program(program), *options)
        assert run.end() == 0, run.text()
        checksums[key] = run.one(protocol.RESULT)["parameters"]
    return checksums[key]


def spec(image: Image, program: str, options: tuple[str, ...], workers: int, **values: Any) -> dict[str, Any]:
    stream = {"workers": {"count": workers}}
    args = [*options, *STREAM]
    return {"image": image.name, "program": program, "args": args, "slots": 2, "stream": stream, **values}


def checksum(local: BackendHarness, run: str) -> str:
    """The checksum that a run reported at its end, which is waited for."""
    end = local.events(run)[-1]
    assert end.kind == record.SUCCEEDED, end
    return str(records(local, run, protocol.RESULT)[-1]["parameters"])


def records(local: BackendHarness, run: str, kind: str) -> list[dict[str, Any]]:
    """What the program of a run reported of this kind."""
    lines = [json.loads(line) for line in paths_of(local, run).metrics.read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


@in_chainermn("PyTorch's start costs seconds; the stream is the same for both")
def test_a_killed_worker_changes_no_parameter_of_the_digits(
    image: Image, local: BackendHarness, checksums: dict[Any, str]
) -> None:
    run = local.submit(spec(image, "digits", DIGITS, workers=2))
    local.wait_for_iteration(run, 5)
    kill_pool_process(paths_of(local, run), Member(WORKER, 0))

    assert checksum(local, run) == checksum_with_loaders(image, checksums, "digits", *DIGITS)
    assert [attempt["cause"] for attempt in attempts_of(local, run)] == ["succeeded"]


@pytest.mark.nightly("six runs of several seconds; by day one with two workers, of which one is killed")
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_any_number_of_workers_trains_the_same_digits(
    image: Image, local: BackendHarness, checksums: dict[Any, str], workers: int
) -> None:
    run = local.submit(spec(image, "digits", DIGITS, workers))
    assert checksum(local, run) == checksum_with_loaders(image, checksums, "digits", *DIGITS)


@pytest.mark.nightly("two attempts of several seconds; by day a rank of a streamed example is killed and resumed")
def test_a_killed_rank_resumes_the_stream_at_the_position_of_the_checkpoint(
    image: Image, local: BackendHarness, checksums: dict[Any, str]
) -> None:
    options = (*DIGITS[:3], "300")
    values = spec(image, "digits", options, workers=2, checkpoint={"every": "0.5s"}, limits={"failures": 1})
    run = local.submit(values)
    kinds = (event.values.get("kind") for event in local.backend.events(run, follow=True))
    assert protocol.CHECKPOINT in kinds
    os.kill(rank(run, 1), signal.SIGKILL)

    assert checksum(local, run) == checksum_with_loaders(image, checksums, "digits", *options)
    assert [attempt["cause"] for attempt in attempts_of(local, run)] == ["failure", "succeeded"]
    assert records(local, run, protocol.RESUMED)[0]["iteration"] > 0


@pytest.mark.nightly("SSD needs seconds for an iteration; by day the digits are streamed by the same code")
def test_workers_decode_and_augment_the_images_of_ssd(
    image: Image, local: BackendHarness, checksums: dict[Any, str], tmp_path: Path
) -> None:
    shapes.write_shapes(tmp_path / "voc", images=12, test_images=1)
    options = ("--width", "0.125", "--global-batch", "4", "--iterations", "8")
    run = local.submit(spec(image, "ssd", options, workers=2, data=str(tmp_path / "voc")))
    with_data = (*options, "--data", str(tmp_path / "voc"))
    assert checksum(local, run) == checksum_with_loaders(image, checksums, "ssd", *with_data)
