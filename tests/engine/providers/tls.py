"""The `tls` stand-in: real keys and certificates."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

from tests.engine.providers.cloud import Provider
from tests.engine.providers.kinds import Kind
from tests.engine.providers.records import Records, Refusal

_SECRET = ("privateKeyOpenssh", "privateKeyPem", "privateKeyPemPkcs8")
_OPEN = ("publicKeyOpenssh", "publicKeyPem", "publicKeyFingerprintMd5", "publicKeyFingerprintSha256")
_PEM, _PLAIN = serialization.Encoding.PEM, serialization.NoEncryption()
_USES = ("digital_signature", "cert_signing")


def private_key(inputs: Mapping[str, Any]) -> dict[str, str]:
    """The outputs of a key."""
    key: Ed25519PrivateKey | ec.EllipticCurvePrivateKey
    if inputs["algorithm"] == "ED25519":
        key = Ed25519PrivateKey.generate()
    else:
        key = ec.generate_private_key(ec.SECP256R1())
    formats = serialization.PrivateFormat
    openssh, pkcs8 = (key.private_bytes(_PEM, each, _PLAIN).decode() for each in (formats.OpenSSH, formats.PKCS8))
    traditional = pkcs8 if isinstance(key, Ed25519PrivateKey) else _traditional(key)
    public = key.public_key()
    line = public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
    spki = public.public_bytes(_PEM, serialization.PublicFormat.SubjectPublicKeyInfo).decode()
    values = (openssh, traditional, pkcs8, line + "\n", spki, "md5", "SHA256:0")
    return dict(zip((*_SECRET, *_OPEN), values, strict=True))


def _traditional(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(_PEM, serialization.PrivateFormat.TraditionalOpenSSL, _PLAIN).decode()


def self_signed(inputs: Mapping[str, Any]) -> dict[str, str]:
    """The outputs of a self-signed certificate, as createCertificate makes it.

    It begins at once by this machine's clock, an authority has a subject key identifier (internal/provider/
    common_cert.go of hashicorp/terraform-provider-tls), and Go marks basic constraints and key usage as critical.
    """
    key = cast(ec.EllipticCurvePrivateKey, serialization.load_pem_private_key(inputs["privateKeyPem"].encode(), None))
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, inputs["subject"]["commonName"])])
    start = datetime.now(UTC)
    uses = x509.KeyUsage(
        digital_signature="digital_signature" in inputs["allowedUses"],
        key_cert_sign="cert_signing" in inputs["allowedUses"],
        **dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False),
        **dict.fromkeys(("crl_sign", "encipher_only", "decipher_only"), False),
    )
    authority = x509.BasicConstraints(ca=inputs.get("isCaCertificate", False), path_length=None)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + timedelta(hours=inputs["validityPeriodHours"]))
        .add_extension(uses, critical=True)
        .add_extension(authority, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    ).sign(key, hashes.SHA256())
    return {"certPem": certificate.public_bytes(_PEM).decode()}


def _only_our_keys(inputs: dict[str, Any], records: Records) -> None:
    kind = (inputs["algorithm"], inputs.get("ecdsaCurve"))
    if kind not in (("ED25519", None), ("ECDSA", "P256")):
        raise Refusal(f"the stand-in makes ED25519 and P256 keys, not {kind}")


def _only_our_uses(inputs: dict[str, Any], records: Records) -> None:
    if not set(inputs["allowedUses"]) <= {*_USES}:
        raise Refusal(f"the stand-in knows the uses {', '.join(_USES)}, not {inputs['allowedUses']}")


class Tls(Provider):
    """Keys and certificates, which are generated on this machine."""

    package = "tls"

    def kind(self, token: str, inputs: Mapping[str, Any]) -> Kind | None:
        """Private keys and self-signed certificates."""
        if token == "tls:index/privateKey:PrivateKey":
            return Kind(
                "{hex}",
                replaces=("algorithm", "ecdsaCurve", "rsaBits"),
                answers=lambda inputs, identity, records: private_key(inputs),
                unknown=(*_SECRET, *_OPEN),
                create_rule=_only_our_keys,
            )
        if token == "tls:index/selfSignedCert:SelfSignedCert":
            return Kind(
                "{hex}",
                replaces=("privateKeyPem", "subject", "allowedUses", "isCaCertificate", "validityPeriodHours"),
                answers=lambda inputs, identity, records: self_signed(inputs),
                unknown=("certPem",),
                create_rule=_only_our_uses,
            )
        return None
