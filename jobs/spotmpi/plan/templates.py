"""Merges the user's pod templates over the run's own. Pure.

Objects are merged key by key; null removes a key. Lists of named objects are merged by name, tolerations and
``envFrom`` are appended, all other lists and values are replaced.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from spotmpi.core import names
from spotmpi.core.errors import InputError, Problem

Object = dict[str, Any]

FIELD = "kubernetes.templates"
_KEYS = {
    **dict.fromkeys(("containers", "initContainers", "volumes", "env", "imagePullSecrets", "resourceClaims"), "name"),
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}
_APPENDED = ("tolerations", "envFrom")
_TOP = {"apiVersion", "kind", "metadata", "spec"}  # the keys of a Pod
_REMEDIES = {"spec.terminationGracePeriodSeconds": "checkpoint.grace"}


@dataclass(frozen=True)
class Template:
    """A user's pod template and the file or ConfigMap that it is from."""

    name: str
    values: Mapping[str, Any]


def merge(pod: Object, templates: Iterable[Template], container: str) -> Object:
    """*pod*, a pod template with the agent's *container*, after merging *templates* over it in order.

    Raises:
        InputError: a template changes fields that the run depends on; each is a problem.
    """
    problems = []
    protected = _protected(pod, container)
    for template in templates:
        if wrong := list(_wrong_keys(template.values)):  # as YAML reads yes, no, null and numbers
            problems += [
                Problem(FIELD, template.name, f"the key {key} is not text: write it in quotes") for key in wrong
            ]
            continue
        unknown = sorted(set(template.values) - _TOP)
        problems += [Problem(FIELD, template.name, f"unknown key {key}: use metadata and spec") for key in unknown]
        values = {key: template.values[key] for key in ("metadata", "spec") if key in template.values}
        pod = _merge(pod, values)
        current = _protected(pod, container)
        # Nor may a template add metadata of ours.
        protected = {path: None for path in current if path.startswith("metadata.")} | protected
        for path in (path for path, value in protected.items() if current.get(path) != value):
            remedy = f"set {_REMEDIES[path]} instead" if path in _REMEDIES else "remove it"
            problems.append(Problem(FIELD, template.name, f"must not change {path}, which spotmpi sets: {remedy}"))
        protected = {path: current.get(path) for path in protected}  # report each change once
    if problems:
        raise InputError(problems)
    return pod


def _merge(base: Any, over: Any, key: str = "") -> Any:
    if isinstance(base, dict) and isinstance(over, dict):
        result = {name: _merge(base.get(name), over[name], name) if name in over else base[name] for name in base}
        result |= {name: _merge(None, over[name]) for name in over if name not in base}
        return {name: value for name, value in result.items() if not (name in over and over[name] is None)}
    if isinstance(over, dict):
        return _merge({}, over)
    if isinstance(base, list) and isinstance(over, list):
        return _merge_lists(base, over, key)
    return copy.deepcopy(over)


def _merge_lists(base: list[Any], over: list[Any], key: str) -> list[Any]:
    if key in _APPENDED:
        return [*base, *copy.deepcopy(over)]
    identity = _KEYS.get(key)
    if identity is None or not all(_has_name(item, identity) for item in [*base, *over]):
        return copy.deepcopy(over)
    result = {item[identity]: item for item in base}
    for item in over:
        result[item[identity]] = _merge(result.get(item[identity]), item)
    return list(result.values())


def _has_name(item: Any, identity: str) -> bool:
    return isinstance(item, dict) and isinstance(item.get(identity), str | int)


def _wrong_keys(values: Any) -> Iterator[Any]:
    """The keys of objects that JSON cannot have."""
    if isinstance(values, Mapping):
        yield from (key for key in values if not isinstance(key, str))
    if isinstance(values, Mapping | list):
        for value in values.values() if isinstance(values, Mapping) else values:
            yield from _wrong_keys(value)


def _protected(pod: Object, container: str) -> dict[str, Any]:
    """The fields that the run depends on, by path."""
    spec = _object(pod.get("spec"))
    agent = next((each for each in objects(spec.get("containers")) if each.get("name") == container), {})
    prefix = f"spec.containers[{container}]"
    return {
        **dict(_reserved(_object(pod.get("metadata")))),
        **{f"spec.{key}": spec.get(key) for key in ("restartPolicy", "terminationGracePeriodSeconds")},
        **{f"{prefix}.{key}": agent.get(key) for key in ("command", "args")},
        **{f"spec.volumes[{each.get('name')}]": each for each in objects(spec.get("volumes"))},
        **{f"{prefix}.volumeMounts[{each.get('mountPath')}]": each for each in objects(agent.get("volumeMounts"))},
        **{f"{prefix}.env[{each.get('name')}]": each for each in objects(agent.get("env"))},
    }


def _reserved(metadata: Object) -> Iterator[tuple[str, Any]]:
    """The labels and annotations of spotmpi, by path."""
    for part in ("labels", "annotations"):
        for key, value in _object(metadata.get(part)).items():
            if names.is_reserved(key):
                yield f"metadata.{part}[{key}]", value


def _object(value: Any) -> Object:
    return value if isinstance(value, dict) else {}


def objects(value: Any) -> list[Object]:
    """The objects among the items of *value*, which a template may have given any type."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
