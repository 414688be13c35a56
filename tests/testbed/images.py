"""Images built from the repository's Dockerfiles on a plain Debian base, once per content."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.testbed.daemon import SYSTEM_PATH
from tests.testbed.errors import TestbedError, run_command
from tests.testbed.programs import REPOSITORY
from tests.testbed.slot import cache_folder, locked
from tests.testbed.store import PAUSE_IMAGE, REGISTRY, Store

_OWN = REPOSITORY / "tests" / "testbed" / "dockerfiles"
_SHIPPED = REPOSITORY / "images"
_BASE = "localhost/spotmpi-debian"
# A plain Debian root file system, built once by debootstrap, is the base of every test image.
_RELEASE = "bookworm"
# What the Dockerfiles of images/ install by apt, and what tests look at pods with.
_PACKAGES = ("ca-certificates", "iproute2", "openssh-server", "python3", "python3-venv")
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


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
        digest = hashlib.sha256(f"{_debian_hash()} {self.arguments}".encode())
        for path in _files_of(self):
            digest.update(f"\0{path.name}\0".encode() + path.read_bytes())
        return f"{REGISTRY}/{self.name}:{digest.hexdigest()[:12]}"


def find(name: str) -> Image:
    """Return the image of that name, a folder of images/ or of tests/testbed/dockerfiles/."""
    shipped, own = (folder / name / "Dockerfile" for folder in (_SHIPPED, _OWN))
    if shipped.is_file():
        # The shipped Dockerfiles use CUDA by default.
        return Image(name, shipped, _SHIPPED, (("REQUIREMENTS", "requirements.lock"),))
    if own.is_file():
        return Image(name, own, _OWN / name)
    raise TestbedError(f"no image {name!r}: neither {_SHIPPED / name} nor {_OWN / name} has a Dockerfile")


def provide(names: set[str]) -> dict[str, str]:
    """Return the references of the images by name, all in the store; what is missing is built first."""
    store = Store()
    images_by_name = {name: find(name) for name in sorted({"pause", "base", *names})}
    for image in images_by_name.values():
        if image.reference() not in store.names():
            # The disk has room for one build at once. Another session may have built the image while we waited.
            with locked(cache_folder() / "images.lock"):
                if image.reference() not in store.names():
                    _build_into(store, image)
    references = {name: image.reference() for name, image in images_by_name.items()}
    store.forget_older_than(references.values())
    return references


def push_debian(registry: str) -> str:
    """Push the plain Debian that all images begin with to a registry on this machine; its name there."""
    _provide_base()
    name = f"{registry}/debian:{_debian_hash()}"
    _buildah("push", "--tls-verify=false", "--disable-compression", f"{_BASE}:{_debian_hash()}", f"docker://{name}")
    return name


def _build_into(store: Store, image: Image) -> None:
    _require_disk(image)
    started = time.monotonic()
    print(f"image {image.name}: building", file=sys.stderr, flush=True)
    _provide_base()
    reference = image.reference()
    _buildah("build", *_build_options(image), "--tag", reference, str(image.context))
    with tempfile.TemporaryDirectory(prefix="image-", dir=cache_folder()) as scratch:
        archive = Path(scratch) / "image.tar"
        _buildah("push", reference, f"docker-archive:{archive}:{reference}")
        # One copy less on the disk before the next one is made.
        _buildah("rmi", reference)
        store.add(reference, archive)
    took = time.monotonic() - started
    print(f"image {image.name}: built and unpacked in {took:.0f} s", file=sys.stderr, flush=True)


def _build_options(image: Image) -> list[str]:
    arguments = [("BASE_IMAGE", f"{_BASE}:{_debian_hash()}"), *image.arguments]
    options = ["--isolation", "chroot", "--network", "host", "--file", str(image.dockerfile)]
    if _CERTIFICATES.exists() and image.context == _SHIPPED:
        # A private authority of this machine must be trusted in the build too, but not in the image.
        certificates = f"/run/{_CERTIFICATES.name}"
        options += ["--volume", f"{_CERTIFICATES}:{certificates}:ro"]
        arguments += [("SSL_CERT_FILE", certificates), ("PIP_CERT", certificates)]
    return options + [part for name, value in arguments for part in ("--build-arg", f"{name}={value}")]


def _provide_base() -> None:
    tag = f"{_BASE}:{_debian_hash()}"
    if tag in _buildah("images", "--format", "{{.Name}}:{{.Tag}}").split():
        return
    archive = _root_archive()
    with tempfile.TemporaryDirectory(prefix="base-", dir=cache_folder()) as scratch:
        context = Path(scratch)
        (context / archive.name).hardlink_to(archive)
        (context / "Dockerfile").write_text(f'FROM scratch\nADD {archive.name} /\nCMD ["/bin/bash"]\n')
        _buildah("build", "--tag", tag, scratch)


def _buildah(*arguments: str) -> str:
    storage = cache_folder() / "buildah"
    command = ["buildah", "--storage-driver", "overlay", "--root", f"{storage}/root", "--runroot", f"{storage}/run"]
    environment = {"PATH": SYSTEM_PATH, "HOME": str(cache_folder()), "TMPDIR": str(cache_folder())}
    return run_command([*command, *arguments], environment, limit=3600)


def _files_of(image: Image) -> list[Path]:
    """Return the files that the image is built from: its own folder, and the files that all images share."""
    folder = image.dockerfile.parent
    own = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    shared = [path for path in image.context.glob("*") if path.is_file() and image.context != folder]
    return sorted(own) + sorted(shared)


def _require_disk(image: Image) -> None:
    required = 20.0 if image.name == "pytorch" else 4.0
    free = shutil.disk_usage(cache_folder()).free / 2**30
    if free < required:
        raise TestbedError(f"image {image.name} needs {required:g} GiB in {cache_folder()}, {free:.1f} are free")


def _debian_hash() -> str:
    """Return 12 hex digits that change with the inputs of the file system."""
    return hashlib.sha256(" ".join([_RELEASE, *_PACKAGES]).encode()).hexdigest()[:12]


def _root_archive() -> Path:
    """Return the tar of the file system, which is built first if it is not cached (about a minute)."""
    archive = cache_folder() / f"debian-{_debian_hash()}.tar"
    if not archive.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="debian-", dir=archive.parent) as scratch:
            _make_root(Path(scratch), archive)
    return archive


def _make_root(scratch: Path, archive: Path) -> None:
    root, aside = scratch / "root", scratch / "root.tar"
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(_PACKAGES)}", _RELEASE, str(root)]
    if mirror := os.environ.get("DEBIAN_MIRROR"):
        command.append(mirror)
    environment = {**os.environ, "PATH": SYSTEM_PATH, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    run_command(command, environment, limit=3600)
    for path in [*root.glob("var/cache/apt/archives/*.deb"), *root.glob("etc/ssh/ssh_host_*")]:
        # Images must not share host keys; runs bring their own.
        path.unlink()
    shutil.rmtree(root / "var/lib/apt/lists", ignore_errors=True)
    (root / "var/lib/apt/lists/partial").mkdir(parents=True)
    run_command(["tar", "--create", "--file", aside, "--directory", root, "--xattrs", "."])
    aside.rename(archive)
