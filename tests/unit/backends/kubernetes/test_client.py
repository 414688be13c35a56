"""The way to a cluster's API and its synchronous face, over HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from httpx2.websockets import WebSocketDisconnect, WebSocketNetworkError
from lightkube import ApiError

from spotmpi.backends.kubernetes.client import answers
from spotmpi.backends.kubernetes.client import api as cluster_api
from spotmpi.backends.kubernetes.client.answers import OversizedAnswer
from spotmpi.backends.kubernetes.client.api import POD, RESYNC, ClusterApi
from spotmpi.backends.kubernetes.client.errors import is_missing, reason_of_end, translate_errors
from spotmpi.backends.kubernetes.client.view import ClusterView
from spotmpi.core.errors import NotPermitted, SpotmpiError
from tests.cloud.cluster.answers import status
from tests.cloud.cluster.fake_cluster import FakeCluster, write_kubeconfig
from tests.cloud.cluster.objects import a_pod, event, node, of_kind
from tests.cloud.cluster.store import Object
from tests.contract.processes import wait_until
from tests.testbed.certificates import Authority
from tests.testbed.web import free_port

Script = Callable[[FakeCluster], object]


@pytest.fixture
def api(cluster: FakeCluster) -> ClusterApi:
    return cluster.api()


FIRST_USE = """
import sys, threading
from spotmpi.backends.kubernetes.client.api import POD, ClusterApi
from spotmpi.backends.kubernetes.client.portal import call
sys.setswitchinterval(1e-6)
ready, listed = threading.Barrier(4), []
def use():
    api = ClusterApi(None, None)
    ready.wait()
    listed.append(len(call(api.list(POD))))
threads = [threading.Thread(target=use) for _ in range(4)]
for each in threads:
    each.start()
for each in threads:
    each.join()
