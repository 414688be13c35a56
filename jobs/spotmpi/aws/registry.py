"""Image registries (ECR): images, digests of tags, and logins."""

from __future__ import annotations

import base64
from typing import Any, NamedTuple

from spotmpi.aws.account import Aws, open_account


class RegistryLogin(NamedTuple):
    """A user name and a short-lived password for a registry."""

    user: str
    password: str


def has_image(aws: Aws, region: str, repository: str, tag: str) -> bool:
    """Whether the ECR repository with that address has an image with *tag*; CallError where that is not permitted."""
    absent = {"ImageNotFoundException", "RepositoryNotFoundException"}
    return aws.find("ecr", region, "describe_images", absent, **_image(repository, tag)) is not None


def tag_digest(region: str, repository: str, tag: str) -> str:
    """The digest of a tag in an ECR repository, with that address.

    Raises:
        LookupError: the repository has no such tag.
        CloudError: the registry can't be reached, or refuses.
    """
    aws = open_account(region, attempts=2)  # a run waits for the answer, and can be started without it
    response = aws.find("ecr", region, "describe_images", {"ImageNotFoundException"}, **_image(repository, tag))
    if response is None:
        raise LookupError(tag)
    return str(response["imageDetails"][0]["imageDigest"])


def registry_login(region: str) -> RegistryLogin:
    """The login at the ECR registry of the account in *region*; CloudError where it is refused."""
    response = open_account(region).call("ecr", region, "get_authorization_token")
    user, _, password = base64.b64decode(response["authorizationData"][0]["authorizationToken"]).decode().partition(":")
    return RegistryLogin(user, password)


def _image(repository: str, tag: str) -> dict[str, Any]:
    """What names the image with *tag* in the repository with that address, in ECR's requests."""
    host, _, name = repository.partition("/")
    return {"registryId": host[:12], "repositoryName": name, "imageIds": [{"imageTag": tag}]}
