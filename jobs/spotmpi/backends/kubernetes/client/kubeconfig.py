"""This machine's kubeconfig as kubectl reads it: several files in KUBECONFIG count as one."""

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
        found: Any = read().get(context_name=context)
    except ConfigError as error:
        raise input_error("context", context, f"{error}; {_REMEDY}") from error
    except KeyError as error:
        raise input_error(
            "context", context, f"it names {error}, which the kubeconfig does not have; {_REMEDY}"
        ) from error
    return found if found.user else found._replace(user=User())  # whom the cluster may let in without a name


def read() -> KubeConfig:
    """All contexts that there are; ConfigError where nothing is configured, InputError where a file cannot be read."""
    try:
        return KubeConfig.from_service_account()
    except ConfigError:
        pass
    named = [Path(name) for name in os.environ.get("KUBECONFIG", "").split(os.pathsep) if name]
    files = named or [Path("~/.kube/config").expanduser()]
    there = [path for path in files if path.is_file()]
    if not there:
        raise ConfigError(f"no kubeconfig at {', '.join(map(str, files))}")
    contents = [_content(path) for path in there]
    # Of a name that stands in several files, and of the current context, the first one counts.
    merged: dict[str, Any] = {key: [part for one in reversed(contents) for part in one[key]] for key in _LISTS}
    currents = [one["current-context"] for one in contents if one.get("current-context")]
    return KubeConfig.from_dict({**merged, "current-context": next(iter(currents), None)})


def in_pod() -> bool:
    """Whether this is a pod of the cluster that is meant, which has no context of its own there."""
    return Path(SERVICE_ACCOUNT, "token").is_file()


def _content(path: Path) -> Mapping[str, Any]:
    """What one file says, with its relative paths made whole and in the types that are expected of it."""
    try:
        said = yaml.safe_load(path.read_text()) or {}
        content = {**said, **{key: [_whole(part, path.parent) for part in said.get(key) or []] for key in _LISTS}}
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
        words = " ".join(str(error).split())
        raise input_error("KUBECONFIG", str(path), f"is no kubeconfig ({words}); mend it, or name another") from error
    return content


def _whole(part: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """A cluster, context or user with its relative paths made whole."""
    return {key: _placed(value, folder) if isinstance(value, dict) else value for key, value in part.items()}


def _placed(values: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    paths = {key: str(folder / values[key]) for key in _PATHS if values.get(key)}
    return {**values, **paths, **({"exec": _login(values["exec"])} if values.get("exec") else {})}


def _login(program: Mapping[str, Any]) -> Mapping[str, Any]:
    """A program that gives a token, as the client takes it, which has not heard of the version that is no beta.

    The program is told which version it is asked for, as kubectl tells it.
    """
    asked = {"kind": "ExecCredential", "apiVersion": program["apiVersion"], "spec": {"interactive": False}}
    variables = [*(program.get("env") or []), {"name": "KUBERNETES_EXEC_INFO", "value": json.dumps(asked)}]
    version = f"{_EXEC}/v1beta1" if program["apiVersion"] == f"{_EXEC}/v1" else program["apiVersion"]
    return {**program, "apiVersion": version, "env": variables}