print(listed)
"""


def test_threads_may_use_a_cluster_for_the_first_time_at_once(cluster: FakeCluster) -> None:
    """As the driver of a pool does, which is followed while it asks for its state; msgspec 0.22.0 crashes there."""
    cluster.put(pod("one"))
    result = subprocess.run([sys.executable, "-c", FIRST_USE], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "[1, 1, 1, 1]\n"), result.stderr[-500:]


def pod(name: str, phase: str = "Running") -> Object:
    return a_pod(name, phase, {"run": "x"})


def take(stream: Callable[[], AsyncIterator[Any]], count: int, *steps: Callable[[], object], within: float = 60) -> Any:
    """The first *count* items; one of the *steps* is taken after each."""

    async def collect() -> list[Any]:
        items, rest = [], list(steps)
        async for item in stream():
            items.append(item)
            if len(items) == count:
                break
            if rest:
                rest.pop(0)()
        return items

    return asyncio.run(asyncio.wait_for(collect(), within))


class SimulatedClock:
    """Seconds that pass only in `sleep`, which raises a TimeoutError after *end*."""

    def __init__(self, end: float) -> None:
        self._end, self._now = end, 0.0
        self.pauses: list[float] = []  # seconds

    def monotonic(self) -> float:
        return self._now

    async def sleep(self, delay: float) -> None:
        self._now += delay
        self.pauses.append(delay)
        if self._now > self._end:
            raise TimeoutError


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
    cluster = FakeCluster(pod("a"), credential=authority.issue("api", hosts=["127.0.0.1"]))

    def pods(trusted: Path) -> list[Object]:
        config = cluster.kubeconfig(tmp_path / "config", {"certificate-authority": str(trusted)})
        monkeypatch.setenv("KUBECONFIG", str(config))
        return asyncio.run(cluster.api().list(POD))

    try:
        assert [each["metadata"]["name"] for each in pods(authority.certificate)] == ["a"]
        with pytest.raises(httpx2.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            pods(other.certificate)
    finally:
        cluster.close()


def test_a_watch_that_ends_goes_on_from_its_version(api: ClusterApi, cluster: FakeCluster) -> None:
    cluster.put(pod("a"))
    version = cluster.get(POD, "a")["metadata"]["resourceVersion"]

    def go_on() -> None:
        cluster.end_watches()
        cluster.put(pod("b"))
        cluster.remove(pod("a"))

    assert names(take(lambda: api.watch(POD), 3, go_on)) == [("ADDED", "a"), ("ADDED", "b"), ("DELETED", "a")]
    assert f"resourceVersion={version}" in cluster.paths[1]
    assert all(request.verb == "watch" for request in cluster.requests)


def replace_unseen(cluster: FakeCluster) -> None:
    with cluster.unseen():
        cluster.remove(pod("a"))
        cluster.put(pod("b"))


def replace_between_watches(cluster: FakeCluster) -> None:
    with cluster.unseen():
        cluster.end_watches()
        cluster.remove(pod("a"))
        cluster.put(pod("b"))


def restart(cluster: FakeCluster) -> None:
    cluster.refuse("watch", "pods", 403, times=1)
    cluster.refuse("list", "pods", 403, times=2)
    cluster.end_watches()


@pytest.mark.parametrize(
    ("happens", "changes"),
    [
        pytest.param(
            replace_unseen,
            [("ADDED", "a"), (RESYNC, ["b"]), ("ADDED", "c")],
            id="a version that is too old, in an event",
        ),
        pytest.param(
            replace_between_watches, [("ADDED", "a"), (RESYNC, ["b"]), ("ADDED", "c")], id="a version that is too old"
        ),
        pytest.param(
            restart,
            [("ADDED", "a"), (RESYNC, ["a"]), ("ADDED", "c")],
            id="a refusal after a restart of the server, which is retried",
        ),
    ],
)
def test_a_watch_that_cannot_go_on_lists_anew(
    api: ClusterApi, cluster: FakeCluster, happens: Script, changes: list[Any]
) -> None:
    cluster.put(pod("a"))
    steps = (lambda: happens(cluster), lambda: cluster.put(pod("c")))
    assert names(take(lambda: api.watch(POD), len(changes), *steps)) == changes


def test_a_refusal_is_retried_though_nothing_had_changed_since_the_first_list(
    api: ClusterApi, cluster: FakeCluster
) -> None:
    """The pods of a run that goes on for hours are listed once, and none changes until the server is restarted."""
    cluster.put(pod("a"))
    changes = take(lambda: api.watch(POD, listed=True), 2, lambda: restart(cluster))
    assert names(changes) == [(RESYNC, ["a"]), (RESYNC, ["a"])]


def test_a_user_who_may_list_but_not_watch_gets_lists(api: ClusterApi, cluster: FakeCluster) -> None:
    cluster.put(pod("a"))
    cluster.forbid("watch", "pods")
    changes = take(lambda: api.watch(POD), 2, lambda: cluster.clear(POD))
    assert names(changes) == [(RESYNC, ["a"]), (RESYNC, [])]


def test_a_watch_survives_a_restart_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster(pod("a"), port=free_port())
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(tmp_path / "config")))
    api, restarted = cluster.api(), list[FakeCluster]()

    def begin_again() -> None:
        restarted.append(FakeCluster(pod("b"), port=cluster.port))
        assert restarted[0].port == cluster.port

    def restart_later() -> None:
        cluster.close()
        asyncio.get_running_loop().call_later(0.2, begin_again)

    try:
        assert names(take(lambda: api.watch(POD), 2, restart_later)) == [("ADDED", "a"), (RESYNC, ["b"])]
    finally:
        for each in restarted:
            each.close()


def test_a_watch_whose_connection_is_cut_off_silently_is_requested_anew(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_api, "MAX_SILENCE", 0.05)
    cluster.put(pod("b"))
    cluster.refuse("watch", "pods", None, times=1)
    api = cluster.api()
    assert names(take(lambda: api.watch(POD), 1)) == [(RESYNC, ["b"])]


def test_a_watch_that_is_refused_from_the_start_raises_with_the_servers_message(
    api: ClusterApi, cluster: FakeCluster
) -> None:
    cluster.forbid("*", "pods")
    words = r'could not follow: not permitted \(pods is forbidden: User "ann" cannot'
    with pytest.raises(SpotmpiError, match=words), translate_errors("follow"):
        take(lambda: api.watch(POD), 1)


def test_a_refusal_that_persists_is_raised(
    api: ClusterApi, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_api, "MAX_REFUSALS", 3)
    cluster.put(pod("a"))

    def refuse() -> None:
        cluster.forbid("*", "pods")
        cluster.end_watches()

    with pytest.raises(ApiError):
        take(lambda: api.watch(POD), 2, refuse)


@pytest.mark.parametrize(
    ("verb", "code", "text", "requests", "pauses"),
    [
        ("watch", 200, "", 31, [1] * 31),
        ("watch", 200, "<html>busy</html>\n", 16, [1, 2, 3, 4, 5, 6, 7, 8]),  # each time all pods are listed
        ("*", 500, "{}", 8, [1, 2, 3, 4, 5, 6, 7, 8]),
        ("*", 429, "{}", 8, [1, 2, 3, 4, 5, 6, 7, 8]),
    ],
    ids=["watches that end at once", "answers of a proxy", "errors", "too many requests"],
)
def test_an_error_that_persists_is_repeated_with_pauses(
    verb: str,
    code: int,
    text: str,
    requests: int,
    pauses: list[float],
    api: ClusterApi,
    cluster: FakeCluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimulatedClock(end=30)
    monkeypatch.setattr(cluster_api, "time", clock)
    monkeypatch.setattr(asyncio, "sleep", clock.sleep)
    monkeypatch.setattr(cluster_api, "RETRY_DELAY", 1.0)
    cluster.refuse(verb, "pods", code, text)
    with pytest.raises(TimeoutError):
        take(lambda: api.watch(POD), 99)
    assert (len(cluster.requests), clock.pauses) == (requests, pauses)


def test_pauses_grow_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_api, "RETRY_DELAY", 1.0)
    delays = [cluster_api.retry_delay(failures) for failures in range(1, 100)]
    assert delays == sorted(delays) and delays[0] > 0 and delays[-1] == 10 * delays[0] / cluster_api.RETRY_DELAY


def test_events_about_one_object_are_selected_by_the_server(api: ClusterApi, cluster: FakeCluster) -> None:
    cluster.put(*(event({"name": name}, "Pulled", "done", name) for name in ("pod-1", "pod-2")))
    assert [each["metadata"]["name"] for each in asyncio.run(api.list(cluster_api.EVENT, about="pod-1"))] == ["pod-1"]


def test_a_long_list_is_read_in_pages_without_unused_fields(
    api: ClusterApi, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_api, "_PAGE", 1)
    full = pod("a")
    full["metadata"]["managedFields"] = [{"manager": "kubelet"}]
    full["spec"] |= {"nodeName": "n-1", "terminationGracePeriodSeconds": 60}
    cluster.put(full, pod("b"), a_pod("c", "Running", {"run": "another"}))
    items = asyncio.run(api.list(POD, {"run": "x"}))
    assert [each["metadata"]["name"] for each in items] == ["a", "b"] and len(cluster.requests) == 2
    assert items[0]["spec"] == {"nodeName": "n-1", "terminationGracePeriodSeconds": 60}
    assert "managedFields" not in items[0]["metadata"]


def test_events_of_nodes_are_read_from_the_namespace_that_keeps_them(api: ClusterApi, cluster: FakeCluster) -> None:
    cluster.put(event({"kind": "Node", "name": "n"}, "Rebooted", "", namespace="default"))
    cluster.put(event({"kind": "Pod", "name": "p"}, "Pulled", "", "other", namespace="default"))
    assert [each["reason"] for each in asyncio.run(api.node_events())] == ["Rebooted"]


def test_an_object_of_another_namespace_is_found(api: ClusterApi, cluster: FakeCluster) -> None:
    cluster.put(of_kind("ConfigMap", "it", "kube-system", data={"status": "fine"}))
    found = asyncio.run(api.find(cluster_api.CONFIG_MAP, "it", "kube-system"))
    assert found and found["data"] == {"status": "fine"}
    assert asyncio.run(cluster.api().find(cluster_api.CONFIG_MAP, "it")) is None


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a%2fb", "a?watch=1", "a#b"])
def test_a_name_that_no_object_can_have_is_not_found(name: str, api: ClusterApi, cluster: FakeCluster) -> None:
    """As a part of a path it would lead to a list of all objects, or to another API."""
    assert asyncio.run(api.find(cluster_api.JOBSET, name)) is None
    assert not asyncio.run(api.has_queue(name))
    assert cluster.paths == []


def test_a_queue_is_looked_up_in_the_version_that_the_cluster_serves(api: ClusterApi, cluster: FakeCluster) -> None:
    cluster.put(of_kind("LocalQueue", "x"))
    assert asyncio.run(api.has_queue("x"))
    assert not asyncio.run(api.has_queue("y"))
    cluster.missing.add("kueue.x-k8s.io")
    assert not asyncio.run(api.has_queue("x"))


def test_a_followed_log_yields_its_lines(api: ClusterApi, cluster: FakeCluster) -> None:
    cluster.put(pod("a"))
    cluster.add_log("a", "one", "two")
    more = take(lambda: api.log("a", 3, True), 2, lambda: cluster.add_log("a", "three"))
    assert more == ["one\ntwo", "three"]
    (request,) = cluster.requests_of("get", "pods/log")
    assert request.parameters["container"] == "node"  # a pod template may add others


def test_a_log_is_read_from_some_seconds_ago(api: ClusterApi, cluster: FakeCluster) -> None:
    cluster.put(pod("a"))
    cluster.ahead = -60
    cluster.add_log("a", "old")
    cluster.ahead = 0
    cluster.add_log("a", "new")
    assert take(lambda: api.log("a", 3, False), 1) == ["new"]


@pytest.mark.parametrize("missing", [True, False])
def test_the_log_of_a_deleted_pod_is_missing_and_one_that_is_refused_for_a_moment_is_not(
    api: ClusterApi, cluster: FakeCluster, missing: bool
) -> None:
    if not missing:
        cluster.refuse("get", "pods/log", 500, "kubelet away")
    with pytest.raises(ApiError, match='pods "a" not found' if missing else "kubelet away") as refused:
        take(lambda: api.log("a", None, True), 1)
    assert is_missing(refused.value) is missing


@pytest.mark.parametrize("follow", [True, False])
def test_a_line_of_a_log_that_arrives_in_parts_is_joined(api: ClusterApi, cluster: FakeCluster, follow: bool) -> None:
    long = "x" * 1_000_000  # bytes: more than arrives at once
    cluster.put(pod("a", "Succeeded"))
    cluster.add_log("a", f"one\n{long}\nlast, without its end", end="")
    items = take(lambda: api.log("a", None, follow), 9)
    assert "\n".join(items).split("\n") == ["one", long, "last, without its end"]


@pytest.mark.parametrize("follow", [True, False])
def test_of_a_line_without_an_end_only_the_last_part_is_kept(
    api: ClusterApi, cluster: FakeCluster, follow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image may print what it likes: the memory of who follows its pod is not for it to fill."""
    monkeypatch.setattr(cluster_api, "LONGEST_LINE", 200_000)
    cluster.put(pod("a", "Succeeded"))
    cluster.add_log("a", "one", "x" * 1_000_000, "last")
    first, long, last = "\n".join(take(lambda: api.log("a", None, follow), 9)).split("\n")
    assert (first, last, {*long}) == ("one", "last", {"x"}) and len(long) < 300_000


