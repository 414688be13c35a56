"""Signatures of what is in a registry, in the format of cosign: by a key, without certificates or a log.

cosign's specification is `specs/SIGNATURE_SPEC.md` in https://github.com/sigstore/cosign. The tag ``sha256-HEX.sig`` in
the repository of a manifest, after its digest, names a second manifest. Each layer of that is a payload that names the
digest, in the form Simple Signing, and an annotation has its signature, in base64: ECDSA over P-256 with SHA-256.

cosign 3 writes bundles by default, and looks at nothing else where there is one: a manifest that refers to the signed
one has a layer in JSON, a DSSE envelope (https://github.com/secure-systems-lab/dsse) with an in-toto statement about
the digest. Both formats are written, and either is enough.
"""

from __future__ import annotations

import base64
import getpass
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from spotmpi.core import wording
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.images import oci
from spotmpi.images.oci import Image, Repository

_PAYLOAD = "application/vnd.dev.cosign.simplesigning.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_SIGNATURE = "dev.cosignproject.cosign/signature"
_TYPE = "cosign container image signature"
_BUNDLE = "application/vnd.dev.sigstore.bundle"
_WRITTEN_BUNDLE = f"{_BUNDLE}.v0.3+json"
# Where a registry has no API for referrers, older versions list the type of the empty configuration in its place.
_EMPTY = "application/vnd.oci.empty.v1+json"
_STATEMENT = "application/vnd.in-toto+json"
_STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
_SIGNED = "https://sigstore.dev/cosign/sign/v1"  # what a statement says of its subject
_LARGEST = 1 << 20  # bytes of a payload, or of a key
_MOST = 100  # signatures of each format that are looked at
_PASSWORD = "COSIGN_PASSWORD"
_MAKE = "`openssl ecparam -name prime256v1 -genkey -noout -out cosign.key` makes one"
_SCHEME = ec.ECDSA(hashes.SHA256())


