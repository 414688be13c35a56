"""What a check finds, and what it looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from spotmpi.aws.account import Aws
from spotmpi.environments.stack_file import StackFile

if TYPE_CHECKING:
    from spotmpi.environments.checks.live import Live

Level = Literal["ok", "warning", "error"]
# What a command said, or None where there is no such command; a test gives its own.
Tell = Callable[[Sequence[str]], str | None]


@dataclass(frozen=True)
class Finding:
    """One line of the doctor: what is so, and for a warning or an error the remedy and a command that helps."""

    check: str
    level: Level
    message: str
    remedy: str = ""
    command: str = ""


@dataclass(frozen=True)
class Subject:
    """What is examined: an account in one region, this machine, and a named stack, with its environment if it lives."""

    aws: Aws
    region: str
    stack: StackFile | None
    tell: Tell
    live: Live | None = None


@dataclass(frozen=True)
class Check:
    """A question with a name; `account` marks those that can't be asked without credentials."""

    name: str
    find: Callable[[Subject], Iterable[Finding]]
    account: bool = True
