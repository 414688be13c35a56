"""The user's code, a folder and further files, as one deterministic archive without files that git ignores."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from spotmpi.core import archives
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.core.names import SWEEP_RECORD, SWEEPS, RunPaths
from spotmpi.core.wording import counted

LARGEST = 500 << 20  # bytes of files; more is data, not code
_REPOSITORY_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY")


class Packed(NamedTuple):
    """The user's code, packed."""

    archive: bytes
    sha256: str
    files: int
    size: int  # bytes, unpacked

    @property
    def digest(self) -> str:
        """Sixteen hex digits that name the archive."""
        return self.sha256[: archives.DIGITS]

    def unpack(self, folder: Path) -> None:
        """Write the files to *folder*, over those of an earlier attempt.

        Raises:
            SpotmpiError: a file of an earlier attempt is in the way of a folder, or the reverse.
            OSError: the disk fails.
        """
        import tarfile

        from spotmpi.agent.unpack import unpack

        with tarfile.open(fileobj=io.BytesIO(self.archive), mode="r:gz") as archive:
            try:
                unpack(archive, str(folder))
            except ValueError as error:
                remedy = "remove what is in its way"
                raise SpotmpiError(f"could not write the code to {folder}: {error}; {remedy}") from error

    def __str__(self) -> str:
        return f"{counted(self.files, 'file')}, {self.size / 1e3:,.0f} kB ({self.digest})"


def names(folder: Path) -> list[str]:
    """The files of *folder* that git does not ignore, relative to it, sorted; it need not be in a repository.

    Submodules and other checkouts in it are folders like others, each with its own ignore files. Records of runs and
    sweeps in *folder* are left out: every run would ship those of all earlier ones. So is what takes this command's
    output.

    Raises:
        InputError: git cannot list them.
    """
    files = (name for name in without_records(_listing(folder)) if _file_exists(folder / name))
    return without_output(folder, files)


def without_output(folder: Path, files: Iterable[str]) -> list[str]:
    """Those of *files* below *folder* to which this process does not write its output, as with ``> run.log``.

    That one grows: the code would be different work in each trial, and have changed since it was planned.
    """
    outputs: list[os.stat_result] = []
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):  # it is closed
            outputs.append(os.fstat(descriptor))

    def is_output(path: Path) -> bool:
        try:
            status = path.lstat()
        except OSError:
            return False
        return any(os.path.samestat(status, each) for each in outputs)

    return [name for name in files if not is_output(folder / name)]


