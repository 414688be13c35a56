"""Settings that a built environment keeps: a tag holds them, and an update that would change the tag is refused.

Pulumi would replace the network, the cluster or the file system, with all nodes, runs and data, or fail in the middle.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from operator import attrgetter
from typing import Any

import pulumi
from pydantic import BaseModel

from infra import names
from infra.settings import FIXED, ONE_WAY, PROJECT, Settings

# Of the file system; all others are of the network, which exists before and after everything else.
_STORAGE = ("storage.one_zone",)
_FIRST_ZONE = "zones.0"  # others may come and go
# With another region or kind there is another network, or none, whose tag could be compared.
_NOT_IN_TAGS = ("region", "kind")


def of_network(settings: Settings) -> dict[str, str]:
    """The settings that the network keeps, by key."""
    keys = set(_marks()) - {*_STORAGE, *_NOT_IN_TAGS}
    return {key: _text(settings, key) for key in keys} | {
        _FIRST_ZONE: settings.zone,
        "second_zone": settings.other_zone,
    }


def of_storage(settings: Settings) -> dict[str, str]:
    """The settings that the file system keeps, by key; its zone only where it is in one."""
    kept = {key: _text(settings, key) for key in _STORAGE}
    return kept | ({_FIRST_ZONE: settings.zone} if settings.storage.one_zone else {})


def as_tag(values: Mapping[str, str]) -> str:
    """The settings as the value of a tag: `network.cidr=10.0.0.0/16 zones.0=us-east-1a`."""
    return " ".join(f"{key}={value}" for key, value in sorted(values.items()))


def refuse_changes(name: str) -> pulumi.ResourceHookBinding:
    """Hooks for a tagged resource that refuse an update in which a setting of the tag changes; *name* is unique."""

    def refuse(args: pulumi.ResourceHookArgs) -> None:
        require_same(_tag(args.old_inputs), _tag(args.new_inputs))

    hook = pulumi.ResourceHook(f"{name}-fixed", refuse, pulumi.ResourceHookOptions(on_dry_run=True))
    return pulumi.ResourceHookBinding(before_update=[hook])


def require_same(built: Mapping[str, str], new: Mapping[str, str]) -> None:
    """RunError where a setting differs from that of the built environment, with what can be done."""
    changed = [
        f"{PROJECT}:{key} = {new[key]} (built with {value})"
        for key, value in built.items()
        if new.get(key, value) != value and not (_marks().get(key) == ONE_WAY["change"] and new[key] == "true")
    ]
    if changed:
        remedy = "set it back, use another stack, or destroy this one first (`spotmpi down`)"
        raise pulumi.RunError(f"can't change in a built environment: {', '.join(changed)}: {remedy}")


def _tag(inputs: Mapping[str, Any] | None) -> dict[str, str]:
    text = str(((inputs or {}).get("tags") or {}).get(names.TAG_FIXED) or "")
    return dict(each.split("=", 1) for each in text.split())


def _text(settings: Settings, key: str) -> str:
    value = attrgetter(key)(settings)
    return str(value).lower() if isinstance(value, bool) else str(value)


@cache
def _marks() -> dict[str, str]:
    """How each marked setting is fixed, by key."""
    return dict(_marked(Settings, ""))


def _marked(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str]]:
    for name, field in model.model_fields.items():
        inner, extra = field.annotation, field.json_schema_extra
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _marked(inner, f"{prefix}{name}.")
        elif isinstance(extra, dict) and extra in (FIXED, ONE_WAY):
            yield f"{prefix}{name}", str(extra["change"])
