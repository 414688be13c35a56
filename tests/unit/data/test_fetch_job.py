"""The Job that fetches data, against a cluster whose every answer is scripted, and what it may do and reach."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spotmpi.core import reminders
from spotmpi.core.errors import InputError, SpotmpiError
from spotmpi.data import datasets as data
from spotmpi.data import fetch, fetch_job
from spotmpi.data.remote_source import Download
from spotmpi.data.store import Transfer
from spotmpi.plan.pods import CONTAINER
from spotmpi.plan.volume_pod import Volume
from tests.cloud.cluster.answers import Request, stamp_of
from tests.cloud.cluster.fake_cluster import FakeCluster
from tests.cloud.cluster.objects import a_pod, of_kind
from tests.cloud.cluster.store import Object

VOLUME = Volume("claim", "registry/image:1", ("key",))
DOWNLOAD = Download("https://x.org/set.tar?X-Amz-Signature=s3cret", "set.tar", None)
NAME = fetch_job.name_of([[DOWNLOAD]], "voc", "claim")
ALL_DONE: Object = {"done": [[3, 300, 2]]}
PROGRESS = '{"name": "set.tar", "got": 16000000, "of": 100000000, "whole": 0, "all": 1}'


SERVER_TIME = 1_700_000_000.0  # Unix seconds, years before this machine's


def job(ending: str | None = None, suspended: bool = False, age: float = 1) -> Object:
    ends = [{"type": ending, "status": "True", "message": "Job has reached the specified backoff limit"}]
    spec = {"suspend": suspended, "template": {"spec": {"containers": []}}}
    item = of_kind("Job", NAME, spec=spec, status={"conditions": ends if ending else []})
    stamps = {"uid": "7", "creationTimestamp": stamp_of(SERVER_TIME - age)}
    return {**item, "metadata": {**item["metadata"], **stamps}}


def pod(phase: str, message: Object | None = None) -> Object:
    proxy = {"message": '{"failed": "a message of a sidecar"}', "exitCode": 0}
    ends = [("istio-proxy", proxy), (CONTAINER, {"message": json.dumps(message), "exitCode": 0})]
    containers = [{"name": name, "state": {"terminated": end}} for name, end in ends]
    labels = {"batch.kubernetes.io/job-name": NAME}
    return a_pod(f"fetch-{phase.lower()}", phase, labels, containerStatuses=containers if message else [])


COMPLETE = job("Complete"), pod("Succeeded", ALL_DONE)
MOVED = [Transfer(3, 300, 2)]


Look = Callable[[FakeCluster], object]
Start = Callable[..., FakeCluster]


def shows(job_: Object | None, *pods: Object) -> Look:
    """The cluster has that Job and these pods from now on."""

    def look(cluster: FakeCluster) -> None:
        cluster.clear("Pod")
        cluster.put(*pods)
        if job_:
            cluster.put(job_)
        else:
            cluster.clear("Job")

    return look


def out_of_reach(cluster: FakeCluster) -> None:
    cluster.refuse("get", "jobs", 0, times=1)


@pytest.fixture
def script(cluster: FakeCluster) -> Start:
    """Lets the cluster have a Job and its pods as the next of some looks says, each a change before the Job is read."""
    cluster.ahead = SERVER_TIME - time.time()
    cluster.add_log("fetch-running", PROGRESS)

    def start(*looks: Look, existing: Object | None = None) -> FakeCluster:
        rest = list(looks)

        def move_on(request: Request) -> None:
            is_look = (request.verb, request.resource) == ("get", "jobs")
            found = [each for each in cluster.all("Job") if "deletionTimestamp" not in each["metadata"]]
            begun = "patch" in changes(cluster) or (found and not cluster.created)
            if is_look and begun and rest:
                rest.pop(0)(cluster)

        cluster.put(*([existing] if existing else []))
        cluster.before_request = move_on
        return cluster

    return start


def changes(cluster: FakeCluster) -> list[str]:
    """What was done to the Job, but for its creation."""
    return [each.verb for each in cluster.requests if each.verb in ("patch", "delete")]


@pytest.fixture(autouse=True)
def short_poll_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "POLL_INTERVAL", 0.001)


def run_fetch(cluster: FakeCluster) -> tuple[list[Transfer], list[str]]:
    messages: list[str] = []
    work = fetch.fetch(cluster.api(), VOLUME, [[DOWNLOAD]], "voc", messages.append, "CERTIFICATE")
    return asyncio.run(asyncio.wait_for(work, 60)), messages


def test_an_earlier_job_that_stays_is_named_and_waited_for_so_long_alone(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose pod was on a node that is gone was waited for without end, and without a word."""
    monkeypatch.setattr(reminders, "QUIET", -1.0)
    monkeypatch.setattr(fetch, "_DELETION_LIMIT", 0.02)
    cluster.put(job("Failed"))
    cluster.before_request = lambda request: cluster.put(job("Failed"))
    messages: list[str] = []
    with pytest.raises(SpotmpiError, match=rf"^the earlier Job {NAME} is not deleted after 0.02 s: `kubectl "):
        asyncio.run(fetch.fetch(cluster.api(), VOLUME, [[DOWNLOAD]], "voc", messages.append))
    assert messages == [f"waiting until the earlier Job {NAME} is deleted (gives up after 0.02 s)"]


