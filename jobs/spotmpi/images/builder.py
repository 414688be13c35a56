"""Builds and pushes images with whatever builder is there."""

from __future__ import annotations

import base64
import shutil
import subprocess

from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.core.progress import Say
from spotmpi.images import build as images
from spotmpi.images.build import Build


def find_tool(wanted: str | None = None) -> str:
    """The builder to use: the wanted one, else the first of buildah, podman and docker that is on PATH."""
    if wanted is not None and wanted not in images.TOOLS:
        raise input_error("--tool", wanted, f"use one of: {', '.join(images.TOOLS)}")
    found = next((tool for tool in ([wanted] if wanted else images.TOOLS) if shutil.which(tool)), None)
    if found is None:
        raise SpotmpiError(f"no {wanted or 'buildah, podman or docker'} on PATH: install one to build images")
    return found


def build(tool: str, wanted: Build, say: Say) -> str:
    """Build the image unless this very build is there already; its local reference.

    Raises:
        InputError: no such image.
        SpotmpiError: the builder failed; its last lines are in the message, all of them went to stderr.
    """
    images.require_known(wanted.image)
    if subprocess.run([tool, "inspect", wanted.local_reference], capture_output=True).returncode == 0:
        say(f"{wanted.local_reference} is built already")
        return wanted.local_reference
    say(f"building {wanted.local_reference} with {tool}")
    if subprocess.run(images.build_command(tool, wanted), stdout=2).returncode:
        raise SpotmpiError(f"{tool} could not build {wanted.image}: what it said is above")
    return wanted.local_reference


def push(tool: str, wanted: Build, repository: str, say: Say) -> str:
    """Push a built image, after logging in where the repository is ECR's; its reference, by digest where it is told."""
    region = images.ecr_region(repository)
    if region is not None:
        _log_in(tool, repository, region)
    say(f"pushing {wanted.reference(repository)}")
    said = ""
    for command in images.push_commands(tool, wanted, repository):
        done = subprocess.run(command, capture_output=True, text=True)
        said = done.stdout + done.stderr
        if done.returncode:
            last = said.strip().splitlines()[-1:] or ["it says nothing"]
            raise SpotmpiError(f"{tool} could not {command[1]} {wanted.reference(repository)}: {last[0]}")
    digest = images.pushed_digest(said)
    return f"{repository}@{digest}" if digest else wanted.reference(repository)


def _log_in(tool: str, repository: str, region: str) -> None:
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        answer = boto3.client("ecr", region_name=region).get_authorization_token()
    except (BotoCoreError, ClientError) as error:
        raise SpotmpiError(
            f"could not get a login for {repository}: {error}; check `aws sts get-caller-identity`"
        ) from error
    user, _, password = base64.b64decode(answer["authorizationData"][0]["authorizationToken"]).decode().partition(":")
    host = repository.partition("/")[0]
    done = subprocess.run(images.login_command(tool, host, user), input=password, capture_output=True, text=True)
    if done.returncode:
        raise SpotmpiError(f"{tool} could not log in at {host}: {done.stderr.strip()}")
