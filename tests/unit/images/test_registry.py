"""Images are looked up in their repository before anything is created (moto stands in for ECR)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import boto3
import pytest
from botocore.client import BaseClient
from botocore.exceptions import EndpointConnectionError
from moto import mock_aws

from spotmpi.core.errors import InputError
from spotmpi.images import registry
from spotmpi.images.build import Build

REPOSITORY = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/spotmpi-lab/chainermn"
BUILD = Build("chainermn")


@pytest.fixture
def ecr(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An account with an empty repository."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        boto3.client("ecr", region_name="eu-west-1").create_repository(repositoryName="spotmpi-lab/chainermn")
        yield


def push_manifest(tag: str) -> str:
    """Push an image to the repository; its digest."""
    kind = "application/vnd.docker.distribution.manifest.v2+json"
    manifest = json.dumps({"schemaVersion": 2, "mediaType": kind, "layers": []})
    answer = boto3.client("ecr", region_name="eu-west-1").put_image(
        repositoryName="spotmpi-lab/chainermn", imageManifest=manifest, imageTag=tag
    )
    return str(answer["image"]["imageId"]["imageDigest"])


@pytest.mark.usefixtures("ecr")
def test_a_pushed_build_is_pulled_by_its_digest() -> None:
    digest = push_manifest(BUILD.tag)
    assert registry.pin(BUILD, REPOSITORY) == (f"{REPOSITORY}@{digest}", None)


@pytest.mark.usefixtures("ecr")
def test_a_build_that_was_never_pushed_is_refused_with_the_line_that_pushes_it() -> None:
    with pytest.raises(InputError) as refused:
        registry.pin(BUILD, REPOSITORY)
    words = f"image = 'chainermn': this build is not in {REPOSITORY}: push it with "
    assert str(refused.value) == words + "`spotmpi image push chainermn --on STACK`"


@pytest.mark.usefixtures("ecr")
def test_a_registry_that_refuses_to_answer_leaves_it_to_the_pods() -> None:
    pinned = registry.pin(BUILD, REPOSITORY.replace("chainermn", "nowhere"))
    assert pinned.reference.endswith(f"/nowhere:{BUILD.tag}")
    assert re.search("could not check that the image is in its repository.*nowhere", pinned.note or "")


@pytest.fixture
def unreachable_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    """AWS cannot be reached."""

    def unreachable(*arguments: object, **more: object) -> object:
        raise EndpointConnectionError(endpoint_url="https://ecr")

    monkeypatch.setattr(BaseClient, "_make_api_call", unreachable)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")


@pytest.mark.usefixtures("unreachable_aws")
def test_an_unreachable_registry_leaves_it_to_the_pods() -> None:
    pinned = registry.pin(BUILD, REPOSITORY)
    assert pinned.reference == f"{REPOSITORY}:{BUILD.tag}"
    assert pinned.note and "no answer from eu-west-1" in pinned.note and "\n" not in pinned.note
    named = registry.pin_named(f"{REPOSITORY}:mine")
    assert named.reference == f"{REPOSITORY}:mine"
    assert named.note and "could not get the digest of kubernetes.image (ecr:DescribeImages: no answer" in named.note


@pytest.mark.usefixtures("ecr")
@pytest.mark.parametrize(("tag", "reference"), [("mine", f"{REPOSITORY}:mine"), ("latest", REPOSITORY)])
def test_an_image_that_is_named_by_a_tag_is_pulled_by_its_current_digest(tag: str, reference: str) -> None:
    digest = push_manifest(tag)
    assert registry.pin_named(reference) == (f"{REPOSITORY}@{digest}", None)


@pytest.mark.usefixtures("ecr")
def test_a_missing_named_image_may_still_come_through_a_cache() -> None:
    words = "kubernetes.image is not in its repository, unless a pull-through cache fetches it"
    assert registry.pin_named(f"{REPOSITORY}:mine") == (f"{REPOSITORY}:mine", words)


@pytest.mark.usefixtures("unreachable_aws")
@pytest.mark.parametrize(
    "reference",
    [f"{REPOSITORY}@sha256:{'0' * 64}", f"{REPOSITORY}:mine@sha256:{'0' * 64}", "localhost:5000/image", "image:mine"],
)
def test_a_digest_or_another_registry_needs_no_lookup(reference: str) -> None:
    assert registry.pin_named(reference) == (reference, None)
    assert registry.pin(BUILD, "registry.example/chainermn") == (f"registry.example/chainermn:{BUILD.tag}", None)
