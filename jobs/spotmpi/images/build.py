"""Images from their folders: the builds of each, and the tag that names a build."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from spotmpi.agent.hardware import have_kernels
from spotmpi.core import archives, names, wording
from spotmpi.core.errors import input_error

TOOLS = ("buildah", "podman", "docker")  # in order of preference
LOCAL = "localhost/spotmpi"  # prefix of an image's name before it is pushed

# Build arguments for machines without GPUs: no CUDA underneath, and no CuPy.
WITHOUT_GPUS = (("BASE_IMAGE", "docker.io/library/debian:bookworm"), ("REQUIREMENTS", names.LOCK))

# Build arguments that differ from the Dockerfile's defaults, and the architectures that such a build has kernels for.
# The record inside an image (/opt/spotmpi/image.json) is authoritative; agents use that one.
_V100 = (
    ("BASE_IMAGE", "docker.io/nvidia/cuda:12.6.3-base-ubuntu22.04"),
    ("REQUIREMENTS", "requirements-v100.lock"),
)
_CUDA_12 = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90")
_BUILDS: dict[str, dict[tuple[tuple[str, str], ...], tuple[str, ...]]] = {
    "chainermn": {(): _CUDA_12},
    "pytorch": {(): ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"), _V100: _CUDA_12},
}

PYTHON = "3.11"  # of every image

_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY")  # of every Dockerfile, in both cases

_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_HOST = r"(?:[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*|\[[0-9A-Fa-f:]+\])(?::\d+)?"
_REPOSITORY = re.compile(rf"(?:{_HOST}/)?{_COMPONENT}(?:/{_COMPONENT})*")

_ECR = re.compile(r"(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(\.cn)?")


@dataclass(frozen=True)
class Build:
    """One build of an image: its name and the build arguments that differ from the Dockerfile's defaults."""

    image: str
    arguments: tuple[tuple[str, str], ...] = ()

    @property
    def dockerfile(self) -> Path:
        """The image's Dockerfile; its context is the folder of all images."""
        return names.IMAGES / self.image / "Dockerfile"

    @property
    def tag(self) -> str:
        """Sixteen hex digits that change with everything the image is built from, and with nothing else."""
        paths = [*self.dockerfile.parent.rglob("*"), *names.IMAGES.glob("*")]
        files = [path for path in paths if path.is_file() and path.parent.name != "__pycache__"]  # pip compiles modules
        members = [archives.Member(str(path.relative_to(names.IMAGES)), path.read_bytes()) for path in files]
        return archives.digest(archives.archive(members) + repr(sorted(self.arguments)).encode())

    @property
    def local_reference(self) -> str:
        """The image's name on the machine that built it."""
        return f"{LOCAL}-{self.image}:{self.tag}"

    def reference(self, repository: str) -> str:
        """The image's name in a repository."""
        return f"{repository}:{self.tag}"


def build_for(image: str, gpus: bool) -> Build:
    """The build of an image for machines with GPUs, as its Dockerfile has it, or for machines without any."""
    return Build(image) if gpus else Build(image, WITHOUT_GPUS)


def build_with_kernels(image: str, capability: str | None) -> Build | None:
    """The first build of *image* with kernels for GPUs of *capability* ("7.0"); the default one where that is None."""
    builds = _BUILDS.get(image)
    if capability is None or builds is None:
        return build_for(image, True)
    matches = (arguments for arguments, kernels in builds.items() if have_kernels(kernels, capability))
    return next(map(functools.partial(Build, image), matches), None)


def push_line(build: Build) -> str:
    """The command line that pushes a build to the registry of an environment."""
    options = "".join(f" --build-arg {name}={value}" for name, value in build.arguments)
    return f"spotmpi image push {build.image}{options} --on STACK"


def require_known(image: str) -> None:
    """Raise InputError unless `images/` has a folder with a Dockerfile for *image*."""
    known = sorted(path.parent.name for path in names.IMAGES.glob("*/Dockerfile"))
    if image not in known:
        raise input_error("image", image, f"use one of: {', '.join(known)}")


def require_repository(repository: str) -> None:
    """Raise InputError unless *repository* is one to push to: a build takes minutes, and its builder refuses others."""
    if not _REPOSITORY.fullmatch(repository):
        remedy = "name a repository alone, such as registry.example:5000/team/chainermn; its tag is that of the build"
        raise input_error(wording.option("to"), repository, remedy)


def require_arguments(image: str, arguments: Iterable[str]) -> None:
    """Raise InputError unless the Dockerfile has these build arguments: builders ignore others."""
    declared = re.findall(r"(?mi)^\s*ARG\s+(\w+)", Build(image).dockerfile.read_text(encoding="utf-8"))
    for name in arguments:
        if name not in declared and name.upper() not in _PROXIES:
            remedy = f"its Dockerfile has no such ARG; use one of: {', '.join(dict.fromkeys(declared))}"
            raise input_error(wording.option("build-arg"), name, remedy)


def ecr_region(repository: str) -> str | None:
    """The region of an ECR repository, or None for another registry."""
    match = _ECR.match(repository)
    return match["region"] if match else None
