"""Models in registries are signed and verified in cosign's format; see the module `spotmpi.images.signatures`."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from spotmpi.core.errors import SpotmpiError
from spotmpi.entries.manifest import Manifest
from spotmpi.entries.store import Store
from spotmpi.images import signatures
from spotmpi.images.oci import INDEX, MANIFEST, Repository, digest_of, read_image
from tests.command_line import invoke
from tests.tools import bin_folder
from tests.unit.entries import registries
from tests.unit.entries.test_model_registry import Open, failure, log_in, model, opened

__all__ = ["model", "opened"]  # fixtures
Key = ec.EllipticCurvePrivateKey
BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
SIGNATURE = "dev.cosignproject.cosign/signature"


# What `cosign generate-key-pair` and `cosign sign --tlog-upload=false` of 2.4.3 have written for an artifact in the
# registry of the CNCF 3.1.2, where its `cosign verify` takes what `models push --sign-key` writes, too.
COSIGN_KEY = b"""-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEbeIqEA76snVHzHuwWvwnQxGRCEzl
oZ0fmTU295MS7gFmK6aV/d8hdjQBksRRNakJlwS9n6gf1LWS/Atzg8hTiA==
-----END PUBLIC KEY-----
"""
COSIGN_SIGNED = "sha256:cfdfeba4b35db232d9a818ed4aa28bb3585fd6f4f5d380886e02dd89e3db149b"
COSIGN_PAYLOAD = (
    b'{"critical":{"identity":{"docker-reference":"localhost:5055/vector/a"},"image":{"docker-manifest-digest":"'
    b'sha256:cfdfeba4b35db232d9a818ed4aa28bb3585fd6f4f5d380886e02dd89e3db149b"},'
    b'"type":"cosign container image signature"},"optional":null}'
)
COSIGN_SIGNATURE = "MEQCIB+pOxSIwg1JAwbxXNDf/IL+ls41qBbdRBTJfnq5V/VDAiBq9nF6SFqoWGHtust5xvXAZJKWQSPJInBy9o2K8Jx2NA=="


@pytest.fixture
def key(tmp_path: Path) -> Key:
    """A key pair as `cosign generate-key-pair` names it, its private key without a password."""
    return pair(tmp_path / "cosign")


def pair(stem: Path) -> Key:
    key = ec.generate_private_key(ec.SECP256R1())
    stem.with_suffix(".key").write_bytes(private(key))
    stem.with_suffix(".pub").write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return key


def private(key: Any, password: bytes = b"") -> bytes:
    encryption = BestAvailableEncryption(password) if password else NoEncryption()
    return bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))


def payload_of(digest: str) -> bytes:
    """What cosign 2 signs."""
    critical = {
        "identity": {"docker-reference": "index.docker.io/team/other"},  # which is ignored
        "image": {"docker-manifest-digest": digest},
        "type": "cosign container image signature",
    }
    return json.dumps({"critical": critical, "optional": {"by": "ada"}}).encode()


def attach(url: str, digest: str, payload: bytes, signature: bytes) -> None:
    """Store a signature as cosign does, by requests of this test's own."""
    config = json.dumps({"rootfs": {"type": "layers", "diff_ids": [digest_of(payload)]}}).encode()
    for content in (payload, config):
        upload(url, content)
    described = {"digest": digest_of(config), "size": len(config)}
    layer = {"digest": digest_of(payload), "size": len(payload)}
    annotations = {SIGNATURE: base64.b64encode(signature).decode(), "dev.sigstore.cosign/certificate": ""}
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", **described},
        "layers": [
            {"mediaType": "application/vnd.dev.cosign.simplesigning.v1+json", **layer, "annotations": annotations}
        ],
    }
    put(url, digest, manifest)


def upload(url: str, content: bytes) -> None:
    started = httpx2.post(f"{url}/blobs/uploads/")
    where = started.url.join(started.headers["location"]).copy_merge_params({"digest": digest_of(content)})
    httpx2.put(where, content=content).raise_for_status()


def put(url: str, digest: str, manifest: object) -> None:
    tag, headers = digest.replace(":", "-") + ".sig", {"Content-Type": MANIFEST}
    httpx2.put(f"{url}/manifests/{tag}", content=json.dumps(manifest), headers=headers).raise_for_status()


