"""What `spotmpi scale` says."""

from __future__ import annotations

import json

from spotmpi.backends import targets
from spotmpi.backends.targets import Target
from spotmpi.core.environment import Environment
from spotmpi.core.errors import input_error
from spotmpi.environments.warm_nodes import Warm


def environment_at(target: Target) -> Environment:
    """The environment at a place; InputError for places that are none."""
    environment = targets.environment_of(target)
    if environment is None:
        raise input_error("--on", target.place, "name an environment: a stack, or a file of its outputs")
    return environment


def show(warm: Warm, as_json: bool) -> None:
    """Print what is kept and until when, or a JSON object."""
    if as_json:
        print(json.dumps(vars(warm), default=str))
    elif warm.until is None:
        print(f"{warm.group}: {warm.running} nodes now; idle ones go within ten minutes, down to {warm.nodes}")
    else:
        when = f"{warm.until.astimezone():%Y-%m-%d %H:%M}"
        print(f"{warm.group}: {warm.running} nodes now, at least {warm.nodes} until {when}; idle ones go after that")
