"""The stand-in cloud: what a provider does for the engine, on the records of what exists."""

import re
import threading
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from tests.engine.providers import schema
from tests.engine.providers.deleted_resources import DeletedResources
from tests.engine.providers.kinds import Kind
from tests.engine.providers.records import (
    ACCOUNT,
    Record,
    Records,
    Refusal,
    texts_in,
    value_at,
    values_at,
)
from tests.engine.providers.schema import UNKNOWN
from tests.engine.providers.script import Script

_IDENTITY = re.compile(
    r"(vpc|subnet|rtb|rtbassoc|r|igw|nat|eipalloc|vpce|sg|sgr|pg|lt|fs|fsap|fsmt)-[0-9a-f]{17}"
    rf"|arn:aws:[a-z0-9-]+:[a-z0-9-]*:{ACCOUNT}:\S+"
)


@dataclass(frozen=True)
class ResourceRequest:
    """A request of the engine about one resource: its type, its name in the program, its URN."""

    token: str
    name: str
    urn: str


@dataclass
class Cloud:
    """Everything that the stand-ins of one test share.

    `existing_arns` are ids and ARNs of resources from before the test; `leftovers` are resources that AWS creates by
    itself and nobody deletes; `deleted_resources` is what AWS still returns of deleted ones.
    `terminated` are node groups and numbers of running nodes that a request terminated, one entry for each request.
    `mounted` are the claims that pods use, as `namespace/name`.
    """

    records: Records = field(default_factory=Records)
    script: Script = field(default_factory=Script)
    existing_arns: set[str] = field(default_factory=set)
    leftovers: list[str] = field(default_factory=list)
    deleted_resources: DeletedResources = field(default_factory=DeletedResources)
    terminated: list[tuple[str, int]] = field(default_factory=list)
    mounted: set[str] = field(default_factory=set)
    account: str = ACCOUNT
    builder: str = f"arn:aws:iam::{ACCOUNT}:role/builder"  # whose credentials the engine uses
    lock: threading.RLock = field(default_factory=threading.RLock)