def bundle(key: Key, digest: str, **changes: Any) -> bytes:
    """What `cosign sign --key` of version 3 makes."""
    subject = [{"digest": {"sha256": digest.partition(":")[2]}}]
    predicate = {"predicateType": "https://sigstore.dev/cosign/sign/v1", "predicate": {}}
    statement = {"_type": "https://in-toto.io/Statement/v1", "subject": subject, **predicate, **changes}
    kind, body = "application/vnd.in-toto+json", json.dumps(statement).encode()
    encoded = f"DSSEv1 {len(kind)} {kind} {len(body)} ".encode() + body
    sig = base64.b64encode(key.sign(encoded, ec.ECDSA(hashes.SHA256()))).decode()
    envelope = {"payload": base64.b64encode(body).decode(), "payloadType": kind, "signatures": [{"sig": sig}]}
    material = {"publicKey": {"hint": "x"}}
    return json.dumps({"mediaType": BUNDLE, "verificationMaterial": material, "dsseEnvelope": envelope}).encode()


def refer(url: str, digest: str, contents: Sequence[bytes], listed: str = BUNDLE) -> None:
    """Let manifests with these bundles refer to a digest, by the field for it and by the tag for registries without.

    That has the type *listed* of each: go-containerregistry, by which cosign writes it, took that of the configuration
    in version 0.20.3 (`commitManifest` in ``pkg/v1/remote/write.go``), and takes the `artifactType` in 0.21.7.
    """
    described = []
    for content in contents:
        for blob in (content, b"{}"):
            upload(url, blob)
        layer = {"mediaType": BUNDLE, "digest": digest_of(content), "size": len(content)}
        config = {"mediaType": "application/vnd.oci.empty.v1+json", "digest": digest_of(b"{}"), "size": 2}
        subject = {"mediaType": MANIFEST, "digest": digest, "size": 1}
        values = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": BUNDLE,
            "config": config,
            "layers": [layer],
        }
        text = json.dumps({**values, "subject": subject}).encode()
        headers = {"Content-Type": MANIFEST}
        httpx2.put(f"{url}/manifests/{digest_of(text)}", content=text, headers=headers).raise_for_status()
        described.append({"mediaType": MANIFEST, "digest": digest_of(text), "size": len(text), "artifactType": listed})
    index = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": described})
    tag, headers = digest.replace(":", "-"), {"Content-Type": INDEX}
    httpx2.put(f"{url}/manifests/{tag}", content=index, headers=headers).raise_for_status()


