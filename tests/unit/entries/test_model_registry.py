"""`spotmpi models push` and `pull`: models in a registry of images, in the layout of ModelPack."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import httpcore2
import httpx2
import msgspec
import pytest

import spotmpi
from spotmpi.api import models as api
from spotmpi.core.errors import InputError
from spotmpi.entries import manifest as form
from spotmpi.entries.manifest import MODEL, File, Manifest, Reference, describe
from spotmpi.entries.store import Store
from spotmpi.images.oci import MANIFEST, digest_of, read_image
from tests.command_line import invoke
from tests.unit.entries import registries
from tests.unit.entries.registries import LOGIN, Registry

Open = Callable[..., Registry]
CONTEXT = cache(httpcore2.default_ssl_context)  # each client reads the machine's certificate authorities, for 20 ms
REAL = [
    pytest.mark.nightly("builds the CNCF's registry; by day a double, whose answers these tests compare with it"),
    pytest.mark.tools("registry"),
    pytest.mark.timeout(300),
]


@pytest.fixture(params=["double", pytest.param("real", marks=REAL)])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Starts a registry that asks for a login as it is told."""
    with ExitStack() as stack:
        yield lambda auth="open": stack.enter_context(registries.registry(tmp_path, request.param == "real", auth))


@pytest.fixture(autouse=True)
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Manifest:
    """The model digits:2 in a store, of three files of which two are equal, and a docker without logins."""
    monkeypatch.setattr(httpcore2, "default_ssl_context", CONTEXT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPOTMPI_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("SPOTMPI_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    source = tmp_path / "source"
    source.mkdir()
    contents = {"state.safetensors": b"\0\1" * 3_000_000, "manifest.json": b"{}", "empty": b""}
    for name, content in contents.items():
        (source / name).write_bytes(content)
    sources = {name: source / name for name in contents} | {"more/again.json": source / "manifest.json"}
    files = tuple(describe(path, name) for name, path in sorted(sources.items()))
    details = {"metrics": {"loss": 0.5}}
    first = Manifest(kind=MODEL, name="digits", key="a" * 64, created=1_700_000_000.0, files=(), run="digits-1")
    Store().add(first, {})
    second = Manifest(
        kind=MODEL, name="digits", key="b" * 64, created=1.8e9, files=files, run="digits-2", details=details
    )
    return Store().add(second, {name: str(path) for name, path in sources.items()})


def log_in(host: str, folder: Path, login: str = LOGIN) -> None:
    """What `docker login` writes."""
    (folder / "docker").mkdir(exist_ok=True)
    (folder / "docker" / "config.json").write_text(json.dumps({"auths": {host: {"auth": login}}}))


def failure(*words: str, code: int = 1) -> str:
    """The one line of a command that fails."""
    output = invoke("models", *words)
    assert output.returncode == code and "Traceback" not in output.stderr, output.stderr
    lines = [line for line in output.stderr.splitlines() if not line.startswith(("spotmpi: pull", "spotmpi: push"))]
    assert len(lines) == 1, output.stderr
    return lines[0]


@pytest.mark.parametrize("auth", ["open", "basic", "token"])
def test_a_model_goes_through_a_registry_to_another_store_with_all_that_it_was_made_from(
    opened: Open, model: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, auth: str
) -> None:
    registry = opened(auth)
    log_in(registry.host, tmp_path)
    image = f"{registry.host}/team/digits:best"
    output = invoke("models", "push", "digits:2", image)
    assert output.returncode == 0, output.stderr
    pushed = output.stdout.removeprefix("digits:2 -> ").strip()
    assert pushed.startswith(f"{registry.host}/team/digits@sha256:")
    assert "state.safetensors" in output.stderr and "MB" in output.stderr
    again = invoke("models", "push", "digits:2", image)
    assert again.stdout == output.stdout and again.stderr == ""

    monkeypatch.setenv("SPOTMPI_STORE", str(tmp_path / "other"))
    output = invoke("models", "pull", image, "copy")
    assert output.returncode == 0, output.stderr
    found = Store().find("digits:1", MODEL)
    assert replace_version(found) == replace_version(model) and Store().problems(found) == []
    assert {path.name for path in Path("copy").rglob("*") if path.is_file()} == {
        "state.safetensors",
        "manifest.json",
        "empty",
        "again.json",
    }
    assert invoke("models", "pull", pushed).stdout == f"digits:1  {api.find('digits').path}\n"
    if registry.tokens:
        assert registry.tokens.scopes[0] == ("repository:team/digits:pull", True)
        assert ("repository:team/digits:pull,push", True) in registry.tokens.scopes


def test_the_same_in_python(opened: Open, model: Manifest, tmp_path: Path) -> None:
    registry, said = opened(), list[str]()
    pushed = spotmpi.models.push("digits:2", f"{registry.host}/team/digits:best", echo=said.append)
    assert pushed == invoke("models", "push", "digits:2", pushed.partition("@")[0] + ":best").stdout.split()[-1]
    assert any("pushing state.safetensors, " in each for each in said)
    other = str(tmp_path / "other")
    found = spotmpi.models.pull_to_store(pushed, other, echo=said.append)
    assert (str(found), found.metrics, found.key) == ("digits:1", {"loss": 0.5}, model.key)
    assert any("pulling state.safetensors, " in each for each in said)
    place = spotmpi.models.pull(pushed, store=other)
    assert place == tmp_path / "digits-1" and (place / "state.safetensors").stat().st_size == 6_000_000
    assert spotmpi.models.pull(pushed, tmp_path / "again", str(tmp_path / "third")) == tmp_path / "again"
    assert Store(str(tmp_path / "third")).find("digits:1", MODEL).key == model.key
    with pytest.raises(InputError, match="write REGISTRY/NAME:TAG in lower case"):
        spotmpi.models.push("digits", "digits:3")


def replace_version(manifest: Manifest) -> Manifest:
    """The manifest as it is in any store."""
    return msgspec.structs.replace(manifest, version=0)


def test_a_pull_says_what_its_name_has_already_and_takes_another_name(
    opened: Open, model: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = f"{opened().host}/team/digits:best"
    assert invoke("models", "push", "digits:2", image).returncode == 0
    output = invoke("models", "pull", image)
    assert (output.stdout, output.stderr) == (
        f"digits:2  {api.find('digits').path}\n",
        "spotmpi: digits:2 is that model already\n",
    )
    monkeypatch.setenv("SPOTMPI_STORE", str(tmp_path / "other"))
    mine = msgspec.structs.replace(model, key="c" * 64, files=(), version=0)
    Store().add(mine, {})
    output = invoke("models", "pull", image, "--keep", "theirs")
    assert output.stdout == f"theirs:1  {api.find('theirs').path}\n" and "another" not in output.stderr
    assert replace_version(api.find("theirs").manifest) == replace_version(
        msgspec.structs.replace(model, name="theirs")
    )
    assert Store().problems(api.find("theirs").manifest) == [] and api.find("digits").key == mine.key
    output = invoke("models", "pull", image)
    assert output.stdout.startswith("digits:2  ")
    assert output.stderr.splitlines()[0] == (
        "spotmpi: pulling another model than digits:1, as the next version of that name: "
        "--keep NAME keeps it under another name"
    )
    assert "name = 'NO/': use up to 100 letters" in failure("pull", image, "--keep", "NO/", code=2)
    line = failure("pull", "digits", "--keep", "theirs", code=2)
    assert "--keep = 'theirs': is for models of a registry: digits has its name already; leave it out" in line


def test_an_image_with_other_files_under_a_key_that_the_store_has_is_refused(
    opened: Open, model: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = f"{opened().host}/team/digits:best"
    assert invoke("models", "push", "digits:2", image).returncode == 0
    monkeypatch.setenv("SPOTMPI_STORE", str(tmp_path / "other"))
    Store().add(msgspec.structs.replace(model, files=(), version=0), {})
    line = failure("pull", image)
    assert f"{image} has other files than digits:1, which has the same key: --keep NAME keeps it under another" in line
    assert api.find("digits").manifest.files == ()


def test_other_clients_find_modelpack_with_each_file_as_it_is(opened: Open, model: Manifest) -> None:
    registry = opened()
    digest = invoke("models", "push", "digits", f"{registry.host}/team/digits:2").stdout.strip().rpartition("@")[2]
    url = f"http://{registry.host}/v2/team/digits"
    response = httpx2.get(f"{url}/manifests/2", headers={"Accept": MANIFEST})
    assert response.headers["content-type"] == MANIFEST and digest_of(response.content) == digest
    manifest = response.json()
    assert manifest["artifactType"] == "application/vnd.cncf.model.manifest.v1+json"
    layers = {each["annotations"]["org.cncf.model.filepath"]: each for each in manifest["layers"]}
    assert [*layers] == ["empty", "manifest.json", "more/again.json", "state.safetensors", "spotmpi-model.json"]
    for path, layer in layers.items():
        content = httpx2.get(f"{url}/blobs/{layer['digest']}").content
        assert layer["mediaType"].endswith(".v1.raw") and layer["annotations"]["org.opencontainers.image.title"] == path
        assert (len(content), f"sha256:{hashlib.sha256(content).hexdigest()}") == (layer["size"], layer["digest"])
    config = httpx2.get(f"{url}/blobs/{manifest['config']['digest']}").json()
    assert config == {
        "descriptor": {"name": "digits", "version": "2", "createdAt": "2027-01-15T08:00:00Z"},
        "config": {},
        "modelfs": {"type": "layers", "diffIds": [each["digest"] for each in manifest["layers"]]},
    }


def test_what_a_registry_refuses_or_lacks_is_one_line(opened: Open, tmp_path: Path) -> None:
    registry = opened("basic")
    host = registry.host
    for command in (("push", "digits", f"{host}/team/digits:2"), ("pull", f"{host}/team/digits:2")):
        line = failure(*command)
        assert f"{host} refuses access to team/digits (401)" in line and f"`docker login {host}`" in line
    log_in(host, tmp_path, "YWRhOndyb25n")
    assert "(401)" in failure("push", "digits", f"{host}/team/digits:2")
    log_in(host, tmp_path)
    assert "`spotmpi models push` creates one" in failure("pull", f"{host}/team/digits:2")
    assert invoke("models", "push", "digits", f"{host}/team/digits:2").returncode == 0
    line = failure("pull", f"{host}/team/digits:3")
    assert f"{host} has no team/digits with 3: it has: 2" in line
    absent = f"sha256:{'0' * 64}"
    assert f"has no team/digits with {absent}" in failure("pull", f"{host}/team/digits@{absent}")


def test_damaged_layers_and_manifests_are_never_kept(
    opened: Open, model: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = opened()
    image = f"{registry.host}/team/digits:2"
    assert invoke("models", "push", "digits", image).returncode == 0
    monkeypatch.setenv("SPOTMPI_STORE", str(tmp_path / "other"))
    state = next(file for file in model.files if file.path == "state.safetensors")
    registry.replace(f"sha256:{state.sha256}", b"\0\2" * 3_000_000)
    line = failure("pull", image)
    assert f"{image} is damaged: 6,000,000 bytes with the digest" in line and state.sha256[:12] in line
    registry.replace(f"sha256:{state.sha256}", b"\0\1" * 1000)
    assert "2,000 bytes" in failure("pull", image)
    assert Store().list() == []


def test_a_model_that_is_damaged_in_the_store_is_not_pushed(opened: Open, model: Manifest) -> None:
    registry = opened()
    place = Path(api.find("digits").path, "state.safetensors")
    place.chmod(0o644)
    place.write_bytes(b"rotten")
    line = failure("push", "digits", f"{registry.host}/team/digits:2")
    assert "digits:2 is damaged, state.safetensors: `spotmpi models verify digits:2`" in line
    place.unlink()
    assert failure("push", "digits", f"{registry.host}/team/digits:2") == line
    assert "has no team/digits with 2" in failure("pull", f"{registry.host}/team/digits:2")


def test_an_image_that_spotmpi_has_not_pushed_is_refused(opened: Open) -> None:
    registry = opened()
    url, config = f"http://{registry.host}/v2/team/other", b"{}"
    started = httpx2.post(f"{url}/blobs/uploads/")
    where = started.url.join(started.headers["location"]).copy_merge_params({"digest": digest_of(config)})
    httpx2.put(where, content=config).raise_for_status()
    descriptor = {"mediaType": "application/vnd.oci.empty.v1+json", "digest": digest_of(config), "size": 2}
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": descriptor, "layers": [descriptor]}
    headers = {"Content-Type": MANIFEST}
    httpx2.put(f"{url}/manifests/1", content=json.dumps(manifest), headers=headers).raise_for_status()
    assert "is not a model that `spotmpi models push` has written: pull it with oras" in failure(
        "pull", f"{registry.host}/team/other:1"
    )


def test_a_registry_that_cannot_be_reached_is_one_line_without_waiting() -> None:
    line = failure("pull", "127.0.0.1:1/team/digits:2")
    assert "the registry 127.0.0.1:1 cannot be reached: " in line and "check its name, its port" in line
    assert "the registry absent.invalid cannot be reached: " in failure("push", "digits", "absent.invalid/digits:2")


def test_only_a_registry_on_this_machine_is_used_without_tls() -> None:
    assert {
        host: read_image(f"{host}/a:1").url.partition(":")[0] for host in ("localhost:5000", "127.1.2.3", "[::1]:5")
    } == {
        "localhost:5000": "http",
        "127.1.2.3": "http",
        "[::1]:5": "http",
    }
    assert read_image("10.0.0.1:5000/a:1").url == "https://10.0.0.1:5000/v2/a"
    assert read_image("localhost.example.com/a").url == "https://localhost.example.com/v2/a"


@pytest.mark.parametrize(
    "image", ["team/digits:3", "https://ghcr.io/team/digits:3", "ghcr.io/Team/digits", "ghcr.io/a:b c"]
)
def test_what_is_no_reference_is_refused_before_anything_else(image: str) -> None:
    with pytest.raises(InputError, match="write REGISTRY/NAME:TAG in lower case"):
        read_image(image)
    assert "write REGISTRY/NAME:TAG" in failure("push", "digits", image, code=2)


def test_logins_come_from_the_helper_of_docker_and_a_broken_configuration_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with registries.registry(tmp_path, False, "basic") as registry:
        (tmp_path / "bin").mkdir()
        helper = tmp_path / "bin" / "docker-credential-test"
        helper.write_text(
            f'#!/bin/sh\nread host\n[ "$host" = {registry.host} ] && echo \'{{"Username": "ada", "Secret": "lace"}}\'\n'
        )
        helper.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
        (tmp_path / "docker").mkdir()
        (tmp_path / "docker" / "config.json").write_text('{"credsStore": "test"}')
        assert invoke("models", "push", "digits", f"{registry.host}/team/digits:2").returncode == 0
        wrong = ["{", "[]", "[" * 100_000, '{"auths": []}', '{"credHelpers": "test"}']
        of_host = ("lace", {"auth": 3}, {"auth": "ada:lace"}, {"auth": "bGFjZQ=="})  # the last one has no colon
        wrong += [json.dumps({"auths": {registry.host: each}}) for each in of_host]
        for text in wrong:
            (tmp_path / "docker" / "config.json").write_text(text)
            line = failure("pull", f"{registry.host}/team/digits:2")
            assert "docker/config.json cannot be read: " in line and f"`docker login {registry.host}`" in line
            assert "unexpected" not in line
        (tmp_path / "docker" / "config.json").write_text('{"auths": null, "credHelpers": null, "credsStore": "test"}')
        assert invoke("models", "pull", f"{registry.host}/team/digits:2", "digits-2").returncode == 0


def test_stores_behind_urls_push_and_pull_too(
    opened: Open, model: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = opened()
    remote = Store(f"memory://{tmp_path}/first")
    remote.add(model, {file.path: f"{Store().place(model.reference)}/{file.path}" for file in model.files})
    image = f"{registry.host}/team/digits:2"
    assert invoke("models", "push", "digits", image, "--store", remote.storage.url).returncode == 0
    monkeypatch.setenv("SPOTMPI_STORE", f"memory://{tmp_path}/second")
    assert invoke("models", "pull", image).returncode == 0
    found = Store().find("digits", MODEL)
    assert replace_version(found) == replace_version(model) and Store().problems(found) == []


def test_a_hostile_registry_leads_no_file_out_of_its_folder(model: Manifest, tmp_path: Path) -> None:
    digest = hashlib.sha256(b"evil").hexdigest()
    entry = msgspec.structs.replace(model, key="c" * 64, files=(File("a", 4, digest),))
    values = {key: value for key, value in json.loads(form.write(entry)).items() if key != "digest"}
    for file in ({"sha256": str(tmp_path / "evil")}, {"path": "../../evil"}):
        changed = {**values, "files": [{**values["files"][0], **file}]}
        content = json.dumps({**changed, "digest": form.digest_of(changed)})
        layer = {"digest": digest_of(content.encode()), "size": len(content)}
        layers = [{**layer, "annotations": {"org.cncf.model.filepath": "spotmpi-model.json"}}]
        with registries.hostile_registry(content.encode(), layers) as host:
            failure("pull", f"{host}/team/evil:1")
    assert not [*tmp_path.rglob("*evil*")] and len(Store().list()) == 2


@pytest.mark.parametrize(
    "layers", [None, 1, [1], [{}], [{"annotations": {"org.cncf.model.filepath": "spotmpi-model.json"}}]]
)
def test_a_malformed_image_is_one_line(layers: object) -> None:
    with registries.hostile_registry(b"", layers) as host:
        assert "is not a model that `spotmpi models push` has written" in failure("pull", f"{host}/team/evil:1")


def push_by_hand(registry: Registry, entry: Manifest, **changes: object) -> str:
    """An image with a manifest of the store that `models push` would not write."""
    assert registry.data
    values = msgspec.to_builtins(entry) | changes
    text = json.dumps({**values, "digest": form.digest_of(values)}).encode()
    layer = {"mediaType": "text/plain", "digest": digest_of(text), "size": len(text)}
    layers = [{**layer, "annotations": {"org.cncf.model.filepath": "spotmpi-model.json"}}]
    registry.data.blobs[digest_of(text)] = text
    content = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "layers": layers}).encode()
    registry.data.manifests["team/digits", "evil"] = (MANIFEST, content)
    return f"{registry.host}/team/digits:evil"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"created": 1e300}, r"created = 1e\+300: is not a time in Unix seconds"),
        ({"created": -1.0}, r"created = -1\.0: is not a time in Unix seconds"),
        ({"created": float("nan")}, "created = nan: is not a time in Unix seconds"),
        ({"details": {"metrics": "none"}}, r"details\.metrics = 'none': is not a dict"),
        ({"details": {"spec": 7}}, r"details\.spec = 7: is not a dict"),
        ({"parents": [{"kind": "models", "name": "../x", "key": "c" * 64}]}, r"name = '\.\./x'"),
        ({"parents": [{"kind": "../x", "name": "x", "key": "c" * 64}]}, r"kind = '\.\./x'"),
        ({"parents": [{"kind": "models", "name": "x", "key": "../x"}]}, r"key = '\.\./x'"),
        ({"parents": [{"kind": "models", "name": "digits", "key": "e" * 64}]}, "parents = .* is the entry itself"),
        (
            {"files": [{"path": "a", "bytes": -1, "sha256": "0" * 64}]},
            "files = 'a': has no SHA-256 .* fewer than 0 bytes",
        ),
        ({"files": [{"path": "a", "bytes": 1, "sha256": "../x"}]}, "files = 'a': has no SHA-256 in 64 hex digits"),
    ],
)
def test_a_manifest_that_no_version_writes_is_not_kept_and_breaks_no_list(
    tmp_path: Path, model: Manifest, changes: dict[str, object], message: str
) -> None:
    entry = msgspec.structs.replace(model, key="e" * 64, files=())
    with registries.registry(tmp_path, False) as registry:
        said = failure("pull", push_by_hand(registry, entry, **changes))
    assert re.search(f"the manifest .* is not one that spotmpi writes: {message}", said), said
    assert invoke("models", "list").returncode == 0 and len(Store().list()) == 2