def private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """The key to sign with, of a PEM file; its password is COSIGN_PASSWORD, else the terminal is asked.

    Raises:
        InputError: it is none, or the password is wrong.
    """
    content, option = _content(path, "sign-key"), wording.option("sign-key")
    if b"SIGSTORE PRIVATE KEY" in content or b"COSIGN PRIVATE KEY" in content:
        remedy = f"is encrypted in a form that cosign alone reads: sign with `cosign sign --key {path}`, or {_MAKE}"
        raise input_error(option, str(path), remedy)
    try:
        key = load_pem_private_key(content, None)
    except TypeError:  # it is encrypted
        password = _password(path)
        if not password:
            raise input_error(option, str(path), f"is encrypted: set {_PASSWORD} to its password") from None
        try:
            key = load_pem_private_key(content, password.encode())
        except (ValueError, UnsupportedAlgorithm) as error:
            remedy = f"check {_PASSWORD}, or the file, which may be damaged"
            raise input_error(option, str(path), f"cannot be decrypted by the password: {remedy}") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        what = "a public key: name the private one" if b"PUBLIC KEY" in content else "not a private key in PEM"
        raise input_error(option, str(path), f"is {what}; {_MAKE}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise input_error(option, str(path), f"is not an ECDSA key over P-256, as cosign has them; {_MAKE}")
    return key


def public_key(path: Path) -> ec.EllipticCurvePublicKey:
    """The key to verify with, of a PEM file such as `cosign generate-key-pair` writes; InputError if it is none."""
    content, option = _content(path, "key"), wording.option("key")
    make = "`openssl ec -in cosign.key -pubout -out cosign.pub` writes that of a private key"
    try:
        key = load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        what = "a private key" if b"PRIVATE KEY" in content else "not a public key in PEM"
        raise input_error(option, str(path), f"is {what}; {make}") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise input_error(option, str(path), "is not an ECDSA key over P-256, as cosign has them")
    return key


def sign(repository: Repository, pushed: Mapping[str, Any], key: ec.EllipticCurvePrivateKey) -> None:
    """Add the signature of a manifest, by its descriptor, to those that it has, unless they are by this key already.

    Both formats are written: cosign 3 does not look at the first one where anybody has written a bundle.
    """
    digest = str(pushed["digest"])
    _sign_payload(repository.image, digest, key)
    if not any(_bundle_signs(each, digest, key.public_key()) for each in _bundles(repository, digest)):
        _push_bundle(repository, pushed, key)


def _sign_payload(image: Image, digest: str, key: ec.EllipticCurvePrivateKey) -> None:
    identity = {"docker-reference": f"{image.host}/{image.name}"}
    critical = {"identity": identity, "image": {"docker-manifest-digest": digest}, "type": _TYPE}
    payload = json.dumps({"critical": critical, "optional": None}, separators=(",", ":")).encode()
    signature = base64.b64encode(key.sign(payload, _SCHEME)).decode()
    with Repository(_place(image, digest)) as signatures:
        layers = _layers(signatures)
        for _ in range(oci.WRITES):
            if _is_signed(signatures, layers, digest, key.public_key()):
                return
            layer = {**_pushed(signatures, payload, _PAYLOAD), "annotations": {_SIGNATURE: signature}}
            layers = [*layers, layer]
            files = {"type": "layers", "diff_ids": [each["digest"] for each in layers]}
            config = json.dumps({"architecture": "", "os": "", "config": {}, "rootfs": files}).encode()
            described = _pushed(signatures, config, _CONFIG)
            manifest = {"schemaVersion": 2, "mediaType": oci.MANIFEST, "config": described, "layers": layers}
            signatures.push_manifest(manifest)
            layers = _layers(signatures)
        if not _is_signed(signatures, layers, digest, key.public_key()):
            raise oci.overwritten(image)


def _layers(signatures: Repository) -> list[Any]:
    """The signatures of a manifest, by its tag of them."""
    manifest = signatures.find_manifest()
    layers = manifest[0].get("layers") if manifest else []
    if not isinstance(layers, list):
        raise SpotmpiError(f"{signatures.image} has no layers: remove this tag, which is that of signatures")
    return layers


def _push_bundle(repository: Repository, pushed: Mapping[str, Any], key: ec.EllipticCurvePrivateKey) -> None:
    subject = {"digest": {"sha256": str(pushed["digest"]).removeprefix("sha256:")}}
    values = {"_type": _STATEMENT_TYPE, "subject": [subject], "predicateType": _SIGNED, "predicate": {}}
    statement = json.dumps(values, separators=(",", ":")).encode()
    signature = key.sign(_encoded(_STATEMENT, statement), _SCHEME)
    public = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    hint = base64.b64encode(hashlib.sha256(public).digest()).decode()
    envelope = {
        "payload": base64.b64encode(statement).decode(),
        "payloadType": _STATEMENT,
        "signatures": [{"sig": base64.b64encode(signature).decode()}],
    }
    material = {"publicKey": {"hint": hint}}
    bundle = {"mediaType": _WRITTEN_BUNDLE, "verificationMaterial": material, "dsseEnvelope": envelope}
    content = json.dumps(bundle, separators=(",", ":")).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": oci.MANIFEST,
        "artifactType": _WRITTEN_BUNDLE,
        "config": _pushed(repository, b"{}", _EMPTY),
        "layers": [_pushed(repository, content, _WRITTEN_BUNDLE)],
        "subject": pushed,
        "annotations": {
            "dev.sigstore.bundle.content": "dsse-envelope",
            "dev.sigstore.bundle.predicateType": _SIGNED,
        },
    }
    repository.push_referrer(manifest)


def _pushed(repository: Repository, content: bytes, kind: str) -> dict[str, Any]:
    """The descriptor of a small blob, which the repository has then."""
    digest = oci.digest_of(content)
    if not repository.has_blob(digest):
        repository.push_blob(digest, len(content), content)
    return {"mediaType": kind, "digest": digest, "size": len(content)}


def require_signed(repository: Repository, digest: str, key: ec.EllipticCurvePublicKey, path: Path) -> None:
    """Raise SpotmpiError unless a manifest is signed by the key that *path* has."""
    image = repository.image
    with Repository(_place(image, digest)) as signatures:
        manifest = signatures.find_manifest()
        if manifest and _is_signed(signatures, manifest[0].get("layers"), digest, key):
            return
    is_signed = bool(manifest)
    for content in _bundles(repository, digest):
        if _bundle_signs(content, digest, key):
            return
        is_signed = True
    if is_signed:
        remedy = "name the key of somebody who has signed it, or do not use it"
        raise SpotmpiError(f"no signature of {image}, {digest}, is by the key {path}: {remedy}")
    remedy = "`spotmpi models push --sign-key` signs it, or `cosign sign --key`"
    raise SpotmpiError(f"{image} has no signature of {digest}: {remedy}")


