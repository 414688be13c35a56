"""The entries of EKS clusters in a kubeconfig, for kubectl: spotmpi itself reads none of them."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from spotmpi.agent.files import exists, is_file, write_atomically
from spotmpi.aws import eks
from spotmpi.backends.kubernetes.client.kubeconfig import LISTS, paths, require_kubeconfig
from spotmpi.core.errors import input_error
from spotmpi.core.names import cache_folder

_API = "client.authentication.k8s.io/v1"
_NONE: Mapping[str, Any] = {"apiVersion": "v1", "kind": "Config"}


def add(endpoint: eks.Endpoint, namespace: str | None, path: Path | None = None) -> Path:
    """Make a cluster the current context of a kubeconfig, by default kubectl's own; the file's path.

    Its entries are named by the cluster's ARN, as `aws eks update-kubeconfig` names them, and replace those of that
    name, which may be of a cluster that no longer exists. InputError where the file is not a kubeconfig, or cannot be
    written.
    """
    for each in [path] if path else paths()[1:]:  # an entry of that name in another file would be as good as ours
        _rewrite(each, lambda values: _without(values, endpoint.arn))
    arn, context = endpoint.arn, {"cluster": endpoint.arn, "user": endpoint.arn}
    entries = {
        "clusters": {"server": endpoint.server, "certificate-authority-data": endpoint.authority},
        "contexts": {**context, "namespace": namespace} if namespace else context,
        "users": {"exec": _login(arn)},
    }

    def added(values: dict[str, Any]) -> dict[str, Any]:
        values = {**_NONE, **_without(values, arn), "current-context": arn}
        named = {key: [*(values.get(key) or []), {"name": arn, key[:-1]: entry}] for key, entry in entries.items()}
        return {**values, **named}

    _rewrite(target := path or paths()[0], added, create=True)
    return target


def own_file(endpoint: eks.Endpoint, namespace: str) -> Path:
    """A kubeconfig with one cluster only, for programs that spotmpi starts; it is in the user's cache."""
    return add(endpoint, namespace, _own_folder() / f"{endpoint.arn.replace(':', '-').replace('/', '-')}.yaml")


def _own_folder() -> Path:
    return cache_folder() / "kubeconfig"


def clusters() -> set[eks.Cluster]:
    """The EKS clusters that have entries named by their ARNs; InputError where a file is not a kubeconfig."""
    found = {eks.parse(name) for path in _files() for name in _names(require_kubeconfig(path))}
    return {each for each in found if each is not None}


def remove(cluster: eks.Cluster) -> list[Path]:
    """Remove a cluster's entries from kubectl's kubeconfig; the files that had any. InputError as for `add`."""

    def without(values: dict[str, Any]) -> dict[str, Any]:
        return _without(values, *(name for name in _names(values) if eks.parse(name) == cluster))

    changed = [path for path in _files() if _rewrite(path, without)]
    for path in changed:
        if path.parent == _own_folder():
            path.unlink()
    return [path for path in changed if exists(path)]


def _files() -> list[Path]:
    return [path for path in (*paths(), *_own_folder().glob("*.yaml")) if is_file(path)]


def _names(values: Mapping[str, Any]) -> set[str]:
    return {str(each["name"]) for key in LISTS for each in values.get(key) or []}


def _without(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    kept = {
        key: [each for each in values[key] if each.get("name") not in names] if key in LISTS and values[key] else value
        for key, value in values.items()
    }
    return {**kept, "current-context": ""} if kept.get("current-context") in names else kept


def _login(arn: str) -> dict[str, Any]:
    """The credential plugin of kubectl, which is this program."""
    script = Path(sys.executable).with_name("spotmpi")
    command = str(script) if script.is_file() else shutil.which("spotmpi") or "spotmpi"
    variables = [{"name": "AWS_PROFILE", "value": profile} for profile in [os.environ.get("AWS_PROFILE")] if profile]
    program = {"apiVersion": _API, "command": command, "args": ["kubeconfig", arn, "--token"]}
    return {**program, "env": variables, "interactiveMode": "Never", "provideClusterInfo": False}


def _rewrite(path: Path, change: Any, create: bool = False) -> bool:
    """Replace the content of a kubeconfig by what *change* makes of it; whether it changed."""
    if not create and not is_file(path):
        return False
    if exists(path) and not is_file(path):
        raise input_error("KUBECONFIG", str(path), "is not a file: name one, which may be new")
    values = require_kubeconfig(path) if exists(path) else {}
    changed = change(dict(values))
    if changed == values:
        return False
    try:
        path = path.resolve()  # a link stays one
        path.parent.mkdir(parents=True, exist_ok=True)
        if not exists(path):
            path.touch(mode=0o600)
        write_atomically(path, yaml.safe_dump(changed, sort_keys=False), keep_mode=True)
    except OSError as error:
        raise input_error("KUBECONFIG", str(path), f"cannot be written ({error.strerror}): name another") from error
    return True
