"""Every change of one setting of a ready stack, derived from the settings' schema, and pairs of them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from infra.settings import Settings
from scripts.environment_reference import nested_model
from tests.tools import REPOSITORY

STACKS = ("cpu", "lab", "p3", "g5", "full")
FILE_SYSTEM, ACCESS_POINT = "fs-89abcdef", "fsap-89abcdef"
ROLE, USER = "arn:aws:iam::123456789012:role/trainers", "arn:aws:iam::123456789012:user/alice"
BOUNDARY = "arn:aws:iam::123456789012:policy/spotmpi-boundary"
OTHERS = frozenset({FILE_SYSTEM, ACCESS_POINT, ROLE, USER, BOUNDARY})
_BUDGET = {"monthly_usd": 100, "email": "ops@example.org"}
_CI = {"repository": "someone/spotmpi", "state_bucket": "someones-state"}
_QUEUES = {"enabled": True, "teams": [{"name": "vision", "gpus": 1}]}
_LARGER = {
    **{"c6i.xlarge": "c6i.2xlarge", "g4dn.xlarge": "g4dn.2xlarge"},
    **{"p3.2xlarge": "p3.8xlarge", "g5.xlarge": "g5.2xlarge"},
}
_OF_DATA = ("kind", "zones", "tags", "storage.")

Config = dict[str, Any]
# The stack `full`: cpu with what others can only switch on, a second zone, and a group past EKS's quota.
_FULL: Mapping[str, Any] = {
    "spotmpi:zones": ["us-east-1a", "us-east-1b"],
    "spotmpi:network": {"private": True},
    "spotmpi:cluster": {"encrypt_secrets": True, "admins": [ROLE, USER]},
    "spotmpi:groups": [{"name": "c6i", "type": "c6i.xlarge", "max": 460, "placement_group": False}],
    "spotmpi:storage": {"one_zone": False, "backup": True},
    "spotmpi:images": ["chainermn", "pytorch", "mine"],
    "spotmpi:tags": {"team": "vision"},
    "spotmpi:queueing": _QUEUES,
    "spotmpi:budget": _BUDGET,
}
# What no type tells: other values of a setting, each as one change.
VALUES: Mapping[str, tuple[Any, ...]] = {
    "aws:region": ("us-west-2",),
    "account": ("123456789012", "210987654321"),
    "zones": (["us-east-1b"], ["us-east-1a"], ["us-east-1a", "us-east-1b", "us-east-1c"]),
    "second_zone": ("us-east-1d",),
    "access": (["203.0.113.0/24"], ["198.51.100.0/24", "203.0.113.0/24"]),
    "namespace": ("other",),
    "images": (["chainermn"], ["chainermn", "pytorch", "mine"]),
    "tags": ({"team": "vision"},),
    "groups": ([],),
    "groups[].name": ("other",),
    "groups[].zones": (["us-east-1a"], ["us-east-1b"]),
    "groups[].type": (lambda now: _LARGER[now], "r5.xlarge"),
    "groups[].reservation": ("cr-0123456789abcdef0",),
    "groups[].disk_throughput": (250,),
    "groups[].ami_release": ("1.36.1-20261110", "1.36.0-20261001", "1.36.9-20270101"),
    "network.cidr": ("10.1.0.0/16",),
    "cluster.version": ("1.37", "1.35", "1.38"),
    "cluster.logs": ([], ["api"]),
    "cluster.admins": ([ROLE], [ROLE, USER]),
    "cluster.users": ([USER],),
    "cluster.addon_versions": tuple({"coredns": f"v1.{minor}.1-eksbuild.2"} for minor in (35, 34)),
    "cluster.system.type": ("t3.large",),
    "cluster.system.ami_release": ("1.36.1-20261110", "1.36.0-20261001"),
    "storage.mount_options": (["noresvport", "nconnect=4"],),
    "storage.file_system_id": (FILE_SYSTEM,),
    "storage.access_point_id": (ACCESS_POINT,),
    "queueing.teams": ([{"name": "vision", "gpus": 1}],),
    "queueing.teams[].name": ("speech",),
    "queueing.teams[].gpus": (1,),
    "sources": ({"jobset": {"chart": "oci://mirror.example/jobset"}},),
    "boundary": (BOUNDARY,),
    "budget": (_BUDGET,),
    "budget.monthly_usd": (200,),
    "budget.email": ("other@example.org",),
    "ci": (_CI,),
    "ci.repository": ("other/spotmpi",),
    "ci.state_bucket": ("others-state",),
    "ci.provider_arn": ("arn:aws:iam::123456789012:oidc-provider/token.actions.githubusercontent.com",),
    "ci.branch": ("release",),
    "ci.secrets_key_arn": ("arn:aws:kms:us-east-1:123456789012:key/0123abcd",),
}
# Settings that stand for nothing without others: what has to be there for a change of them.
NEEDS: Mapping[str, Mapping[str, Any]] = {
    "budget": {"spotmpi:budget": _BUDGET},
    "ci": {"spotmpi:ci": _CI},
    "queueing": {"spotmpi:queueing": _QUEUES},
}


@dataclass(frozen=True)
class Change:
    """One change of a stack's file; `data` changes that of its persistent storage."""

    key: str
    name: str
    apply: Callable[[Config], None]
    data: bool = False

    def __str__(self) -> str:
        return self.name


