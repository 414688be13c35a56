"""Registries that are busy, break connections or refuse for good, and what a pull leaves where it fails."""

from __future__ import annotations

import json
import re
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from spotmpi.api import models as api
from spotmpi.api.model_registry import ENTRY_FILE
from spotmpi.core.errors import SpotmpiError
from spotmpi.entries.manifest import MODEL, Manifest, describe
from spotmpi.entries.storage import Storage
from spotmpi.entries.store import Store
from spotmpi.images import oci
from spotmpi.images.oci import INDEX, MANIFEST, digest_of
from spotmpi.streams import storage
from tests.command_line import invoke
from tests.unit.entries import registries
from tests.unit.entries.registries import Double, Registry
from tests.unit.entries.test_model_registry import failure


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """A registry to which the only model of a store was pushed, as team/digits:1; what was pulled goes to another."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(storage, "PAUSES", (0.0, 0.0))
    monkeypatch.setenv("SPOTMPI_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("SPOTMPI_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    Path("state").write_bytes(b"\0\1" * 500_000)
    files = (describe(Path("state"), "again/state"), describe(Path("state"), "state"))
    entry = Manifest(kind=MODEL, name="digits", key="a" * 64, created=1.8e9, files=files)
    Store().add(entry, {file.path: str(tmp_path / "state") for file in files})
    with registries.registry(tmp_path, False) as found:
        api.push("digits", f"{found.host}/team/digits:1")
        yield found


def contents(registry: Registry) -> Double:
    """What the registry has."""
    assert registry.data
    return registry.data


def test_a_registry_that_is_silent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    said, texts = threading.Event(), list[str]()

    def print_message(text: str) -> None:
        texts.append(text)
        said.set()

    def answer(method: str, url: str) -> httpx2.Response:
        assert said.wait(60)
        return httpx2.Response(404)

    monkeypatch.setattr(oci, "LONG_QUIET", 0.01)
    monkeypatch.setattr(oci, "print_message", print_message)
    with oci.Repository(oci.read_image("ghcr.io/team/digits:1")) as repository:
        monkeypatch.setattr(repository._client, "request", answer)
        assert not repository.has_blob(digest_of(b"x"))
    assert re.fullmatch(r"waiting for the registry ghcr\.io, for \d+ s \(gives up after 60 s of silence\)", texts[0])


@pytest.mark.parametrize("status", [0, 429, 500, 503])
def test_a_registry_that_is_busy_or_breaks_the_connection_is_asked_again(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    data, image = contents(registry), f"{registry.host}/team/digits:1"
    data.blobs.clear()
    data.manifests.clear()
    data.faults += [(each, status) for each in ("HEAD", "POST", "PUT")]
    api.push("digits", image)
    monkeypatch.setenv("SPOTMPI_STORE", "other")
    data.faults += [("GET", status)] * 2
    assert Store().problems(api.pull_to_store(image).manifest) == [] and data.faults == []


@pytest.mark.parametrize(
    ("status", "message"),
    [(0, "the connection to the registry {} broke: "), (429, "{} has answered 429 for team/digits (1): ")],
)
def test_one_that_stays_so_is_one_line(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, status: int, message: str
) -> None:
    monkeypatch.setenv("SPOTMPI_STORE", "other")
    contents(registry).faults += [("GET", status)] * 3
    line = failure("pull", f"{registry.host}/team/digits:1")
    assert message.format(registry.host) in line and line.endswith("try again" + " later" * bool(status))
    assert contents(registry).faults == []


def test_a_log_of_keys_that_cannot_be_written_is_named_by_its_variable(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was an unexpected FileNotFoundError."""
    monkeypatch.setenv("SSLKEYLOGFILE", "absent/keys")
    line = failure("pull", f"{registry.host}/team/digits:1")
    assert line.startswith(
        "spotmpi: SSLKEYLOGFILE = 'absent/keys' cannot be written (No such file or directory): unset"
    )


@pytest.mark.parametrize("status", [400, 409, 413])
def test_a_refusal_for_good_is_not_tried_again_and_names_no_address_of_an_upload(
    registry: Registry, status: int
) -> None:
    data = contents(registry)
    data.blobs.clear()
    data.faults += [("PUT", status)]
    line = failure("push", "digits", f"{registry.host}/team/digits:1")
    assert data.faults == [] and re.search(rf"has answered {status} for team/digits \(sha256:[0-9a-f]{{12}}\): ", line)
    assert "_state" not in line and "check that this is a registry, what it permits, and that this tag" in line


