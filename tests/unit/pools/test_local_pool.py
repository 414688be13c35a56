"""A pool on this machine: the contract of pools, and all of it in the cells of a notebook."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import spotmpi
from spotmpi.agent.plan import WORKER, Member
from spotmpi.api import pools
from spotmpi.backends import targets
from spotmpi.backends.targets import Target
from spotmpi.core.errors import InputError, SpotmpiError
from spotmpi.pools.pool import Pool
from tests.contract.pool_contract import InjectFault, PoolContract, open_pool
from tests.contract.pool_notebook import OUTPUT, cells, execute
from tests.contract.processes import wait_until
from tests.unit.notebooks import open_notebook


@pytest.fixture(scope="module")
def runs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pool of 'O\"Neill'") / "runs"


@pytest.fixture(scope="module")
def pool(runs_folder: Path) -> Iterator[Pool]:
    yield from open_pool(spotmpi.pool(workers=2, on=Target("local", runs_folder)))


@pytest.fixture
def inject_fault(runs_folder: Path) -> InjectFault:
    backend = targets.backend(Target("local", runs_folder))
    return lambda pool, worker: backend.inject_fault(pool.id, Member(WORKER, worker), "kill")


class TestLocalPool(PoolContract):
    def test_a_dashboard_needs_bokeh_which_is_named_where_it_is_missing(self, pool: Pool, runs_folder: Path) -> None:
        with (
            pytest.raises(SpotmpiError, match="cannot be shown: No module named 'bokeh'; add bokeh to the image"),
            pools.dashboard(pool.id, Target("local", runs_folder)),
        ):
            pytest.fail("there is a dashboard")

    @pytest.mark.filterwarnings("error:Mismatched versions")
    def test_drivers_are_not_warned_of_versions_that_need_not_be_the_same(
        self, pool: Pool, runs_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("distributed.versions.get_package_info", lambda packages: {"numpy": "0.1"})
        with spotmpi.pool(pool.id, on=Target("local", runs_folder)) as driver:
            assert driver.submit(abs, -1).result(60) == driver.client.submit(abs, -1).result(60) == 1

    def test_its_workers_are_forks_of_one_process_that_has_imported_their_libraries(self, pool: Pool) -> None:
        (server,) = set(pool.run(os.getppid).values())
        assert "fork_server.py" in Path(f"/proc/{server}/cmdline").read_text()

    def test_what_dask_leaves_of_its_scheduler_is_in_the_folder_of_the_run(self, pool: Pool, runs_folder: Path) -> None:
        place = pool.client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.local_directory)
        assert Path(place).is_relative_to(runs_folder / pool.id / "pool"), "not in the folder for temporary files"

    def test_its_repr_says_what_it_is(self, pool: Pool) -> None:
        assert repr(pool) == f"<pool {pool.id}: 2 of 2 workers connected on 127.0.0.1, 0 calls>"

    @pytest.mark.parametrize(
        ("member", "fault", "problem"),
        [
            (Member(WORKER, 0), "evict", "fault = 'evict': a run on this machine supports only fault=\"kill\""),
            (Member(WORKER, 7), "kill", r"node = 'worker/7': run pool-.* has now: node/0, worker/0, worker/1(, .+)?$"),
        ],
        ids=["another fault", "a worker that it has not"],
    )
    def test_a_fault_that_no_process_of_the_pool_can_have_is_refused(
        self, pool: Pool, runs_folder: Path, member: Member, fault: str, problem: str
    ) -> None:
        """Worker 2 is one that another test has released, and that ends."""
        wait_until(lambda: [worker.connected for worker in pool.workers] == [True, True])
        with pytest.raises(InputError, match=problem):
            targets.backend(Target("local", runs_folder)).inject_fault(pool.id, member, fault)


@pytest.mark.extensive("every verb of a pool is in its contract, and a real kernel in tests/unit/api/test_notebook.py")
def test_a_notebook_uses_every_verb_and_collects_its_results_after_a_restart_of_its_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTMPI_RUNS", str(tmp_path / "runs"))
    notebook = cells("overrides=[\"limits.driver='10m'\"]")
    client = open_notebook(notebook.values(), tmp_path, monkeypatch)

    assert execute(client, notebook) == OUTPUT
