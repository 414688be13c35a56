"""The way to a cluster's API and its synchronous face, over real HTTP to a server that answers as scripted."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from lightkube import ApiError

from spotmpi.backends.kubernetes.client import api as cluster_api
from spotmpi.backends.kubernetes.client.api import POD, RESYNC, ClusterApi
from spotmpi.backends.kubernetes.client.errors import is_missing, translate_errors
from spotmpi.backends.kubernetes.client.view import ClusterView
from spotmpi.core.errors import NotPermitted, SpotmpiError
from tests.testbed.certificates import Authority
from tests.unit.backends.kubernetes.served_api import (
    Answer,
    Object,
    Server,
    api_at,
    change,
    listing,
    pod,
    status,
    write_kubeconfig,
)
from tests.unit.backends.kubernetes.test_kubeconfig import login_with


@pytest.fixture
def api(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterApi:
    monkeypatch.setattr(cluster_api, "RETRY_DELAY", 0.01)
    return api_at(server.port, tmp_path, monkeypatch)


def take(stream: Callable[[], AsyncIterator[Any]], count: int, within: float = 60) -> list[Any]:
    """The first *count* items."""

    async def collect() -> list[Any]:
        items = []
        async for item in stream():
            items.append(item)
            if len(items) == count:
                break
        return items

    return asyncio.run(asyncio.wait_for(collect(), within))


def names(changes: list[tuple[str, Object]]) -> list[Any]:
    return [
        (kind, [each["metadata"]["name"] for each in item["items"]] if kind == RESYNC else item["metadata"]["name"])
        for kind, item in changes
    ]


@pytest.mark.usefixtures("strict_certificates")
def test_a_cluster_whose_authority_has_no_key_identifier_is_trusted_as_by_kubectl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, other = Authority(tmp_path / "keys"), Authority(tmp_path / "other")
    server = Server(credential=authority.issue("api", hosts=["127.0.0.1"]))
    server.answers["list"] = [(200, listing(pod("a", 5)))]

    def pods(trusted: Path) -> list[Object]:
        options: Any = {"certificate-authority": str(trusted)}
        config = write_kubeconfig(tmp_path / "config", f"https://127.0.0.1:{server.port}", **options)
        monkeypatch.setenv("KUBECONFIG", str(config))
        return asyncio.run(ClusterApi(None, None).list(POD))

    try:
        assert [each["metadata"]["name"] for each in pods(authority.certificate)] == ["a"]
        with pytest.raises(httpx2.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            pods(other.certificate)
    finally:
        server.close()


def test_a_watch_that_ends_goes_on_from_its_version(api: ClusterApi, server: Server) -> None:
    server.answers["watch"] = [
        (200, change("ADDED", pod("a", 5))),
        (200, change("ADDED", pod("b", 6)) + change("DELETED", pod("a", 7))),
    ]
    assert names(take(lambda: api.watch(POD), 3)) == [("ADDED", "a"), ("ADDED", "b"), ("DELETED", "a")]
    assert "resourceVersion=5" in server.requests[1]
    assert all(request.startswith("watch") for request in server.requests)


def added(name: str, version: int) -> Answer:
    return 200, change("ADDED", pod(name, version))


EXPIRED = status(410)
REFUSED = (403, json.dumps(status(403)))


@pytest.mark.parametrize(
    ("watches", "lists", "changes"),
    [
        pytest.param(
            [added("a", 5), (200, change("ERROR", EXPIRED)), added("c", 9)],
            [(200, listing(pod("b", 8)))],
            [("ADDED", "a"), (RESYNC, ["b"]), ("ADDED", "c")],
            id="a version that is too old, in an event",
        ),
        pytest.param(
            [added("a", 5), (410, json.dumps(EXPIRED)), added("c", 9)],
            [(200, listing(pod("b", 8)))],
            [("ADDED", "a"), (RESYNC, ["b"]), ("ADDED", "c")],
            id="a version that is too old",
        ),
        pytest.param(
            [added("a", 5), REFUSED, added("b", 6)],
            [REFUSED, REFUSED, (200, listing(pod("a", 5)))],
            [("ADDED", "a"), (RESYNC, ["a"]), ("ADDED", "b")],
            id="a refusal after a restart of the server, which is retried",
        ),
        pytest.param(
            [REFUSED, REFUSED],
            [(200, listing(pod("a", 5))), (200, listing())],
            [(RESYNC, ["a"]), (RESYNC, [])],
            id="a user who may list but not watch",
        ),
    ],
)
def test_a_watch_that_cannot_go_on_lists_anew(
    api: ClusterApi, server: Server, watches: list[Answer], lists: list[Answer], changes: list[Any]
) -> None:
    server.answers |= {"watch": list(watches), "list": list(lists)}
    assert names(take(lambda: api.watch(POD), len(changes))) == changes


def test_a_watch_survives_a_restart_of_the_server(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_api, "RETRY_DELAY", 0.05)
    server.answers["watch"] = [added("a", 5)]
    api = api_at(server.port, tmp_path, monkeypatch)
    restarted: list[Server] = []

    async def watch() -> list[Any]:
        items = []
        async for item in api.watch(POD):
            items.append(item)
            if len(items) == 1:
                server.close()
                asyncio.get_running_loop().call_later(0.5, restart)
            if len(items) == 2:
                break
        return items

    def restart() -> None:
        restarted.append(Server(server.port, {"list": [(200, listing(pod("b", 8)))]}))

    try:
        assert names(asyncio.run(asyncio.wait_for(watch(), 20))) == [("ADDED", "a"), (RESYNC, ["b"])]
    finally:
        for each in restarted:
            each.close()


def test_a_watch_whose_connection_is_cut_off_silently_is_requested_anew(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_api, "MAX_SILENCE", 0.05)
    server.answers["list"] = [(200, listing(pod("b", 8)))]  # the watch gets no answer for 10 s
    api = api_at(server.port, tmp_path, monkeypatch)
    assert names(take(lambda: api.watch(POD), 1, within=8)) == [(RESYNC, ["b"])]


def test_a_watch_that_is_refused_from_the_start_raises_with_the_servers_message(
    api: ClusterApi, server: Server
) -> None:
    refused = [(403, json.dumps(status(403, 'User "ann" cannot watch pods')))]
    server.answers |= {"watch": refused, "list": refused[:]}
    words = r'could not follow: not permitted \(User "ann" cannot'
    with pytest.raises(SpotmpiError, match=words), translate_errors("follow"):
        take(lambda: api.watch(POD), 1)


def test_a_refusal_that_persists_is_raised(api: ClusterApi, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_api, "MAX_REFUSALS", 3)
    server.answers |= {"watch": [added("a", 5), *[REFUSED] * 4], "list": [REFUSED] * 4}
    with pytest.raises(ApiError):
        take(lambda: api.watch(POD), 2)


@pytest.mark.parametrize(
    "answers",
    [
        {"watch": [(200, "")] * 50},
        {"watch": [(200, "<html>busy</html>\n")] * 50, "list": [(200, listing())] * 50},
        {"watch": [(500, "{}")] * 50, "list": [(500, "{}")] * 50},
        {"watch": [(429, "{}")] * 50, "list": [(429, "{}")] * 50},
    ],
    ids=["watches that end at once", "answers of a proxy", "errors", "too many requests"],
)
def test_an_error_that_persists_is_repeated_with_pauses(
    answers: Any, api: ClusterApi, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_api, "RETRY_DELAY", 0.2)
    server.answers |= answers
    with contextlib.suppress(TimeoutError):
        take(lambda: api.watch(POD), 99, within=1)
    assert 2 <= len(server.requests) <= 12


def test_pauses_grow_up_to_a_limit() -> None:
    delays = [cluster_api.retry_delay(failures) for failures in range(1, 100)]
    assert delays == sorted(delays) and delays[0] > 0 and delays[-1] == 10 * delays[0] / cluster_api.RETRY_DELAY


def test_events_about_one_object_are_selected_by_the_server(api: ClusterApi, server: Server) -> None:
    server.answers["other"] = [(200, listing(kind="Event"))]
    assert asyncio.run(api.list(cluster_api.EVENT, about="pod-1")) == []
    assert "fieldSelector=involvedObject.name%3Dpod-1" in server.requests[0]


def test_a_long_list_is_read_in_pages_without_unused_fields(api: ClusterApi, server: Server) -> None:
    full = pod("a", 5)
    full["metadata"]["managedFields"] = [{"manager": "kubelet"}]
    full["spec"] = {"nodeName": "n-1", "terminationGracePeriodSeconds": 60, "containers": [{"name": "node"}]}
    first = json.loads(listing(full))
    first["metadata"]["continue"] = "more"
    server.answers["list"] = [(200, json.dumps(first)), (200, listing(pod("b", 6)))]
    items = asyncio.run(api.list(POD, {"run": "x"}))
    assert [each["metadata"]["name"] for each in items] == ["a", "b"]
    assert items[0]["spec"] == {"nodeName": "n-1", "terminationGracePeriodSeconds": 60}
    assert "managedFields" not in items[0]["metadata"]
    assert "limit=500" in server.requests[0] and "continue=more" in server.requests[1]


def test_events_of_nodes_are_read_from_the_namespace_that_keeps_them(api: ClusterApi, server: Server) -> None:
    event = {"metadata": {"name": "e"}, "involvedObject": {"kind": "Node", "name": "n"}, "reason": "Rebooted"}
    server.answers["other"] = [(200, listing(event, kind="Event"))]
    assert [event["reason"] for event in asyncio.run(api.node_events())] == ["Rebooted"]
    assert "/api/v1/namespaces/default/events?" in server.requests[0]
    assert "fieldSelector=involvedObject.kind%3DNode" in server.requests[0]


def test_an_object_of_another_namespace_is_found(api: ClusterApi, server: Server) -> None:
    values = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "it"}, "data": {"status": "fine"}}
    server.answers["other"] = [(200, json.dumps(values)), (404, json.dumps(status(404, 'configmaps "it" not found')))]
    items = [asyncio.run(api.find(cluster_api.CONFIG_MAP, "it", "kube-system")) for _ in range(2)]
    assert items[0] and items[0]["data"] == {"status": "fine"} and items[1] is None
    assert "/api/v1/namespaces/kube-system/configmaps/it" in server.requests[0]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a%2fb", "a?watch=1", "a#b"])
def test_a_name_that_no_object_can_have_is_not_found(name: str, api: ClusterApi, server: Server) -> None:
    """As a part of a path it would lead to a list of all objects, or to another API."""
    assert asyncio.run(api.find(cluster_api.JOBSET, name)) is None
    assert not asyncio.run(api.has_queue(name))
    assert server.requests == []


def test_a_queue_is_looked_up_in_the_version_that_the_cluster_serves(api: ClusterApi, server: Server) -> None:
    group = (200, json.dumps({"kind": "APIGroup", "preferredVersion": {"groupVersion": "kueue.x-k8s.io/v1beta2"}}))
    missing = (404, json.dumps(status(404, 'localqueues "x" not found')))
    server.answers["other"] = [group, (200, json.dumps({"kind": "LocalQueue"})), group, missing, (404, "not found")]
    assert [asyncio.run(api.has_queue("x")) for _ in range(3)] == [True, False, False]
    assert server.requests[1] == "other /apis/kueue.x-k8s.io/v1beta2/namespaces/here/localqueues/x"


def test_a_followed_log_yields_its_lines(api: ClusterApi, server: Server) -> None:
    server.answers["log"] = [(200, "one\ntwo\n")]
    assert take(lambda: api.log("a", 3, True), 1) == ["one\ntwo"]
    assert "sinceSeconds=3" in server.requests[0] and "follow=true" in server.requests[0].lower()
    assert "container=node" in server.requests[0]  # a pod template may add others


@pytest.mark.parametrize(
    ("code", "message", "missing"), [(404, 'pods "a" not found', True), (500, "kubelet away", False)]
)
def test_the_log_of_a_deleted_pod_is_missing_and_one_that_is_refused_for_a_moment_is_not(
    api: ClusterApi, server: Server, code: int, message: str, missing: bool
) -> None:
    server.answers["log"] = [(code, json.dumps(status(code, message)))]
    with pytest.raises(ApiError, match=message) as refused:
        take(lambda: api.log("a", None, True), 1)
    assert is_missing(refused.value) is missing


@pytest.mark.parametrize("follow", [True, False])
def test_a_line_of_a_log_that_arrives_in_parts_is_joined(api: ClusterApi, server: Server, follow: bool) -> None:
    long = "x" * 1_000_000  # bytes: more than arrives at once
    server.answers["log"] = [(200, f"one\n{long}\nlast, without its end")]
    items = take(lambda: api.log("a", None, follow), 9)
    assert "\n".join(items).split("\n") == ["one", long, "last, without its end"]


@pytest.mark.parametrize("follow", [True, False])
def test_of_a_line_without_an_end_only_the_last_part_is_kept(
    api: ClusterApi, server: Server, follow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image may print what it likes: the memory of who follows its pod is not for it to fill."""
    monkeypatch.setattr("spotmpi.backends.kubernetes.client.api.LONGEST_LINE", 200_000)
    server.answers["log"] = [(200, f"one\n{'x' * 1_000_000}\nlast")]
    first, long, last = "\n".join(take(lambda: api.log("a", None, follow), 9)).split("\n")
    assert (first, last, {*long}) == ("one", "last", {"x"}) and len(long) < 300_000