def signed(url: str, digest: str) -> list[dict[str, Any]]:
    """The layers of the signatures of a digest."""
    tag = digest.replace(":", "-") + ".sig"
    found = httpx2.get(f"{url}/manifests/{tag}", headers={"Accept": MANIFEST}).raise_for_status().json()
    assert (found["schemaVersion"], found["mediaType"]) == (2, MANIFEST)
    config = httpx2.get(f"{url}/blobs/{found['config']['digest']}").raise_for_status().json()
    assert config["rootfs"]["diff_ids"] == [each["digest"] for each in found["layers"]]
    return list(found["layers"])


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Goes on with an empty store, as on another machine."""
    return lambda: monkeypatch.setenv("SPOTMPI_STORE", str(tmp_path / "other"))


@pytest.mark.usefixtures("model")
def test_a_push_with_a_key_signs_the_digest_once_in_the_format_of_cosign(
    opened: Open, key: Key, tmp_path: Path
) -> None:
    registry = opened()
    url, image = f"http://{registry.host}/v2/team/digits", f"{registry.host}/team/digits:2"
    for _ in range(2):
        output = invoke("models", "push", "digits:2", image, "--sign-key", "cosign.key")
        assert output.returncode == 0, output.stderr
    digest = output.stdout.strip().rpartition("@")[2]
    (layer,) = signed(url, digest)
    assert layer["mediaType"] == "application/vnd.dev.cosign.simplesigning.v1+json"
    payload = httpx2.get(f"{url}/blobs/{layer['digest']}").content
    assert (len(payload), digest_of(payload)) == (layer["size"], layer["digest"])
    assert json.loads(payload) == {
        "critical": {
            "identity": {"docker-reference": f"{registry.host}/team/digits"},
            "image": {"docker-manifest-digest": digest},
            "type": "cosign container image signature",
        },
        "optional": None,
    }
    signature = base64.b64decode(layer["annotations"][SIGNATURE])
    key.public_key().verify(signature, payload, ec.ECDSA(hashes.SHA256()))
    pair(tmp_path / "second")
    assert invoke("models", "push", "digits:2", image, "--sign-key", "second.key").returncode == 0
    assert len(signed(url, digest)) == 2 and signed(url, digest)[0] == layer
    for name in ("cosign", "second"):
        assert invoke("models", "pull", image, "--key", f"{name}.pub").returncode == 0
    assert failure("pull", f"{image}-absent").endswith("it has: 2"), "and no tags of signatures"


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize("has_referrers", [False, True])
def test_a_push_with_a_key_adds_a_bundle_to_those_of_others_once(
    opened: Open, key: Key, tmp_path: Path, has_referrers: bool
) -> None:
    """cosign 3 does not look at the first format where there is a bundle of anybody, such as an attestation."""
    registry = opened()
    if registry.data:
        registry.data.has_referrers = has_referrers
    url, image = f"http://{registry.host}/v2/team/digits", f"{registry.host}/team/digits:2"
    digest = invoke("models", "push", "digits:2", image).stdout.strip().rpartition("@")[2]
    others = bundle(pair(tmp_path / "other"), digest)
    refer(url, digest, [others])
    for _ in range(2):
        assert invoke("models", "push", "digits:2", image, "--sign-key", "cosign.key").returncode == 0
    pushed = json.loads(httpx2.get(f"{url}/manifests/{digest}", headers={"Accept": MANIFEST}).content)
    found = referring(url, digest)
    assert [blob(url, each["layers"][0]) for each in found][:-1] == [others]
    tagged = httpx2.get(f"{url}/manifests/{digest.replace(':', '-')}", headers={"Accept": INDEX}).json()["manifests"]
    assert len(tagged) == (1 if registry.data and has_referrers else 2), "a tag is for registries without a list"
    manifest = found[-1]
    assert manifest["subject"]["digest"] == digest and manifest["subject"]["mediaType"] == pushed["mediaType"]
    assert manifest["artifactType"] == manifest["layers"][0]["mediaType"] == BUNDLE
    written, made = json.loads(blob(url, manifest["layers"][0])), json.loads(bundle(key, digest))
    for each in (written, made):
        envelope = each["dsseEnvelope"]
        body = base64.b64decode(envelope["payload"])
        encoded = b"DSSEv1 28 application/vnd.in-toto+json %d %s" % (len(body), body)
        (signature,) = envelope.pop("signatures")
        key.public_key().verify(base64.b64decode(signature["sig"]), encoded, ec.ECDSA(hashes.SHA256()))
        envelope["payload"] = json.loads(body)
        each["verificationMaterial"]["publicKey"].pop("hint")
    assert written == made


@pytest.mark.usefixtures("model", "key")
def test_signers_at_the_same_time_overwrite_no_signature(tmp_path: Path) -> None:
    """The list of the one who wrote last lacked the other's: no registry compares it with what its writer had read."""
    with registries.registry(tmp_path / "registry", real=False) as registry:
        sign_with_others(registry, tmp_path)


def sign_with_others(registry: registries.Registry, tmp_path: Path) -> None:
    assert registry.data
    url, image = f"http://{registry.host}/v2/team/digits", f"{registry.host}/team/digits:2"
    push = ("models", "push", "digits:2", image)
    digest = invoke(*push).stdout.strip().rpartition("@")[2]
    pair(tmp_path / "other")
    assert invoke(*push, "--sign-key", "other.key").returncode == 0
    tags = {tag: values for (_, tag), values in registry.data.manifests.items() if tag.startswith("sha256-")}
    registry.data.others = [(tag, *values) for tag, values in tags.items() for _ in range(2)]

    assert invoke(*push, "--sign-key", "cosign.key").returncode == 0
    assert registry.data.others == [] and len(referring(url, digest)) == len(signed(url, digest)) == 2
    for tag, values in tags.items():
        registry.data.others = [(tag, *values)] * 5
        pair(tmp_path / "third")
        errors = failure(*push[1:], "--sign-key", "third.key")
        assert errors.endswith("at the same time, and have overwritten this signature: sign it again")