def _bundles(repository: Repository, digest: str) -> Iterator[bytes]:
    """The bundles that refer to a manifest."""
    referrers = repository.referrers(digest)
    likely = [each for each in referrers if str(each.get("artifactType") or _EMPTY).startswith((_BUNDLE, _EMPTY))]
    for each in likely[:_MOST]:
        with Repository(replace(repository.image, tag=None, digest=str(each.get("digest")))) as referrer:
            content = _bundle(referrer)
        if content is not None:
            yield content


def _is_signed(signatures: Repository, layers: object, digest: str, key: ec.EllipticCurvePublicKey) -> bool:
    known = layers[:_MOST] if isinstance(layers, list) else ()
    return any(_signs(signatures, layer, digest, key) for layer in known)


def _signs(signatures: Repository, layer: Mapping[str, Any], digest: str, key: ec.EllipticCurvePublicKey) -> bool:
    """Whether a layer is a payload that names the digest, with a signature by the key."""
    try:
        name, size = str(layer["digest"]), int(layer["size"])
        signature = base64.b64decode(layer["annotations"][_SIGNATURE], validate=True)
    except (LookupError, TypeError, ValueError, AttributeError):
        return False  # a layer of another kind
    payload = _blob(signatures, name, size)
    try:
        key.verify(signature, payload, _SCHEME)
        critical = json.loads(payload)["critical"]
        return bool(critical["type"] == _TYPE and critical["image"]["docker-manifest-digest"] == digest)
    except (InvalidSignature, ValueError, LookupError, TypeError):
        return False


def _bundle(repository: Repository) -> bytes | None:
    """The bundle that a manifest has as its layer; None if it has another one."""
    found = repository.find_manifest()
    try:
        layer = found[0]["layers"][0] if found else {}
        is_bundle, name, size = str(layer["mediaType"]).startswith(_BUNDLE), str(layer["digest"]), int(layer["size"])
    except (LookupError, TypeError, ValueError):
        return None
    return _blob(repository, name, size) if is_bundle else None


def _bundle_signs(content: bytes, digest: str, key: ec.EllipticCurvePublicKey) -> bool:
    """Whether a bundle says that the digest was signed, by the key."""
    try:
        envelope = json.loads(content)["dsseEnvelope"]
        kind, statement = str(envelope["payloadType"]), base64.b64decode(envelope["payload"], validate=True)
        signature = base64.b64decode(envelope["signatures"][0]["sig"], validate=True)
        key.verify(signature, _encoded(kind, statement), _SCHEME)
        values = json.loads(statement)
        subjects = [f"sha256:{each['digest']['sha256']}" for each in values["subject"]]
        return kind == _STATEMENT and values["predicateType"] == _SIGNED and digest in subjects
    except (InvalidSignature, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return False


def _encoded(kind: str, content: bytes) -> bytes:
    """What the signature of an envelope is over (DSSE's pre-authentication encoding)."""
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind.encode(), len(content), content)


def _blob(repository: Repository, digest: str, size: int) -> bytes:
    """The content of a small blob; empty for a large one, which is not a signature."""
    return repository.read_blob(digest, size) if size <= _LARGEST else b""


def _place(image: Image, digest: str) -> Image:
    """Where the signatures of a manifest are."""
    return replace(image, tag=f"{digest.replace(':', '-')}.sig", digest=None)


def _content(path: Path, option: str) -> bytes:
    try:
        with path.open("rb") as file:  # a device has no end
            return file.read(_LARGEST)
    except OSError as error:
        remedy = "name a PEM file that you may read"
        reason = f"cannot be read: {error.strerror or error}; {remedy}"
        raise input_error(wording.option(option), str(path), reason) from error


def _password(path: Path) -> str:
    if _PASSWORD in os.environ or not sys.stdin.isatty():
        return os.environ.get(_PASSWORD, "")
    return getpass.getpass(f"password of {path}: ")
