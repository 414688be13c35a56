"""The ranks of this job, and the check that they are the ones that were asked for."""

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from spotmpi.agent import protocol
from spotmpi.programs.ending import Fatal


@dataclass(frozen=True)
class World:
    """All ranks, seen from one of them.

    Attributes:
        broadcast: gives every rank the object that rank 0 passed; called by all.
        gather: gives every rank the list of all ranks' objects, by rank; called by all.
    """

    rank: int
    size: int
    local_rank: int
    hosts: tuple[str, ...]
    broadcast: Callable[[Any], Any]
    gather: Callable[[Any], list[Any]]

    def together(
        self, scalars: Mapping[str, float], seconds: list[float]
    ) -> tuple[dict[str, float], list[list[float]]]:
        """Each scalar averaged over the ranks, and the *seconds* of each rank, in one exchange.

        All ranks must pass the same names.
        """
        if self.size == 1:
            return dict(scalars), [seconds]
        everyone = self.gather((list(scalars.values()), seconds))
        means = [sum(values) / self.size for values in zip(*(values for values, _ in everyone), strict=True)]
        return dict(zip(scalars, means, strict=True)), [seconds for _, seconds in everyone]


def alone() -> World:
    """The world of a process that no launcher started."""
    return World(0, 1, 0, (socket.gethostname(),), lambda value: value, lambda value: [value])


def distinct_hosts(gather: Callable[[Any], list[Any]]) -> tuple[str, ...]:
    """The host names of all ranks, each once, in the order of ranks."""
    return tuple(dict.fromkeys(gather(socket.gethostname())))


def check_world(world: World, environ: Mapping[str, str] | None = None) -> None:
    """Raise Fatal unless world size and number of hosts are what the agent asked for (nothing asked: nothing checked).

    Launchers differ in how they read a host file; a job that silently runs on one host would train all the same.
    """
    environ = os.environ if environ is None else environ
    _compare(environ, protocol.ENV_WORLD_SIZE, world.size, "ranks found each other", "the launcher's Open MPI")
    _compare(environ, protocol.ENV_HOSTS, len(world.hosts), f"hosts hold the ranks ({', '.join(world.hosts)})", "")


def _compare(environ: Mapping[str, str], name: str, found: int, what: str, hint: str) -> None:
    asked = environ.get(name)
    if asked and int(asked) != found:
        remedy = (
            f"check that the program's environment holds {hint}" if hint else "check the host file that it was given"
        )
        raise Fatal(f"wrong world: {found} {what}, but {asked} were asked for ({name}); {remedy}")
