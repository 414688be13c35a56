"""`spotmpi image` builds what changed, logs in where it must, and gives a reference by digest."""

from __future__ import annotations

import compileall
import os
import re
import shutil
from pathlib import Path

import pytest
from botocore.client import BaseClient
from botocore.exceptions import ClientError
from moto import mock_aws

from spotmpi.api.images import build_image, push_image
from spotmpi.core import names
from spotmpi.core.errors import InputError, SpotmpiError
from spotmpi.images import build
from spotmpi.images.build import Build

DIGEST, OTHER = "sha256:" + "ab" * 32, "sha256:" + "cd" * 32
ECR = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/spotmpi/chainermn"


@pytest.fixture
def builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A buildah and a docker on PATH that log their arguments and input, and can inspect what they have built.

    A push prints what theirs does where nobody looks: buildah 1.28 the digests of a layer and of the configuration.
    """
    log = tmp_path / "log"
    pushes = {
        "buildah": f"""test "$2" != --digestfile || printf {DIGEST} > "$3"
    printf 'Copying blob {OTHER}\\nCopying config {OTHER}\\nWriting manifest to image destination\\n' >&2""",
        "docker": f"printf '5f70bf18a086: Pushed\\n1: digest: {DIGEST} size: 528\\n'",
    }
    (tmp_path / "bin").mkdir()
    for tool, push in pushes.items():
        script = tmp_path / "bin" / tool
        script.write_text(
            f"""#!/bin/sh
echo "$@" >> {log}
case "$1" in
  inspect) test -f {tmp_path}/built ;;
  build) touch {tmp_path}/built; test ! -f {tmp_path}/broken ;;
  login) echo "password: $(cat)" >> {log} ;;
  push) {push} ;;
esac
"""
        )
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    return log


def test_an_image_is_built_once_and_named_by_its_content(builder: Path) -> None:
    first = build_image("chainermn", ["BASE_IMAGE=debian"], "buildah")
    second = build_image("chainermn", ["BASE_IMAGE=debian"], "buildah")
    assert first == second == f"localhost/spotmpi-chainermn:{Build('chainermn', (('BASE_IMAGE', 'debian'),)).tag}"
    calls = [line.split()[0] for line in builder.read_text().splitlines()]
    assert calls == ["inspect", "build", "inspect"]
    builds = [Build("chainermn"), Build("chainermn", (("BASE_IMAGE", "debian"),)), Build("pytorch"), Build("pytorch")]
    assert len({build.tag for build in builds}) == 3


@pytest.mark.parametrize("image", ["chainermn", "pytorch"])
def test_an_image_is_the_same_where_an_installer_has_compiled_its_modules(
    image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pip and pipx do with all modules of a wheel; uv and a checkout do not."""
    before = Build(image).tag
    images = tmp_path / "images"
    shutil.copytree(names.IMAGES, images)
    assert compileall.compile_dir(images, quiet=1, workers=1)
    assert next(images.rglob("__pycache__"))
    monkeypatch.setattr(names, "IMAGES", images)
    assert Build(image).tag == before
    dockerfile = Build(image).dockerfile.read_text().replace("${REQUIREMENTS}", names.LOCK)
    copied = [path for line in re.findall(r"(?m)^COPY (.+) \S+$", dockerfile) for path in line.split()]
    assert copied
    for pattern in copied:
        assert [path for path in images.glob(pattern) if path.is_file()] == list(images.glob(pattern)) != [], pattern


def test_machines_without_gpus_get_a_build_without_cuda(builder: Path) -> None:
    plain = build_image("chainermn", tool="buildah", cpu=True)
    calls = builder.read_text()
    assert "--build-arg BASE_IMAGE=docker.io/library/debian:bookworm" in calls
    assert "--build-arg REQUIREMENTS=requirements.lock" in calls
    assert plain != build_image("chainermn", tool="buildah")
    own = Build("chainermn", (("BASE_IMAGE", "mine"), ("REQUIREMENTS", "requirements.lock")))
    assert build_image("chainermn", ["BASE_IMAGE=mine"], "buildah", cpu=True) == own.local_reference