def test_the_last_line_of_a_log_is_short(api: ClusterApi, cluster: FakeCluster) -> None:
    cluster.put(pod("a"))
    cluster.add_log("a", "one", "two" * 100_000)
    assert 3 < len(asyncio.run(api.last_line("a"))) < 1 << 16


def dead(webhook: str, address: str) -> str:
    """What the API server says of a webhook that nobody serves (Kubernetes 1.35)."""
    post = f'failed to call webhook: Post "https://{address}/x?timeout=10s": dial tcp: connect: connection refused'
    return f'Internal error occurred: failed calling webhook "{webhook}": {post}'


JOBSET_IS_DOWN = "JobSet's webhook does not answer: check `kubectl -n jobset-system get pods`"
FORBIDDEN = 'jobsets.jobset.x-k8s.io "a" is forbidden:'
NO_JOBSET = "JobSet, which runs need, is not installed on the cluster; install its chart"


@pytest.mark.parametrize(
    ("code", "answer", "words"),
    [
        (404, "404 page not found", NO_JOBSET),
        (404, "the server could not find the requested resource", NO_JOBSET),
        (404, 'namespaces "a" not found', "its namespace does not exist .*set-context --current --namespace NAME"),
        (403, "User cannot create", r"not permitted \(User cannot create\)"),
        (500, dead("vjobset.kb.io", "jobset-webhook-service.jobset-system.svc:443"), JOBSET_IS_DOWN),
        (500, dead("vjobset.kb.io", "jobset-webhook-service.ml-infra.svc:443"), "JobSet's .*kubectl -n ml-infra get"),
        (500, 'failed calling webhook "vjobset.kb.io": context deadline exceeded', JOBSET_IS_DOWN),
        (
            500,
            dead("mjobset.kb.io", "kueue-webhook-service.queues.svc:443"),
            "webhook mjob.*-n queues get pods",
        ),
        (500, dead("validate.kyverno.svc-fail", "127.0.0.1:1"), "webhook validate.kyverno.*not answer: ask the admin"),
        (
            403,
            'admission webhook "vjobset.kb.io" denied the request: \n\nno',
            'admission webhook "vj.*the request: no$',
        ),
        (403, f"{FORBIDDEN} ValidatingAdmissionPolicy 'p' denied request: add a label", f"{FORBIDDEN} Validat"),
        (
            403,
            f"{FORBIDDEN} exceeded quota: q, requested: pods=1",
            "requested.*`kubectl describe quota q` shows",
        ),
        (403, f"{FORBIDDEN} failed quota: q: must specify limits.cpu", "describe quota q` shows"),
        (
            403,
            f"{FORBIDDEN} unable to create new content in namespace n because it is being terminated",
            "its namespace is",
        ),
        (403, f"{FORBIDDEN} maximum memory usage per Container is 1Gi, but limit is 2Gi", f"{FORBIDDEN} maximum"),
        (200, "<html>Sign in</html>", "cannot reach the cluster .*a web page, as a proxy or a login does"),
        (200, "", r"the answer is not one of a Kubernetes API \(Input data was truncated\): a proxy may be in the way"),
        (401, "No", r"the cluster does not accept your credentials \(No\); log in again"),
        (422, "spec.x: invalid", "spec.x: invalid"),
        (502, "<html>bad gateway</html>", "the cluster answered 502"),
        (503, "", "the cluster answered 503"),
    ],
)
def test_errors_of_a_submission_become_one_line(
    api: ClusterApi, cluster: FakeCluster, code: int, answer: str, words: str
) -> None:
    cluster.refuse("create", "jobsets", code, answer)
    words = f"^could not submit the run: .*{words}"
    with pytest.raises(SpotmpiError, match=words) as raised, translate_errors("submit the run"):
        asyncio.run(api.create(of_kind("JobSet", "a", spec={})))
    assert "\n" not in str(raised.value)
    assert isinstance(raised.value, NotPermitted) == ("User cannot" in answer), "only a missing right is one"
    assert ("not permitted" in str(raised.value)) == ("User cannot" in answer)


