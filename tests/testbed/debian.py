"""A plain Debian root file system, built once by debootstrap: the base of every test image."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.testbed.daemon import SYSTEM_PATH
from tests.testbed.errors import TestbedError
from tests.testbed.slot import cache_folder

_RELEASE = "bookworm"
# What the Dockerfiles of images/ install by apt, and what tests look at pods with.
_PACKAGES = ("ca-certificates", "iproute2", "openssh-server", "python3", "python3-venv")


def recipe_hash() -> str:
    """Return 12 hex digits that change with the inputs of the file system."""
    return hashlib.sha256(" ".join([_RELEASE, *_PACKAGES]).encode()).hexdigest()[:12]


def root_archive() -> Path:
    """Return the tar of the file system, which is built first if it is not cached (about a minute)."""
    archive = cache_folder() / f"debian-{recipe_hash()}.tar"
    if not archive.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="debian-", dir=archive.parent) as scratch:
            _make(Path(scratch), archive)
    return archive


def _make(scratch: Path, archive: Path) -> None:
    root, aside = scratch / "root", scratch / "root.tar"
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(_PACKAGES)}", _RELEASE, str(root)]
    if mirror := os.environ.get("DEBIAN_MIRROR"):
        command.append(mirror)
    environment = {**os.environ, "PATH": SYSTEM_PATH, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if result.returncode:
        raise TestbedError(f"debootstrap failed with {result.returncode}: {result.stdout[-800:]}{result.stderr[-800:]}")
    for path in [*root.glob("var/cache/apt/archives/*.deb"), *root.glob("etc/ssh/ssh_host_*")]:
        # Images must not share host keys; runs bring their own.
        path.unlink()
    shutil.rmtree(root / "var/lib/apt/lists", ignore_errors=True)
    (root / "var/lib/apt/lists/partial").mkdir(parents=True)
    subprocess.run(["tar", "--create", "--file", aside, "--directory", root, "--xattrs", "."], check=True)
    aside.rename(archive)
