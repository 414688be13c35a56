"""Keys for one run: a client key, one host key for all its pods, and what trusts them."""

from __future__ import annotations

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from spotmpi.agent import ssh


def make_keys() -> dict[str, str]:
    """The contents of a run's Secret by file name: ED25519 keys in OpenSSH's formats, fresh at every call."""
    client, host = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    return {
        ssh.CLIENT_KEY: _private(client),
        ssh.AUTHORIZED: f"{_public(client)}\n",
        ssh.HOST_KEY: _private(host),
        ssh.KNOWN_HOSTS: f"* {_public(host)}\n",
    }


def _private(key: Ed25519PrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    ).decode()


def _public(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
