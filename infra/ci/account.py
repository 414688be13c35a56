"""Whose account the credentials at hand are of."""

from typing import Any

import boto3
import botocore.exceptions

from infra.ci.errors import CiError
from infra.ci.stack_file import StackFile


def check(file: StackFile, client: Any = None) -> str:
    """The caller's ARN, once it is in the stack's account; CiError with any other, or without credentials."""
    sts = client or boto3.client("sts", region_name=file.region)
    try:
        identity = sts.get_caller_identity()
    except (botocore.exceptions.NoCredentialsError, botocore.exceptions.ClientError) as error:
        raise CiError(
            f"no usable AWS credentials ({error}): log in, or take the role of account {file.account}"
        ) from error
    if identity["Account"] != file.account:
        message = f"the credentials are of account {identity['Account']} and stack {file.stack!r} belongs to"
        raise CiError(f"{message} {file.account}: take a role there; nothing was touched")
    return str(identity["Arn"])
