"""Pod templates of the user's: read from files or from ConfigMaps of the cluster, and held against the pod's schema."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from lightkube.models.core_v1 import PodTemplateSpec

from spotmpi.backends.kubernetes.client import api as cluster_api
from spotmpi.backends.kubernetes.client.api import ClusterApi, Object
from spotmpi.backends.kubernetes.client.errors import translate_errors
from spotmpi.backends.kubernetes.client.portal import call
from spotmpi.core.errors import input_error
from spotmpi.plan.templates import FIELD, Template
from spotmpi.spec.kubernetes import CONFIG_MAP


def read(wanted: Sequence[str], api: ClusterApi) -> tuple[Template, ...]:
    """The templates that the spec names, in order; a ConfigMap gives one per key, in the order of their names.

    Raises:
        InputError: there is no such file or ConfigMap, or it holds no YAML object.
    """
    found: list[Template] = []
    for name in wanted:
        if name.startswith(CONFIG_MAP):
            texts = call(_config_map(name, api))
            found += [_parsed(f"{name}/{key}", texts[key]) for key in sorted(texts)]
        else:
            found.append(_parsed(name, _text(name)))
    return tuple(found)


def require_shape(pod: Object, templates: Sequence[Template]) -> None:
    """Raise InputError where *pod*, a pod template with *templates* in it, is not what Kubernetes calls one.

    The API would drop unknown keys without a word, and refuse wrong values only once pods are made.
    """
    names = ", ".join(template.name for template in templates)
    try:
        known = PodTemplateSpec.from_dict(pod).to_dict()
    except ValueError as error:
        text = str(error).replace("`$.", "`")
        raise input_error(FIELD, names, f"do not give a pod template: {text[:1].lower() + text[1:]}") from error
    unknown = _lost(pod, known)
    if unknown:
        raise input_error(FIELD, names, f"unknown in a pod template: {', '.join(unknown)}")


async def _config_map(name: str, api: ClusterApi) -> dict[str, str]:
    with translate_errors(f"read {name}"):
        found = await api.find(cluster_api.CONFIG_MAP, name.removeprefix(CONFIG_MAP))
    if found is None:
        raise input_error(
            FIELD, name, f"namespace {api.namespace} has no such ConfigMap; `kubectl get configmaps` lists them"
        )
    texts: dict[str, str] = found.get("data") or {}
    return texts


def _text(name: str) -> str:
    try:
        return Path(name).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise input_error(
            FIELD, name, f"cannot be read as a text file ({error}); a ConfigMap is {CONFIG_MAP}NAME"
        ) from error


def _parsed(name: str, text: str) -> Template:
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise input_error(FIELD, name, f"is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise input_error(FIELD, name, "holds no pod template: write metadata: and spec: as in a Pod")
    return Template(name, values)


def _lost(given: Any, known: Any, path: str = "") -> list[str]:
    """The paths of *given* that are not in *known*; what is empty carries nothing that could be lost."""
    if isinstance(given, dict) and isinstance(known, dict):
        found = []
        for key, value in given.items():
            where = f"{path}.{key}".lstrip(".")
            if key in known:
                found += _lost(value, known[key], where)
            elif value not in (None, {}, []):
                found.append(where)
        return found
    if isinstance(given, list) and isinstance(known, list):
        pairs = zip(given, known, strict=False)
        return [lost for number, pair in enumerate(pairs) for lost in _lost(*pair, f"{path}[{number}]")]
    return []
