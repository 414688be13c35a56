"""Archives, also such as no honest program would make."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from typing import Literal

HOME = "../../home"  # of the folder that an archive is unpacked to
Entry = tuple[tarfile.TarInfo, bytes]


def entry(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", content: bytes = b"new") -> Entry:
    """A member of an archive, and its content."""
    item = tarfile.TarInfo(name)
    item.type, item.linkname, item.mode = kind, target, 0o6777
    item.size = len(content) if kind == tarfile.REGTYPE else 0
    return item, content if item.size else b""


def folder(name: str) -> Entry:
    return entry(name, tarfile.DIRTYPE)


def link(name: str, target: str) -> Entry:
    return entry(name, tarfile.SYMTYPE, target)


def tar_of(files: Mapping[str, bytes], mode: Literal["w", "w:xz"] = "w") -> bytes:
    """An archive of files by their names."""
    return archive(*(entry(name, content=content) for name, content in files.items()), mode=mode)


def archive(*entries: Entry, mode: Literal["w", "w:xz"] = "w") -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode, format=tarfile.PAX_FORMAT) as tar:
        for item, content in entries:
            tar.addfile(item, io.BytesIO(content))
    return packed.getvalue()


def long_way() -> list[Entry]:
    """Links of one letter through folders whose real path exceeds PATH_MAX, as in CVE-2025-4517."""
    entries, path = [], ""
    for letter in "abcdefghijklmnop":
        step = letter * 247
        entries += [folder(f"{path}{step}"), link(f"{path}{letter}", step)]
        path += f"{letter}/"
    up = "/".join([".."] * 16)
    return [*entries, link(f"{path}{'l' * 254}", up), link("escape", f"{path}{'l' * 254}/{HOME}")]
