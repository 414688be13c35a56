"""How a kind of resource behaves: its identity, names, references, what replaces it, and what it answers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.engine.providers.records import Record, Records

Rule = Callable[[dict[str, Any], Records], None]


@dataclass(frozen=True)
class Name:
    """A physical name: the input that holds it, its greatest length, whether the provider makes one up."""

    key: str
    longest: int
    made_up: bool = True
    pattern: str = r"[A-Za-z0-9_+=,.@:/-]+"


@dataclass(frozen=True)
class Target:
    """What an input refers to: the type and the output that holds the value."""

    token: str
    path: str = "id"


@dataclass(frozen=True)
class Kind:
    """One type of resource.

    `identity` and `arn` are formats over the inputs plus `hex`, `region`, `account` and (for the ARN) `id`.
    `replaces` are the inputs that can't be changed in place, `replaced_without` those that can be added and not taken
    away; `refers` maps inputs to what must exist.
    `answers` gives outputs beyond inputs, id and ARN; `unknown` names them for previews.
    `computed` are inputs that the service fills in where they aren't given (Optional and Computed in Terraform): the
    provider compares them with the state. `revised` gives outputs after a change in place, or refuses it.
    The rules refuse what the service would, with Refused; `update_rule` gets what exists and the new inputs. `counted`
    is an output that every change raises by one.
    """

    identity: str
    arn: str = ""
    name: Name | None = None
    replaces: tuple[str, ...] = ()
    replaced_without: tuple[str, ...] = ()
    refers: Mapping[str, tuple[Target, ...]] = field(default_factory=dict)
    answers: Callable[[dict[str, Any], str, Records], dict[str, Any]] = lambda inputs, identity, records: {}
    unknown: tuple[str, ...] = ()
    computed: tuple[str, ...] = ()
    revised: Callable[[Record, dict[str, Any], Records], dict[str, Any]] = lambda old, inputs, records: {}
    create_rule: Rule | None = None
    change_rule: Rule | None = None
    update_rule: Callable[[Record, dict[str, Any]], None] | None = None
    counted: str = ""
    delete_rule: Callable[[Record, Records], None] | None = None