def test_an_edited_manifest_in_a_registry_has_a_remedy_that_a_registry_has(tmp_path: Path, model: Manifest) -> None:
    with registries.registry(tmp_path, False) as registry:
        image = push_by_hand(registry, msgspec.structs.replace(model, files=()))
        assert registry.data
        edited = json.dumps({**msgspec.to_builtins(model), "digest": "0" * 64}).encode()
        kind, content = registry.data.manifests["team/digits", "evil"]
        layer = {**json.loads(content)["layers"][0], "digest": digest_of(edited), "size": len(edited)}
        registry.data.blobs[digest_of(edited)] = edited
        values = {**json.loads(content), "layers": [layer]}
        registry.data.manifests["team/digits", "evil"] = (kind, json.dumps(values).encode())
        said = failure("pull", image)
    assert (
        f"the manifest of {image} was edited or damaged, its digest is not that of its content: push it again" in said
    )


def test_a_model_that_is_larger_than_the_disk_is_refused_before_anything_is_pulled(
    tmp_path: Path, model: Manifest
) -> None:
    entry = msgspec.structs.replace(model, key="e" * 64, files=(File("a", 10**17, "0" * 64),))
    with registries.registry(tmp_path, False) as registry:
        said = failure("pull", push_by_hand(registry, entry))
    assert re.search(
        r"digits cannot be written to .*/store: it has 100,000,000,000,000,000 bytes, and [\d,]+ are free there", said
    ), said


