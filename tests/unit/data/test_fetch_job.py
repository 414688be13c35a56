"""The Job that fetches data, against a cluster whose every answer is scripted, and what it may do and reach."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from spotmpi.backends.kubernetes.volume_access import Volume
from spotmpi.core.errors import InputError, SpotmpiError
from spotmpi.data import datasets as data
from spotmpi.data import fetch, fetch_job
from spotmpi.data.remote_source import Download
from spotmpi.data.store import Transfer
from spotmpi.plan.pods import CONTAINER
from tests.unit.backends.kubernetes.watched_cluster import api_error

Object = dict[str, Any]
VOLUME = Volume("claim", "registry/image:1", ("key",))
DOWNLOAD = Download("https://x.org/set.tar?X-Amz-Signature=s3cret", "set.tar", None)
NAME = fetch_job.name_of([[DOWNLOAD]], "voc", "claim")
ALL_DONE: Object = {"done": [[3, 300, 2]]}
PROGRESS = '{"name": "set.tar", "got": 16000000, "of": 100000000, "whole": 0, "all": 1}'


SERVER_TIME = 1_700_000_000.0  # Unix seconds, years before this machine's


def job(ending: str | None = None, suspended: bool = False, age: float = 1) -> Object:
    created = (datetime.fromtimestamp(SERVER_TIME, UTC) - timedelta(seconds=age)).isoformat()
    ends = [{"type": ending, "status": "True", "message": "Job has reached the specified backoff limit"}]
    values = {"name": NAME, "namespace": "here", "uid": "7", "creationTimestamp": created}
    status = {"conditions": ends if ending else []}
    return {"kind": "Job", "metadata": values, "spec": {"suspend": suspended}, "status": status}


def pod(phase: str, message: Object | None = None) -> Object:
    proxy = {"name": "istio-proxy", "state": {"terminated": {"message": '{"failed": "a message of a sidecar"}'}}}
    own = {"name": CONTAINER, "state": {"terminated": {"message": json.dumps(message)}}}
    containers = [proxy, own] if message else []
    values = {"name": "fetch-1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": values, "status": {"phase": phase, "containerStatuses": containers}}


COMPLETE = job("Complete"), pod("Succeeded", ALL_DONE)
MOVED = [Transfer(3, 300, 2)]


class Script:
    """A cluster that has a Job and its pods as the next of *looks* says, each a change to it; its clock is not ours."""

    namespace = "here"

    def now(self) -> float:
        return SERVER_TIME

    def __init__(self, *looks: Callable[[Script], None], existing: Object | None = None) -> None:
        self.looks = list(looks)
        self.job = existing
        self.pods: list[Object] = []
        self.created: list[Object] = []
        self.changes: list[str] = []
        self.away = False

    async def find(self, kind: str, name: str) -> Object | None:
        assert (kind, name) == ("Job", NAME)
        if "unsuspended" in self.changes or (self.job and not self.created):
            if self.looks:
                self.looks.pop(0)(self)
            if self.away:
                raise httpx2.ConnectError("no route")
        return self.job

    async def list(self, kind: str, labels: Any = None, about: str | None = None) -> list[Object]:
        return self.pods if kind == "Pod" else []

    async def create(self, values: Object) -> Object:
        self.created.append(values)
        if values["kind"] == "Job":
            self.job = job(suspended=True)
            return {**values, "metadata": {**values["metadata"], "uid": "7"}}
        return values

    async def patch(self, kind: str, name: str, values: Object) -> None:
        assert values == {"spec": {"suspend": False}}
        self.changes.append("unsuspended")
        self.job = job()

    async def delete(self, kind: str, name: str, wait: bool = False) -> None:
        self.changes.append("deleted")
        self.job = None

    async def last_line(self, name: str) -> str:
        return PROGRESS


def shows(job_: Object | None, *pods: Object) -> Callable[[Script], None]:
    """The cluster has that Job and these pods from now on."""

    def look(script: Script) -> None:
        script.job, script.pods, script.away = job_, list(pods), False

    return look


def out_of_reach(script: Script) -> None:
    script.away = True


@pytest.fixture(autouse=True)
def short_poll_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "POLL_INTERVAL", 0.001)


def run_fetch(script: Script) -> tuple[list[Transfer], list[str]]:
    messages: list[str] = []
    work = fetch.fetch(script, VOLUME, [[DOWNLOAD]], "voc", messages.append, "CERTIFICATE")  # type: ignore[arg-type]
    return asyncio.run(asyncio.wait_for(work, 10)), messages


def test_a_job_is_created_suspended_gets_its_downloads_and_is_reported_until_it_ends() -> None:
    script = Script(
        shows(job()),
        shows(job(), pod("Pending")),
        shows(job(), pod("Running")),
        shows(job(), pod("Failed", {"failed": "set.tar: no answer after 6 tries"})),
        shows(*COMPLETE),
    )

    moved, messages = run_fetch(script)

    assert moved == MOVED
    assert messages == [
        f"Job {NAME} fetches it, also when this terminal is closed; the same command shows its progress",
        "waiting for the Job's first pod",
        "waiting for the Job's pod: 1/1 nodes: containers are being created",
        "set.tar: 16.0 MB of 100.0 MB",
        "interrupted (set.tar: no answer after 6 tries); Kubernetes retries it",
    ]
    manifest, policy, secret = script.created
    assert manifest["spec"]["suspend"] and script.changes == ["unsuspended"]
    for part in (policy, secret):
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": NAME, "uid": "7"}
        assert part["metadata"]["ownerReferences"] == [owner]
    downloads = json.loads(gzip.decompress(base64.b64decode(secret["data"]["downloads.json.gz"])))
    assert downloads == [[DOWNLOAD.values("/spotmpi/volume/voc")]]
    assert base64.b64decode(secret["data"]["authority.pem"]) == b"CERTIFICATE"
    assert "s3cret" not in json.dumps(manifest) + str(messages)


def test_an_active_job_is_followed_and_no_second_one_is_created() -> None:
    script = Script(shows(job()), shows(job(), pod("Running")), shows(*COMPLETE), existing=job())
    moved, messages = run_fetch(script)
    assert moved == MOVED and script.created == []
    assert messages == [f"Job {NAME} is fetching this already", "set.tar: 16.0 MB of 100.0 MB"]


@pytest.mark.parametrize("old", [job("Complete"), job("Failed"), job(suspended=True, age=100)])
def test_a_job_that_has_ended_or_never_began_makes_room_for_another(old: Object) -> None:
    script = Script(shows(old), shows(*COMPLETE), existing=old)
    assert run_fetch(script)[0] == MOVED
    assert script.changes == ["deleted", "unsuspended"]


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
def test_an_end_without_all_files_says_why(end: Callable[[Script], None], messages: str) -> None:
    with pytest.raises(SpotmpiError, match=messages):
        run_fetch(Script(shows(job()), end))


def test_a_complete_job_without_its_pod_is_no_failure_and_the_files_are_counted() -> None:
    counted = {"done": [[3, 300, 0]]}
    lost, late = pod("Failed", {"failed": "taken away"}), pod("Succeeded", counted)
    completed = shows(job("Complete"))
    script = Script(shows(job()), completed, completed, shows(None), shows(job("Complete"), late, lost))

    moved, messages = run_fetch(script)

    assert moved == [Transfer(3, 300, 0)]
    assert f"Job {NAME} has succeeded, but its pod is gone; counting the files again" in messages
    assert script.changes == ["unsuspended", "deleted", "unsuspended"]


@pytest.mark.parametrize("done", [{}, "x", [], [[1, 2]], [["1", 2, 3]], [[True, 2, 3]], [[1, 2, 3], [4, 5, 6]], [7]])
def test_a_message_that_no_program_of_ours_writes_is_one_clear_error(done: Any) -> None:
    with pytest.raises(SpotmpiError, match=r"could not fetch the data: its pod ended with a message that its program"):
        run_fetch(Script(shows(job()), shows(job("Complete"), pod("Succeeded", {"done": done}))))


def test_a_cluster_that_is_out_of_reach_for_a_while_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(shows(job()), out_of_reach, out_of_reach, shows(*COMPLETE))
    assert run_fetch(script)[0] == MOVED
    monkeypatch.setattr(fetch, "UNREACHABLE_TIMEOUT", 0.01)
    with pytest.raises(SpotmpiError, match=r"look at the Job .*, which continues by itself: cannot reach"):
        run_fetch(Script(shows(job()), out_of_reach))


def test_without_permission_for_secrets_there_is_an_error_and_no_job_remains(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script()
    create = script.create

    async def forbid_secrets(values: Object) -> Object:
        if values["kind"] == "Secret":
            raise api_error(403)
        return await create(values)

    monkeypatch.setattr(script, "create", forbid_secrets)
    with pytest.raises(SpotmpiError, match=rf"could not start the Job {NAME}: not permitted"):
        run_fetch(script)
    assert script.changes == ["deleted"]


def test_two_terminals_at_once_make_one_job(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script()

    async def conflict(values: Object) -> Object:
        script.job, script.changes = job(), ["unsuspended"]
        script.looks = [shows(*COMPLETE)]
        raise api_error(409)

    monkeypatch.setattr(script, "create", conflict)
    assert run_fetch(script)[0] == MOVED


def test_the_job_is_restricted_and_a_reclaimed_pod_costs_no_try() -> None:
    spec = fetch_job.fetch_job("one", "here", "claim", "image", ("key",))["spec"]
    template = spec["template"]["spec"]
    assert template["securityContext"]["runAsNonRoot"] and not template["automountServiceAccountToken"]
    assert template["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert template["restartPolicy"] == "Never" and template["imagePullSecrets"] == [{"name": "key"}]
    lost, final = spec["podFailurePolicy"]["rules"]
    assert lost == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert final == {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [78]}}
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
    template = fetch_job.fetch_job("one", "here", volume.claim, volume.image, volume.pull_secrets, volume.tolerations)
    spec = template["spec"]["template"]["spec"]
    assert (spec["imagePullSecrets"], spec["tolerations"]) == ([{"name": "key"}, {"name": "other"}], [toleration])


@pytest.mark.parametrize("taint", ["", "=x", ":NoSchedule", "gpu:Never"])
def test_a_taint_that_is_none_is_refused(taint: str) -> None:
    with pytest.raises(InputError, match=r"--toleration = .*: write KEY, KEY=VALUE or KEY=VALUE:EFFECT"):
        data.open_storage(data.Storage("kubernetes", "claim", "image", (), (taint,)))


def test_the_code_that_the_secret_brings_starts_without_anything_else(tmp_path: Path) -> None:
    pod = fetch_job.fetch_job("one", "here", "claim", "image", ())["spec"]["template"]["spec"]
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
    with pytest.raises(InputError, match=r"6000 files.*are too many for one Job"):
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
    assert {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]}} in sources["to"]