def test_a_redirect_is_not_followed_and_says_where_it_leads(api: ClusterApi, cluster: FakeCluster) -> None:
    cluster.refuse("get", "pods", 302, "", headers={"Location": "https://sso.example/login"})
    words = "its address sends us on to https://sso.example/login, as a login page does"
    with pytest.raises(SpotmpiError, match=words), translate_errors("look"):
        asyncio.run(api.find(POD, "a"))


@pytest.mark.parametrize("page", ["<html>busy</html>", ""])
def test_a_watch_goes_on_after_pages_of_a_proxy_in_place_of_lists(
    api: ClusterApi, cluster: FakeCluster, page: str
) -> None:
    cluster.put(pod("a"))

    def break_off() -> None:
        cluster.refuse("watch", "pods", 410, "too old resource version", times=1)
        cluster.refuse("list", "pods", 200, page, times=3)
        cluster.end_watches()

    assert names(take(lambda: api.watch(POD), 2, break_off)) == [("ADDED", "a"), (RESYNC, ["a"])]


MAP = of_kind("ConfigMap", "it")
BUSY = json.dumps(status(429, "too many requests"))


def test_a_busy_server_gets_the_request_again_when_it_asks_for_that(api: ClusterApi, cluster: FakeCluster) -> None:
    cluster.refuse("create", "configmaps", 429, BUSY, times=9, headers={"Retry-After": "0"})
    assert asyncio.run(api.create(MAP))["metadata"]["name"] == "it"
    assert len(cluster.paths) == 10 and len(set(cluster.paths)) == 1
    cluster.put(pod("a"))
    cluster.refuse("list", "pods", 429, BUSY, times=1, headers={"Retry-After": "0"})
    assert len(asyncio.run(cluster.api().list(POD))) == 1


