"""Pod templates of the user's, merged over ours. Pure.

Objects are merged key by key, a null takes a key away. Lists of named things are merged by their key, tolerations and
``envFrom`` are added to, any other list or value is replaced.
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
_ADDED_TO = ("tolerations", "envFrom")
_TOP = {"apiVersion", "kind", "metadata", "spec"}  # of a Pod, or of what a PodTemplate holds
_REMEDIES = {"spec.terminationGracePeriodSeconds": "checkpoint.grace"}


@dataclass(frozen=True)
class Template:
    """A part of a pod template and where it was read from."""

    name: str
    values: Mapping[str, Any]


def merged(pod: Object, templates: Iterable[Template], container: str) -> Object:
    """*pod*, a pod template with the agent's *container*, with *templates* merged over it, the later ones winning.

    Raises:
        InputError: names each template that changes what the run depends on, with what it changes.
    """
    problems = []
    ours = _guarded(pod, container)
    for template in templates:
        unknown = sorted(set(template.values) - _TOP)
        problems += [Problem(FIELD, template.name, f"has no place for {key}: use metadata and spec") for key in unknown]
        values = {key: template.values[key] for key in ("metadata", "spec") if key in template.values}
        pod = _merge(pod, values)
        found = _guarded(pod, container)
        ours = {path: None for path in found if path.startswith("metadata.")} | ours  # nor may a template add one
        for path in (path for path, value in ours.items() if found.get(path) != value):
            remedy = f"set {_REMEDIES[path]} instead" if path in _REMEDIES else "leave it out"
            problems.append(Problem(FIELD, template.name, f"must not change {path}, which is spotmpi's own: {remedy}"))
        ours = {path: found.get(path) for path in ours}  # each change is told once
    if problems:
        raise InputError(problems)
    return pod


def _merge(base: Any, over: Any, key: str = "") -> Any:
    if isinstance(base, dict) and isinstance(over, dict):
        together = {name: _merge(base.get(name), over[name], name) if name in over else base[name] for name in base}
        together |= {name: _merge(None, over[name], name) for name in over if name not in base}
        return {name: value for name, value in together.items() if not (name in over and over[name] is None)}
    if isinstance(over, dict):
        return _merge({}, over, key)
    if isinstance(base, list) and isinstance(over, list):
        return _merged_lists(base, over, key)
    return copy.deepcopy(over)


def _merged_lists(base: list[Any], over: list[Any], key: str) -> list[Any]:
    if key in _ADDED_TO:
        return [*base, *copy.deepcopy(over)]
    identity = _KEYS.get(key)
    if identity is None or not all(isinstance(item, dict) and identity in item for item in [*base, *over]):
        return copy.deepcopy(over)
    together = {item[identity]: item for item in base}
    for item in over:
        together[item[identity]] = _merge(together.get(item[identity], {}), item)
    return list(together.values())


def _guarded(pod: Object, container: str) -> dict[str, Any]:
    """What the run depends on, by its path."""
    spec = _object(pod.get("spec"))
    agent = next((each for each in _objects(spec.get("containers")) if each.get("name") == container), {})
    inside = f"spec.containers[{container}]"
    return {
        **dict(_reserved(_object(pod.get("metadata")))),
        **{f"spec.{key}": spec.get(key) for key in ("restartPolicy", "terminationGracePeriodSeconds")},
        **{f"{inside}.{key}": agent.get(key) for key in ("command", "args")},
        **{f"spec.volumes[{each.get('name')}]": each for each in _objects(spec.get("volumes"))},
        **{f"{inside}.volumeMounts[{each.get('mountPath')}]": each for each in _objects(agent.get("volumeMounts"))},
        **{f"{inside}.env[{each.get('name')}]": each for each in _objects(agent.get("env"))},
    }


def _reserved(metadata: Object) -> Iterator[tuple[str, Any]]:
    """The labels and annotations that are spotmpi's own, by their path."""
    for part in ("labels", "annotations"):
        for key, value in _object(metadata.get(part)).items():
            if names.is_reserved(key):
                yield f"metadata.{part}[{key}]", value


def _object(value: Any) -> Object:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[Object]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