def test_a_job_is_created_suspended_gets_its_downloads_and_is_reported_until_it_ends(script: Start) -> None:
    cluster = script(
        shows(job()),
        shows(job(), pod("Pending")),
        shows(job(), pod("Running")),
        shows(job(), pod("Failed", {"failed": "set.tar: no answer after 6 tries"})),
        shows(*COMPLETE),
    )

    moved, messages = run_fetch(cluster)

    assert moved == MOVED
    assert messages == [
        f"Job {NAME} fetches it, also when this terminal is closed; the same command shows its progress",
        "waiting for the Job's first pod",
        "waiting for the Job's pod: 1/1 nodes: containers are being created",
        "set.tar: 16.0 MB of 100.0 MB",
        "interrupted (set.tar: no answer after 6 tries); Kubernetes retries it",
    ]
    manifest, policy, secret = cluster.created
    assert manifest["spec"]["suspend"] and changes(cluster) == ["patch"]
    for part in (policy, secret):
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": NAME,
            "uid": part["metadata"]["ownerReferences"][0]["uid"],
        }
        assert part["metadata"]["ownerReferences"] == [owner]
    downloads = json.loads(gzip.decompress(base64.b64decode(secret["data"]["downloads.json.gz"])))
    assert downloads == [[DOWNLOAD.values("/spotmpi/volume/voc")]]
    assert base64.b64decode(secret["data"]["authority.pem"]) == b"CERTIFICATE"
    assert "s3cret" not in json.dumps(manifest) + str(messages)


def test_an_active_job_is_followed_and_no_second_one_is_created(script: Start) -> None:
    cluster = script(shows(job()), shows(job(), pod("Running")), shows(*COMPLETE), existing=job())
    moved, messages = run_fetch(cluster)
    assert moved == MOVED and cluster.created == []
    assert messages == [f"Job {NAME} is fetching this already", "set.tar: 16.0 MB of 100.0 MB"]


@pytest.mark.parametrize("old", [job("Complete"), job("Failed"), job(suspended=True, age=100)])
def test_a_job_that_has_ended_or_never_began_makes_room_for_another(script: Start, old: Object) -> None:
    cluster = script(shows(old), shows(*COMPLETE), existing=old)
    assert run_fetch(cluster)[0] == MOVED
    assert [*dict.fromkeys(changes(cluster))] == ["delete", "patch"]


@pytest.mark.parametrize(
    ("end", "messages"),
    [
        (
            shows(job("Failed"), pod("Failed", {"failed": "set.tar: gone, X-Amz-Signature=s3cret"})),
            r"could not fetch set.tar: gone, X-Amz-Signature=\[redacted\]; the same command continues",
        ),
        (shows(job("Failed")), "could not fetch the data: Job has reached the specified backoff limit"),
        (shows(None), f"the Job {NAME} was deleted"),
        (shows(job(suspended=True, age=100)), "never received its instructions; the same command"),
    ],
)
def test_an_end_without_all_files_says_why(script: Start, end: Look, messages: str) -> None:
    with pytest.raises(SpotmpiError, match=messages):
        run_fetch(script(shows(job()), end))


