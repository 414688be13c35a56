"""Images from their folders: the tag that names a build, and the commands that build and push one."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

from spotmpi.agent.gpus import have_kernels
from spotmpi.core import archives, names
from spotmpi.core.errors import input_error

TOOLS = ("buildah", "podman", "docker")  # in the order of choice
LOCAL = "localhost/spotmpi"  # what images are called before they are pushed

# Build arguments for machines without GPUs: no CUDA underneath, and no CuPy.
WITHOUT_GPUS = (("BASE_IMAGE", "docker.io/library/debian:bookworm"), ("REQUIREMENTS", "requirements.lock"))

# Build arguments that differ from the Dockerfile's defaults, and the architectures that such a build has kernels for.
# Each image's own record (/opt/spotmpi/image.json) says it of a build for certain, and agents go by that.
_V100 = (
    ("BASE_IMAGE", "docker.io/nvidia/cuda:12.6.3-base-ubuntu22.04"),
    ("REQUIREMENTS", "requirements-v100.lock"),
)
_CUDA_12 = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90")
_BUILDS: dict[str, dict[tuple[tuple[str, str], ...], tuple[str, ...]]] = {
    "chainermn": {(): _CUDA_12},
    "pytorch": {(): ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"), _V100: _CUDA_12},
}

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
        """Sixteen hex digits that change with everything the image is built from."""
        files = [*self.dockerfile.parent.rglob("*"), *names.IMAGES.glob("*")]
        members = [
            archives.Member(str(path.relative_to(names.IMAGES)), path.read_bytes()) for path in files if path.is_file()
        ]
        return archives.digest(archives.archive(members) + repr(sorted(self.arguments)).encode())

    @property
    def local_reference(self) -> str:
        """What the image is called on the machine that built it."""
        return f"{LOCAL}-{self.image}:{self.tag}"

    def reference(self, repository: str) -> str:
        """What the image is called in a repository."""
        return f"{repository}:{self.tag}"


def build_for(image: str, gpus: bool) -> Build:
    """The build of an image for machines with GPUs, as its Dockerfile has it, or for machines without any."""
    return Build(image) if gpus else Build(image, WITHOUT_GPUS)


def build_with_kernels(image: str, capability: str | None) -> Build | None:
    """The first build of *image* with kernels for GPUs of *capability* ("7.0"); the default one where that is None."""
    builds = _BUILDS.get(image)
    if capability is None or builds is None:
        return build_for(image, True)
    fitting = (arguments for arguments, kernels in builds.items() if have_kernels(kernels, capability))
    return next(map(functools.partial(Build, image), fitting), None)


def push_line(build: Build) -> str:
    """The command line that puts a build where the runs of an environment pull it from."""
    given = "".join(f" --build-arg {name}={value}" for name, value in build.arguments)
    return f"spotmpi image push {build.image}{given} --on STACK"


def require_known(image: str) -> None:
    """Raise InputError unless a folder of images/ has a Dockerfile for *image*."""
    known = sorted(path.parent.name for path in names.IMAGES.glob("*/Dockerfile"))
    if image not in known:
        raise input_error("image", image, f"use one of: {', '.join(known)}")


def build_command(tool: str, build: Build) -> list[str]:
    """The arguments that build an image with *tool*."""
    given = [part for name, value in build.arguments for part in ("--build-arg", f"{name}={value}")]
    where = ["--file", str(build.dockerfile), "--tag", build.local_reference]
    return [tool, "build", *given, *where, str(names.IMAGES)]


def push_commands(tool: str, build: Build, repository: str) -> list[list[str]]:
    """The commands that give a built image its name in *repository* and push it."""
    reference = build.reference(repository)
    return [[tool, "tag", build.local_reference, reference], [tool, "push", reference]]


def login_command(tool: str, host: str, user: str) -> list[str]:
    """The arguments that log *tool* in at a registry; the password goes to its standard input."""
    return [tool, "login", "--username", user, "--password-stdin", host]


def ecr_region(repository: str) -> str | None:
    """The region of an ECR repository, or None where the repository is somewhere else."""
    match = _ECR.match(repository)
    return match["region"] if match else None


def pushed_digest(said: str) -> str | None:
    """The manifest's digest in what a push printed, where it tells."""
    found = re.findall(r"sha256:[0-9a-f]{64}", said)
    return found[-1] if found else None
