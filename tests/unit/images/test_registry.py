"""What an image repository holds, asked before anything is created (moto stands in for ECR)."""

from __future__ import annotations

import json
from collections.abc import Iterator

import boto3
import pytest
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


def pushed(tag: str) -> str:
    """The digest of an image that the repository has from now on."""
    kind = "application/vnd.docker.distribution.manifest.v2+json"
    manifest = json.dumps({"schemaVersion": 2, "mediaType": kind, "layers": []})
    made = boto3.client("ecr", region_name="eu-west-1").put_image(
        repositoryName="spotmpi-lab/chainermn", imageManifest=manifest, imageTag=tag
    )
    return str(made["image"]["imageId"]["imageDigest"])


@pytest.mark.usefixtures("ecr")
def test_a_pushed_build_is_pulled_by_its_digest() -> None:
    digest = pushed(BUILD.tag)
    assert registry.pin(BUILD, REPOSITORY) == (f"{REPOSITORY}@{digest}", None)


@pytest.mark.usefixtures("ecr")
def test_a_build_that_was_never_pushed_is_refused_with_the_line_that_pushes_it() -> None:
    with pytest.raises(InputError) as refused:
        registry.pin(BUILD, REPOSITORY)
    words = f"image = 'chainermn': this build of it is not in {REPOSITORY}: push it with "
    assert str(refused.value) == words + "`spotmpi image push chainermn --on STACK`"


@pytest.mark.usefixtures("ecr")
def test_a_registry_that_does_not_tell_leaves_it_to_the_pods() -> None:
    pinned = registry.pin(BUILD, REPOSITORY.replace("chainermn", "nowhere"))
    assert pinned.reference.endswith(f"/nowhere:{BUILD.tag}")
    assert pinned.note and "could not be asked" in pinned.note and "nowhere" in pinned.note


@pytest.fixture
def out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """AWS cannot be reached."""

    def unreachable(*arguments: object, **more: object) -> object:
        raise EndpointConnectionError(endpoint_url="https://ecr")

    monkeypatch.setattr(boto3, "client", unreachable)


@pytest.mark.usefixtures("out_of_reach")
def test_a_registry_out_of_reach_leaves_it_to_the_pods() -> None:
    pinned = registry.pin(BUILD, REPOSITORY)
    assert pinned.reference == f"{REPOSITORY}:{BUILD.tag}"
    assert pinned.note and "Could not connect" in pinned.note and "\n" not in pinned.note
    named = registry.pin_named(f"{REPOSITORY}:mine")
    assert named.reference == f"{REPOSITORY}:mine"
    assert named.note and "the digest of kubernetes.image could not be asked (Could not connect" in named.note


@pytest.mark.usefixtures("ecr")
@pytest.mark.parametrize(("tag", "reference"), [("mine", f"{REPOSITORY}:mine"), ("latest", REPOSITORY)])
def test_an_image_that_is_named_by_a_tag_is_pulled_by_the_digest_of_now(tag: str, reference: str) -> None:
    digest = pushed(tag)
    assert registry.pin_named(reference) == (f"{REPOSITORY}@{digest}", None)


@pytest.mark.usefixtures("ecr")
def test_a_named_image_that_is_not_there_may_still_come_from_elsewhere() -> None:
    words = "kubernetes.image is not in its repository, unless that gets it from elsewhere"
    assert registry.pin_named(f"{REPOSITORY}:mine") == (f"{REPOSITORY}:mine", words)


@pytest.mark.usefixtures("out_of_reach")
@pytest.mark.parametrize(
    "reference",
    [f"{REPOSITORY}@sha256:{'0' * 64}", f"{REPOSITORY}:mine@sha256:{'0' * 64}", "localhost:5000/image", "image:mine"],
)
def test_nobody_is_asked_about_a_digest_or_another_registry(reference: str) -> None:
    assert registry.pin_named(reference) == (reference, None)
    assert registry.pin(BUILD, "registry.example/chainermn") == (f"registry.example/chainermn:{BUILD.tag}", None)
