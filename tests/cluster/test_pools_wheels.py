"""Pools on the test cluster in an image that has Python and no Dask."""

from __future__ import annotations

import sys
from pathlib import Path

import cloudpickle
import pytest

import spotmpi
from spotmpi.agent import record
from spotmpi.backends.kubernetes import backend
from spotmpi.core.errors import SpotmpiError
from spotmpi.programs.pool import settings
from tests.cluster.pools import LIMIT, PoolRun, has_workers
from tests.cluster.runs import Runs
from tests.contract import processes
from tests.testbed.waiting import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.pod_images("base"),
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("error:Mismatched versions"),  # of other packages, which need not be the same
    pytest.mark.nightly("half a minute; by day test_pool_wheels.py unpacks small wheels, and images have Dask"),
]

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # pods have no tests

DRIVER = """
import dask
import spotmpi

with spotmpi.pool() as pool:
    print("sum", sum(pool.map(abs, range(-5, 0))), "by", dask.__file__)
"""


def location() -> str:
    """Where the worker has its Dask."""
    import distributed

    return str(distributed.__file__)


@pytest.fixture
def image(runs: Runs) -> dict[str, str]:
    """The settings of a pool whose image has no Dask."""
    return {"image": runs.testbed.images["base"]}


def test_pools_get_the_locked_wheels_once_for_each_namespace(runs: Runs, image: dict[str, str], tmp_path: Path) -> None:
    up = PoolRun(runs, 2, kubernetes=image)
    with up.join() as pool:
        wait_for("workers", lambda: has_workers(pool, 2), LIMIT)
        found = pool.run(location)
        assert set(found.values()) == {"/spotmpi/work/wheels/distributed/__init__.py"}
    runs.backend.stop(up.run.id, "the nodes are small", True)
    maps = _wheels(runs)
    assert len(maps) > 2

    (tmp_path / "drive.py").write_text(DRIVER)
    batch = PoolRun(runs, 1, kubernetes=image, command=["python3", "drive.py"], files=[str(tmp_path / "drive.py")])
    assert batch.run.end(LIMIT).kind == record.SUCCEEDED, batch.run.recent_events()
    assert "sum 15 by /spotmpi/work/wheels/dask/__init__.py" in batch.run.lines()
    assert _wheels(runs) == maps


def test_a_driver_with_another_python_is_refused_by_the_first_pod_with_both_versions(
    runs: Runs, image: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(backend, "versions", lambda: {**settings.versions(), "python": "3.99"})
    monkeypatch.chdir(tmp_path)
    overrides = [f"kubernetes.image={image['image']}"]
    pool = spotmpi.pool(workers=1, on=f"kubernetes/{runs.namespace}", overrides=overrides, echo=lambda text: None)
    with pytest.raises(SpotmpiError) as error, pool:
        pytest.fail("the pool is up")
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert str(error.value) == (
        f"run {pool.id} failed: the image has Python {own} and the driver Python 3.99, but pickled functions "
        f"need the same minor version: use an image with Python 3.99, or a driver with Python {own}"
    )
    state = runs.in_another_terminal(tmp_path / "copies").backend.state(pool.id)
    assert f"run {state.id} {state.state}: {state.reason}" == str(error.value)
    wait_for("the end of the workers", lambda: processes.of_run(pool.id) == {}, LIMIT)


def _wheels(runs: Runs) -> dict[str, str]:
    """The ConfigMaps with wheels, by name, with the time of their creation."""
    items = runs.testbed.get("configmaps", "-n", runs.namespace)["items"]
    metadata = [each["metadata"] for each in items if each["metadata"]["name"].startswith("spotmpi-wheels-")]
    return {each["name"]: each["creationTimestamp"] for each in metadata}
