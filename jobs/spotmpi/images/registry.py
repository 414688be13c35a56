"""What an image repository holds: asked before machines are, which cost money while they cannot pull."""

from __future__ import annotations

import re
from typing import NamedTuple

from spotmpi.core.errors import input_error
from spotmpi.images import build as images
from spotmpi.images.build import Build

_PATIENCE = 5.0  # seconds for the registry to answer


class Pinned(NamedTuple):
    """A reference to pull, by digest where the registry told it; else a note says why it did not."""

    reference: str
    note: str | None


class _Untold(Exception):
    """The registry did not tell; the message says why."""


def pin(build: Build, repository: str) -> Pinned:
    """The reference of a build in *repository*, by digest where that is ECR.

    Raises:
        InputError: the repository does not hold the build.
    """
    try:
        digest = _digest(repository, build.tag)
    except _Untold as why:
        note = f"whether the image is in its repository could not be asked ({why}): pods will tell"
        return Pinned(build.reference(repository), note)
    except LookupError as error:
        remedy = f"this build of it is not in {repository}: push it with `{images.push_line(build)}`"
        raise input_error("image", build.image, remedy) from error
    return Pinned(f"{repository}@{digest}" if digest else build.reference(repository), None)


def pin_named(reference: str) -> Pinned:
    """A user's own *reference*, by digest where it is one by tag to ECR, which may fetch it from elsewhere later."""
    path, slash, last = reference.rpartition("/")
    name, _, tag = last.partition(":")
    repository = f"{path}{slash}{name}"
    try:
        digest = None if "@" in last else _digest(repository, tag or "latest")
    except _Untold as why:
        return Pinned(reference, f"the digest of kubernetes.image could not be asked ({why}): pods pull by its tag")
    except LookupError:
        return Pinned(reference, "kubernetes.image is not in its repository, unless that gets it from elsewhere")
    return Pinned(f"{repository}@{digest}" if digest else reference, None)


def _digest(repository: str, tag: str) -> str | None:
    """The digest of a tag in an ECR repository, None for another registry; LookupError where the tag is not there."""
    region = images.ecr_region(repository)
    if region is None:
        return None
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    patience = Config(connect_timeout=_PATIENCE, read_timeout=_PATIENCE, retries={"total_max_attempts": 2})
    host, _, name = repository.partition("/")
    try:
        ecr = boto3.client("ecr", region_name=region, config=patience)
        asked = {"repositoryName": name, "imageIds": [{"imageTag": tag}]}
        found = ecr.describe_images(registryId=host[:12], **asked)["imageDetails"]
    except ClientError as error:
        if error.response["Error"]["Code"] == "ImageNotFoundException":
            raise LookupError(tag) from error
        raise _Untold(_words(error)) from error
    except BotoCoreError as error:
        raise _Untold(_words(error)) from error
    return str(found[0]["imageDigest"])


def _words(error: Exception) -> str:
    return re.sub(r"\s+", " ", str(error))
