"""Dask's dashboard of a pool on the test cluster, through the tunnel of `spotmpi connect ID --dashboard`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from urllib.parse import urljoin

import pytest

from spotmpi.agent import pod_context
from spotmpi.images.environment import run_uv
from spotmpi.pools.pool import Pool
from tests.cluster.pools import LIMIT, PoolRun, has_workers
from tests.cluster.runs import Runs
from tests.command_line import SPOTMPI
from tests.testbed.waiting import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.pod_images("chainermn"),
    pytest.mark.timeout(400),
    pytest.mark.nightly("installs bokeh (120 MB); by day a pool of this machine says that it lacks bokeh"),
]

LOCK = Path(__file__).parents[1] / "testbed" / "bokeh" / "requirements.lock"
# The page gets its figures by a WebSocket: bokeh's client reads them as a browser does.
TABLE = """
import json, sys
from bokeh.client import pull_session
from bokeh.models import DataTable
table = next(iter(pull_session(url=sys.argv[1]).document.select({"type": DataTable})))
rows = zip(*(map(str, table.source.data[column]) for column in ("name", "address")))
print(json.dumps(dict(rows)))
"""


@pytest.fixture
def bokeh(runs: Runs) -> Path:
    """A folder on the run volume with bokeh and all that it needs."""
    assert runs.volume is not None
    options = ["--quiet", "--python", sys.executable, "--require-hashes", "--no-deps", "--only-binary", ":all:"]
    folder = runs.volume / "bokeh"
    run_uv("pip", "install", "--target", str(folder), *options, "--requirements", str(LOCK), purpose="install bokeh")
    return folder


def test_the_dashboard_shows_the_workers_of_the_pool(runs: Runs, bokeh: Path, tmp_path: Path) -> None:
    up = PoolRun(runs, 2, env={"PYTHONPATH": f"{pod_context.VOLUME}/{bokeh.name}"})
    place = ["--on", f"kubernetes/{runs.namespace}", "--runs", str(tmp_path / "runs")]
    command = [SPOTMPI, "connect", up.run.id, "--dashboard", "--json", *place]
    with up.join() as pool:
        wait_for("workers", lambda: has_workers(pool, 2), LIMIT)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as connect:
            assert connect.stdout
            try:
                page = json.loads(connect.stdout.readline())["dashboard"]
                assert "<title>Dask" in read(page)
                assert len(read(urljoin(page, "static/js/bokeh.min.js"))) > 500_000, "many messages through the tunnel"
                listed = read(urljoin(page, "info"))
                rows = table(urljoin(page, "workers"), bokeh)
            finally:
                connect.send_signal(signal.SIGINT)
        addresses = addresses_of(pool)
    assert connect.returncode == 0
    assert {name.rpartition("-")[0] or name: address for name, address in rows.items()} == {
        "Total (2)": "None",
        **{f"worker-{number}": address for number, address in addresses.items()},
    }
    assert all(address in listed for address in addresses.values())
    with pytest.raises(OSError):
        read(page)  # Ctrl-C ends the tunnel


def addresses_of(pool: Pool) -> dict[int, str]:
    """The address of each worker, as the worker knows it."""

    def address() -> str:
        from distributed import get_worker

        return str(get_worker().address)

    return pool.run(address)


def read(url: str) -> str:
    """The text of a page."""
    with urllib.request.urlopen(url, timeout=LIMIT) as answer:
        return str(answer.read().decode())


def table(url: str, bokeh: Path) -> dict[str, str]:
    """The address of each row of the table on a page of the dashboard, by its name."""
    environment = {**os.environ, "PYTHONPATH": str(bokeh)}
    command = [sys.executable, "-c", TABLE, url]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT)
    assert result.returncode == 0, result.stderr
    rows: dict[str, str] = json.loads(result.stdout)
    return rows