def test_models_that_are_parents_of_each_other_are_one_line(tmp_path: Path) -> None:
    with registries.registry(tmp_path, False) as registry:
        keys = ("e" * 64, "f" * 64)
        for key, other in (keys, keys[::-1]):
            parents = (Reference(MODEL, "cycle", other),)
            entry = Manifest(kind=MODEL, name="cycle", key=key, created=1.0, files=(), parents=parents)
            assert invoke("models", "pull", push_by_hand(registry, entry)).returncode == 0
    assert "was made from itself, according to manifests of the store" in failure("show", "cycle")


def test_a_registry_that_sends_a_manifest_without_end_is_one_line(tmp_path: Path) -> None:
    with registries.registry(tmp_path, False) as registry:
        assert registry.data
        registry.data.manifests["team/digits", "evil"] = (MANIFEST, b" " * (17 << 20))
        said = failure("pull", f"{registry.host}/team/digits:evil")
    assert "sends more than 16 MiB for evil of team/digits: no manifest is that long" in said


@pytest.mark.parametrize("auth", ["basic", "token"])
def test_a_refusal_without_end_is_one_line(tmp_path: Path, auth: str) -> None:
    with registries.registry(tmp_path, False, auth) as registry:
        assert registry.data
        log_in(registry.host, tmp_path)
        assert invoke("models", "push", "digits", f"{registry.host}/team/digits:2").returncode == 0
        registry.data.noise = b" " * (17 << 20)
        said = failure("pull", f"{registry.host}/team/digits:2")
    assert "sends more than 16 MiB for 2 of team/digits" in said


