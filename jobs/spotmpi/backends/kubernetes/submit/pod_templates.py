"""The user's pod templates: read from files or from ConfigMaps, and validated against the schema of pods."""

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
from spotmpi.core.wording import reason_of
from spotmpi.plan.templates import FIELD, Template
from spotmpi.spec.kubernetes import CONFIG_MAP


def read(sources: Sequence[str], api: ClusterApi) -> tuple[Template, ...]:
    """The templates that the spec names, in order; a ConfigMap gives one per key, sorted by key.

    Raises:
        InputError: a file or ConfigMap does not exist, or it holds no YAML object.
    """
    templates: list[Template] = []
    for name in sources:
        if name.startswith(CONFIG_MAP):
            texts = call(_config_map(name, api))
            templates += [_parse(f"{name}/{key}", texts[key]) for key in sorted(texts)]
        else:
            templates.append(_parse(name, _read_file(name)))
    return tuple(templates)


def validate(pod: Object, templates: Sequence[Template]) -> None:
    """Raise InputError where *pod*, a pod template merged with *templates*, does not fit the schema.

    The API server would silently drop unknown fields, and refuse wrong values only when it creates pods.
    """
    names = ", ".join(template.name for template in templates)
    cluster_api.inspect_models()
    try:
        known = PodTemplateSpec.from_dict(pod).to_dict()
    except ValueError as error:
        text = str(error).replace("`$.", "`")
        problem = f"do not merge into a valid pod template: {text[:1].lower() + text[1:]}"
        raise input_error(FIELD, names, problem) from error
    unknown = _unknown_fields(pod, known)
    if unknown:
        raise input_error(FIELD, names, f"unknown fields of a pod template: {', '.join(unknown)}")


async def _config_map(name: str, api: ClusterApi) -> dict[str, str]:
    with translate_errors(f"read {name}"):
        config_map = await api.find(cluster_api.CONFIG_MAP, name.removeprefix(CONFIG_MAP))
    if config_map is None:
        raise input_error(
            FIELD, name, f"not found in namespace {api.namespace}; `kubectl get configmaps` lists its ConfigMaps"
        )
    texts: dict[str, str] = config_map.get("data") or {}
    return texts


def _read_file(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else reason_of(error)
        raise input_error(
            FIELD, name, f"cannot be read as a text file ({reason}); write a ConfigMap as {CONFIG_MAP}NAME"
        ) from error


def _parse(name: str, text: str) -> Template:
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise input_error(FIELD, name, f"is not YAML: {reason_of(error)}") from error
    if not isinstance(values, dict):
        raise input_error(FIELD, name, "is not a pod template: write metadata: and spec: as in a Pod")
    return Template(name, values)


def _unknown_fields(values: Any, known: Any, path: str = "") -> list[str]:
    """The paths of fields in *values* that *known* lacks; empty values carry nothing that could be lost."""
    if isinstance(values, dict) and isinstance(known, dict):
        unknown = []
        for key, value in values.items():
            field = f"{path}.{key}".lstrip(".")
            if key in known:
                unknown += _unknown_fields(value, known[key], field)
            elif value not in (None, {}, []):
                unknown.append(field)
        return unknown
    if isinstance(values, list) and isinstance(known, list):
        pairs = zip(values, known, strict=False)
        return [field for index, pair in enumerate(pairs) for field in _unknown_fields(*pair, f"{path}[{index}]")]
    return []
