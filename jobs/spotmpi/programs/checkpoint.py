"""Atomic checkpoints: written to a temporary folder, synced, checksummed, renamed.

One checkpoint is a folder ``iteration-<number>`` with ``state.npz`` and ``manifest.json``. The same format serves
every framework.
"""

import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from spotmpi.agent import protocol
from spotmpi.agent.files import locked
from spotmpi.agent.outcomes import is_permanent
from spotmpi.programs.exits import Failed, Fatal

Array = np.ndarray[Any, np.dtype[Any]]
State = dict[str, Array]

FORMAT = 1
MANIFEST = "manifest.json"
STATE = "state.npz"
_WHOLE, _UNFINISHED, _DAMAGED = "iteration-", ".writing-", "damaged-"


@dataclass(frozen=True)
class Identity:
    """What a checkpoint belongs to; only training with the same identity can resume from it."""

    program: str
    model: str
    data: str
    seed: int


@dataclass(frozen=True)
class Progress:
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
    progress: Progress
    state: State


class DamagedCheckpoint(Exception):
    """A damaged checkpoint; the text names the file that is missing, or has another size or content."""


class Checkpoints:
    """The checkpoints of one run in one folder; only rank 0 has one."""

    def __init__(self, folder: Path, keep: int, identity: Identity) -> None:
        self._folder = folder
        self._keep = keep
        self._identity = identity
        self._run = os.environ.get(protocol.ENV_RUN, "by-hand")

    def prepare(self) -> None:
        """Check that checkpoints can be written, and remove incomplete ones that earlier attempts of this run left.

        Incomplete ones of other runs stay: such a run may be writing into the same folder at this moment.

        Raises Fatal where none can be written, and Failed where that may be temporary.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            pattern = re.compile(rf"{re.escape(_UNFINISHED)}(\d+|probe)-{re.escape(self._run)}-\d+")
            for left in [path for path in self._folder.iterdir() if pattern.fullmatch(path.name)]:
                self._remove(left)
            probe = self._unfinished("probe")
            probe.mkdir()
            probe.rmdir()
        except OSError as problem:
            message = f"checkpoints cannot be written to {self._folder}: {problem.strerror or problem}"
            if not is_permanent(problem):
                raise Failed(message) from problem
            raise Fatal(f"{message}; make it writable or choose another --checkpoint-path") from problem

    def newest(self) -> Checkpoint | None:
        """The newest complete checkpoint; damaged ones are renamed, with a line on stderr.

        Raises Fatal for one that belongs to another program, model, data or seed, and Failed where one cannot be read:
        it may be complete, and an earlier checkpoint would undo work.
        """
        try:
            return self._newest()
        except OSError as problem:
            raise Failed(
                f"the checkpoints in {self._folder} cannot be read: {problem}; they are unchanged, "
                "and the next attempt reads them again"
            ) from problem

    def _newest(self) -> Checkpoint | None:
        for path in reversed(self._paths()):
            try:
                return self._read(path)
            except DamagedCheckpoint as problem:
                renamed = path.with_name(f"{_DAMAGED}{path.name}-{int(time.time())}")
                path.rename(renamed)
                _print(f"checkpoint {path.name} is damaged and was renamed to {renamed.name}: {problem}")
        return None

    def write(self, progress: Progress, state: Mapping[str, Array], reason: str) -> Path:
        """Write a checkpoint and remove those beyond the number to keep; its folder.

        Raises OSError where it could not be written; earlier ones are then untouched.
        """
        final = self._folder / f"{_WHOLE}{progress.iteration:09d}"
        if (final / MANIFEST).is_file():
            return final
        temporary = self._unfinished(f"{progress.iteration:09d}")
        try:
            with locked(os.environ.get(protocol.ENV_PID_FILE)):  # the agent waits for it before it kills this rank
                self._write_files(temporary, progress, state, reason)
                if final.exists():
                    shutil.rmtree(final)
                temporary.rename(final)
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        _sync(self._folder)
        self._remove_old()
        return final

    def _remove(self, path: Path) -> None:
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            return  # its writer has just renamed or removed it
        _print(f"incomplete checkpoint {path.name} removed")

    def _unfinished(self, what: str) -> Path:
        return self._folder / f"{_UNFINISHED}{what}-{self._run}-{os.getpid()}"

    def _write_files(self, folder: Path, progress: Progress, state: Mapping[str, Array], reason: str) -> None:
        folder.mkdir()
        with (folder / STATE).open("wb") as file:
            named: dict[str, Any] = dict(state)
            np.savez(file, **named)
            file.flush()
            os.fsync(file.fileno())
        manifest = {
            "format": FORMAT,
            **asdict(progress),
            "identity": asdict(self._identity),
            "random": {"seed": self._identity.seed, "derived_from": ["seed", "rank", "iteration", "epoch", "index"]},
            "reason": reason,
            "time": time.time(),
            "files": {STATE: {"bytes": (folder / STATE).stat().st_size, "sha256": _sha256(folder / STATE)}},
        }
        with (folder / MANIFEST).open("w") as file:
            json.dump(manifest, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        _sync(folder)

    def _read(self, path: Path) -> Checkpoint:
        manifest = _manifest(path)
        try:
            progress = Progress(
                int(manifest["iteration"]),
                int(manifest["position"]),
                int(manifest["world_size"]),
                int(manifest["samples_per_iteration"]),
                dict(manifest["scalars"]),
            )
            identity = Identity(**manifest["identity"])
            files = {name: (entry["bytes"], entry["sha256"]) for name, entry in manifest["files"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            raise DamagedCheckpoint(f"{MANIFEST} lacks {problem}") from problem
        for name, (size, digest) in files.items():
            _verify(path / name, size, digest)
        self._check_identity(path, identity)
        with np.load(path / STATE, allow_pickle=False) as arrays:
            return Checkpoint(path, progress, dict(arrays))

    def _check_identity(self, path: Path, identity: Identity) -> None:
        own, stored = asdict(self._identity), asdict(identity)
        differing = [f"{name} {stored[name]} (not {own[name]})" for name in own if own[name] != stored[name]]
        if differing:
            raise Fatal(
                f"checkpoint {path} belongs to {', '.join(differing)}: "
                "use another --checkpoint-path, or the options of that checkpoint"
            )

    def _paths(self) -> list[Path]:
        # Neither glob nor is_dir: both hide some errors, in newer versions of Python all of them.
        return sorted(path for path in self._folder.iterdir() if path.name.startswith(_WHOLE))

    def _remove_old(self) -> None:
        for path in self._paths()[: -self._keep]:
            with suppress(OSError):
                # Without its manifest a checkpoint does not exist: readers never see one that is partly removed.
                (path / MANIFEST).unlink(missing_ok=True)
                shutil.rmtree(path)


def parameters_checksum(state: Mapping[str, Array]) -> str:
    """The SHA-256 of every parameter in *state*: names, types, shapes and values, in the order of names."""
    digest = hashlib.sha256()
    for name in _parameters(state):
        value = np.ascontiguousarray(state[name])
        digest.update(f"{name} {value.dtype} {value.shape}\n".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()


def model_fingerprint(state: Mapping[str, Array]) -> str:
    """Twelve hex digits that stand for the names, types and shapes of the parameters in *state*."""
    lines = [f"{name} {state[name].dtype} {state[name].shape}\n" for name in _parameters(state)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:12]


def _parameters(state: Mapping[str, Array]) -> list[str]:
    return sorted(name for name in state if name.startswith("parameters/"))


def _manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((path / MANIFEST).read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise DamagedCheckpoint(f"it has no {MANIFEST}") from None
    except ValueError as problem:
        raise DamagedCheckpoint(f"{MANIFEST} is cut off or damaged: {problem}") from problem
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DamagedCheckpoint(f"{MANIFEST} is not of format {FORMAT}")
    return manifest


def _verify(path: Path, size: int, digest: str) -> None:
    try:
        actual = path.stat().st_size
        if actual != size:
            raise DamagedCheckpoint(f"{path.name} has {actual} bytes, expected {size}")
        if _sha256(path) != digest:
            raise DamagedCheckpoint(f"{path.name} does not match its checksum in the manifest")
    except FileNotFoundError:
        raise DamagedCheckpoint(f"it has no {path.name}") from None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
