"""The checkpoints of our own programs: what they hold, and what a problem with one means for the run."""

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from spotmpi.agent.checkpoint_files import MANIFEST, Damaged
from spotmpi.agent.files import error_text
from spotmpi.agent.outcomes import is_permanent
from spotmpi.checkpoint.device import on_host
from spotmpi.checkpoint.store import Written, WrongIdentity, read, store_of_rank
from spotmpi.programs.exits import Failed, Fatal

Array = np.ndarray[Any, np.dtype[Any]]
PARAMETERS = "parameters/"  # how the names of the model's parameters begin in a state
State = dict[str, Any]  # arrays, on the host or as a `DeviceArray`


@dataclass(frozen=True)
class TrainingIdentity:
    """What a checkpoint belongs to; only training with the same identity can resume from it."""

    program: str
    model: str
    data: str
    seed: int


@dataclass(frozen=True)
class TrainingProgress:
    """The progress of training: iterations done, samples consumed, the world, and the last scalars."""

    iteration: int
    position: int
    world_size: int
    samples_per_iteration: int
    scalars: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint."""

    path: Path
    progress: TrainingProgress
    state: State


class Checkpoints:
    """The checkpoints of one run in one folder, and in memory where the run has some; only rank 0 has one."""

    def __init__(self, folder: Path, keep: int, identity: TrainingIdentity) -> None:
        self._folder = folder
        self._random = {"seed": identity.seed, "derived_from": ["seed", "rank", "iteration", "epoch", "index"]}
        self._store = store_of_rank(os.environ, str(folder), keep, asdict(identity))

    def prepare(self) -> None:
        """Check that checkpoints can be written, and remove incomplete ones that earlier attempts of this run left.

        Raises Fatal where none can be written, and Failed where that may be temporary.
        """
        try:
            self._store.prepare()
        except OSError as problem:
            message = f"checkpoints cannot be written to {self._folder}: {problem.strerror or problem}"
            if not is_permanent(problem):
                raise Failed(message) from problem
            raise Fatal(f"{message}; make it writable or choose another --checkpoint-path") from problem

    def newest(self) -> Checkpoint | None:
        """The newest complete checkpoint; damaged ones are removed or renamed, with a line on stderr.

        Raises Fatal for one that belongs to another program, model, data or seed, and Failed where one cannot be read:
        it may be complete, and an earlier checkpoint would undo work.
        """
        try:
            found = self._store.newest(_progress)
        except WrongIdentity as problem:
            raise Fatal(f"{problem}: use another --checkpoint-path, or the options of that checkpoint") from problem
        except OSError as problem:
            raise Failed(
                f"the checkpoints in {self._folder} cannot be read: {error_text(problem)}; they are unchanged, "
                "and the next attempt reads them again"
            ) from problem
        return Checkpoint(Path(found.path), _progress(found.manifest), found.state) if found else None

    def write(self, progress: TrainingProgress, state: Mapping[str, Array], reason: str) -> Path:
        """Write a checkpoint to the folder and remove those beyond the number to keep; its folder.

        Raises OSError where it could not be written; earlier ones are then untouched.
        """
        return Path(self._store.write(progress.iteration, self._values(progress), dict(state), reason))

    def write_later(
        self, progress: TrainingProgress, state: Mapping[str, Array], ended: Callable[[Written], None]
    ) -> None:
        """Begin to write a checkpoint to the folder while training goes on; a thread calls *ended* at its end."""
        self._store.write_later(progress.iteration, self._values(progress), dict(state), ended)

    def remember(self, progress: TrainingProgress, state: Callable[[], Mapping[str, Array]]) -> None:
        """Write a checkpoint to memory if one is due; most of that happens in the background."""
        if self._store.memory and self._store.memory.due(progress.iteration):
            self._store.remember(progress.iteration, self._values(progress), dict(state()))

    def _values(self, progress: TrainingProgress) -> dict[str, Any]:
        return {**asdict(progress), "random": self._random}


def initial_state(own: State) -> State | None:
    """*own*, the state of a new model, with the parameters of the model that the spec names with `init`; None without.

    Raises Fatal for a model that cannot be loaded, or has other parameters.
    """
    try:
        state = read()
    except ValueError as problem:
        raise Fatal(str(problem)) from problem
    if state is None:
        return None
    state = state if isinstance(state, dict) else {}
    for name in _parameters(own):
        shapes = [getattr(each.get(name), "shape", None) for each in (own, state)]
        if shapes[0] != shapes[1]:
            found = "no such array" if shapes[1] is None else f"shape {shapes[1]}"
            remedy = "name a model that this program has trained, with the same options"
            raise Fatal(f"init: the model has {found} for {name}, whose shape is {shapes[0]} here: {remedy}")
    return {**own, **{name: state[name] for name in _parameters(own)}}


def _progress(manifest: Mapping[str, Any]) -> TrainingProgress:
    """The progress in a manifest; `Damaged` where it has none."""
    try:
        return TrainingProgress(
            int(manifest["iteration"]),
            int(manifest["position"]),
            int(manifest["world_size"]),
            int(manifest["samples_per_iteration"]),
            dict(manifest["scalars"]),
        )
    except (KeyError, TypeError, ValueError) as problem:
        raise Damaged(f"{MANIFEST} lacks {problem}") from problem


def parameters_checksum(state: Mapping[str, Array]) -> str:
    """The SHA-256 of every parameter in *state*: names, types, shapes and values, in the order of names."""
    digest = hashlib.sha256()
    for name in _parameters(state):
        value = np.ascontiguousarray(on_host(state[name]))
        digest.update(f"{name} {value.dtype} {value.shape}\n".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()


def model_fingerprint(state: Mapping[str, Array]) -> str:
    """Twelve hex digits that stand for the names, types and shapes of the parameters in *state*."""
    lines = [f"{name} {state[name].dtype} {state[name].shape}\n" for name in _parameters(state)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:12]


def _parameters(state: Mapping[str, Array]) -> list[str]:
    return sorted(name for name in state if name.startswith(PARAMETERS))