def referring(url: str, digest: str) -> list[dict[str, Any]]:
    """The manifests that refer to one, in the order of the registry's list or of the tag in its place."""
    found = httpx2.get(f"{url}/referrers/{digest}")
    if found.status_code == 404:
        tag = digest.replace(":", "-")
        found = httpx2.get(f"{url}/manifests/{tag}", headers={"Accept": INDEX}).raise_for_status()
    names = [each["digest"] for each in found.json()["manifests"]]
    return [httpx2.get(f"{url}/manifests/{each}", headers={"Accept": MANIFEST}).json() for each in names]


def blob(url: str, layer: dict[str, Any]) -> bytes:
    return httpx2.get(f"{url}/blobs/{layer['digest']}").raise_for_status().content


@pytest.mark.nightly("builds cosign 3 and the CNCF's registry, for a quarter of an hour where they are not built yet")
@pytest.mark.tools("cosign", "registry")
@pytest.mark.timeout(300)
def test_cosign_3_and_this_program_verify_what_the_other_has_signed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: Callable[[], None]
) -> None:
    monkeypatch.setenv("COSIGN_PASSWORD", "lace")
    environment = {**os.environ, "HOME": str(tmp_path)}

    def cosign(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(bin_folder("cosign") / "cosign"), *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    def verify(name: str, image: str, *options: str) -> bool:
        return not cosign("verify", "--key", f"{name}.pub", "--insecure-ignore-tlog=true", *options, image).returncode

    assert cosign("generate-key-pair").returncode == 0
    pair(tmp_path / "ours")
    offline = ("--yes", "--key", "cosign.key", "--tlog-upload=false", "--use-signing-config=false")
    first = "--new-bundle-format=false"
    with registries.registry(tmp_path, True) as registry:
        images = {name: f"{registry.host}/team/{name}:2" for name in ("ours", "bundle", "first", "both")}
        pushed = {
            name: invoke("models", "push", "digits:2", image).stdout.strip().rpartition(" ")[2]
            for name, image in images.items()
        }
        for name, options in (("bundle", ()), ("first", (first,)), ("both", ()), ("both", (first,))):
            signed = cosign("sign", *offline, *options, pushed[name])
            assert signed.returncode == 0, signed.stderr
        for name in ("ours", "both"):
            assert invoke("models", "push", "digits:2", images[name], "--sign-key", "ours.key").returncode == 0
            assert verify("ours", images[name]) and verify("ours", images[name], first), name
        assert verify("cosign", images["both"]) and verify("cosign", images["both"], first)
        assert not verify("cosign", images["ours"]) and not verify("cosign", images["ours"], first)
        elsewhere()
        for name in ("bundle", "first", "both"):
            assert invoke("models", "pull", images[name], "--key", "cosign.pub").returncode == 0, name
        for name in ("bundle", "first"):
            assert "is by the key ours.pub" in failure("pull", images[name], "--key", "ours.pub")
        # The signatures of another model, as somebody who may write to the registry moves them to their own.
        monkeypatch.setenv("SPOTMPI_STORE", str(tmp_path / "store"))
        digest = pushed["both"].rpartition("@")[2]
        other = invoke("models", "push", "digits:1", images["both"]).stdout.strip().rpartition("@")[2]
        url = f"http://{registry.host}/v2/team/both"
        place = f"{url}/manifests/{digest.replace(':', '-')}"
        put(url, other, httpx2.get(f"{place}.sig", headers={"Accept": MANIFEST}).raise_for_status().json())
        refer(url, other, [blob(url, each["layers"][0]) for each in referring(url, digest)])
        for name in ("ours", "cosign"):
            assert not verify(name, images["both"]) and not verify(name, images["both"], first)
            assert f"is by the key {name}.pub" in failure("pull", images["both"], "--key", f"{name}.pub")


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize("auth", ["open", "token"])
def test_a_signature_of_another_client_is_verified_before_anything_is_pulled(
    opened: Open, key: Key, tmp_path: Path, elsewhere: Callable[[], None], auth: str
) -> None:
    registry = opened(auth)
    log_in(registry.host, tmp_path)
    image = f"{registry.host}/team/digits:2"
    digest = invoke("models", "push", "digits:2", image).stdout.strip().rpartition("@")[2]
    if auth == "token":  # the requests below have none
        pair(tmp_path / "other")
        assert invoke("models", "push", "digits:2", image, "--sign-key", "cosign.key").returncode == 0
        elsewhere()
        assert "is by the key other.pub" in failure("pull", image, "--key", "other.pub")
        assert invoke("models", "pull", image, "copy", "--key", "cosign.pub").returncode == 0
        return
    url = f"http://{registry.host}/v2/team/digits"
    elsewhere()
    assert failure("pull", image, "--key", "cosign.pub").endswith(
        f"{image} has no signature of {digest}: `spotmpi models push --sign-key` signs it, or `cosign sign --key`"
    )
    scheme, payload = ec.ECDSA(hashes.SHA256()), payload_of(digest)
    signature = key.sign(payload, scheme)
    wrong = [
        (payload.replace(b"ada", b"eve"), signature),
        (payload_of(f"sha256:{'0' * 64}"), key.sign(payload_of(f"sha256:{'0' * 64}"), scheme)),
        (payload.replace(b"container image", b"blob"), key.sign(payload.replace(b"container image", b"blob"), scheme)),
        (payload, signature[:-1]),
        (payload, pair(tmp_path / "other").sign(payload, scheme)),
        (b"no JSON", key.sign(b"no JSON", scheme)),
        (b"[]", key.sign(b"[]", scheme)),
    ]
    for content, made in wrong:
        attach(url, digest, content, made)
        line = failure("pull", image, "--key", "cosign.pub")
        assert f"no signature of {image}, {digest}, is by the key cosign.pub: name the key of" in line, (content, made)
    empty = {"mediaType": MANIFEST, "digest": digest_of(b"[]"), "size": 2}
    for layers in ([], [empty], [{**empty, "annotations": {SIGNATURE: "#"}}], [{**empty, "size": 1 << 40}]):
        put(url, digest, {"schemaVersion": 2, "mediaType": MANIFEST, "config": empty, "layers": layers})
        assert "is by the key cosign.pub" in failure("pull", image, "--key", "cosign.pub")
    assert Store().list() == []
    attach(url, digest, payload, signature)
    assert invoke("models", "pull", image, "copy", "--key", "cosign.pub").returncode == 0
    assert Path("copy/state.safetensors").stat().st_size == 6_000_000


def test_a_signature_that_cosign_has_made_is_verified_and_is_that_of_no_other_digest(
    opened: Open, tmp_path: Path
) -> None:
    path, signature = tmp_path / "cosign.pub", base64.b64decode(COSIGN_SIGNATURE)
    path.write_bytes(COSIGN_KEY)
    image = f"{opened().host}/vector/a"
    url = f"http://{image.replace('/', '/v2/', 1)}"
    key, other = signatures.public_key(path), f"sha256:{'0' * 64}"
    attach(url, COSIGN_SIGNED, COSIGN_PAYLOAD, signature)
    attach(url, other, COSIGN_PAYLOAD, signature)
    with Repository(read_image(f"{image}:1")) as repository:
        signatures.require_signed(repository, COSIGN_SIGNED, key, path)
        with pytest.raises(SpotmpiError, match=f"{other}, is by the key .*cosign.pub: name the key"):
            signatures.require_signed(repository, other, key, path)
        attach(url, COSIGN_SIGNED, COSIGN_PAYLOAD.replace(b"null", b"{}"), signature)
        with pytest.raises(SpotmpiError, match=r"is by the key .*cosign.pub: name the key"):
            signatures.require_signed(repository, COSIGN_SIGNED, key, path)


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(
    ("has_referrers", "listed"), [(False, BUNDLE), (False, "application/vnd.oci.empty.v1+json"), (True, BUNDLE)]
)
def test_bundles_of_cosign_3_are_verified_too(
    opened: Open, key: Key, tmp_path: Path, elsewhere: Callable[[], None], has_referrers: bool, listed: str
) -> None:
    registry, other = opened(), pair(tmp_path / "other")
    if registry.data:
        registry.data.has_referrers, registry.data.page = has_referrers, 1
    image, url = f"{registry.host}/team/digits:2", f"http://{registry.host}/v2/team/digits"
    digest = invoke("models", "push", "digits:2", image).stdout.strip().rpartition("@")[2]
    elsewhere()
    right = bundle(key, digest)
    tampered = json.loads(right)
    tampered["dsseEnvelope"]["payload"] = json.loads(bundle(other, digest, predicate={"a": 1}))["dsseEnvelope"][
        "payload"
    ]
    wrong = [
        bundle(other, digest),
        bundle(key, f"sha256:{'0' * 64}"),
        bundle(key, digest, predicateType="https://slsa.dev/provenance/v1"),
        json.dumps(tampered).encode(),
        b"{}",
        b"no JSON",
        b"[" * 10**5,
    ]
    refer(url, digest, wrong, listed)
    assert "is by the key cosign.pub: name the key" in failure("pull", image, "--key", "cosign.pub")
    assert Store().list() == []
    refer(url, digest, [*wrong, right], listed)
    assert invoke("models", "pull", image, "--key", "cosign.pub").returncode == 0


def test_a_private_key_may_have_a_password(
    opened: Open, model: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, registry = pair(tmp_path / "cosign"), opened()
    (tmp_path / "cosign.key").write_bytes(private(key, b"lace"))
    push = ("push", "digits", f"{registry.host}/team/digits:2", "--sign-key", "cosign.key")
    assert "is encrypted: set COSIGN_PASSWORD to its password" in failure(*push, code=2)
    monkeypatch.setenv("COSIGN_PASSWORD", "wrong")
    assert "cannot be decrypted by the password: check COSIGN_PASSWORD" in failure(*push, code=2)
    monkeypatch.setenv("COSIGN_PASSWORD", "lace")
    assert invoke("models", *push).returncode == 0
    (tmp_path / "cosign.key").write_bytes(private(key))
    assert invoke("models", *push).returncode == 0, "without a password it is not used"


def test_a_terminal_is_asked_for_the_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, asked = pair(tmp_path / "cosign"), list[str]()
    (tmp_path / "cosign.key").write_bytes(private(key, b"lace"))
    monkeypatch.delenv("COSIGN_PASSWORD", raising=False)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)

    def answer(text: str) -> str:
        asked.append(text)
        return "lace"

    monkeypatch.setattr("getpass.getpass", answer)
    found = signatures.private_key(tmp_path / "cosign.key")
    assert found.private_numbers() == key.private_numbers()
    assert asked == [f"password of {tmp_path / 'cosign.key'}: "]


@pytest.mark.usefixtures("model")
def test_what_is_no_key_is_refused_before_anything_is_sent(tmp_path: Path, key: Key) -> None:
    contents: dict[str, tuple[bytes, str]] = {
        "absent": (b"", "cannot be read: No such file or directory; name a PEM file that you may read"),
        "text": (b"text", "is not a private key in PEM; `openssl ecparam"),
        "cosign.pub": (Path("cosign.pub").read_bytes(), "is a public key: name the private one; `openssl ecparam"),
        "sigstore": (b"-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\n", "cosign alone reads: sign with `cosign sign"),
        "rsa": (private(rsa.generate_private_key(65537, 2048)), "is not an ECDSA key over P-256"),
        "p384": (private(ec.generate_private_key(ec.SECP384R1())), "is not an ECDSA key over P-256"),
    }
    for name, (content, message) in contents.items():
        if content:
            Path(name).write_bytes(content)
        line = failure("push", "digits", "127.0.0.1:1/team/digits:2", "--sign-key", name, code=2)
        assert message in line and "--sign-key = " in line, line
    endless = failure("push", "digits", "127.0.0.1:1/team/digits:2", "--sign-key", "/dev/zero", code=2)
    assert "is not a private key in PEM" in endless
    for name, message in (("absent", "cannot be read"), ("cosign.key", "is a private key; `openssl ec -in")):
        assert message in failure("pull", "127.0.0.1:1/team/digits:2", "--key", name, code=2)
    assert "those of a store are not signed" in failure("pull", "digits", "--key", "cosign.pub", code=2)
