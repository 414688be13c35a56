"""What an update would not build anew, since Pulumi's state has it: what AWS has deleted, or could not create.

Of a node group whose nodes could not join, or of a NAT gateway that failed, the state has an error, and the next update
sends an empty update, which succeeds (`Create` and `Update` in pkg/tfbridge/provider.go of pulumi-terraform-bridge).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from spotmpi.aws.account import Aws
from spotmpi.aws.concurrent_calls import CallFailure, ConcurrentCalls
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.pulumi import STACK, resources_of, unfinished_creations
from spotmpi.environments.dependencies import Dependencies
from spotmpi.environments.pulumi_cli import Pulumi
from spotmpi.environments.resource_kinds import BY_TYPE, DELETED, DELETING, FAILED, ResourceKind

_FAILED = ("CREATE_FAILED", "DELETE_FAILED", FAILED, "ERROR", "REJECTED")
_WORDS = {DELETED: "deleted outside of Pulumi", DELETING: "being deleted by AWS"}
_FAILURE = "failed in AWS"
_INTERVAL, _TIMEOUT = 10.0, 1800.0  # seconds between checks, and for a deletion; that of a node group drains its nodes


@dataclass(frozen=True)
class DeletedResource:
    """A resource in Pulumi's state that AWS does not have, or soon will not: its kind, id and URN there, and status."""

    kind: ResourceKind
    id: str
    urn: str
    status: str

    def __str__(self) -> str:
        return f"{self.kind.name} {self.kind.name_of(self.id)}"


def correct_state(stack: str, environment: str, region: str, dependencies: Dependencies) -> None:
    """Remove from Pulumi's state of a stack what was deleted outside of it, which an update then builds anew.

    *environment* is the stack that it is a part of. SpotmpiError where the state may lack something that exists, or
    where nearly all is gone.
    """
    pulumi, echo = dependencies.pulumi, dependencies.echo
    state = pulumi.state(stack)
    if message := unfinished_creations(stack, state):
        _require_unlocked(stack, state, pulumi)
        raise SpotmpiError(message)
    deleted, failures = find_deleted(dependencies.aws, region, state)
    for failure in failures:
        echo(f"whether parts of {stack} were deleted can't be checked: {failure}")
    if not deleted:
        return
    if gone := [each for each in deleted if each.kind.loss == "refuse"]:
        _require_unlocked(stack, state, pulumi)
        remedy = f"`spotmpi down {environment}` deletes the rest, then this command builds all anew"
        raise SpotmpiError(f"{stack} was not changed: {_by_status(gone)}: {remedy}")
    if present := [each for each in deleted if each.status != DELETED]:
        _require_unlocked(stack, state, pulumi)
        _delete_failed(stack, region, present, dependencies)
        _wait_until_deleted(region, present, dependencies)
    echo(f"to be built anew: {_by_status(deleted)}")
    _refresh(stack, [*_with_dependents({each.urn for each in deleted}, resources_of(state))], pulumi)


def _by_status(resources: Sequence[DeletedResource]) -> str:
    """The resources in words, with what AWS says of them."""
    named: dict[str, list[str]] = {}
    for each in resources:
        named.setdefault(_WORDS.get(each.status, _FAILURE), []).append(str(each))
    return "; ".join(f"{word}: {', '.join(names)}" for word, names in named.items())


def _delete_failed(stack: str, region: str, resources: Sequence[DeletedResource], dependencies: Dependencies) -> None:
    """Delete what has failed, after a confirmation: it can't be updated, and its nodes may bill."""
    failed = [each for each in resources if each.status != DELETING]
    if not failed:
        return
    names = ", ".join(map(str, failed))
    if not dependencies.confirm(f"Delete {names}, which failed in AWS, and build anew?"):
        raise SpotmpiError(f"{stack} was not changed: {_FAILURE}: {names}: delete that, then repeat the command")
    for each in failed:
        each.kind.remove(dependencies.aws, region, each.id)


