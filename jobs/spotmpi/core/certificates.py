"""The certificates of a run: one authority, and one certificate that it issued, for each submission.

All agents of a run, and scheduler, workers and drivers of a pool, present the same certificate, and accept only those
of its authority.
"""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from spotmpi.agent import protocol

# For all times: clocks of nodes may be off by any amount, and what ends a certificate is that its Secret is deleted.
_NOT_BEFORE = datetime(1970, 1, 1)
_NOT_AFTER = datetime(9999, 12, 31, 23, 59, 59)  # no well-defined end (RFC 5280, 4.1.2.5)
_SIGNS_CERTIFICATES = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=False,
    encipher_only=False,
    decipher_only=False,
)


def run_certificates(run: str) -> dict[str, str]:
    """The PEM texts ``ca.pem``, ``cert.pem`` and ``key.pem`` of *run*, valid at any time.

    The authority's own key is not among them: nobody can issue another certificate of this run.
    """
    authority, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer, subject = _name(f"{run} authority"), _name(run)
    ca = _builder(issuer, issuer, authority.public_key(), authority.public_key()).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    ca = ca.add_extension(_SIGNS_CERTIFICATES, critical=True)
    certificate = _builder(subject, issuer, key.public_key(), authority.public_key()).add_extension(
        x509.BasicConstraints(ca=False, path_length=None), critical=True
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return {
        protocol.TLS_CA: ca.sign(authority, hashes.SHA256()).public_bytes(pem).decode(),
        protocol.TLS_CERTIFICATE: certificate.sign(authority, hashes.SHA256()).public_bytes(pem).decode(),
        protocol.TLS_KEY: private.decode(),
    }


def write_certificates(folder: Path, texts: dict[str, str]) -> Path:
    """Write the three PEM *texts* to *folder*, which only its owner may read; returns the folder."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    for name in protocol.TLS_FILES:
        (folder / name).unlink(missing_ok=True)
        with os.fdopen(
            os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
        ) as file:
            file.write(texts[name])
    return folder


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    authority: ec.EllipticCurvePublicKey,
) -> x509.CertificateBuilder:
    """A certificate with the key identifiers that Python 3.13 demands by default (RFC 5280)."""
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_NOT_BEFORE)
        .not_valid_after(_NOT_AFTER)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority), critical=False)
    )
