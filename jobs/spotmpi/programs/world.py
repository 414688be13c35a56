"""The ranks of this job, and the check that they are as many as requested."""

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from spotmpi.agent import protocol
from spotmpi.programs.exits import Fatal


@dataclass(frozen=True)
class World:
    """All ranks, seen from one of them.

    Attributes:
        broadcast: returns the object that rank 0 passed; called by all ranks.
        gather: returns the list of all ranks' objects, by rank; called by all ranks.
    """

    rank: int
    size: int
    local_rank: int
    hosts: tuple[str, ...]
    broadcast: Callable[[Any], Any]
    gather: Callable[[Any], list[Any]]

    def average_scalars(
        self, scalars: Mapping[str, float], seconds: list[float]
    ) -> tuple[dict[str, float], list[list[float]]]:
        """Each scalar averaged over the ranks, and the *seconds* of each rank, by one collective.

        All ranks must pass the same names.
        """
        if self.size == 1:
            return dict(scalars), [seconds]
        results = self.gather((list(scalars.values()), seconds))
        means = [sum(values) / self.size for values in zip(*(values for values, _ in results), strict=True)]
        return dict(zip(scalars, means, strict=True)), [seconds for _, seconds in results]


def alone() -> World:
    """The world of a process without a launcher."""
    return World(0, 1, 0, (socket.gethostname(),), lambda value: value, lambda value: [value])


def distinct_hosts(gather: Callable[[Any], list[Any]]) -> tuple[str, ...]:
    """The host names of all ranks, each once, in the order of ranks."""
    return tuple(dict.fromkeys(gather(socket.gethostname())))


def check_world(world: World, environ: Mapping[str, str] = os.environ) -> None:
    """Raise Fatal unless world size and number of hosts are those in the agent's environment variables, if set.

    Launchers differ in how they read a hostfile; a job that runs on one host by mistake would train all the same.
    """
    remedy = "check that the program uses the Open MPI of its launcher"
    _compare(environ, protocol.ENV_WORLD_SIZE, world.size, "ranks", remedy)
    _compare(environ, protocol.ENV_HOSTS, len(world.hosts), f"hosts ({', '.join(world.hosts)})", "check the hostfile")


def _compare(environ: Mapping[str, str], name: str, actual: int, what: str, remedy: str) -> None:
    expected = environ.get(name)
    if expected and int(expected) != actual:
        raise Fatal(f"wrong number of {what}: {actual}, expected {expected} ({name}); {remedy}")