@pytest.mark.parametrize(
    ("headers", "requests"), [({"Retry-After": "0"}, 10), ({}, 1), ({"Retry-After": "soon"}, 1)], ids=str
)
def test_a_server_that_stays_busy_or_does_not_ask_for_another_try_is_an_error(
    api: ClusterApi, cluster: FakeCluster, headers: dict[str, str], requests: int
) -> None:
    """The header is 1 in the original (kubernetes/kubernetes#84903)."""
    cluster.refuse("create", "configmaps", 429, BUSY, headers=headers)
    with (
        pytest.raises(SpotmpiError, match="could not submit the run: too many requests"),
        translate_errors("submit the run"),
    ):
        asyncio.run(api.create(MAP))
    assert len(cluster.requests) == requests


def test_a_command_in_a_deleted_pod_is_a_one_line_error(api: ClusterApi) -> None:
    words = "could not read the folder: the cluster answered 404"
    with pytest.raises(SpotmpiError, match=words), translate_errors("read the folder"):
        asyncio.run(api.execute("gone", ["true"]))


def test_a_user_who_may_not_run_commands_in_pods_is_not_permitted(api: ClusterApi, cluster: FakeCluster) -> None:
    cluster.put(pod("a"))
    cluster.forbid("get", "pods/exec")
    words = r"could not read the folder: not permitted \(the cluster answered 403\)"
    with pytest.raises(NotPermitted, match=words), translate_errors("read the folder"):
        asyncio.run(api.execute("a", ["true"]))


