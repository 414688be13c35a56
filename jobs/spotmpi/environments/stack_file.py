"""A stack's file: read leniently, and changed in a few keys without losing its comments."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotmpi.agent.files import write_atomically
from spotmpi.aws.prices import Design
from spotmpi.aws.zones import default_second_zone
from spotmpi.core import names
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.core.wording import reason_of
from spotmpi.environments.zones.ranking import usable
from spotmpi.environments.zones.rows import Row

_PREFIX = "spotmpi:"
_ZONES = _PREFIX + "zones"
_ENVIRONMENT = "spotmpi-"
SYSTEM = "system"  # the name of the system nodes among node groups
_NAME = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True)
class StackGroup:
    """One node group of the stack file; None where a value is missing or invalid."""

    name: str | None
    type: str | None
    max: int | None
    market: str
    placement_group: bool
    zones: tuple[str, ...] = ()  # none for all of the stack
    reservation: str | None = None  # of a Capacity Block


@dataclass(frozen=True)
class StackFile:
    """The settings of a stack that are used here, without validating the rest."""

    stack: str
    path: Path
    region: str | None
    zones: tuple[str, ...]
    second_zone: str | None
    groups: tuple[StackGroup, ...]
    system: StackGroup
    keep: bool
    one_zone: bool
    file_system: str | None  # of the user's own, which no stack has
    kind: str
    account: str | None
    kubernetes: str | None
    ami_releases: Mapping[str, str]  # by node group, of each zone, or `system`
    secrets_provider: str | None  # of Pulumi's state; None for a passphrase
    design: Design

    @property
    def zone(self) -> str | None:
        """The first zone, which has the system nodes and One Zone storage; None where it is not chosen yet."""
        return self.zones[0] if self.zones else None

    @property
    def environment(self) -> str:
        """The environment's name, which its tags and its cluster carry."""
        return _ENVIRONMENT + self.stack

    @property
    def data_stack(self) -> str:
        """The stack of its persistent storage, where that has one of its own."""
        return f"{self.stack}-data"

    def check_deletion(self, name: str | None) -> None:
        """Raise InputError where data is to be deleted, and *name* is not that of the environment."""
        if name not in (None, self.environment):
            remedy = f"must be the environment's name, {self.environment}, to delete its data"
            raise input_error("--delete-data", name, remedy)


def stack_of(environment: str) -> str:
    """The stack of an environment's name; other names are returned unchanged."""
    return environment.removeprefix(_ENVIRONMENT)


def stack_path(stack: str, folder: Path | None) -> Path:
    """The file of *stack*; InputError where it does not exist."""
    folder = folder or (Path("stacks") if Path("stacks").is_dir() else names.pulumi_project() / "stacks")
    path = folder / f"Pulumi.{stack}.yaml"
    if not _NAME.fullmatch(stack) or not path.is_file():
        known = sorted(each.stem.removeprefix("Pulumi.") for each in folder.glob("Pulumi.*.yaml"))
        where = f"no file Pulumi.<stack>.yaml in {names.display_path(folder.absolute())}/"
        remedy = "`spotmpi init --environment NAME` writes one"
        raise input_error("stack", stack, f"{where}; stacks: {', '.join(known) or 'none'}; {remedy}")
    return path


def read_stack(stack: str, folder: Path | None = None) -> StackFile:
    """The settings of *stack*; InputError where the file does not exist or is not YAML."""
    path = stack_path(stack, folder)
    document, config = _read(path)
    storage, cluster = _table(config, _PREFIX + "storage"), _table(config, _PREFIX + "cluster")
    groups = [(name, each) for each in _groups(config) for name in _zone_groups(config, each)]
    named = [(SYSTEM, _table(cluster, SYSTEM)), *groups]
    releases = {name: _text(each.get("ami_release")) for name, each in named}
    return StackFile(
        stack=stack,
        path=path,
        region=_text(config.get("aws:region")),
        zones=_texts(config.get(_ZONES)),
        second_zone=_text(config.get(_PREFIX + "second_zone")),
        groups=tuple(map(_group, _groups(config))),
        system=_system(cluster),
        keep=storage.get("keep") is True,
        one_zone=storage.get("one_zone") is not False,
        file_system=_text(storage.get("file_system_id")),
        kind=_text(config.get(_PREFIX + "kind")) or "compute",
        account=str(account) if isinstance(account := config.get(_PREFIX + "account"), str | int) else None,
        kubernetes=_version(cluster),
        ami_releases={name: release for name, release in releases.items() if release},
        secrets_provider=_text(document.get("secretsprovider")),
        design=_design(config),
    )


