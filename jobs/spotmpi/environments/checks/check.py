"""Checks of the doctor: what one examines and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from spotmpi.aws.account import Aws
from spotmpi.backends.kubernetes.client.view import ClusterReader
from spotmpi.core.environment import Environment
from spotmpi.environments.stack_file import StackFile

# An update that does not look at AWS and Kubernetes first takes what is in Pulumi's state for what is there.
RESTORE = "run `pulumi up --refresh`"
Level = Literal["ok", "warning", "error"]
ToolOutput = Callable[[Sequence[str]], str | None]  # the output of a command; None where the command is not found


@dataclass(frozen=True)
class Finding:
    """One line of the doctor: the message, and for a warning or an error the remedy and a command that helps."""

    check: str
    level: Level
    message: str
    remedy: str = ""
    command: str = ""


@dataclass(frozen=True)
class LiveEnvironment:
    """An environment that is built, and its cluster."""

    environment: Environment
    cluster: ClusterReader


OpenLive = Callable[[str], LiveEnvironment]  # from a stack's name; SpotmpiError where it can't be opened


@dataclass(frozen=True)
class Subject:
    """What is examined: an account in one region, this machine's tools, and a stack, with its environment if built."""

    aws: Aws
    region: str
    stack: StackFile | None
    tool_output: ToolOutput
    live: LiveEnvironment | None = None


@dataclass(frozen=True)
class Check:
    """A check by name; `account` is whether it needs credentials."""

    name: str
    find: Callable[[Subject], Iterable[Finding]]
    account: bool = True


def live_check(name: str, find: Callable[[Subject, LiveEnvironment], Iterable[Finding]]) -> Check:
    """A check that applies to a built environment only."""

    def examine(subject: Subject) -> Iterator[Finding]:
        if subject.live is not None:
            yield from find(subject, subject.live)

    return Check(name, examine)
