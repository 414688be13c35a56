"""What an environment's image repository holds: asked before machines are, which cost money while they cannot pull."""

from __future__ import annotations

import re
from typing import NamedTuple

from jobs import images
from jobs.errors import wrong
from jobs.images import Build

_PATIENCE = 5.0  # seconds for the registry to answer


class Pinned(NamedTuple):
    """A reference to pull, by digest where the registry told it; else a note says why it did not."""

    reference: str
    note: str | None


def pin(build: Build, repository: str) -> Pinned:
    """The reference of a build in *repository*, by digest where that is ECR.

    Raises:
        InputError: the repository does not hold the build.
    """
    region = images.ecr_region(repository)
    if region is None:
        return Pinned(build.reference(repository), None)
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    patience = Config(connect_timeout=_PATIENCE, read_timeout=_PATIENCE, retries={"total_max_attempts": 2})
    host, _, name = repository.partition("/")
    try:
        ecr = boto3.client("ecr", region_name=region, config=patience)
        tag = {"imageTag": build.tag}
        found = ecr.describe_images(registryId=host[:12], repositoryName=name, imageIds=[tag])["imageDetails"]
    except ClientError as error:
        if error.response["Error"]["Code"] == "ImageNotFoundException":
            remedy = f"this build of it is not in {repository}: push it with `{images.push_line(build)}`"
            raise wrong("image", build.image, remedy) from error
        return Pinned(build.reference(repository), _unasked(error))
    except BotoCoreError as error:
        return Pinned(build.reference(repository), _unasked(error))
    return Pinned(f"{repository}@{found[0]['imageDigest']}", None)


def _unasked(error: Exception) -> str:
    words = re.sub(r"\s+", " ", str(error))
    return f"whether the image is in its repository could not be asked ({words}): pods will tell"