def _design(config: Any) -> Design:
    """What the environment's price depends on; infra's default where a value is missing or invalid."""
    default, groups, cluster = Design(), _groups(config), _table(config, _PREFIX + "cluster")
    system = _system(cluster)
    disks = [_count(each.get("disk_gib")) for each in groups]
    throughputs = [_count(each.get("disk_throughput")) for each in groups]
    return Design(
        system_type=system.type or default.system_type,
        system_nodes=system.max or default.system_nodes,
        system_disk_gib=_count(_table(cluster, SYSTEM).get("disk_gib")) or default.system_disk_gib,
        node_disk_gib=max((each or default.node_disk_gib for each in disks), default=default.node_disk_gib),
        disk_throughput=max((each for each in throughputs if each), default=None),
        local_disks=all(each.get("local_disks") is not False for each in groups),
        private=_table(config, _PREFIX + "network").get("private") is True,
        kubernetes=_version(cluster) or default.kubernetes,
    )


def write_choice(stack: str, row: Row, group: str | None, folder: Path | None = None) -> Path:
    """Write region, first zone and the type of *group* into a stack's file; the rest, comments included, stays.

    Further zones stay if they are others of the same region, and zones of groups where the stack still has them.
    A second zone, also the default one, that does not exist or is not supported by EKS is replaced by one that is.
    *group* may be omitted where only one exists, or one has the type already. InputError with the remedy.
    """
    if not usable(row):
        reason = (
            f"{row.type} is not offered in {row.zone}"
            if row.offered is False
            else f"EKS does not support {row.zone_id}"
        )
        raise input_error("zone", row.zone, f"{reason}; choose another row")
    path = stack_path(stack, folder)
    document, config = _read(path)
    second = _second_zone(config, row)
    target = _group_to_change(_groups(config), row.type, group, path)
    config["aws:region"], target["type"] = row.region, row.type
    _write_first_zone(config, row)
    for each in _groups(config):
        if isinstance(each.get("zones"), list):
            _write_group_zones(each, config[_ZONES], row.zone if each is target else None)
    if second is not None:
        config.pop(_PREFIX + "second_zone", None)
        config.insert(list(config).index(_ZONES), _PREFIX + "second_zone", second)
    write_stack(path, _text_of(document))
    return path


def _write_first_zone(config: Any, row: Row) -> None:
    zones = config.get(_ZONES)
    if not isinstance(zones, list) or not zones:
        config[_ZONES] = [row.zone]
        return
    zones[0] = row.zone
    for index in range(len(zones) - 1, 0, -1):
        if zones[index] == row.zone or str(zones[index])[:-1] != row.region:
            del zones[index]


def _write_group_zones(group: Any, known: list[str], first: str | None) -> None:
    """Leave of a group's own zones those that are *known*, with *first* before them; all where none is left."""
    group["zones"][:] = [zone for zone in group["zones"] if zone in known and zone != first]
    if first is not None:
        group["zones"].insert(0, first)
    if not group["zones"]:
        del group["zones"]


def _second_zone(config: Any, row: Row) -> str | None:
    """The second zone to write; None where the one in the file, or the default, is supported."""
    key = _PREFIX + "second_zone"
    current = config.get(key)
    if row.second_zones is None:
        if current is not None and (current == row.zone or not str(current).startswith(row.region)):
            raise input_error(key, current, f"must be another zone of {row.region}: change or remove it first")
        return None
    if (current or default_second_zone(row.region, row.zone)) in row.second_zones:
        return None
    if not row.second_zones:
        raise input_error(
            "zone", row.zone, f"EKS needs a second zone and supports no other in {row.region}: choose another row"
        )
    return row.second_zones[0]


@dataclass(frozen=True)
class Pins:
    """Versions for a stack's file: Kubernetes, add-ons by name, and AMI releases by node group or `system`."""

    kubernetes: str
    addons: Mapping[str, str]
    ami_releases: Mapping[str, str]


def with_pins(stack: str, pins: Pins, folder: Path | None = None) -> str:
    """The text of a stack's file with these versions and the rest unchanged, comments included; nothing is written."""
    path = stack_path(stack, folder)
    document, config = _read(path)
    cluster = _mapping(config, _PREFIX + "cluster")
    cluster["version"] = pins.kubernetes
    if pins.addons:
        _mapping(cluster, "addon_versions").update(pins.addons)
    for group in _groups(config):
        own = [pins.ami_releases[name] for name in _zone_groups(config, group) if name in pins.ami_releases]
        if own:  # zones share the setting, and EKS takes none back to an older release
            group["ami_release"] = max(own, key=order)
    if SYSTEM in pins.ami_releases:
        _mapping(cluster, SYSTEM)["ami_release"] = pins.ami_releases[SYSTEM]
    return _text_of(document)


