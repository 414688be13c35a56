"""The ids of what an environment was made of, written down on this machine: tags alone don't find everything."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from spotmpi.agent.files import write_atomically
from spotmpi.core import names
from spotmpi.core.errors import SpotmpiError
from spotmpi.environments import inventory
from spotmpi.environments.inventory import Trace

# Pulumi's name of a kind, and ours.
_KINDS = {
    "aws:cloudwatch/logGroup:LogGroup": inventory.LOGS,
    "aws:ec2/vpc:Vpc": inventory.NETWORKS,
    "aws:ecr/repository:Repository": inventory.REPOSITORIES,
    "aws:efs/fileSystem:FileSystem": inventory.SYSTEMS,
    "aws:efs/mountTarget:MountTarget": inventory.TARGETS,
    "aws:kms/key:Key": inventory.KEYS,
}
_DRIVER = "ebs.csi.aws.com"
Found = Iterable[tuple[str, str]]  # kind and id


def read(environment: str, region: str) -> Trace:
    """What is known of an environment; its name alone where nothing was written down."""
    try:
        ids = json.loads(_path(environment).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        ids = {}
    return Trace(environment, region, ids if isinstance(ids, dict) else {})


def add(trace: Trace, found: Found) -> Trace:
    """The trace with more ids, written down; what was known stays, for a destroy may have been broken off."""
    ids = {kind: set(known) for kind, known in trace.ids.items()}
    for kind, id in found:
        ids.setdefault(kind, set()).add(id)
    listed = {kind: sorted(known) for kind, known in sorted(ids.items())}
    path = _path(trace.name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(listed, indent=1) + "\n")
    except OSError as error:
        raise SpotmpiError(f"cannot write {path}: {error.strerror}; set SPOTMPI_STATE to a folder of yours") from error
    return Trace(trace.name, trace.region, listed)


def forget(environment: str) -> None:
    """Nothing is left of an environment."""
    _path(environment).unlink(missing_ok=True)


def of_state(state: Mapping[str, Any]) -> Found:
    """The ids in what `pulumi stack export` gives."""
    for each in state.get("deployment", {}).get("resources") or []:
        if each.get("type") in _KINDS and each.get("id"):
            yield _KINDS[each["type"]], str(each["id"])


def of_volumes(volumes: Iterable[Mapping[str, Any]]) -> Found:
    """The EBS volumes behind a cluster's PersistentVolumes."""
    for each in volumes:
        disk = each["spec"].get("csi") or {}
        if disk.get("driver") == _DRIVER:
            yield inventory.VOLUMES, str(disk["volumeHandle"])


def _path(environment: str) -> Path:
    return names.state_folder() / "environments" / f"{environment}.json"
