"""The wheel, and a fresh environment outside of the checkout that it is installed into."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from spotmpi.images.environment import find_uv
from tests.tools import REPOSITORY

if TYPE_CHECKING:
    from tests.engine.providers.server import StandInServers


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel, and a user's empty folder to work in."""

    environment: Path
    folder: Path

    def variables(self) -> dict[str, str]:
        """The user's variables, with nothing of the checkout and caches of the user's own for image environments."""
        path = f"{self.environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
        inherited = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "SPOTMPI_RUNS")}
        return {**inherited, "PATH": path}

    def spotmpi(self, *arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run the installed command to its end."""
        return subprocess.run(
            [str(self.environment / "bin" / "spotmpi"), *arguments],
            cwd=folder or self.folder,
            env=self.variables(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )


def _build(kind: str, folder: Path) -> Path:
    """A distribution of this checkout, or what SPOTMPI_DIST, a folder, holds already."""
    if dist := os.environ.get("SPOTMPI_DIST"):
        folder = Path(dist)
    else:
        # With the locked hatchling of this environment: nothing is fetched.
        command = [find_uv(), "build", "--quiet", "--no-build-isolation", "--python", sys.executable, f"--{kind}"]
        subprocess.run([*command, "--out-dir", str(folder), str(REPOSITORY)], check=True)
    (file,) = folder.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return file


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    return _build("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution of this checkout."""
    return _build("sdist", tmp_path_factory.mktemp("sdist"))


def _base_requirements() -> set[str]:
    """The names of what the package requires without extras, and of what that requires."""
    names: set[tuple[str, str]] = set()
    open_names = [("spotmpi", "")]
    while open_names:
        name, extra = entry = open_names.pop()
        if entry in names:
            continue
        names.add(entry)
        for line in distribution(name).requires or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                required = canonicalize_name(requirement.name)
                open_names += [(required, each) for each in ("", *sorted(requirement.extras))]
    return {name for name, _ in names} - {"spotmpi"}


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel with the locked versions of what it requires, and nothing else."""
    folder = tmp_path_factory.mktemp("installed")
    required = _base_requirements()
    entries = re.split(r"\n(?=\w)", (REPOSITORY / "requirements.lock").read_text())
    chosen = [entry for entry in entries if canonicalize_name(entry.partition("==")[0]) in required]
    (folder / "requirements.lock").write_text("\n".join(chosen) + "\n")
    environment, uv = folder / "environment", find_uv()
    into = ["--quiet", "--python", str(environment / "bin" / "python")]
    for command in (
        ["venv", "--quiet", "--python", sys.executable, str(environment)],
        ["pip", "sync", *into, str(folder / "requirements.lock")],  # from uv's cache, which set-up has filled
        ["pip", "install", *into, "--no-deps", str(wheel)],
    ):
        subprocess.run([uv, *command], check=True)
    work = folder / "work"
    work.mkdir()
    return Installed(environment, work)


@pytest.fixture
def servers() -> Iterator[StandInServers]:
    """Stand-in providers of a cloud in which nothing exists."""
    from tests.engine.providers.cloud import Cloud
    from tests.engine.providers.server import serve_cloud

    with serve_cloud(Cloud()) as servers:
        yield servers
