"""Image registries (ECR): images, digests of tags, and logins."""

from __future__ import annotations

import base64
from typing import NamedTuple

from spotmpi.aws.account import Aws

_TIMEOUT = 5.0  # seconds for the registry to answer while a run waits to start


class RegistryError(Exception):
    """The registry did not answer or refused; the message is boto3's."""


class RegistryLogin(NamedTuple):
    """A user name and a short-lived password for a registry."""

    user: str
    password: str


def has_image(aws: Aws, region: str, repository: str, tag: str) -> bool:
    """Whether the ECR repository with that address has an image with *tag*; CallError where that is not permitted."""
    host, _, name = repository.partition("/")
    arguments = {"registryId": host[:12], "repositoryName": name, "imageIds": [{"imageTag": tag}]}
    absent = {"ImageNotFoundException", "RepositoryNotFoundException"}
    return aws.find("ecr", region, "describe_images", absent, **arguments) is not None


def tag_digest(region: str, repository: str, tag: str) -> str:
    """The digest of a tag in an ECR repository, with that address.

    Raises:
        LookupError: the repository has no such tag.
        RegistryError: the registry can't be reached.
    """
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    config = Config(connect_timeout=_TIMEOUT, read_timeout=_TIMEOUT, retries={"total_max_attempts": 2})
    host, _, name = repository.partition("/")
    request = {"registryId": host[:12], "repositoryName": name, "imageIds": [{"imageTag": tag}]}
    try:
        response = boto3.client("ecr", region_name=region, config=config).describe_images(**request)
    except ClientError as error:
        if error.response["Error"]["Code"] == "ImageNotFoundException":
            raise LookupError(tag) from error
        raise RegistryError(str(error)) from error
    except BotoCoreError as error:
        raise RegistryError(str(error)) from error
    return str(response["imageDetails"][0]["imageDigest"])


def registry_login(region: str) -> RegistryLogin:
    """The login at the ECR registry of the account in *region*; RegistryError where it is refused."""
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        response = boto3.client("ecr", region_name=region).get_authorization_token()
    except (BotoCoreError, ClientError) as error:
        raise RegistryError(str(error)) from error
    user, _, password = base64.b64decode(response["authorizationData"][0]["authorizationToken"]).decode().partition(":")
    return RegistryLogin(user, password)