def test_a_complete_job_without_its_pod_is_no_failure_and_the_files_are_counted(script: Start) -> None:
    counted = {"done": [[3, 300, 0]]}
    lost, late = pod("Failed", {"failed": "taken away"}), pod("Succeeded", counted)
    completed = shows(job("Complete"))
    cluster = script(shows(job()), completed, completed, shows(None), shows(job("Complete"), late, lost))

    moved, messages = run_fetch(cluster)

    assert moved == [Transfer(3, 300, 0)]
    assert f"Job {NAME} has succeeded, but its pod is gone; counting the files again" in messages
    assert changes(cluster)[0] == changes(cluster)[-1] == "patch" and "delete" in changes(cluster)


@pytest.mark.parametrize("done", [{}, "x", [], [[1, 2]], [["1", 2, 3]], [[True, 2, 3]], [[1, 2, 3], [4, 5, 6]], [7]])
def test_a_message_that_no_program_of_ours_writes_is_one_clear_error(script: Start, done: Any) -> None:
    with pytest.raises(SpotmpiError, match=r"could not fetch the data: its pod ended with a message that its program"):
        run_fetch(script(shows(job()), shows(job("Complete"), pod("Succeeded", {"done": done}))))


def test_a_cluster_that_is_out_of_reach_for_a_while_is_waited_for(
    script: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = script(shows(job()), out_of_reach, out_of_reach, shows(*COMPLETE))
    assert run_fetch(cluster)[0] == MOVED


def test_a_cluster_that_stays_out_of_reach_is_an_error(script: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "UNREACHABLE_TIMEOUT", 0.01)
    with pytest.raises(SpotmpiError, match=r"look at the Job .*, which continues by itself: cannot reach"):
        run_fetch(script(shows(job()), *[out_of_reach] * 99))


def test_without_permission_for_secrets_there_is_an_error_and_no_job_remains(cluster: FakeCluster) -> None:
    cluster.forbid("create", "secrets")
    with pytest.raises(SpotmpiError, match=rf"could not start the Job {NAME}: not permitted"):
        run_fetch(cluster)
    assert changes(cluster) == ["delete"] and not cluster.store.objects


def test_two_terminals_at_once_make_one_job(script: Start) -> None:
    cluster = script(shows(*COMPLETE))
    move_on = cluster.before_request

    def be_faster(request: Request) -> None:
        move_on(request)
        if request.verb == "create":
            cluster.put(job())

    cluster.before_request = be_faster
    assert run_fetch(cluster)[0] == MOVED


def test_the_job_is_restricted_and_a_reclaimed_pod_costs_no_try() -> None:
    spec = fetch_job.fetch_job("one", "here", Volume("claim", "image", ("key",)))["spec"]
    template = spec["template"]["spec"]
    assert template["securityContext"]["runAsNonRoot"] and not template["automountServiceAccountToken"]
    assert template["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert template["restartPolicy"] == "Never" and template["imagePullSecrets"] == [{"name": "key"}]
    lost, final = spec["podFailurePolicy"]["rules"]
    assert lost == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    codes = {"containerName": CONTAINER, "operator": "In", "values": [78]}  # a proxy that is injected may end so too
    assert final == {"action": "FailJob", "onExitCodes": codes}
    assert spec["backoffLimit"] == 5 and spec["activeDeadlineSeconds"] == 24 * 3600


@pytest.mark.parametrize(
    ("taint", "toleration"),
    [
        ("gpu", {"key": "gpu", "operator": "Exists"}),
        ("team=vision", {"key": "team", "operator": "Equal", "value": "vision"}),
        ("team=:NoExecute", {"key": "team", "operator": "Equal", "value": "", "effect": "NoExecute"}),
        ("x.org/a:NoSchedule", {"key": "x.org/a", "operator": "Exists", "effect": "NoSchedule"}),
    ],
)
def test_its_pods_have_the_pull_secrets_and_tolerations_that_a_cluster_needs(
    taint: str, toleration: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "ClusterApi", lambda context, namespace: None)
    _, volume = data.open_storage(data.Storage("kubernetes", "claim", "image", ("key", "other"), (taint,)))
    assert (volume.pull_secrets, volume.tolerations) == (("key", "other"), (toleration,))
    template = fetch_job.fetch_job("one", "here", volume)
    spec = template["spec"]["template"]["spec"]
    assert (spec["imagePullSecrets"], spec["tolerations"]) == ([{"name": "key"}, {"name": "other"}], [toleration])


@pytest.mark.parametrize("taint", ["", "=x", ":NoSchedule", "gpu:Never"])
def test_a_taint_that_is_none_is_refused(taint: str) -> None:
    with pytest.raises(InputError, match=r"--toleration = .*: write KEY, KEY=VALUE or KEY=VALUE:EFFECT"):
        data.open_storage(data.Storage("kubernetes", "claim", "image", (), (taint,)))


def test_the_code_that_the_secret_brings_starts_without_anything_else(tmp_path: Path) -> None:
    pod = fetch_job.fetch_job("one", "here", Volume("claim", "image"))["spec"]["template"]["spec"]
    data = fetch_job.downloads_secret(job(), [], "voc", "")["data"]
    (items,) = (volume["secret"]["items"] for volume in pod["volumes"] if volume["name"] == "downloads")
    for item in items:
        path = tmp_path / item["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(data[item["key"]]))

    # Neither this environment's packages nor its copy of our code: as in the pod, from the mounted folder alone.
    _, *words = pod["containers"][0]["command"]
    assert words[:3] == ["-I", "-S", "-c"] and words[4] == "/spotmpi/downloads"
    load = (
        words[3].partition(", run_name")[0].replace("runpy.run_module", "print(__import__('importlib').import_module")
    )
    command = [sys.executable, *words[:3], f"{load}).__file__)", str(tmp_path), words[5]]
    result = subprocess.run(command, cwd="/", env={}, capture_output=True, text=True)
    assert (result.stderr, result.stdout.strip()) == ("", str(tmp_path / "spotmpi/agent/fetch.py"))


def test_the_same_files_have_the_same_job_however_they_are_signed() -> None:
    again = Download("https://x.org/set.tar?X-Amz-Signature=other", "set.tar", None)
    assert fetch_job.name_of([[again]], "voc", "claim") == NAME
    others = [
        ([[DOWNLOAD]], "coco", "claim"),
        ([[DOWNLOAD]], "voc", "team"),
        ([[DOWNLOAD], [DOWNLOAD]], "voc", "claim"),
    ]
    assert len({NAME, *(fetch_job.name_of(*each) for each in others)}) == 4


def test_more_downloads_than_fit_into_a_secret_are_refused() -> None:
    many = [Download(f"https://x.org/{os.urandom(200).hex()}", "x", None) for _ in range(6000)]
    with pytest.raises(InputError, match=r"6,000 files.*are too many for one Job"):
        fetch_job.downloads_secret(job(), [many], "voc", "")


def test_a_source_that_is_named_twice_is_refused() -> None:
    address = f"https://x.org/set.tar#sha256={'0' * 64}"
    with pytest.raises(InputError, match=r"SRC = .*set.tar.*is named twice"):
        data.push([address, address], "voc", data.Storage("kubernetes"))


@pytest.mark.parametrize(
    ("addresses", "ports"),
    [
        (["https://x.org/a", "https://y.org:443/b"], [443]),
        (["http://x.org/a", "https://y.org:8443/b"], [80, 8443]),
    ],
)
def test_its_pods_resolve_names_and_reach_the_ports_of_their_sources_and_no_more(
    addresses: list[str], ports: list[int]
) -> None:
    spec = fetch_job.network_policy(job(), [[Download(each, "a", None)] for each in addresses])["spec"]
    assert spec["podSelector"] == {"matchLabels": {"batch.kubernetes.io/job-name": NAME}}
    assert spec["policyTypes"] == ["Ingress", "Egress"] and "ingress" not in spec
    names, sources = spec["egress"]
    assert names == {"ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]}
    assert [each["port"] for each in sources["ports"]] == ports
    assert [each["ipBlock"] for each in sources["to"]] == [
        {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]},
        {"cidr": "::/0", "except": ["fe80::/10", "fd00:ec2::/32"]},
    ]
