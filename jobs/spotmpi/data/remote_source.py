"""Data that a Job of the cluster downloads: https addresses with their SHA-256, and objects in S3."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from spotmpi.core.errors import input_error
from spotmpi.core.wording import reason_of

if TYPE_CHECKING:
    from spotmpi.agent.fetch import DownloadValues

_HEX = re.compile(r"sha256=([0-9a-f]{64})")
_PACKED = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
SIGNED_FOR = 12 * 3600  # seconds; an address expires earlier if its credentials do


@dataclass(frozen=True)
class Download:
    """One file to fetch: a tar is unpacked, anything else goes under its `name`. The address may hold a signature."""

    url: str
    name: str
    sha256: str | None

    @property
    def address(self) -> str:
        """The address without a signature."""
        return self.url.partition("?")[0]

    def values(self, folder: str) -> DownloadValues:
        """The download as the pod reads it."""
        packed = self.is_packed
        return {"url": self.url, "name": self.name, "folder": folder, "sha256": self.sha256, "unpack": packed}

    @property
    def is_packed(self) -> bool:
        """Whether it is a tar, which is unpacked."""
        return self.name.endswith(_PACKED)


def is_remote(text: str) -> bool:
    """Whether a source is an address rather than a path."""
    return text.startswith(("https://", "http://", "s3://"))


def downloads_of(text: str, account: Any = None) -> list[Download]:
    """What to fetch for an address: one file, or every object below an ``s3://bucket/folder/``.

    InputError for http, a missing or malformed SHA-256 and an address without a file. *account* is an open one.
    """
    parts = urlsplit(text)
    checksum = _HEX.fullmatch(parts.fragment)
    if parts.fragment and checksum is None:
        raise input_error("SRC", text, "has a malformed SHA-256: write ...#sha256= and 64 hexadecimal digits")
    if parts.scheme == "http":
        raise input_error("SRC", text, "is not encrypted: use https, or download it and push the file")
    if parts.scheme == "s3":
        return _objects(text, parts.netloc, unquote(parts.path).lstrip("/"), checksum and checksum[1], account)
    name = PurePosixPath(unquote(parts.path)).name
    if checksum is None:
        raise input_error("SRC", text, "needs its SHA-256: write ...#sha256= and 64 hexadecimal digits")
    if not name:
        raise input_error("SRC", text, "names no file")
    return [Download(text.partition("#")[0], name, checksum[1])]


def authority_of(path: Path) -> str:
    """The certificates (PEM) in a file; InputError if it holds none."""
    import ssl

    try:
        text = path.read_text(encoding="utf-8")
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except (OSError, UnicodeDecodeError, ssl.SSLError, ValueError) as error:
        raise input_error("--ca", str(path), f"not a file of PEM certificates: {reason_of(error)}") from error
    return text


def _objects(text: str, bucket: str, key: str, sha256: str | None, account: Any) -> list[Download]:
    from spotmpi.aws.account import ANY_REGION, open_account
    from spotmpi.aws.state_bucket import region_of

    aws = account or open_account()
    region = aws.region or ANY_REGION
    objects = aws.pages("s3", region, "list_objects_v2", "Contents", Bucket=bucket, Prefix=key)
    keys = [each["Key"] for each in objects if not each["Key"].endswith("/")]
    keys = [each for each in keys if each == key or key == "" or key.endswith("/")]
    if not keys:
        raise input_error("SRC", text, "no such object; end a folder with / for all objects below it")
    if sha256 and len(keys) > 1:
        raise input_error("SRC", text, "a SHA-256 is for one object, but these are several")
    client = aws.client("s3", region_of(aws, region, bucket))  # a signature is for one region
    folder = key.rpartition("/")[0]
    return [
        Download(
            client.generate_presigned_url("get_object", {"Bucket": bucket, "Key": each}, ExpiresIn=SIGNED_FOR),
            each[len(folder) :].lstrip("/"),
            sha256,
        )
        for each in keys
    ]
