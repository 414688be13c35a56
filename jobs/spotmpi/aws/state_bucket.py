"""S3 buckets: the one of Pulumi's state, private, encrypted, and versioned, so that a broken state can be restored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from spotmpi.aws.account import Aws
from spotmpi.aws.errors import CallError
from spotmpi.core.errors import SpotmpiError

VARIABLE = "PULUMI_BACKEND_URL"
PRIVATE = {
    "BlockPublicAcls": True,
    "BlockPublicPolicy": True,
    "IgnorePublicAcls": True,
    "RestrictPublicBuckets": True,
}
_ENCRYPTED = {"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]}
_REGION_HEADER = "x-amz-bucket-region"
_NO_ANSWER = ("SlowDown", "500", "503")  # HEAD has no body with a code
_NO_BLOCK = "NoSuchPublicAccessBlockConfiguration"


@dataclass(frozen=True)
class Bucket:
    """A bucket by name, and its region where the address contains one."""

    name: str
    region: str | None


@dataclass(frozen=True)
class BucketStatus:
    """Whether a bucket is versioned and private; `create` makes both true."""

    versioned: bool
    private: bool


def from_variables(variables: Mapping[str, str]) -> Bucket | None:
    """The bucket in PULUMI_BACKEND_URL, such as s3://my-state/folder?region=eu-west-1; None for other backends."""
    address = urlsplit(variables.get(VARIABLE, ""))
    if address.scheme != "s3" or not address.hostname:
        return None
    return Bucket(address.netloc, parse_qs(address.query).get("region", [None])[0])


def status(aws: Aws, region: str, bucket: Bucket) -> BucketStatus | None:
    """The bucket's status; None where it does not exist. CallError where its settings can't be read."""
    region = bucket.region or region
    versioning = aws.find("s3", region, "get_bucket_versioning", {"NoSuchBucket"}, Bucket=bucket.name)
    if versioning is None:
        return None
    block = aws.find("s3", region, "get_public_access_block", {_NO_BLOCK}, Bucket=bucket.name)
    private = block is not None and all(block["PublicAccessBlockConfiguration"].values())
    return BucketStatus(versioning.get("Status") == "Enabled", private)


def region_of(aws: Aws, region: str, bucket: str) -> str:
    """The region of a bucket; *region*, from which S3 is asked, where the bucket is in another store, without regions.

    S3 names the region in a refusal, too (Amazon S3 API Reference, HeadBucket): who may list one folder of a bucket
    only may not ask for the bucket itself.
    """
    try:
        response = aws.call("s3", region, "head_bucket", Bucket=bucket)
    except CallError as error:
        if (found := error.headers.get(_REGION_HEADER)) is None and error.code in _NO_ANSWER:
            raise  # of a wrong region every address would be refused
        return found or region
    return str(response.get("BucketRegion") or region)


def create(aws: Aws, region: str, bucket: Bucket) -> None:
    """Create the bucket; SpotmpiError where another account owns the name."""
    region = bucket.region or region
    # S3 refuses a location constraint for us-east-1.
    location = {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
    try:
        aws.call("s3", region, "create_bucket", Bucket=bucket.name, **location)
    except CallError as error:
        if error.code == "BucketAlreadyExists":
            remedy = f"bucket names are global, so choose another and set {VARIABLE} to it"
            raise SpotmpiError(f"another AWS account owns bucket {bucket.name}: {remedy}") from error
        if error.code != "BucketAlreadyOwnedByYou":
            raise
    name = bucket.name
    aws.call("s3", region, "put_public_access_block", Bucket=name, PublicAccessBlockConfiguration=PRIVATE)
    aws.call("s3", region, "put_bucket_encryption", Bucket=name, ServerSideEncryptionConfiguration=_ENCRYPTED)
    aws.call("s3", region, "put_bucket_versioning", Bucket=name, VersioningConfiguration={"Status": "Enabled"})