@pytest.mark.parametrize("kind", [INDEX, "application/vnd.docker.distribution.manifest.v2+json"])
def test_an_image_for_several_platforms_or_of_docker_is_no_model(registry: Registry, kind: str) -> None:
    content = json.dumps({"schemaVersion": 2, "mediaType": kind, "manifests": []}).encode()
    contents(registry).manifests["team/base", "1"] = (kind, content)
    image = f"{registry.host}/team/base:1"
    assert f"{image} is not a model that `spotmpi models push` has written" in failure("pull", image)


def test_a_model_is_not_pushed_by_a_digest(registry: Registry) -> None:
    contents(registry).blobs.clear()
    line = failure("push", "digits", f"{registry.host}/team/digits@sha256:{'0' * 64}", code=2)
    assert "has a digest, which is that of what it names: give REGISTRY/NAME:TAG" in line
    assert contents(registry).blobs == {}


def test_a_model_with_a_file_of_the_name_that_a_push_gives_to_the_manifest_is_not_pushed(registry: Registry) -> None:
    """It could be pushed and not be pulled: its own file was taken for the manifest."""
    entry = Manifest(kind=MODEL, name="odd", key="b" * 64, created=1.0, files=(describe(Path("state"), ENTRY_FILE),))
    Store().add(entry, {ENTRY_FILE: str(Path("state").absolute())})
    line = failure("push", "odd", f"{registry.host}/team/odd:1", code=2)
    assert "model = 'odd:1': has a file spotmpi-model.json, as a push writes one: keep its other files" in line
    assert ("team/odd", "1") not in contents(registry).manifests


@pytest.mark.parametrize("place", ["http://[::bad", "ftp://a/b", f"http://{'a' * 70}.example/b"])
def test_an_address_that_is_none_is_one_line(registry: Registry, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    contents(registry).blobs.clear()
    monkeypatch.setattr(registries, "upload_place", lambda *names: place)
    line = failure("push", "digits", f"{registry.host}/team/digits:1")
    assert f"the registry {registry.host} does not answer as one: " in line


def test_files_are_pulled_to_the_disk_of_the_store_and_nothing_is_left_of_a_pull_that_fails(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPOTMPI_STORE", str(tmp_path / "other"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    image, data = f"{registry.host}/team/digits:1", contents(registry)
    state = digest_of((tmp_path / "state").read_bytes())
    good, data.blobs[state] = data.blobs[state], b"rotten"
    assert "is damaged: 6 bytes" in failure("pull", image)
    assert Store().list() == [] and sorted((tmp_path / "other").rglob("*")) == [
        tmp_path / "other/.gitignore",
        tmp_path / "other/models",
    ]
    data.blobs[state] = good
    found = Path(api.pull_to_store(image).path)
    assert [path.stat().st_mode & 0o777 for path in (found / "state", found / "again/state")] == [0o444, 0o444]


def test_a_pull_after_one_that_found_a_full_disk_is_not_called_one_of_another_model(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its number is taken before it is complete."""
    monkeypatch.setenv("SPOTMPI_STORE", str(tmp_path / "other"))
    image = f"{registry.host}/team/digits:1"

    def full(*arguments: object) -> bool:
        raise SpotmpiError("No space left on device")

    with monkeypatch.context() as context:
        context.setattr(Storage, "create", full)
        assert "No space left" in failure("pull", image)
    assert Store().versions("models", "digits").numbers() == [1] and Store().list() == []
    output = invoke("models", "pull", image)
    assert output.stdout.startswith("digits:1  ") and "another model" not in output.stderr


def test_a_store_that_cannot_be_written_is_said_before_anything_is_pulled(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTMPI_STORE", "/proc/store")
    output = invoke("models", "pull", f"{registry.host}/team/digits:1")
    assert output.returncode == 1 and "pulling" not in output.stderr
    assert "/proc/store/.gitignore cannot be written" in output.stderr


def test_a_model_that_the_store_has_is_read_though_that_cannot_be_written(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Store, "room_for", None)
    assert api.pull_to_store(f"{registry.host}/team/digits:1").key == "a" * 64


def test_a_manifest_is_what_a_registry_says_that_it_is(registry: Registry) -> None:
    kind, content = contents(registry).manifests["team/digits", "1"]
    assert kind == MANIFEST == json.loads(content)["mediaType"]