# The setting whose outcome the removal of a part of `full` has.
_KEYS_OF_FULL = {
    "spotmpi:network": "network.private",
    "spotmpi:cluster": "cluster.encrypt_secrets",
    "spotmpi:storage": "storage.one_zone",
    "spotmpi:images": "images",
    "spotmpi:tags": "tags",
    "spotmpi:queueing": "queueing.enabled",
    "spotmpi:budget": "budget",
}


def file_of(stack: str) -> str:
    """The ready stack whose file one of STACKS uses."""
    return "cpu" if stack == "full" else stack


def config_of(stack: str) -> Config:
    """The configuration of one of STACKS."""
    text = (REPOSITORY / "stacks" / f"Pulumi.{file_of(stack)}.yaml").read_text()
    return {**yaml.safe_load(text)["config"], **(deepcopy(dict(_FULL)) if stack == "full" else {})}


def changes(stack: str) -> list[Change]:
    """Every change of one setting of a ready stack and of its persistent storage, in the order of the schema."""
    found = [*_changes(config_of(stack), False), *_whole_changes(config_of(stack))]
    if stack == "full":  # what is the same as in cpu is left to that
        inside = {key.removeprefix("spotmpi:") for key in _FULL}
        found = [each for each in found if re.split(r"[.\[]", each.key)[0] in inside]
        found += [
            Change(_KEYS_OF_FULL[key], f"{key.removeprefix('spotmpi:')} removed", partial(_remove, key=key))
            for key in _FULL
            if key in _KEYS_OF_FULL
        ]
        found.append(Change("groups[].max", "groups[].max=450", partial(_write, key="groups[].max", value=450)))
    if config_of(stack).get("spotmpi:storage", {}).get("keep"):
        found += _changes(config_of(f"{stack}-data"), True)
    return found


def documented(key: str) -> set[str]:
    """The outcomes of changes of a setting that docs/tests.md has; LookupError where it has none."""
    text = (REPOSITORY / "docs" / "tests.md").read_text()
    for row in re.findall(r"^\| (`.*) \| (.*) \|$", text, re.MULTILINE):
        if f"`{key}`" in row[0]:
            return {each.strip() for each in row[1].split(";")}
    raise LookupError(f"{key}: add the outcome of its changes to the table of docs/tests.md")


def pairs(count: int, seed: int = 20261124) -> list[tuple[str, Change, Change]]:
    """So many random pairs of changes of different settings, by stack, so that each is built once."""
    chosen = random.Random(seed)
    all_changes = {stack: changes(stack) for stack in STACKS}
    found: dict[str, tuple[str, Change, Change]] = {}
    while len(found) < count:
        stack = chosen.choice(STACKS)
        first, second = chosen.sample(all_changes[stack], 2)
        ungrouped = first.name == "groups=[]" and second.key.startswith("groups[].")  # nothing is left to change
        if first.key != second.key and not ungrouped:
            found.setdefault(f"{stack} {first} {second}", (stack, first, second))
    return sorted(found.values(), key=lambda pair: STACKS.index(pair[0]))


