"""The text of CSV and JSON Lines files: without compression, and in UTF-8."""

from __future__ import annotations

import codecs
import lzma
import struct
from typing import Any

from spotmpi.agent.protocol import counted
from spotmpi.streams.errors import StreamError

COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".xz": "xz"}  # by suffix
_MAGIC = {".gz": b"\x1f\x8b", ".bz2": b"BZh", ".zst": b"\x28\xb5\x2f\xfd", ".xz": b"\xfd7zXZ", ".zip": b"PK\x03\x04"}
_MARKS = {  # UTF-32's begins as that of UTF-16
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


def decompressed(name: str, content: bytes) -> bytes:
    """What a file holds; OSError or LZMAError where it is damaged."""
    import pyarrow

    codec = next((codec for suffix, codec in COMPRESSIONS.items() if name.lower().endswith(suffix)), None)
    if codec is None or codec == "xz":
        return _of_xz(content) if codec else content
    return bytes(pyarrow.CompressedInputStream(pyarrow.BufferReader(content), codec).read())


def _of_xz(content: bytes) -> bytes:
    """What the streams of a file hold, each with padding of NUL bytes after it, as `xz -d` takes them.

    `lzma.decompress` ignores what follows the first stream and is no other one.
    """
    pieces: list[bytes] = []
    while content or not pieces:
        decompressor = lzma.LZMADecompressor()
        try:
            pieces.append(decompressor.decompress(content))
        except lzma.LZMAError:
            if not pieces:
                raise
            raise lzma.LZMAError(f"its last {counted(len(content), 'byte')} are no stream of xz") from None
        if not decompressor.eof:
            raise lzma.LZMAError("its last stream is truncated")
        content = decompressor.unused_data.lstrip(b"\0")
    return b"".join(pieces)


def require_utf8(name: str, content: bytes) -> None:
    """Raise StreamError for text in another encoding, which pyarrow would give as bytes."""
    import pyarrow

    if _by_zeros(content):
        raise StreamError(f"{name} is not in UTF-8: it begins with NUL bytes; {_conversion(content)}")
    try:
        as_array(content).cast(pyarrow.large_string())
    except pyarrow.ArrowInvalid:
        try:
            content.decode()
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            what = f"line {line} has the byte {content[error.start]:#04x}"
            raise StreamError(f"{name} is not in UTF-8: {what}; {_conversion(content)}") from None


def as_array(content: bytes) -> Any:
    """An array of pyarrow with *content* as its only value, which is not copied."""
    import pyarrow

    buffers = [None, pyarrow.py_buffer(struct.pack("=qq", 0, len(content))), pyarrow.py_buffer(content)]
    return pyarrow.Array.from_buffers(pyarrow.large_binary(), 1, buffers)


def _conversion(content: bytes) -> str:
    """What makes UTF-8 of a file, by its first bytes."""
    suffix = next((suffix for suffix, first in _MAGIC.items() if content.startswith(first)), None)
    if suffix == ".zip":
        return "it is a ZIP archive, as files of spreadsheets are: unpack it, or export it as text"
    if suffix:
        return f"it is compressed: give it a name that ends in {suffix}"
    if not content.strip(b"\0"):
        return "it has nothing else, as after a loss of power: restore it"
    marked = next((encoding for mark, encoding in _MARKS.items() if content.startswith(mark)), None)
    return f"convert it, such as with `iconv -f {marked or _by_zeros(content) or 'ISO-8859-1'} -t UTF-8`"


def _by_zeros(content: bytes) -> str | None:
    """The encoding of a text without a byte order mark, whose first two characters are of ASCII."""
    return {content[1:4:2]: "UTF-16LE", content[:4:2]: "UTF-16BE"}.get(b"\0\0")
