"""The Job that fetches data from elsewhere to a run volume, whoever has gone home by then. Pure."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from spotmpi.agent import fetch, store, web_file
from spotmpi.core.errors import input_error
from spotmpi.data.remote_source import Order
from spotmpi.plan import volume_pod
from spotmpi.plan.agent_plan import VOLUME

PURPOSE = "fetch"
LIVES = 24 * 3600  # seconds after which the cluster ends one that does not get on
KEPT = 3600  # seconds for which a finished one stays to be asked
TRIES = 6
_ORDERS = "/spotmpi/orders"
_FILES = ("orders.json.gz", "authority.pem")
_SHARE = {"cpu": "100m", "memory": "384Mi"}  # pieces under way are held in memory
_LARGEST = 900_000  # bytes that a Secret takes besides the code
_CODE = {
    "spotmpi/__init__.py": "",
    "spotmpi/agent/__init__.py": "",
    "spotmpi/agent/fetch.py": Path(fetch.__file__).read_text(),
    "spotmpi/agent/store.py": Path(store.__file__).read_text(),
    "spotmpi/agent/web_file.py": Path(web_file.__file__).read_text(),
}


def name_of(sources: Sequence[Sequence[Order]], folder: str, volume: str) -> str:
    """The same name for the same files, folder and claim, however the addresses are signed."""
    what = [volume, folder, *([order.address, order.name, order.sha256] for source in sources for order in source)]
    return f"spotmpi-fetch-{hashlib.sha256(json.dumps(what).encode()).hexdigest()[:10]}"


def fetch_job(name: str, namespace: str, volume: str, image: str, pull_secrets: Sequence[str]) -> dict[str, Any]:
    """The Job, suspended until its orders are there; a pod that is taken away costs none of its tries."""
    command = ["python3", "-m", "spotmpi.agent.fetch", *(f"{_ORDERS}/{name}" for name in _FILES)]
    spec = volume_pod.pod_spec(volume, image, pull_secrets, command, _SHARE)
    items = [{"key": _key(path), "path": path} for path in (*_CODE, *_FILES)]
    spec["volumes"].append({"name": "orders", "secret": {"secretName": name, "items": items, "defaultMode": 0o440}})
    (container,) = spec["containers"]
    container["workingDir"] = _ORDERS
    container["volumeMounts"].append({"name": "orders", "mountPath": _ORDERS, "readOnly": True})
    rules = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [fetch.NOT_RETRYABLE]}},
    ]
    labels = volume_pod.labels(PURPOSE)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "suspend": True,
            "backoffLimit": TRIES - 1,
            "activeDeadlineSeconds": LIVES,
            "ttlSecondsAfterFinished": KEPT,
            "podFailurePolicy": {"rules": rules},
            "template": {"metadata": {"labels": dict(labels)}, "spec": spec},
        },
    }


def orders_secret(
    job: dict[str, Any], sources: Sequence[Sequence[Order]], folder: str, authority: str
) -> dict[str, Any]:
    """The Secret of the made *job*: code, orders with signed addresses, and the certificates to trust besides (PEM).

    InputError where the orders are too many.
    """
    told = [[order.values(f"{VOLUME}/{folder}") for order in source] for source in sources]
    packed = gzip.compress(json.dumps(told).encode(), mtime=0)
    if len(packed) > _LARGEST:
        count = sum(map(len, sources))
        raise input_error(
            "SRC", f"{count} files", "are too many for one Job: push some of their folders at a time, or a tar"
        )
    texts = {**_CODE, "authority.pem": authority}
    data = {_key(path): base64.b64encode(text.encode()).decode() for path, text in texts.items()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _owned_by(job["metadata"]),
        "data": {**data, "orders.json.gz": base64.b64encode(packed).decode()},
    }


def network_policy(job: dict[str, Any], sources: Sequence[Sequence[Order]]) -> dict[str, Any]:
    """The NetworkPolicy of the made *job*: its pods resolve names and reach the ports of their sources, no more.

    Link-local addresses hold a machine's metadata and credentials.
    """
    made = job["metadata"]
    ports = sorted({_port(order.address) for source in sources for order in source})
    anywhere = [
        {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]}},
        {"ipBlock": {"cidr": "::/0", "except": ["fe80::/10"]}},
    ]
    names = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _owned_by(made),
        "spec": {
            "podSelector": {"matchLabels": {"batch.kubernetes.io/job-name": made["name"]}},
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


def _owned_by(made: dict[str, Any]) -> dict[str, Any]:
    """The metadata of what goes with the made Job."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": made["name"], "uid": made["uid"]}
    own = {"name": made["name"], "namespace": made["namespace"], "labels": volume_pod.labels(PURPOSE)}
    return {**own, "ownerReferences": [owner]}


def _key(path: str) -> str:
    return path.replace("/", ".")