def keys(model: type[BaseModel] = Settings, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every setting of the schema by key, as in docs/environments.md, those with settings of their own included."""
    for name, field in model.model_fields.items():
        if not prefix and name in ("project", "stack"):
            continue
        key = f"{prefix}{name}" if prefix or name != "region" else "aws:region"
        inner, is_list = nested_model(field.annotation)
        if inner is None or is_list or not isinstance(field.annotation, type):
            yield key, field
        if inner is not None:
            yield from keys(inner, f"{key}[]." if is_list else f"{key}.")


def _changes(config: Config, data: bool) -> Iterator[Change]:
    for key, field in keys():
        if data and not key.startswith(_OF_DATA):
            continue
        for value in _values(key, field, _read(config, key)):
            shown = ",".join(map(str, value)) if isinstance(value, list) and value else value
            name = f"{'data stack: ' * data}{key}={str(shown).replace(' ', '')}"
            yield Change(key, name, partial(_write, key=key, value=value), data)


def _values(key: str, field: FieldInfo, now: Any) -> Iterator[Any]:
    """Other values of a setting than that of a stack (or its default): by its type, else from VALUES."""
    current = field.default if now is None else now
    kind = field.annotation
    if key in VALUES:
        values = [value(current) if callable(value) else value for value in VALUES[key]]
    elif kind is bool:
        values = [not current]
    elif get_origin(kind) is Literal:
        values = list(get_args(kind))
    elif kind is int:
        bounds = {name: getattr(each, name) for each in field.metadata for name in ("ge", "le") if hasattr(each, name)}
        values = [
            each for each in (current + 1, current - 1) if bounds.get("ge", each) <= each <= bounds.get("le", each)
        ]
    else:
        raise LookupError(f"{key}: add other values of it to VALUES")
    yield from (value for value in values if value != current)


def _whole_changes(config: Config) -> Iterator[Change]:
    """Changes of the list of groups, and those of which one setting alone is never changed."""
    groups = config["spotmpi:groups"]
    cpu = {"name": "more", "type": "c6i.2xlarge", "max": 2, "placement_group": False}
    lists = {
        "groups=added": [*groups, cpu],
        "groups=removed": [*groups[1:], cpu] if len(groups) == 1 else groups[1:],
        "groups=reversed": [cpu, *groups[::-1]],
    }
    for name, value in lists.items():
        yield Change("groups", name, partial(_write, key="groups", value=value))
    first, *others = groups
    several = {**first, "name": "other", "type": _LARGER[first["type"]], "min": 1, "max": 3, "disk_gib": 200}
    yield Change("groups", "groups=several keys", partial(_write, key="groups", value=[several, *others]))
    if others:
        swapped = [{**first, "name": others[0]["name"]}, {**others[0], "name": first["name"]}, *others[1:]]
        yield Change("groups", "groups=names swapped", partial(_write, key="groups", value=swapped))
    as_text = partial(_write, key="zones", value=config["spotmpi:zones"][0])
    yield Change("zones", "zones=as text", as_text)
    yield Change("storage.keep", "storage.keep=yes", partial(_write, key="storage.keep", value="yes"))
    region = {"aws:region": "us-west-2", "spotmpi:zones": ["us-west-2a"]}
    yield Change("aws:region", "region and zone", lambda config: config.update(region))
    own = {"file_system_id": FILE_SYSTEM, "access_point_id": ACCESS_POINT}
    yield Change("storage.file_system_id", "storage=own", lambda config: config.update({"spotmpi:storage": own}))
    yield Change(
        "queueing.enabled", "queueing=on", lambda config: config.update({"spotmpi:queueing": deepcopy(_QUEUES)})
    )


def _read(config: Config, key: str) -> Any:
    if key == "aws:region":
        return config[key]
    first, *rest = key.replace("[]", ".[]").split(".")
    value: Any = config.get(f"spotmpi:{first}")
    for part in rest:
        if isinstance(value, list) and part == "[]":
            value = value[0]
        else:
            value = value.get(part) if isinstance(value, dict) else None
    return value


def _remove(config: Config, key: str) -> None:
    config.pop(key, None)


def _write(config: Config, key: str, value: Any) -> None:
    if key == "aws:region":
        config[key] = value
        return
    first, *rest = key.replace("[]", ".[]").split(".")
    if first in NEEDS and rest and f"spotmpi:{first}" not in config:
        config.update(deepcopy(dict(NEEDS[first])))
    parts = [f"spotmpi:{first}", *rest]
    target: Any = config
    for part, following in pairwise(parts):
        if part == "[]":
            target = target[0]
        else:
            target = target.setdefault(part, [] if following == "[]" else {})
    target[parts[-1]] = value
