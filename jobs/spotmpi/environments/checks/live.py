"""A live environment: what its stack exports, and its cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from spotmpi.backends.kubernetes.client.view import ClusterReader
from spotmpi.core.environment import Environment
from spotmpi.environments.checks.finding import Check, Finding, Subject


@dataclass(frozen=True)
class Live:
    """An environment that is built, and its cluster as far as it can be asked."""

    environment: Environment
    cluster: ClusterReader


Look = Callable[[str], Live]  # from a stack's name; SpotmpiError where it can't be looked at


def look(stack: str) -> Live:
    """The live environment of *stack*, from Pulumi's outputs and this machine's kubeconfig."""
    from spotmpi.backends.kubernetes.client.view import view_of
    from spotmpi.core import environment

    found = environment.of_stack(stack)
    return Live(found, view_of(found.cluster, found.region))


def of_live(name: str, find: Callable[[Subject, Live], Iterable[Finding]]) -> Check:
    """A check that only a live environment has."""

    def examine(subject: Subject) -> Iterator[Finding]:
        if subject.live is not None:
            yield from find(subject, subject.live)

    return Check(name, examine)
