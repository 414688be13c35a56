"""What an environment's image registry holds."""

from __future__ import annotations

from spotmpi.aws.account import Aws
from spotmpi.aws.errors import CallFailed


def in_registry(aws: Aws, region: str, repository: str, tag: str) -> bool:
    """Whether the ECR repository, by its address, has an image with *tag*; CallFailed where it may not be asked."""
    asked = {"repositoryName": repository.partition("/")[2], "imageIds": [{"imageTag": tag}]}
    try:
        aws.call("ecr", region, "describe_images", **asked)
    except CallFailed as error:
        if error.code not in ("ImageNotFoundException", "RepositoryNotFoundException"):
            raise
        return False
    return True
