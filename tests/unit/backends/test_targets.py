"""Which cluster and namespace a run is looked for in."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotmpi.backends import targets
from spotmpi.backends.kubernetes.backend import KubernetesBackend
from spotmpi.core.names import RunPaths
from spotmpi.plan.cluster import cached_plan
from spotmpi.runs import cache
from spotmpi.spec.job import from_values
from tests.unit.backends.kubernetes.served_api import write_kubeconfig


@pytest.fixture
def runs_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of runs with the run ``a-run``, which is in the namespace ``team`` of the context ``there``."""
    spec = from_values({"image": "chainermn", "program": "digits"})
    plan = cached_plan(spec, "a-run", "there", "team")
    cache.create(RunPaths(tmp_path / "runs" / "a-run"), spec.to_toml(), {**plan, "owner": "me"}, 1.0)
    configs = [write_kubeconfig(tmp_path / name, "http://127.0.0.1:1", name) for name in ("here", "there")]
    monkeypatch.setenv("KUBECONFIG", ":".join(map(str, configs)))
    return tmp_path / "runs"


@pytest.mark.parametrize(("on", "namespace"), [(None, "team"), ("kubernetes", "team"), ("kubernetes/other", "other")])
def test_a_run_is_looked_up_in_its_recorded_namespace_unless_one_is_named(
    on: str | None, namespace: str, runs_folder: Path
) -> None:
    """A later `status ID --on kubernetes` looks in this namespace, not in "default"."""
    backend = targets.backend_of("a-run", targets.Target(on, runs_folder))
    assert isinstance(backend, KubernetesBackend)
    assert backend._api().namespace == namespace