class Provider:
    """One package's stand-in; what differs between packages is overridden."""

    package = ""

    def __init__(self, cloud: Cloud):
        self.cloud = cloud

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Take the provider's settings, or refuse them."""

    def kind(self, token: str, inputs: Mapping[str, Any]) -> Kind | None:
        """How a type behaves; None for a type that the stand-in doesn't have."""
        raise NotImplementedError

    def scope(self) -> str | None:
        """The cluster that this provider's objects live in, if they do."""
        return None

    def reach(self) -> None:
        """Refuse if what the provider talks to is gone."""

    def check(
        self, resource: ResourceRequest, olds: Mapping[str, Any], news: Mapping[str, Any], seed: bytes
    ) -> tuple[dict[str, Any], list[str]]:
        """The inputs, with a generated name where there is none, and all their problems."""
        inputs = deepcopy(dict(news))
        failures = schema.problems(resource.token, inputs)
        kind = None if failures else self.kind(resource.token, inputs)
        if kind is None:
            return inputs, failures or [f"{resource.token}: add it to the kinds of tests/engine/providers"]
        if kind.name:
            name = inputs.get(kind.name.key)
            if name is None and kind.name.made_up:
                name = inputs[kind.name.key] = olds.get(kind.name.key) or f"{resource.name}-{seed.hex()[:7]}"
            if isinstance(name, str) and name != UNKNOWN:
                if len(name) > kind.name.longest:
                    failures.append(f"{kind.name.key}: {name!r} is longer than {kind.name.longest}")
                if not re.fullmatch(kind.name.pattern, name):
                    failures.append(f"{kind.name.key}: {name!r} does not match {kind.name.pattern}")
        return inputs, failures + self.more_failures(inputs)

    def more_failures(self, inputs: Mapping[str, Any]) -> list[str]:
        """What this package has against inputs besides."""
        return []

    def identity(self, kind: Kind, words: Mapping[str, Any]) -> str:
        """The id of a new resource, from its inputs and fresh digits."""
        return kind.identity.format(**words)

    def more_uses(self, inputs: Mapping[str, Any]) -> frozenset[str]:
        """The keys of records that the inputs use in ways that only this package knows."""
        return frozenset()

    def replaced_by(
        self, resource: ResourceRequest, olds: Mapping[str, Any], news: Mapping[str, Any], state: Mapping[str, Any]
    ) -> list[str]:
        """The changed inputs that can't be changed in place."""
        kind = self._kind(resource, news)
        lost = [path for path in kind.replaced_without if value_at(olds, path) and not value_at(news, path)]
        return [path for path in kind.replaces if value_at(olds, path) != value_at(news, path)] + lost

    def changed(
        self, resource: ResourceRequest, olds: Mapping[str, Any], news: Mapping[str, Any], state: Mapping[str, Any]
    ) -> list[str]:
        """The inputs that differ from before; what the service fills in differs where the state says something else."""
        computed = self._kind(resource, news).computed
        changed = {key for key in olds.keys() | news.keys() if olds.get(key) != news.get(key)} - {*computed}
        return sorted(changed | {key for key in computed if key in news and news[key] != state.get(key)})

    def deletes_first(self, resource: ResourceRequest, news: Mapping[str, Any]) -> bool:
        """Whether a replacement would take a name that is still in use: one from the program, not a generated one."""
        kind_name = self._kind(resource, news).name
        name = str(news.get(kind_name.key)) if kind_name else ""
        return bool(name) and not re.fullmatch(re.escape(resource.name) + "-[0-9a-f]{7}", name)

    def planned(
        self, resource: ResourceRequest, inputs: Mapping[str, Any], state: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """The outputs of a preview: what can't be known yet is unknown."""
        kind = self._kind(resource, inputs)
        if state is not None:
            answers = {key: _within(state[key], inputs.get(key)) for key in kind.unknown if key in state}
            return {**state, **inputs, **answers} | ({kind.counted: UNKNOWN} if kind.counted else {})
        unknown = (*kind.unknown, "arn") if kind.arn else kind.unknown
        return {**inputs, **dict.fromkeys(unknown, UNKNOWN)}

    def create(self, resource: ResourceRequest, inputs: dict[str, Any]) -> Record:
        """Make what the engine asks for."""
        kind, records = self._kind(resource, inputs), self.cloud.records
        with self.cloud.lock:
            self.reach()
            uses = self._references(kind, inputs) | self.more_uses(inputs)
            if kind.create_rule:
                kind.create_rule(inputs, records)
            words = {**inputs, "hex": records.new_hex(resource.urn), "region": records.region, "account": ACCOUNT}
            identity = self.identity(kind, words)
            arn = kind.arn.format(**words, id=identity)
            answers = kind.answers(inputs, identity, records)
            exposed_values = frozenset({identity, arn, *texts_in(answers)} - {""})
            outputs = {**inputs, **answers, **({"arn": arn} if arn else {})}
            record = Record(resource.token, identity, resource.urn, inputs, outputs, uses, exposed_values, self.scope())
            records.add(record)
            return record

    def update(
        self, resource: ResourceRequest, identity: str, inputs: dict[str, Any], state: Mapping[str, Any]
    ) -> Record:
        """Change what exists in place; *state* is what the engine believes that it is like."""
        kind, records = self._kind(resource, inputs), self.cloud.records
        with self.cloud.lock:
            self.reach()
            old = records.get(resource.token, identity, self.scope())
            if old is None:
                raise Refusal(f"NotFound: {resource.token} {identity}")
            uses = self._references(kind, inputs) | self.more_uses(inputs)
            if kind.change_rule:
                kind.change_rule(inputs, records)
            if kind.update_rule:
                kind.update_rule(old, inputs)
            unchanged = {
                key: value for key, value in old.outputs.items() if key not in old.inputs or key in kind.unknown
            }
            if kind.counted:
                unchanged[kind.counted] += 1
            outputs = {**inputs, **unchanged, **kind.revised(old, inputs, records)}
            return records.change(old, inputs=inputs, outputs=outputs, uses=uses)

    def delete(self, resource: ResourceRequest, identity: str) -> None:
        """Take away what exists; what is gone already is not an error."""
        with self.cloud.lock:
            self.reach()
            record = self.cloud.records.get(resource.token, identity, self.scope())
            if record is None:
                return
            kind = self._kind(resource, record.inputs)
            if kind.delete_rule:
                kind.delete_rule(record, self.cloud.records)
            self.cloud.records.remove(record)

    def read(self, resource: ResourceRequest, identity: str) -> Record | None:
        """What exists under this id."""
        with self.cloud.lock:
            self.reach()
            return self.cloud.records.get(resource.token, identity, self.scope())

    def _kind(self, resource: ResourceRequest, inputs: Mapping[str, Any]) -> Kind:
        kind = self.kind(resource.token, inputs)
        if kind is None:
            raise Refusal(f"{resource.token}: add it to the kinds of tests/engine/providers")
        return kind

    def _references(self, kind: Kind, inputs: Mapping[str, Any]) -> frozenset[str]:
        """The keys of everything that the inputs refer to; what was never made is refused."""
        records, uses, checked = self.cloud.records, set(), set()
        for path, targets in kind.refers.items():
            for value in values_at(inputs, path):
                checked.add(value)
                targets_found = [record for to in targets if (record := records.find(to.token, to.path, value))]
                if targets_found:
                    uses.add(targets_found[0].key)
                elif value not in self.cloud.existing_arns:
                    raise Refusal(
                        f"NotFound: {path} is {value!r}, and no {targets[0].token} has that {targets[0].path}"
                    )
        for text in texts_in(inputs):
            if text in checked or text in self.cloud.existing_arns or not _IDENTITY.fullmatch(text):
                continue
            owner = records.owner_of(text)
            if owner is None:
                raise Refusal(f"NotFound: {text!r} was never handed out")
            uses.add(owner.key)
        return frozenset(uses)


def _within(answer: Any, inputs: Any) -> Any:
    """What the service has answered, with what is wanted of it now."""
    return {**answer, **inputs} if isinstance(answer, dict) and isinstance(inputs, dict) else answer
