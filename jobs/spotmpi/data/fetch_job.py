"""The Job that downloads data to a run volume, and its Secret and NetworkPolicy. Pure."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from spotmpi.agent import fetch, files, store, unpack, web_file
from spotmpi.core.errors import input_error
from spotmpi.core.wording import counted
from spotmpi.data.remote_source import Download
from spotmpi.plan import pods, volume_pod
from spotmpi.plan.agent_plan import VOLUME

PURPOSE = "fetch"
DEADLINE = 24 * 3600  # seconds after which the cluster ends the Job
TTL = 3600  # seconds for which the ended Job can be read
ATTEMPTS = 6
_DOWNLOADS = "/spotmpi/downloads"
_FILES = ("downloads.json.gz", "authority.pem")
_SHARE = {"cpu": "100m", "memory": "384Mi"}  # parts in transfer are held in memory
_LARGEST = 900_000  # bytes that fit into a Secret besides the code
_CODE = {
    "spotmpi/__init__.py": "",
    "spotmpi/agent/__init__.py": "",
    "spotmpi/agent/fetch.py": Path(fetch.__file__).read_text(encoding="utf-8"),
    "spotmpi/agent/files.py": Path(files.__file__).read_text(encoding="utf-8"),
    "spotmpi/agent/store.py": Path(store.__file__).read_text(encoding="utf-8"),
    "spotmpi/agent/unpack.py": Path(unpack.__file__).read_text(encoding="utf-8"),
    "spotmpi/agent/web_file.py": Path(web_file.__file__).read_text(encoding="utf-8"),
}


def name_of(sources: Sequence[Sequence[Download]], folder: str, volume: str) -> str:
    """The same name for the same files, folder and claim, however the addresses are signed."""
    what = [volume, folder, *([each.address, each.name, each.sha256] for source in sources for each in source)]
    return f"spotmpi-fetch-{hashlib.sha256(json.dumps(what).encode()).hexdigest()[:10]}"


def fetch_job(name: str, namespace: str, volume: volume_pod.Volume) -> dict[str, Any]:
    """The Job, suspended until its downloads exist; an evicted pod does not count as an attempt."""
    command = pods.module(_DOWNLOADS, "spotmpi.agent.fetch", *(f"{_DOWNLOADS}/{name}" for name in _FILES))
    spec = volume_pod.pod_spec(volume, command, _SHARE)
    items = [{"key": _key(path), "path": path} for path in (*_CODE, *_FILES)]
    spec["volumes"].append({"name": "downloads", "secret": {"secretName": name, "items": items, "defaultMode": 0o440}})
    (container,) = spec["containers"]
    container["volumeMounts"].append({"name": "downloads", "mountPath": _DOWNLOADS, "readOnly": True})
    rules = [pods.on_disruption("Ignore"), pods.on_exit("FailJob", fetch.NOT_RETRYABLE)]
    labels = volume_pod.labels(PURPOSE)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "suspend": True,
            "backoffLimit": ATTEMPTS - 1,
            "activeDeadlineSeconds": DEADLINE,
            "ttlSecondsAfterFinished": TTL,
            "podFailurePolicy": {"rules": rules},
            "template": {"metadata": {"labels": dict(labels)}, "spec": spec},
        },
    }


def downloads_secret(
    job: dict[str, Any], sources: Sequence[Sequence[Download]], folder: str, authority: str
) -> dict[str, Any]:
    """The Secret of the created *job*: code, downloads with signed addresses, and more certificates to trust (PEM).

    InputError if there are too many downloads.
    """
    downloads = [[download.values(f"{VOLUME}/{folder}") for download in source] for source in sources]
    packed = gzip.compress(json.dumps(downloads).encode(), mtime=0)
    if len(packed) > _LARGEST:
        count = sum(map(len, sources))
        raise input_error(
            "SRC",
            counted(count, "file"),
            "are too many for one Job: push a few of the folders at a time, or a tar",
        )
    texts = {**_CODE, "authority.pem": authority}
    data = {_key(path): base64.b64encode(text.encode()).decode() for path, text in texts.items()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _owned_by(job["metadata"]),
        "data": {**data, "downloads.json.gz": base64.b64encode(packed).decode()},
    }


def network_policy(job: dict[str, Any], sources: Sequence[Sequence[Download]]) -> dict[str, Any]:
    """The NetworkPolicy of the created *job*: its pods can resolve names and reach the ports of their sources only.

    Link-local addresses, and AWS's own of IPv6, hold a machine's metadata and credentials (EC2 User Guide).
    """
    metadata = job["metadata"]
    ports = sorted({_port(download.address) for source in sources for download in source})
    anywhere = [
        {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]}},
        {"ipBlock": {"cidr": "::/0", "except": ["fe80::/10", "fd00:ec2::/32"]}},
    ]
    names = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _owned_by(metadata),
        "spec": {
            "podSelector": {"matchLabels": {"batch.kubernetes.io/job-name": metadata["name"]}},
            "policyTypes": ["Ingress", "Egress"],
            "egress": [
                {"ports": names},
                {"to": anywhere, "ports": [{"protocol": "TCP", "port": port} for port in ports]},
            ],
        },
    }


def _port(address: str) -> int:
    parts = urlsplit(address)
    return parts.port or {"http": 80}.get(parts.scheme, 443)


def _owned_by(metadata: dict[str, Any]) -> dict[str, Any]:
    """The metadata of an object that the created Job owns."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": metadata["name"], "uid": metadata["uid"]}
    own = {"name": metadata["name"], "namespace": metadata["namespace"], "labels": volume_pod.labels(PURPOSE)}
    return {**own, "ownerReferences": [owner]}


def _key(path: str) -> str:
    return path.replace("/", ".")
