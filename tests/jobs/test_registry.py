"""Whether an environment's repository holds an image, asked before anything is created (moto stands in for ECR)."""

from __future__ import annotations

import json
from collections.abc import Iterator

import boto3
import pytest
from botocore.exceptions import EndpointConnectionError
from moto import mock_aws

from jobs.backends import registry
from jobs.errors import InputError
from jobs.images import Build

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


@pytest.mark.usefixtures("ecr")
def test_a_pushed_build_is_pulled_by_its_digest() -> None:
    kind = "application/vnd.docker.distribution.manifest.v2+json"
    manifest = json.dumps({"schemaVersion": 2, "mediaType": kind, "layers": []})
    made = boto3.client("ecr", region_name="eu-west-1").put_image(
        repositoryName="spotmpi-lab/chainermn", imageManifest=manifest, imageTag=BUILD.tag
    )

    pinned = registry.pin(BUILD, REPOSITORY)

    assert pinned == (f"{REPOSITORY}@{made['image']['imageId']['imageDigest']}", None)


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


def test_a_registry_out_of_reach_leaves_it_to_the_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*arguments: object, **more: object) -> object:
        raise EndpointConnectionError(endpoint_url="https://ecr")

    monkeypatch.setattr(boto3, "client", unreachable)
    pinned = registry.pin(BUILD, REPOSITORY)
    assert pinned.reference == f"{REPOSITORY}:{BUILD.tag}"
    assert pinned.note and "Could not connect" in pinned.note and "\n" not in pinned.note


def test_other_registries_are_not_asked() -> None:
    assert registry.pin(BUILD, "registry.example/chainermn") == (f"registry.example/chainermn:{BUILD.tag}", None)
