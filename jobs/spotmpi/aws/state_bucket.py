"""The S3 bucket of Pulumi's state: private, encrypted, and versioned, so that a broken state can be put back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from spotmpi.aws.account import Aws
from spotmpi.aws.errors import CallFailed
from spotmpi.core.errors import SpotmpiError

VARIABLE = "PULUMI_BACKEND_URL"
PRIVATE = {
    "BlockPublicAcls": True,
    "BlockPublicPolicy": True,
    "IgnorePublicAcls": True,
    "RestrictPublicBuckets": True,
}
_ENCRYPTED = {"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]}
_NOT_SET = "NoSuchPublicAccessBlockConfiguration"


@dataclass(frozen=True)
class Bucket:
    """A bucket by name, and its region where the address says one."""

    name: str
    region: str | None


@dataclass(frozen=True)
class Condition:
    """What a bucket is; one that was made here is both."""

    versioned: bool
    private: bool


def named_in(variables: Mapping[str, str]) -> Bucket | None:
    """The bucket that PULUMI_BACKEND_URL names, as in s3://my-state/folder?region=eu-west-1; None for other states."""
    address = urlsplit(variables.get(VARIABLE, ""))
    if address.scheme != "s3" or not address.hostname:
        return None
    return Bucket(address.netloc, parse_qs(address.query).get("region", [None])[0])


def condition(aws: Aws, region: str, bucket: Bucket) -> Condition | None:
    """What the bucket is; None where there is none of that name. CallFailed where it may not be looked at."""
    region = bucket.region or region
    try:
        status = aws.call("s3", region, "get_bucket_versioning", Bucket=bucket.name).get("Status")
    except CallFailed as error:
        if error.code != "NoSuchBucket":
            raise
        return None
    try:
        answer = aws.call("s3", region, "get_public_access_block", Bucket=bucket.name)
        private = all(answer["PublicAccessBlockConfiguration"].values())
    except CallFailed as error:
        if error.code != _NOT_SET:
            raise
        private = False
    return Condition(status == "Enabled", private)


def make(aws: Aws, region: str, bucket: Bucket) -> None:
    """Make the bucket; SpotmpiError where another account has the name."""
    region = bucket.region or region
    # S3 takes no location for its first region.
    place = {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
    try:
        aws.call("s3", region, "create_bucket", Bucket=bucket.name, **place)
    except CallFailed as error:
        if error.code == "BucketAlreadyExists":
            remedy = f"names are worldwide, so choose another and set {VARIABLE} to it"
            raise SpotmpiError(f"another AWS account has a bucket {bucket.name}: {remedy}") from error
        if error.code != "BucketAlreadyOwnedByYou":
            raise
    name = bucket.name
    aws.call("s3", region, "put_public_access_block", Bucket=name, PublicAccessBlockConfiguration=PRIVATE)
    aws.call("s3", region, "put_bucket_encryption", Bucket=name, ServerSideEncryptionConfiguration=_ENCRYPTED)
    aws.call("s3", region, "put_bucket_versioning", Bucket=name, VersioningConfiguration={"Status": "Enabled"})