def test_what_a_registry_says_is_one_line_without_control_characters(tmp_path: Path) -> None:
    with registries.registry(tmp_path, False) as registry:
        assert registry.data
        message = "no\n\x1b[2Jspotmpi: all is well"
        image = f"{registry.host}/team/digits:2"
        assert invoke("models", "push", "digits", image).returncode == 0
        registry.data.noise = json.dumps({"errors": [{"message": message}]}).encode()
        registry.data.blobs.clear()
        said = failure("pull", image)
    assert r"no\n\x1b[2Jspotmpi: all is well" in said


@pytest.mark.parametrize("content", [b"[" * 100_000, b"[]", b"7", b"{}"])
def test_lists_and_manifests_that_are_none_are_one_line(tmp_path: Path, content: bytes) -> None:
    with registries.registry(tmp_path, False) as registry:
        assert registry.data
        registry.data.manifests["team/digits", "evil"] = (MANIFEST, content)
        assert "is not a JSON object" in failure("pull", f"{registry.host}/team/digits:evil")


def test_tags_beyond_the_first_page_are_named(tmp_path: Path) -> None:
    with registries.registry(tmp_path, False) as registry:
        assert registry.data
        registry.data.page = 2
        for tag in "12345":
            registry.data.manifests["team/digits", tag] = (MANIFEST, b"{}")
        assert "it has: 1, 2, 3, 4, 5" in failure("pull", f"{registry.host}/team/digits:9")


