"""A worker pool on the test cluster from a notebook: a real kernel, which loses its tunnel and is restarted."""

from __future__ import annotations

import os
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.cluster.runs import Runs
from tests.contract.pool_notebook import OUTPUT, cells, execute
from tests.testbed.proxies import running_proxies
from tests.testbed.waiting import wait_for
from tests.unit.notebooks import open_notebook

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.pod_images("chainermn"),
    pytest.mark.timeout(400),
    pytest.mark.nightly("half a minute; by day the same notebook uses a pool of this machine"),
]

OUTAGE = 3.0  # seconds without the API server
CUT = """
def slow(value):
    import time
    time.sleep(0.2)
    return value
results = pool.map(slow, range(60), progress=False)
first = next(results)
Path("under way").touch()
print([first, *results] == list(range(60)))
"""


def test_a_notebook_uses_every_verb_loses_its_tunnel_and_collects_its_results_after_a_restart_of_its_kernel(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = urlsplit(runs.testbed.plane.server)
    assert server.hostname and server.port
    with running_proxies([(server.hostname, server.port)]) as (proxy,):
        kubeconfig = tmp_path / "kubeconfig"
        text = Path(os.environ["KUBECONFIG"]).read_text()
        assert server.netloc in text
        kubeconfig.write_text(text.replace(server.netloc, proxy.address))
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        monkeypatch.setenv("SPOTMPI_RUNS", str(tmp_path / "runs"))
        image = f"kubernetes.image={runs.testbed.images['chainermn']}"
        overrides = ["limits.driver='10m'", "kubernetes.volume=shared", image]
        notebook = cells(f"on={f'kubernetes/{runs.namespace}'!r}, overrides={overrides!r}", {"cut": CUT})
        client = open_notebook(notebook.values(), tmp_path, monkeypatch)
        broken: list[int] = []

        def cut() -> None:
            wait_for("the map", (tmp_path / "work" / "under way").exists)
            broken.append(proxy.cut())
            time.sleep(OUTAGE)
            proxy.mend()

        outputs = execute(client, notebook, {"cut": cut})
    assert outputs == {**OUTPUT, "cut": "True"}
    assert broken[0] > 0, "the tunnel was open"