def _wait_until_deleted(region: str, resources: Sequence[DeletedResource], dependencies: Dependencies) -> None:
    """Wait until AWS has deleted these; SpotmpiError where it fails, or takes too long."""
    waited, waiting, begun = 0.0, list(resources), set[str]()
    dependencies.echo(f"waiting until AWS has deleted {', '.join(map(str, waiting))}")
    while True:
        statuses = {each.urn: each.kind.status(dependencies.aws, region, each.id) for each in waiting}
        waiting = [each for each in waiting if statuses[each.urn] != DELETED]
        if not waiting:
            return
        # One that had failed before keeps that status until its deletion begins.
        if failed := [each for each in waiting if each.urn in begun and statuses[each.urn] in _FAILED]:
            remedy = "its health issues in the console say why: fix that, then repeat the command"
            raise SpotmpiError(f"AWS could not delete {', '.join(map(str, failed))}: {remedy}")
        begun |= {urn for urn, status in statuses.items() if status == DELETING}
        if waited >= _TIMEOUT:
            remedy = "look in the console for what it waits for, then repeat the command"
            raise SpotmpiError(f"not deleted by AWS after {_TIMEOUT:.0f} s: {', '.join(map(str, waiting))}: {remedy}")
        dependencies.sleep(_INTERVAL)
        waited += _INTERVAL


def _with_dependents(urns: set[str], resources: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """*urns*, and what AWS deleted with these, such as the tags of a node group and the policies of an access entry."""
    for each in resources:
        is_dependent = str(each["type"]).startswith("aws:") and urns.intersection(each.get("dependencies") or ())
        if each.get("urn") in urns or is_dependent:
            yield str(each["urn"])


def _require_unlocked(stack: str, state: Mapping[str, Any] | None, pulumi: Pulumi) -> None:
    """Raise where another update is at work, whose state is not its last one.

    A refresh takes the lock, as no preview of an update does (pkg/backend/diy/backend.go); that of the stack itself
    asks no provider.
    """
    if urns := [str(each["urn"]) for each in resources_of(state) if each["type"] == STACK]:
        _refresh(stack, urns, pulumi)


def _refresh(stack: str, urns: Sequence[str], pulumi: Pulumi) -> None:
    targets = [option for urn in urns for option in ("--target", urn)]
    pulumi.run(stack, "refresh", "--yes", "--skip-preview", *targets)


def find_deleted(aws: Aws, region: str, state: Mapping[str, Any] | None) -> tuple[list[DeletedResource], list[str]]:
    """What AWS lacks of a stack's state, by `pulumi stack export`, and why something could not be asked; CloudError."""
    with ConcurrentCalls() as calls:
        pending = [
            (kind, id, urn, calls.submit(partial(kind.status, aws, region, id))) for kind, id, urn in _known(state)
        ]
        answers = [(kind, id, urn, call.result()) for kind, id, urn, call in pending]
    failures = [answer.detail for *_, answer in answers if isinstance(answer, CallFailure)]
    deleted = [
        DeletedResource(kind, id, urn, answer)
        for kind, id, urn, answer in answers
        if isinstance(answer, str) and _is_lost(kind, answer)
    ]
    return deleted, list(dict.fromkeys(failures))


def _known(state: Mapping[str, Any] | None) -> Iterator[tuple[ResourceKind, str, str]]:
    """Kind, id and URN of what is looked for; what the stack only reads, or deletes already, is not."""
    for each in resources_of(state):
        own = not each.get("external") and not each.get("delete")
        kind = BY_TYPE.get(str(each.get("type")))
        if own and kind and kind.loss and each.get("id") and each.get("urn"):
            yield kind, str(each["id"]), str(each["urn"])


def _is_lost(kind: ResourceKind, status: str) -> bool:
    """Whether it is gone, or will be: a file system that failed may hold data, so that is not."""
    return status in (DELETED, DELETING) or (kind.loss != "rebuild unless failed" and status in _FAILED)
