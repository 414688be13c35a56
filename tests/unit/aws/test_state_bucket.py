"""The bucket of Pulumi's state: created by `up` after a yes, allowed by `doctor --iam`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import boto3
import pytest
from moto import mock_aws

from spotmpi.aws import state_bucket
from spotmpi.aws.account import Aws
from spotmpi.aws.state_bucket import Bucket, BucketStatus, create, from_variables, status
from spotmpi.core.errors import SpotmpiError
from spotmpi.environments.iam import policy
from spotmpi.environments.up import NotConfirmed, UpOptions, up
from tests.cloud.account.answers import KEY_ID, SECRET
from tests.cloud.account.fake_account import FakeAccount
from tests.cloud.fake_environment import FIRST, FakeEnvironment


@pytest.fixture
def aws() -> Iterator[Aws]:
    """An account whose S3 is moto's."""
    with mock_aws():
        yield Aws(boto3.Session(KEY_ID, SECRET), "us-east-1")


@pytest.mark.parametrize(
    ("address", "named"),
    [
        ("s3://my-state", Bucket("my-state", None)),
        ("s3://my-state/some/folder?region=eu-west-1&awssdk=v2", Bucket("my-state", "eu-west-1")),
        ("file:///tmp/state", None),
        ("https://api.pulumi.com", None),
        ("", None),
    ],
)
def test_the_bucket_is_the_one_in_pulumis_backend_url(address: str, named: Bucket | None) -> None:
    assert from_variables({state_bucket.VARIABLE: address}) == named


@pytest.mark.parametrize("bucket", [Bucket("my-state", None), Bucket("my-state", "eu-west-1")])
def test_a_created_bucket_is_private_encrypted_and_versioned(aws: Aws, bucket: Bucket) -> None:
    assert status(aws, "us-east-1", bucket) is None
    create(aws, "us-east-1", bucket)
    assert status(aws, "us-east-1", bucket) == BucketStatus(versioned=True, private=True)
    s3 = boto3.client("s3", region_name="us-east-1")
    (rule,) = s3.get_bucket_encryption(Bucket="my-state")["ServerSideEncryptionConfiguration"]["Rules"]
    assert rule["ApplyServerSideEncryptionByDefault"] == {"SSEAlgorithm": "AES256"}
    assert s3.get_bucket_location(Bucket="my-state")["LocationConstraint"] == bucket.region
    create(aws, "us-east-1", bucket)


def test_a_bucket_with_s3_defaults_is_neither_private_nor_versioned(aws: Aws) -> None:
    boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="my-state")
    assert status(aws, "us-east-1", Bucket("my-state", None)) == BucketStatus(versioned=False, private=False)


def test_a_bucket_name_of_another_account_is_an_error(account: FakeAccount) -> None:
    account.refuse("CreateBucket", "BucketAlreadyExists")
    with pytest.raises(SpotmpiError, match="another AWS account owns bucket my-state: bucket names are global"):
        create(account, "us-east-1", Bucket("my-state", None))


def up_with_state(lab: FakeEnvironment, address: str = "s3://my-state") -> None:
    """Run `up` with its state at *address*."""
    pulumi = lab.dependencies.pulumi
    pulumi = replace(pulumi, variables={**pulumi.variables, "PULUMI_BACKEND_URL": address})
    up("lab", replace(lab.dependencies, pulumi=pulumi), UpOptions(images=False))


def test_up_creates_the_bucket_after_one_confirmation(lab: FakeEnvironment) -> None:
    up_with_state(lab)
    question = "Create bucket my-state in us-east-1 for Pulumi's state (private, encrypted, versioned)?"
    assert lab.actions[:2] == [question, "Build lab as shown?"]
    assert status(lab.account, "us-east-1", Bucket("my-state", None)) == BucketStatus(True, True)
    lab.actions.clear()
    up_with_state(lab)
    assert lab.actions == []


def test_the_bucket_is_created_in_the_default_region_where_pulumi_looks_for_it(
    lab: FakeEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    up_with_state(lab)
    (request,) = lab.account.requests_of("CreateBucket")
    assert request["CreateBucketConfiguration"] == {"LocationConstraint": "eu-west-1"}
    assert lab.actions[0].startswith("Create bucket my-state in eu-west-1 for")


def test_declining_the_bucket_runs_no_pulumi_command(lab: FakeEnvironment) -> None:
    lab.confirmations = [False]
    with pytest.raises(NotConfirmed, match="create it, or set PULUMI_BACKEND_URL to an existing backend"):
        up_with_state(lab)
    assert lab.pulumi_commands() == [] and lab.account.s3.buckets == {}


def test_another_backend_needs_no_bucket(lab: FakeEnvironment) -> None:
    up_with_state(lab, "file:///tmp/state")
    assert lab.pulumi_commands() == FIRST and lab.account.s3.buckets == {}


def test_a_bucket_with_unreadable_settings_is_used(lab: FakeEnvironment) -> None:
    lab.account.refuse("GetBucketVersioning", "AccessDenied")
    up_with_state(lab)
    assert lab.pulumi_commands() == FIRST and lab.account.s3.buckets == {}
    assert any("can't be read: s3:GetBucketVersioning in us-east-1 is not permitted" in line for line in lab.output)


def test_the_policies_allow_the_use_of_the_state_and_no_more() -> None:
    up_to, run = policy("up", "my-state"), policy("run", "my-state")
    allowed = {each["Sid"]: each for each in up_to["Statement"]}
    assert {"s3:DeleteObject", "s3:GetObject", "s3:PutObject"} == set(allowed["State"]["Action"])
    assert {"s3:CreateBucket", "s3:ListBucket", "s3:PutBucketVersioning"} <= set(allowed["StateBucket"]["Action"])
    resources = {name: allowed[name]["Resource"] for name in ("State", "StateBucket")}
    assert resources == {"State": "arn:aws:s3:::my-state/*", "StateBucket": "arn:aws:s3:::my-state"}
    assert {"ecr:PutImage", "ecr:UploadLayerPart"} <= set(allowed["Push"]["Action"])
    assert allowed["Push"]["Resource"] == "arn:aws:ecr:*:*:repository/spotmpi-*/*"
    assert "s3:PutObject" not in json.dumps(run) and "s3:GetObject" in json.dumps(run)
    assert "arn:aws:s3" not in json.dumps(policy("up"))


def test_the_policy_allows_every_call_that_creates_a_bucket(account: FakeAccount) -> None:
    create(account, "us-east-1", Bucket("my-state", None))
    status(account, "us-east-1", Bucket("my-state", None))

    # IAM's names of these calls (service authorization reference, Amazon S3).
    names = {
        "s3:GetPublicAccessBlock": "s3:GetBucketPublicAccessBlock",
        "s3:PutBucketEncryption": "s3:PutEncryptionConfiguration",
        "s3:PutPublicAccessBlock": "s3:PutBucketPublicAccessBlock",
    }
    (allowed,) = [each["Action"] for each in policy("up", "my-state")["Statement"] if each["Sid"] == "StateBucket"]
    assert {names.get(each, each) for each in account.rights} == set(allowed) - {"s3:ListBucket"}
