"""The certificate authority of one test cluster and the identities it issues."""

from __future__ import annotations

import base64
import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_VALID = datetime.timedelta(days=30)


@dataclass(frozen=True)
class Credential:
    """A certificate with its key, as PEM files."""

    certificate: Path
    key: Path


class Authority:
    """Issues the certificates of one cluster into one folder, without key identifiers, as those of EKS are reported."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _subject("spotmpi testbed", ())
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        builder = _builder(self._name, self._name, self._key.public_key()).add_extension(constraints, critical=True)
        self.certificate = folder / "ca.crt"
        self.certificate.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))

    def issue(self, user: str, groups: Sequence[str] = (), hosts: Sequence[str] = ()) -> Credential:
        """Return a credential for a user of Kubernetes, or for a server that is reached as one of `hosts`."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_subject(user, groups), self._name, key.public_key())
        if hosts:
            names = x509.SubjectAlternativeName([_host(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        stem = user.replace(":", "-").replace("/", "-")
        issued = Credential(self._folder / f"{stem}.crt", self._folder / f"{stem}.key")
        issued.certificate.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))
        issued.key.touch(mode=0o600)
        # The form that keys of service accounts must have.
        form = serialization.PrivateFormat.TraditionalOpenSSL
        issued.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
        return issued


def write_kubeconfig(path: Path, server: str, authority: Path, credential: Credential) -> Path:
    """Write a self-contained kubeconfig of one user, and return its path."""

    def inline(source: Path) -> str:
        return base64.b64encode(source.read_bytes()).decode()

    user = {"client-certificate-data": inline(credential.certificate), "client-key-data": inline(credential.key)}
    cluster = {"server": server, "certificate-authority-data": inline(authority)}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "testbed", "cluster": cluster}],
        "users": [{"name": "testbed", "user": user}],
        "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": "testbed"}}],
        "current-context": "testbed",
    }
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def _subject(user: str, groups: Sequence[str]) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, user)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    # An hour of slack: virtual machines that were suspended start with a clock that is behind.
    builder = builder.not_valid_before(now - datetime.timedelta(hours=1)).not_valid_after(now + _VALID)
    return builder.serial_number(x509.random_serial_number())


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
