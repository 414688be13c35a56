"""The synchronous face of the cluster's API, over real HTTP to a server that answers as scripted."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spotmpi.backends.kubernetes.client.view import ClusterView
from spotmpi.core.errors import NotPermitted, SpotmpiError
from tests.unit.backends.kubernetes.served_api import Server, api_at, listing, pod, status
from tests.unit.backends.kubernetes.test_kubeconfig import login_with

SECRET = {"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "ssh"}, "data": {"id": "eA=="}}


@pytest.fixture
def view(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterView:
    api_at(server.port, tmp_path, monkeypatch)
    return ClusterView(None)


def test_one_object_is_read_in_its_namespace_and_a_missing_one_is_none(view: ClusterView, server: Server) -> None:
    server.answers["other"] = [(200, json.dumps(SECRET)), (404, json.dumps(status(404, 'secrets "ssh" not found')))]
    assert [view.get("Secret", "ssh", "training") for _ in range(2)] == [SECRET, None]
    assert server.requests[0] == "other /api/v1/namespaces/training/secrets/ssh"


def test_nodes_have_no_namespace_and_other_objects_are_listed_in_all_of_them(view: ClusterView, server: Server) -> None:
    nodes = listing({"metadata": {"name": "n-1"}}, kind="Node")
    server.answers["other"] = [(200, nodes), (200, listing(pod("a", 5)))]
    assert [each["metadata"]["name"] for each in view.list("Node")] == ["n-1"]
    assert [each["metadata"]["name"] for each in view.list("Pod", "*", {"run": "x"})] == ["a"]
    assert server.requests[0].startswith("other /api/v1/nodes?")
    assert server.requests[1].startswith("other /api/v1/pods?") and "labelSelector=run%3Dx" in server.requests[1]


def test_a_refusal_is_not_permitted_and_other_errors_are_one_line(view: ClusterView, server: Server) -> None:
    server.answers["other"] = [(403, json.dumps(status(403, "User cannot get"))), (502, "<html>bad gateway</html>")]
    with pytest.raises(NotPermitted, match=r"could not read Secret ssh: not permitted \(User cannot get\)"):
        view.get("Secret", "ssh")
    with pytest.raises(SpotmpiError, match="could not list Secrets: the cluster answered 502"):
        view.list("Secret")


def test_several_threads_and_a_running_event_loop_may_use_one_view(view: ClusterView, server: Server) -> None:
    server.answers["other"] = [(200, json.dumps(SECRET)) for _ in range(9)]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda _: view.get("Secret", "ssh"), range(8))) == [SECRET] * 8

    async def notebook() -> object:
        return view.get("Secret", "ssh")

    assert asyncio.run(notebook()) == SECRET


def test_a_login_program_runs_once_for_all_requests(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = f'echo login >> {tmp_path}/logins; echo \'{{"status": {{"token": "t"}}}}\''
    login_with(tmp_path, monkeypatch, login, f"http://127.0.0.1:{server.port}")
    server.answers["other"] = [(200, json.dumps(SECRET))] * 2
    view = ClusterView(None)
    assert [view.get("Secret", "ssh") for _ in range(2)] == [SECRET] * 2
    assert (tmp_path / "logins").read_text() == "login\n"
