"""Checkpoints that are whole or do not exist: written aside, synced, checksummed, renamed.

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
from spotmpi.agent.outcomes import is_permanent
from spotmpi.programs.ending import Failed, Fatal

Array = np.ndarray[Any, np.dtype[Any]]
State = dict[str, Array]

FORMAT = 1
MANIFEST = "manifest.json"
STATE = "state.npz"
_WHOLE, _UNFINISHED, _TORN = "iteration-", ".writing-", "torn-"


@dataclass(frozen=True)
class Identity:
    """What a checkpoint belongs to; only the same can resume from it."""

    program: str
    model: str
    data: str
    seed: int


@dataclass(frozen=True)
class Standing:
    """Where training stands: iterations done, samples taken from the order, with which world, and the last scalars."""

    iteration: int
    position: int
    world_size: int
    samples_per_iteration: int
    scalars: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint, read."""

    path: Path
    standing: Standing
    state: State


class Torn(Exception):
    """A checkpoint that is not what was written: the text says which file is missing, or of another size or content."""


class Checkpoints:
    """The checkpoints of one run in one folder; only rank 0 has one."""

    def __init__(self, folder: Path, keep: int, identity: Identity) -> None:
        self._folder = folder
        self._keep = keep
        self._identity = identity
        self._run = os.environ.get(protocol.ENV_RUN, "by-hand")

    def prepare(self) -> None:
        """Make sure that checkpoints can be written here, and remove what broken-off writes of this run left behind.

        Another run may be writing into the same folder at this moment: what it has not finished is its own.

        Raises Fatal where they cannot, and Failed where that may pass.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            ours = re.compile(rf"{re.escape(_UNFINISHED)}(\d+|probe)-{re.escape(self._run)}-\d+")
            for left in [path for path in self._folder.iterdir() if ours.fullmatch(path.name)]:
                self._remove(left)
            probe = self._unfinished("probe")
            probe.mkdir()
            probe.rmdir()
        except OSError as problem:
            said = f"checkpoints cannot be written to {self._folder}: {problem.strerror or problem}"
            if not is_permanent(problem):
                raise Failed(said) from problem
            raise Fatal(f"{said}; make it writable or choose another --checkpoint-path") from problem

    def newest(self) -> Checkpoint | None:
        """The newest whole checkpoint; torn ones are set aside with a line that says so.

        Raises Fatal for a whole one that belongs to another program, model, data or seed, and Failed where one cannot
        be read: what the disk holds is not known then, and an earlier checkpoint would undo work.
        """
        try:
            return self._newest()
        except OSError as problem:
            raise Failed(
                f"the checkpoints in {self._folder} cannot be read: {problem}; they stay as they are, "
                "and the next attempt reads them again"
            ) from problem

    def _newest(self) -> Checkpoint | None:
        for path in reversed(self._paths()):
            try:
                return self._read(path)
            except Torn as problem:
                aside = path.with_name(f"{_TORN}{path.name}-{int(time.time())}")
                path.rename(aside)
                _say(f"checkpoint {path.name} skipped and set aside as {aside.name}: {problem}")
        return None

    def write(self, standing: Standing, state: Mapping[str, Array], reason: str) -> Path:
        """The folder of the checkpoint that is now whole; older ones beyond the number to keep are gone.

        Raises OSError where it could not be written; what was there before is then untouched.
        """
        final = self._folder / f"{_WHOLE}{standing.iteration:09d}"
        if (final / MANIFEST).is_file():
            return final
        aside = self._unfinished(f"{standing.iteration:09d}")
        try:
            self._write_aside(aside, standing, state, reason)
            if final.exists():
                shutil.rmtree(final)
            aside.rename(final)
        except OSError:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        _sync(self._folder)
        self._forget_old()
        return final

    def _remove(self, left: Path) -> None:
        try:
            shutil.rmtree(left)
        except FileNotFoundError:
            return  # whoever wrote it has just finished it, or taken it away
        _say(f"unfinished checkpoint {left.name} removed")

    def _unfinished(self, what: str) -> Path:
        return self._folder / f"{_UNFINISHED}{what}-{self._run}-{os.getpid()}"

    def _write_aside(self, aside: Path, standing: Standing, state: Mapping[str, Array], reason: str) -> None:
        aside.mkdir()
        with (aside / STATE).open("wb") as file:
            named: dict[str, Any] = dict(state)
            np.savez(file, **named)
            file.flush()
            os.fsync(file.fileno())
        manifest = {
            "format": FORMAT,
            **asdict(standing),
            "identity": asdict(self._identity),
            "random": {"seed": self._identity.seed, "derived_from": ["seed", "rank", "iteration", "epoch", "index"]},
            "reason": reason,
            "time": time.time(),
            "files": {STATE: {"bytes": (aside / STATE).stat().st_size, "sha256": _sha256(aside / STATE)}},
        }
        with (aside / MANIFEST).open("w") as file:
            json.dump(manifest, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        _sync(aside)

    def _read(self, path: Path) -> Checkpoint:
        manifest = _manifest(path)
        try:
            standing = Standing(
                int(manifest["iteration"]),
                int(manifest["position"]),
                int(manifest["world_size"]),
                int(manifest["samples_per_iteration"]),
                dict(manifest["scalars"]),
            )
            identity = Identity(**manifest["identity"])
            files = {name: (entry["bytes"], entry["sha256"]) for name, entry in manifest["files"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            raise Torn(f"{MANIFEST} lacks {problem}") from problem
        for name, (size, digest) in files.items():
            _verify(path / name, size, digest)
        self._refuse_foreign(path, identity)
        with np.load(path / STATE, allow_pickle=False) as arrays:
            return Checkpoint(path, standing, dict(arrays))

    def _refuse_foreign(self, path: Path, found: Identity) -> None:
        ours, theirs = asdict(self._identity), asdict(found)
        differing = [f"{name} {theirs[name]} (here {ours[name]})" for name in ours if ours[name] != theirs[name]]
        if differing:
            raise Fatal(
                f"checkpoint {path} belongs to {', '.join(differing)}: "
                "give the run another --checkpoint-path, or the options that it was made with"
            )

    def _paths(self) -> list[Path]:
        # Neither glob nor is_dir: both take some errors, in newer versions of Python all of them, for "not there".
        return sorted(path for path in self._folder.iterdir() if path.name.startswith(_WHOLE))

    def _forget_old(self) -> None:
        for path in self._paths()[: -self._keep]:
            with suppress(OSError):
                # Without its manifest a checkpoint does not exist, so a reader never sees one half removed.
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
        raise Torn(f"it has no {MANIFEST}") from None
    except ValueError as problem:
        raise Torn(f"{MANIFEST} is cut off or damaged: {problem}") from problem
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise Torn(f"{MANIFEST} is not of format {FORMAT}")
    return manifest


def _verify(path: Path, size: int, digest: str) -> None:
    try:
        found = path.stat().st_size
        if found != size:
            raise Torn(f"{path.name} has {found} bytes instead of {size}")
        if _sha256(path) != digest:
            raise Torn(f"{path.name} does not have the checksum that its manifest names")
    except FileNotFoundError:
        raise Torn(f"it has no {path.name}") from None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
