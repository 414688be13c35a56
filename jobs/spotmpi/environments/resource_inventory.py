"""The ids of an environment's resources, recorded on this machine: tags alone don't find everything."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from spotmpi.agent.files import write_atomically
from spotmpi.core import names
from spotmpi.core.errors import SpotmpiError

Resources = Iterable[tuple[str, str]]  # kind, by the name of several, and id


@dataclass(frozen=True)
class ResourceInventory:
    """What is known of an environment's resources: its name, which is its cluster's too, and recorded ids by kind."""

    name: str
    region: str
    account: str
    ids: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def of(self, kind: str) -> set[str]:
        """The recorded ids of a kind."""
        return set(self.ids.get(kind, ()))

    @property
    def location(self) -> str:
        """Account and region, which tell it from another environment of its name."""
        return f"{self.account}/{self.region}"


def read_inventory(environment: str, region: str, account: str) -> ResourceInventory:
    """The inventory of an environment; without ids where none were recorded."""
    inventory = ResourceInventory(environment, region, account)
    ids = _recorded(environment).get(inventory.location)
    return replace(inventory, ids=ids) if isinstance(ids, dict) else inventory


def _recorded(environment: str) -> dict[str, Any]:
    """What is recorded of the environments of that name, by account and region; SpotmpiError where a disk fails.

    What cannot be read is not what is missing: `down` would not find what has no tag, and the next write would lose it.
    """
    path = _path(environment)
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    except OSError as error:
        what = f"{path} cannot be read: {error.strerror}; it has what {environment} may have left in AWS"
        raise SpotmpiError(f"{what}: repeat the command once it can, or set SPOTMPI_STATE to another folder") from error
    return values if isinstance(values, dict) else {}


def record_resources(inventory: ResourceInventory, resources: Resources) -> ResourceInventory:
    """The inventory with more ids, written to disk; earlier ids stay, since a destroy may have been interrupted."""
    ids = {kind: set(known) for kind, known in inventory.ids.items()}
    for kind, id in resources:
        ids.setdefault(kind, set()).add(id)
    sorted_ids = {kind: sorted(known) for kind, known in sorted(ids.items())}
    _write(inventory.name, {**_recorded(inventory.name), inventory.location: sorted_ids})
    return replace(inventory, ids=sorted_ids)


def delete_inventory(inventory: ResourceInventory) -> None:
    """Delete the record of an environment of which nothing is left."""
    recorded = _recorded(inventory.name)
    recorded.pop(inventory.location, None)
    if recorded:
        _write(inventory.name, recorded)
    else:
        _path(inventory.name).unlink(missing_ok=True)


def _write(environment: str, recorded: Mapping[str, Any]) -> None:
    path = _path(environment)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(recorded, indent=1) + "\n")
    except OSError as error:
        raise SpotmpiError(f"cannot write {path}: {error.strerror}; set SPOTMPI_STATE to a writable folder") from error


def _path(environment: str) -> Path:
    return names.state_folder() / "environments" / f"{environment}.json"
