"""Images built from the repository's Dockerfiles on a plain Debian base, once per content."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.testbed import debian
from tests.testbed.daemon import SYSTEM_PATH
from tests.testbed.errors import TestbedError
from tests.testbed.programs import REPOSITORY
from tests.testbed.slot import cache_folder
from tests.testbed.store import PAUSE_IMAGE, REGISTRY, Store

_OWN = REPOSITORY / "tests" / "testbed" / "dockerfiles"
_SHIPPED = REPOSITORY / "images"
_BASE = "localhost/spotmpi-debian"
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_REQUIRED_GIB = {"pytorch": 20.0}
_REQUIRED_GIB_DEFAULT = 4.0


@dataclass(frozen=True)
class Image:
    """One image folder; `context` is what its Dockerfile may copy from."""

    name: str
    dockerfile: Path
    context: Path
    arguments: tuple[tuple[str, str], ...] = ()

    def reference(self) -> str:
        """Return the image's full name, with a tag that changes with everything it is built from."""
        if self.name == "pause":
            return PAUSE_IMAGE
        digest = hashlib.sha256(f"{debian.recipe_hash()} {self.arguments}".encode())
        for path in _files_of(self):
            digest.update(f"\0{path.name}\0".encode() + path.read_bytes())
        return f"{REGISTRY}/{self.name}:{digest.hexdigest()[:12]}"


def find(name: str) -> Image:
    """Return the image of that name, a folder of images/ or of tests/testbed/dockerfiles/."""
    if (_SHIPPED / name / "Dockerfile").is_file():
        # The shipped Dockerfiles use CUDA by default.
        plain = (("REQUIREMENTS", "requirements.lock"),)
        return Image(name, _SHIPPED / name / "Dockerfile", _SHIPPED, plain)
    if (_OWN / name / "Dockerfile").is_file():
        return Image(name, _OWN / name / "Dockerfile", _OWN / name)
    raise TestbedError(f"no image {name!r}: neither {_SHIPPED / name} nor {_OWN / name} has a Dockerfile")


def provide(names: set[str]) -> dict[str, str]:
    """Return the references of the images by name, all in the store; what is missing is built first."""
    store = Store()
    images_by_name = {name: find(name) for name in sorted({"pause", "base", *names})}
    for image in images_by_name.values():
        if image.reference() not in store.names():
            with _only_builder():
                # Another session may have built it while we waited.
                if image.reference() not in store.names():
                    _build_into(store, image)
    references = {name: image.reference() for name, image in images_by_name.items()}
    store.forget_older_than(references.values())
    return references


@contextlib.contextmanager
def _only_builder() -> Iterator[None]:
    """Hold the lock that keeps two sessions from building at once: the disk has room for one."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / "images.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _build_into(store: Store, image: Image) -> None:
    _require_disk(image)
    started = time.monotonic()
    _talk(f"image {image.name}: building")
    _provide_base()
    reference = image.reference()
    _buildah("build", *_build_options(image), "--tag", reference, str(image.context))
    with tempfile.TemporaryDirectory(prefix="image-", dir=cache_folder()) as scratch:
        archive = Path(scratch) / "image.tar"
        _buildah("push", reference, f"docker-archive:{archive}:{reference}")
        # One copy less on the disk before the next one is made.
        _buildah("rmi", reference)
        store.add(reference, archive)
    _talk(f"image {image.name}: built and unpacked in {time.monotonic() - started:.0f} s")


def _build_options(image: Image) -> list[str]:
    arguments = [("BASE_IMAGE", f"{_BASE}:{debian.recipe_hash()}"), *image.arguments]
    options = ["--isolation", "chroot", "--network", "host", "--file", str(image.dockerfile)]
    if _CERTIFICATES.exists() and image.context == _SHIPPED:
        # A private authority of this machine must be trusted in the build too, but not in the image.
        certificates = f"/run/{_CERTIFICATES.name}"
        options += ["--volume", f"{_CERTIFICATES}:{certificates}:ro"]
        arguments += [("SSL_CERT_FILE", certificates), ("PIP_CERT", certificates)]
    return options + [part for name, value in arguments for part in ("--build-arg", f"{name}={value}")]


def _provide_base() -> None:
    tag = f"{_BASE}:{debian.recipe_hash()}"
    if tag in _buildah("images", "--format", "{{.Name}}:{{.Tag}}").split():
        return
    archive = debian.root_archive()
    with tempfile.TemporaryDirectory(prefix="base-", dir=cache_folder()) as scratch:
        context = Path(scratch)
        (context / archive.name).hardlink_to(archive)
        (context / "Dockerfile").write_text(f'FROM scratch\nADD {archive.name} /\nCMD ["/bin/bash"]\n')
        _buildah("build", "--tag", tag, scratch)


def _buildah(*arguments: str) -> str:
    storage = cache_folder() / "buildah"
    command = ["buildah", "--storage-driver", "overlay", "--root", f"{storage}/root", "--runroot", f"{storage}/run"]
    environment = {"PATH": SYSTEM_PATH, "HOME": str(cache_folder()), "TMPDIR": str(cache_folder())}
    result = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False, env=environment)
    if result.returncode:
        raise TestbedError(f"buildah {arguments[0]} failed:\n{result.stdout[-3000:]}{result.stderr[-3000:]}")
    return result.stdout


def _files_of(image: Image) -> list[Path]:
    """Return the files that the image is built from: its own folder, and the files that all images share."""
    folder = image.dockerfile.parent
    own = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    shared = [path for path in image.context.glob("*") if path.is_file() and image.context != folder]
    return sorted(own) + sorted(shared)


def _require_disk(image: Image) -> None:
    required = _REQUIRED_GIB.get(image.name, _REQUIRED_GIB_DEFAULT)
    cache_folder().mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(cache_folder()).free / 2**30
    if free < required:
        raise TestbedError(f"image {image.name} needs {required:g} GiB in {cache_folder()}, {free:.1f} are free")


def _talk(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
