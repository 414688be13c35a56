"""The `tls` stand-in: real keys."""

from collections.abc import Mapping
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.engine.providers.cloud import Provider
from tests.engine.providers.kinds import Kind
from tests.engine.providers.records import Records, Refusal

_SECRET = ("privateKeyOpenssh", "privateKeyPem", "privateKeyPemPkcs8")
_OPEN = ("publicKeyOpenssh", "publicKeyPem", "publicKeyFingerprintMd5", "publicKeyFingerprintSha256")


def _key(inputs: dict[str, Any], identity: str, records: Records) -> dict[str, Any]:
    key = Ed25519PrivateKey.generate()
    pem, openssh = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH
    private = key.private_bytes(pem, openssh, serialization.NoEncryption()).decode()
    pkcs8 = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()).decode()
    public = key.public_key()
    line = public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
    spki = public.public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo).decode()
    values = (private, pkcs8, pkcs8, line + "\n", spki, "md5", "SHA256:0")
    return dict(zip((*_SECRET, *_OPEN), values, strict=True))


def _only_ed25519(inputs: dict[str, Any], records: Records) -> None:
    if inputs["algorithm"] != "ED25519":
        raise Refusal(f"the stand-in makes ED25519 keys, not {inputs['algorithm']}")


class Tls(Provider):
    """Keys, which are generated on this machine."""

    package = "tls"

    def kind(self, token: str, inputs: Mapping[str, Any]) -> Kind | None:
        """Private keys only."""
        if token != "tls:index/privateKey:PrivateKey":
            return None
        return Kind(
            "{hex}",
            replaces=("algorithm", "ecdsaCurve", "rsaBits"),
            answers=_key,
            unknown=(*_SECRET, *_OPEN),
            create_rule=_only_ed25519,
        )