def test_a_command_without_input_has_none_that_stays_open(api: ClusterApi, cluster: FakeCluster) -> None:
    cluster.put(pod("a"))
    cluster.answer_commands("done")
    assert asyncio.run(api.execute("a", ["cat"])) == "done"
    assert "stdin" not in cluster.requests[0].parameters


def test_an_answer_beyond_its_limit_is_refused(
    api: ClusterApi, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image of a pod may be anybody's, and print without an end."""
    cluster.put(pod("a"))
    cluster.answer_commands("x" * 100_000)
    with pytest.raises(OversizedAnswer, match="pod a printed more than 99,999 bytes; check its image"):
        asyncio.run(api.execute("a", ["cat"], 99_999))
    assert len(asyncio.run(api.execute("a", ["cat"], 100_000))) == 100_000
    monkeypatch.setattr(answers, "LIMIT", 10)
    with pytest.raises(OversizedAnswer), translate_errors("access the files"):
        asyncio.run(api.stream("a", ["cat"], None, answers.Answer("a")))


def test_of_the_errors_of_a_command_the_end_is_kept(api: ClusterApi, cluster: FakeCluster) -> None:
    cluster.put(pod("a"))
    errors = b"tar: a warning\n" * 20_000 + b"tar: no space left\n"
    cluster.run = lambda pod, command, stdin: subprocess.CompletedProcess([], 1, b"", errors)
    status, end = asyncio.run(api.stream("a", ["tar"], None, None))
    assert status == 1 and end.endswith("tar: no space left\n") and len(end) <= answers.LONGEST_ERRORS


def test_an_answer_that_is_no_text_is_read_all_the_same(api: ClusterApi, cluster: FakeCluster) -> None:
    cluster.put(pod("a"))
    cluster.run = lambda pod, command, stdin: subprocess.CompletedProcess([], 1, b"a\xff", b"\xff")
    assert asyncio.run(api.execute("a", ["cat"])) == "a\ufffd"
    assert asyncio.run(api.stream("a", ["cat"], None, None)) == (1, "\ufffd")


def test_a_timeout_is_reported_with_its_length(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_api, "READ_TIMEOUT", 0.1)
    cluster.refuse("list", "pods", None)
    words = r"could not look: the cluster did not answer within 0\.1 s; try again"
    with pytest.raises(SpotmpiError, match=words), translate_errors("look"):
        asyncio.run(cluster.api().list(POD))


def test_what_a_silent_cluster_lets_wait_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cluster_api, "READ_TIMEOUT", 0.1)
    monkeypatch.setattr(cluster_api, "QUIET", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "config", address, "lab")))
        api = ClusterApi(None, None)

        async def find() -> None:
            for _ in range(2):
                with pytest.raises(httpx2.ReadTimeout):
                    await api.find(POD, "a")

        asyncio.run(find())
    assert capsys.readouterr().err == "waiting until the cluster answers (gives up after 0.1 s)\n"