def test_a_push_gives_the_digest_and_to_ecr_logs_in_with_the_password_on_stdin(
    builder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push_image("chainermn", "registry.example/team/chainermn", tool="buildah")
    assert "login" not in builder.read_text()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        assert push_image("chainermn", ECR, tool="buildah") == f"{ECR}@{DIGEST}"
    calls = builder.read_text()
    assert "\nlogin --username AWS --password-stdin 123456789012.dkr.ecr.eu-west-1.amazonaws.com\n" in calls
    assert "password: 123456789012-auth-token" in calls
    assert calls.rstrip().endswith(f"{ECR}:{Build('chainermn').tag}")


@pytest.mark.parametrize("tool", ["buildah", "docker"])
def test_the_digest_is_that_of_the_image_and_not_one_of_its_parts(builder: Path, tool: str) -> None:
    """Pods could not pull the reference that a push with buildah gave: it had the digest of the configuration."""
    repository = "registry.example:5000/team/chainermn"
    assert push_image("chainermn", repository, tool=tool) == f"{repository}@{DIGEST}"


@pytest.mark.parametrize(
    "repository",
    ["", "https://registry.example/chainermn", "registry.example/chainermn:1", f"chainermn@{DIGEST}", "r.example/Team"],
)
def test_a_repository_that_no_builder_takes_is_refused_before_the_build(builder: Path, repository: str) -> None:
    with pytest.raises(InputError, match=r"= '.*': name a repository alone, such as registry\.example:5000/"):
        push_image("chainermn", repository, tool="buildah")
    assert not builder.exists()


@pytest.mark.parametrize("repository", ["chainermn", "localhost:5000/a/b__c", "[::1]:5000/a", "R.example/x-y.z", ECR])
def test_repositories_may_have_hosts_with_ports(repository: str) -> None:
    build.require_repository(repository)


def test_a_build_argument_that_the_dockerfile_does_not_have_is_refused(builder: Path) -> None:
    """Builders ignore it, and build the default under another tag."""
    with pytest.raises(InputError, match="'BASE': its Dockerfile has no such ARG; use one of: BASE_IMAGE"):
        build_image("chainermn", ["BASE=debian"], "buildah")
    assert not builder.exists()
    build_image("chainermn", ["PIP_CERT=x", "https_proxy=http://proxy"], "buildah")


def test_a_push_with_expired_credentials_says_to_log_in_again(builder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def expired(client: object, operation: str, *_more: object) -> object:
        raise ClientError({"Error": {"Code": "ExpiredTokenException", "Message": "expired"}}, operation)

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setattr(BaseClient, "_make_api_call", expired)
    with pytest.raises(SpotmpiError, match=r"could not get a login for .*credentials have expired: log in again"):
        push_image("chainermn", ECR, tool="buildah")
    assert "push" not in builder.read_text()


def test_wrong_input_names_the_remedy_where_no_builder_is_installed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(InputError, match="image = 'nosuch': use one of: chainermn, pytorch"):
        build_image("nosuch")
    with pytest.raises(InputError, match="write it as NAME=VALUE"):
        build_image("chainermn", ["BASE_IMAGE"])
    with pytest.raises(InputError, match="name a repository, or with on an environment"):
        push_image("chainermn")


def test_a_builder_that_fails_or_is_missing_is_an_error(builder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (builder.parent / "broken").touch()
    with pytest.raises(SpotmpiError, match="buildah could not build chainermn"):
        build_image("chainermn", tool="buildah")
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SpotmpiError, match="buildah, podman or docker not found on PATH"):
        build_image("chainermn")
    with pytest.raises(InputError, match="use one of: buildah, podman, docker"):
        build_image("chainermn", tool="kaniko")


def test_every_image_has_the_python_that_pools_compare_with_the_drivers() -> None:
    for image in ("chainermn", "pytorch"):
        assert f"venv --quiet --python {build.PYTHON} " in build.Build(image).dockerfile.read_text()