def order(version: str) -> tuple[int, ...]:
    """A key that sorts AMI releases (`1.35.2-20260901`) and add-on versions (`v1.20.4-eksbuild.2`), oldest first."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def write_stack(path: Path, text: str) -> None:
    """Replace a stack's file by *text* atomically; SpotmpiError."""
    try:
        write_atomically(path, text, keep_mode=True)
    except OSError as error:
        raise SpotmpiError(f"cannot write {path}: {error.strerror}; check its permissions, and the disk") from error


def _mapping(parent: Any, key: str) -> Any:
    """The mapping under *key*, created if missing."""
    if not isinstance(parent.get(key), Mapping):
        parent[key] = {}
    return parent[key]


def _group_to_change(groups: list[Any], machine: str, name: str | None, path: Path) -> Any:
    if name is not None:
        matching = [each for each in groups if each.get("name") == name]
    else:
        matching = groups if len(groups) == 1 else [each for each in groups if each.get("type") == machine]
    if not matching:  # of several groups with the type already, none has to change
        known = ", ".join(str(each.get("name")) for each in groups) or "none"
        raise input_error("--group", name, f"name the group of {path} that gets {machine}; groups: {known}")
    return matching[0]


def _yaml() -> Any:
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 10_000  # a long value, such as an encrypted one, stays on its line
    yaml.indent(mapping=2, sequence=4, offset=2)
    return yaml


def _read(path: Path) -> tuple[Any, Any]:
    """The document in a stack's file and its settings; InputError."""
    from ruamel.yaml.error import YAMLError

    try:
        document = _yaml().load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeError, YAMLError) as error:
        raise input_error(str(path), None, f"cannot be read as YAML: {reason_of(error)}") from error
    config = document.get("config") if isinstance(document, Mapping) else None
    if not isinstance(config, MutableMapping):
        raise input_error(str(path), None, "has no `config:`; copy one of the example stacks")
    for key, value in config.items():
        if str(key).startswith(_PREFIX):
            config[key] = _structured(value)
    return document, config


def _text_of(document: Any) -> str:
    out = io.StringIO()
    _yaml().dump(document, out)
    return out.getvalue()


def _structured(value: Any) -> Any:
    """A list or map, also where it is JSON in a text, as `pulumi config set` writes one and the program reads it."""
    if not isinstance(value, str) or value[:1] not in ("[", "{"):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _table(parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The mapping under *key*; an empty one where that is missing or something else."""
    table = parent.get(key)
    return table if isinstance(table, Mapping) else {}


def _groups(config: Any) -> list[Any]:
    """The node groups that are mappings, as they all should be."""
    groups = config.get(_PREFIX + "groups")
    return [each for each in groups if isinstance(each, Mapping)] if isinstance(groups, list) else []


def _group(values: Mapping[str, Any]) -> StackGroup:
    return StackGroup(
        name=_text(values.get("name")),
        type=_text(values.get("type")),
        max=_count(values.get("max")),
        market=_text(values.get("market")) or "spot",
        placement_group=values.get("placement_group") is not False and values.get("market") != names.CAPACITY_BLOCK,
        zones=_texts(values.get("zones")),
        reservation=_text(values.get("reservation")),
    )


def _system(cluster: Mapping[str, Any]) -> StackGroup:
    """The system nodes, which are always on demand."""
    values, default = _table(cluster, SYSTEM), Design()
    machine = _text(values.get("type", default.system_type))
    nodes = _count(values.get("nodes", default.system_nodes))
    return StackGroup(SYSTEM, machine, nodes, "on-demand", placement_group=False)


def _version(cluster: Mapping[str, Any]) -> str | None:
    """The Kubernetes version; 1.35 without quotes is a number."""
    return str(version) if isinstance(version := cluster.get("version"), str | float) else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _zone_groups(config: Any, group: Mapping[str, Any]) -> list[str]:
    """The names of the node groups of a group of the file, one in each zone, as infra/settings.py makes them."""
    name = _text(group.get("name"))
    if name is None:
        return []
    first, *_ = zones = _texts(config.get(_ZONES)) or ("",)
    return [name if zone == first else f"{name}-{zone[-1:]}" for zone in _texts(group.get("zones")) or zones]


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(filter(None, map(_text, value))) if isinstance(value, list) else ()


def _text(value: Any) -> str | None:
    return str(value) if isinstance(value, str) else None