def test_the_last_line_of_a_log_is_short(api: ClusterApi, server: Server) -> None:
    server.answers["log"] = [(200, "one\ntwo\n")]
    assert asyncio.run(api.last_line("a")) == "two"
    assert "limitBytes=65536" in server.requests[0]


NO_JOBSET = "JobSet, which runs need, is not installed on the cluster; install its chart"


@pytest.mark.parametrize(
    ("code", "answer", "words"),
    [
        (404, "404 page not found", NO_JOBSET),
        (404, status(404, "the server could not find the requested resource"), NO_JOBSET),
        (403, status(403, "User cannot create"), r"not permitted \(User cannot create\)"),
        (500, status(500, 'failed calling webhook "vjobset.kb.io": refused'), "JobSet's webhook does not answer"),
        (401, status(401, "No"), r"the cluster does not accept your credentials \(No\); log in again"),
        (422, status(422, "spec.x: invalid"), "spec.x: invalid"),
        (502, "<html>bad gateway</html>", "the cluster answered 502"),
        (503, "", "the cluster answered 503"),
    ],
)
def test_errors_of_a_submission_become_one_line(
    api: ClusterApi, server: Server, code: int, answer: str | Object, words: str
) -> None:
    server.answers["other"] = [(code, answer if isinstance(answer, str) else json.dumps(answer))]
    jobset = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "a"}, "spec": {}}
    words = f"could not submit the run: {words}"
    with pytest.raises(SpotmpiError, match=words) as raised, translate_errors("submit the run"):
        asyncio.run(api.create(jobset))
    assert "\n" not in str(raised.value)