@pytest.mark.parametrize("auth", ["basic", "token"])
def test_the_storage_behind_a_registry_gets_no_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, auth: str
) -> None:
    with registries.registry(tmp_path, False, auth) as registry, registries.storage_behind(registry) as storage:
        log_in(registry.host, tmp_path)
        assert invoke("models", "push", "digits", f"{registry.host}/team/digits:2").returncode == 0
        monkeypatch.setenv("SPOTMPI_STORE", str(tmp_path / "other"))
        assert invoke("models", "pull", f"{registry.host}/team/digits:2").returncode == 0
    assert storage.logins and set(storage.logins) == {None}


def test_a_login_is_not_sent_to_a_token_service_without_tls(tmp_path: Path) -> None:
    with registries.registry(tmp_path, False, "token") as registry:
        log_in(registry.host, tmp_path)
        assert registry.tokens
        registry.tokens.url = registry.tokens.url.replace("127.0.0.1", "example.invalid")
        assert "(401)" in failure("push", "digits", f"{registry.host}/team/digits:2")
        assert registry.tokens.scopes == []


def test_the_hub_of_docker_has_its_own_names(tmp_path: Path) -> None:
    image = read_image("docker.io/team/digits:3")
    assert (image.url, str(image)) == ("https://registry-1.docker.io/v2/team/digits", "docker.io/team/digits:3")
