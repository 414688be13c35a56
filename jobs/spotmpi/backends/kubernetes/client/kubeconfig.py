"""This machine's kubeconfig as kubectl reads it: several files in KUBECONFIG are merged."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml
from lightkube import KubeConfig
from lightkube.config.kubeconfig import SERVICE_ACCOUNT
from lightkube.config.models import User
from lightkube.core.exceptions import ConfigError

from spotmpi.core.errors import input_error

_LISTS = ("clusters", "contexts", "users")
_PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
_EXEC = "client.authentication.k8s.io"
_REMEDY = "check KUBECONFIG and `kubectl config get-contexts`"


def configuration(context: str | None) -> Any:
    """The connection settings of a context, by default the current one; InputError where there are none."""
    try:
        config: Any = read().get(context_name=context)
    except ConfigError as error:
        raise input_error("context", context, f"{error}; {_REMEDY}") from error
    except KeyError as error:
        raise input_error(
            "context", context, f"it refers to {error}, which is not in the kubeconfig; {_REMEDY}"
        ) from error
    return config if config.user else config._replace(user=User())  # the cluster may admit anonymous users


def read() -> KubeConfig:
    """All contexts; ConfigError where nothing is configured, InputError where a file cannot be read."""
    try:
        return KubeConfig.from_service_account()
    except ConfigError:
        pass
    listed = [Path(name) for name in os.environ.get("KUBECONFIG", "").split(os.pathsep) if name]
    paths = listed or [Path("~/.kube/config").expanduser()]
    contents = [_content(path) for path in paths if path.is_file()]
    if not contents:
        raise ConfigError(f"no kubeconfig at {', '.join(map(str, paths))}")
    # Of a name that is in several files, and of the current context, the first one counts.
    merged: dict[str, Any] = {key: [item for each in reversed(contents) for item in each[key]] for key in _LISTS}
    currents = [each["current-context"] for each in contents if each.get("current-context")]
    return KubeConfig.from_dict({**merged, "current-context": next(iter(currents), None)})


def context_of(cluster: str) -> str | None:
    """The kubeconfig context of an EKS cluster by name, as `aws eks update-kubeconfig` writes it; None without one."""
    try:
        config = read()
    except ConfigError:
        return None
    for name, context in config.contexts.items():
        if cluster in (name, context.cluster) or str(context.cluster).endswith(f":cluster/{cluster}"):
            return name
    return None


def in_pod() -> bool:
    """Whether this process runs in a pod of the cluster, by its service account and without a context."""
    return Path(SERVICE_ACCOUNT, "token").is_file()


def _content(path: Path) -> Mapping[str, Any]:
    """The content of one file with absolute paths; InputError where it is no kubeconfig."""
    try:
        values = yaml.safe_load(path.read_text()) or {}
        content = {**values, **{key: [_resolve(each, path.parent) for each in values.get(key) or []] for key in _LISTS}}
        KubeConfig.from_dict(content)
    except (
        OSError,
        UnicodeError,
        yaml.YAMLError,
        msgspec.ValidationError,
        KeyError,
        TypeError,
        AttributeError,
    ) as error:
        detail = " ".join(str(error).split())
        message = f"not a kubeconfig ({detail}); repair it, or name another"
        raise input_error("KUBECONFIG", str(path), message) from error
    return content


def _resolve(entry: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """A cluster, context or user with absolute paths."""
    return {key: _with_paths(value, folder) if isinstance(value, dict) else value for key, value in entry.items()}


def _with_paths(values: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    paths = {key: str(folder / values[key]) for key in _PATHS if values.get(key)}
    return {**values, **paths, **({"exec": _login_program(values["exec"])} if values.get("exec") else {})}


def _login_program(program: Mapping[str, Any]) -> Mapping[str, Any]:
    """An exec credential plugin as lightkube takes it, which does not know version v1.

    As with kubectl, the plugin gets the version that it is configured for in KUBERNETES_EXEC_INFO.
    """
    info = {"kind": "ExecCredential", "apiVersion": program["apiVersion"], "spec": {"interactive": False}}
    variables = [*(program.get("env") or []), {"name": "KUBERNETES_EXEC_INFO", "value": json.dumps(info)}]
    version = f"{_EXEC}/v1beta1" if program["apiVersion"] == f"{_EXEC}/v1" else program["apiVersion"]
    return {**program, "apiVersion": version, "env": variables}