def _file_exists(path: Path) -> bool:
    """Whether a file that git tracks still exists; a disk that does not tell is an error, or code would be missing."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise input_error("code", str(path), f"cannot be read ({error.strerror}); try again") from error
    return True


def _listing(folder: Path) -> Iterator[str]:
    """The files and links that git does not ignore, relative to *folder*, with those of checkouts inside it.

    Raises:
        InputError: git cannot list them.
    """
    process = _git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if process.returncode and b"not a git repository" in process.stderr:  # else its ignore files would not apply
        with tempfile.TemporaryDirectory() as empty:
            # An empty repository tracks no file, but applies the ignore files.
            _git(folder, "init", "--quiet", "--bare", "--template=", empty)
            repository = ("--git-dir", empty, "--work-tree", ".")
            process = _git(folder, *repository, "ls-files", "-z", "--others", "--exclude-standard")
    if process.returncode:
        message = " ".join(process.stderr.decode("utf-8", "replace").split())
        raise input_error("code", str(folder), f"git cannot list its files: {message}")
    for name in sorted({os.fsdecode(name).rstrip("/") for name in process.stdout.split(b"\0") if name}):
        path = folder / name
        if name == ".":  # a submodule that is not checked out
            continue
        if path.is_dir() and not path.is_symlink():  # another checkout, of which git names the folder alone
            yield from (f"{name}/{below}" for below in _listing(path))
        else:
            yield name


def without_records(files: Iterable[str]) -> list[str]:
    """Those of *files* that belong to no record of a run or sweep, sorted."""
    files = sorted(files)
    events, record = f"/{RunPaths(Path()).events.name}", f"/{SWEEP_RECORD}"
    runs = [name.removesuffix(events) for name in files if name.endswith(events)]
    sweeps = [name.removesuffix(record) for name in files if name.endswith(record)]
    folders = [*runs, *(folder for folder in sweeps if Path(folder).parent.name == SWEEPS)]
    prefixes = tuple(f"{folder}/" for folder in folders)
    return [name for name in files if not name.startswith(prefixes)]


def sources(folder: Path | None, files: Sequence[Path] = ()) -> dict[str, Path]:
    """The path of every file to ship by its name in the archive, which is its path in the command's working folder.

    *folder* gives its files, and each of *files* comes under its own name, in place of what *folder* has by that name.

    Raises:
        InputError: git cannot list them, or a folder is empty but for files that git ignores.
    """
    result = {} if folder is None else _sources_in(folder, "")
    for path in files:
        content = _sources_in(path, f"{path.name}/") if path.is_dir() else {path.name: path}
        result = {name: source for name, source in result.items() if name.split("/")[0] != path.name} | content
    return result


def pack(folder: Path | None, files: Sequence[Path] = ()) -> Packed:
    """The files that `sources` lists, packed.

    Raises:
        InputError: a file cannot be read, or the files are too large.
    """
    members, size = [], 0
    for name, path in sources(folder, files).items():
        member = _member(name, path, LARGEST - size)
        size += len(member.content)
        if size > LARGEST:
            remedy = f"is larger than {LARGEST >> 20} MiB; move data to another folder (`data`) or add it to .gitignore"
            raise input_error("code" if folder else "files", str(folder or path), remedy)
        members.append(member)
    archive = archives.archive(members)
    return Packed(archive, hashlib.sha256(archive).hexdigest(), len(members), size)


def pack_planned(folder: Path | None, files: Sequence[Path], sha256: str) -> Packed:
    """What a plan has packed, once more; *sha256* is that of its archive, or the digits that name it.

    Raises:
        SpotmpiError: the files have changed since.
    """
    packed = pack(folder, files)
    if not packed.sha256.startswith(sha256):
        changed = folder or ", ".join(map(str, files))
        raise SpotmpiError(f"{changed} has changed since the run was planned; start the run again")
    return packed


def _sources_in(folder: Path, prefix: str) -> dict[str, Path]:
    result = {f"{prefix}{name}": folder / name for name in names(folder)}
    if not result:
        raise input_error("files" if prefix else "code", str(folder), "is empty, or git ignores all of its files")
    return result


def _member(name: str, path: Path, limit: int) -> archives.Member:
    """A file with its content, of which what exceeds *limit* by more than a byte is not read."""
    try:
        if path.is_symlink() and not path.is_file():
            what = "is a link to a folder; ship the folder itself" if path.is_dir() else "is a broken link; remove it"
            raise input_error("code", name, f"{what} or add it to .gitignore")
        with path.open("rb") as file:
            size = min(os.fstat(file.fileno()).st_size, limit)
            return archives.Member(name, file.read(size + 1), os.access(path, os.X_OK))
    except OSError as error:
        raise input_error(
            "code", name, f"cannot be read ({error.strerror}); change its permissions or add it to .gitignore"
        ) from error


def git_environment() -> dict[str, str]:
    """The variables of a git that finds the repository of its folder, and says in English what it does not find.

    In a hook, or below `git rebase --exec`, they name the repository and index of the git that started it.
    """
    environment = {key: value for key, value in os.environ.items() if key not in _REPOSITORY_VARIABLES}
    return {**environment, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command: Sequence[str] = ("git", "-C", str(folder), *arguments)
    try:
        return subprocess.run(command, capture_output=True, env=git_environment())
    except OSError as error:
        raise input_error(
            "code", str(folder), f"cannot run git, which lists the files to ship: {error.strerror}"
        ) from error