def test_of_a_cluster_that_has_answered_no_wait_is_named(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may think about its answers, and gets requests all the time that a run is followed."""
    api = cluster.api()

    async def find() -> None:
        monkeypatch.setattr(cluster_api, "QUIET", 3600.0)
        await api.find(POD, "a")
        monkeypatch.setattr(cluster_api, "QUIET", 0.0)
        await api.find(POD, "a")

    asyncio.run(find())
    assert capsys.readouterr().err == ""


SECRET = of_kind("Secret", "ssh", "training", data={"id": "eA=="})


@pytest.fixture
def view(cluster: FakeCluster) -> ClusterView:
    cluster.put(SECRET)
    return cluster.view()


def value(item: Object | None) -> str:
    assert item is not None
    return str(item["data"]["id"])


def test_one_object_is_read_in_its_namespace_and_a_missing_one_is_none(view: ClusterView) -> None:
    assert value(view.get("Secret", "ssh", "training")) == "eA=="
    assert view.get("Secret", "ssh") is None


def test_nodes_have_no_namespace_and_other_objects_are_listed_in_all_of_them(
    view: ClusterView, cluster: FakeCluster
) -> None:
    cluster.put(node("n-1"), pod("a"), a_pod("b", "Running", {}))
    assert [each["metadata"]["name"] for each in view.list("Node")] == ["n-1"]
    assert [each["metadata"]["name"] for each in view.list("Pod", "*")] == ["a", "b"]


def test_a_refusal_is_not_permitted_and_other_errors_are_one_line(view: ClusterView, cluster: FakeCluster) -> None:
    cluster.forbid("get", "secrets")
    cluster.refuse("list", "secrets", 502, "<html>bad gateway</html>")
    words = r'could not read Secret ssh: not permitted \(secrets "ssh" is forbidden: User "ann" cannot get'
    with pytest.raises(NotPermitted, match=words):
        view.get("Secret", "ssh")
    with pytest.raises(SpotmpiError, match="could not list Secrets: the cluster answered 502"):
        view.list("Secret")


def test_several_threads_and_a_running_event_loop_may_use_one_view(view: ClusterView) -> None:
    with ThreadPoolExecutor(4) as threads:
        assert {*threads.map(lambda _: value(view.get("Secret", "ssh", "training")), range(8))} == {"eA=="}

    async def notebook() -> Object | None:
        return view.get("Secret", "ssh", "training")

    assert value(asyncio.run(notebook())) == "eA=="


def test_a_view_whose_own_thread_collects_it_ends_without_an_error(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", errors.append)
    views, others = [cluster.view()], {*threading.enumerate()}
    views[0].list("Node")
    own = [each for each in {*threading.enumerate()} - others if each.name.startswith("spotmpi cluster view")]
    views[0]._portal.call(views.clear)
    wait_until(lambda: not any(thread.is_alive() for thread in own))
    assert own and errors == []


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (WebSocketNetworkError(), ""),
        (WebSocketDisconnect(1006), ": close code 1006"),
        (WebSocketDisconnect(1011, "the pod is gone"), ": the pod is gone"),
    ],
)
def test_the_end_of_a_connection_has_a_reason_in_words(error: Exception, text: str) -> None:
    assert reason_of_end(error) == text