BUSY = (429, json.dumps(status(429, "too many requests")))
MAP = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "it"}}


def test_a_busy_server_gets_the_request_again_when_it_asks_for_that(api: ClusterApi, server: Server) -> None:
    server.retry_after = "0"
    server.answers |= {"other": [*[BUSY] * 9, (201, json.dumps(MAP))], "list": [BUSY, (200, listing(pod("a", 5)))]}
    assert asyncio.run(api.create(MAP))["metadata"]["name"] == "it"
    assert len(server.requests) == 10 and len(set(server.requests)) == 1
    assert len(asyncio.run(api.list(POD))) == 1


@pytest.mark.parametrize(("retry_after", "requests"), [("0", 10), (None, 1), ("soon", 1)])
def test_a_server_that_stays_busy_or_does_not_ask_for_another_try_is_an_error(
    api: ClusterApi, server: Server, retry_after: str | None, requests: int
) -> None:
    server.retry_after = retry_after
    server.answers["other"] = [BUSY] * 11
    with (
        pytest.raises(SpotmpiError, match="could not submit the run: too many requests"),
        translate_errors("submit the run"),
    ):
        asyncio.run(api.create(MAP))
    assert len(server.requests) == requests


def test_a_command_in_a_deleted_pod_is_a_one_line_error(api: ClusterApi, server: Server) -> None:
    server.answers["list"] = [(404, "not found")]  # it is a GET like any other until it is upgraded
    words = "could not read the folder: the cluster answered 404"
    with pytest.raises(SpotmpiError, match=words), translate_errors("read the folder"):
        asyncio.run(api.execute("gone", ["true"]))


def test_a_timeout_is_reported_with_its_length(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_api, "READ_TIMEOUT", 0.1)
    api = api_at(server.port, tmp_path, monkeypatch)
    words = r"could not look: the cluster did not answer within 0\.1 s; try again"
    with pytest.raises(SpotmpiError, match=words), translate_errors("look"):
        asyncio.run(api.list(POD))


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
