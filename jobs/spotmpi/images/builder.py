"""Builds and pushes images with the container builder of this machine."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from spotmpi.aws.errors import CloudError
from spotmpi.aws.registry import registry_login
from spotmpi.core import names, wording
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.core.wording import Echo
from spotmpi.images import build as images
from spotmpi.images.build import Build


def find_tool(name: str | None) -> str:
    """The builder to use: the one of that *name*, else the first of buildah, podman and docker that is on PATH."""
    if name is not None and name not in images.TOOLS:
        raise input_error(wording.option("tool"), name, f"use one of: {', '.join(images.TOOLS)}")
    tool = next((tool for tool in ([name] if name else images.TOOLS) if shutil.which(tool)), None)
    if tool is None:
        raise SpotmpiError(f"{name or 'buildah, podman or docker'} not found on PATH: install one to build images")
    return tool


def build(tool: str, target: Build, echo: Echo) -> str:
    """Build the image unless this machine has this build already; returns its local reference.

    Raises:
        InputError: no such image.
        SpotmpiError: the builder failed; its output went to stderr.
    """
    images.require_known(target.image)
    if subprocess.run([tool, "inspect", target.local_reference], capture_output=True).returncode == 0:
        echo(f"{target.local_reference} is already built")
        return target.local_reference
    echo(f"building {target.local_reference} with {tool}")
    options = [part for name, value in target.arguments for part in ("--build-arg", f"{name}={value}")]
    result = ["--file", str(target.dockerfile), "--tag", target.local_reference]
    if subprocess.run([tool, "build", *options, *result, str(names.IMAGES)], stdout=2).returncode:
        raise SpotmpiError(f"{tool} could not build {target.image}: see its output above")
    return target.local_reference


def push(tool: str, target: Build, repository: str, echo: Echo) -> str:
    """Push a built image, after a login where the repository is ECR's; returns its reference, by digest if known."""
    region = images.ecr_region(repository)
    if region is not None:
        _log_in(tool, repository, region)
    reference = target.reference(repository)
    echo(f"pushing {reference}")
    _run(tool, "tag", target.local_reference, reference)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "digest")
        # What the others print are digests of layers and of the configuration, by which no image can be pulled.
        output = _run(tool, "push", *([] if tool == "docker" else ["--digestfile", str(file)]), reference)
        with contextlib.suppress(FileNotFoundError):  # as docker writes none
            output = file.read_text(encoding="utf-8").strip()
    digest = re.search(r"(?:^|: digest: )(sha256:[0-9a-f]{64})\b", output)
    return f"{repository}@{digest[1]}" if digest else reference


def _run(tool: str, verb: str, *arguments: str) -> str:
    """What the builder prints; SpotmpiError with its last line where it fails. The last argument is the reference."""
    process = subprocess.run([tool, verb, *arguments], capture_output=True, encoding="utf-8", errors="replace")
    output = process.stdout + process.stderr
    if process.returncode:
        last = output.strip().splitlines()[-1:] or ["no output"]
        raise SpotmpiError(f"{tool} could not {verb} {arguments[-1]}: {last[0]}")
    return output


def _log_in(tool: str, repository: str, region: str) -> None:
    try:
        user, password = registry_login(region)
    except CloudError as error:
        raise SpotmpiError(f"could not get a login for {repository}: {error}") from error
    host = repository.partition("/")[0]
    command = [tool, "login", "--username", user, "--password-stdin", host]
    process = subprocess.run(command, input=password, capture_output=True, encoding="utf-8", errors="replace")
    if process.returncode:
        raise SpotmpiError(f"{tool} could not log in at {host}: {process.stderr.strip()}")
