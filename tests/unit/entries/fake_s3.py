"""Amazon S3 as s3fs shows it: buckets that keep versions, in memory; `s3_journey` compares the real one with it."""

from __future__ import annotations

import hashlib
import io
from typing import Any, ClassVar

from fsspec.spec import AbstractFileSystem


class FakeS3(AbstractFileSystem):
    """Contents of versions by bucket and key in `buckets`; `refusal` is what every request raises."""

    protocol = ("s3", "s3a")
    cachable = False
    buckets: ClassVar[dict[str, dict[str, list[bytes]]]] = {}
    refusal: ClassVar[Exception | None] = None
    listings: ClassVar[dict[str, list[dict[str, Any]]]] = {}  # which s3fs keeps until it is told that they are old

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        """The objects and folders below a path, from the kept listing if there is one."""
        path = self._strip_protocol(path).rstrip("/")
        if path not in self.listings:
            self.listings[path] = self._list(path)
        found = self.listings[path]
        if not found:
            raise FileNotFoundError(path)
        return found if detail else [each["name"] for each in found]

    def _list(self, path: str) -> list[dict[str, Any]]:
        if self.refusal:
            raise self.refusal
        bucket, _, prefix = path.partition("/")
        objects = self.buckets.get(bucket, {})
        if prefix in objects:
            return [self._describe(bucket, prefix)]
        below = [key for key in objects if key.startswith(f"{prefix}/" if prefix else "")]
        names = {key[len(prefix) :].lstrip("/").partition("/")[0] for key in below}
        found = []
        for name in sorted(names):
            key = f"{prefix}/{name}".lstrip("/")
            entry = {"name": f"{bucket}/{key}", "size": 0, "type": "directory"}
            found.append(self._describe(bucket, key) if key in objects else entry)
        return found

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        """What a HEAD request answers, with the version; of a folder that it is one."""
        if self.refusal:
            raise self.refusal
        path = self._strip_protocol(path).rstrip("/")
        bucket, _, key = path.partition("/")
        if key in self.buckets.get(bucket, {}):
            return self._describe(bucket, key)
        if bucket in self.buckets and (not key or self._list(path)):
            return {"name": path, "size": 0, "type": "directory"}
        raise FileNotFoundError(path)

    def _describe(self, bucket: str, key: str) -> dict[str, Any]:
        versions = self.buckets[bucket][key]
        etag = hashlib.md5(versions[-1], usedforsecurity=False).hexdigest()
        state = {"ETag": f'"{etag}"', "VersionId": f"{key}-{len(versions)}"}
        return {"name": f"{bucket}/{key}", "size": len(versions[-1]), "type": "file", **state}

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        self.info(path)
        bucket, _, key = self._strip_protocol(path).partition("/")
        return io.BytesIO(self.buckets[bucket][key][-1])

    def invalidate_cache(self, path: str | None = None) -> None:
        """Forget the listings."""
        self.listings.clear()

    def put(self, key: str, content: bytes) -> None:
        """Write a further version of an object of the bucket `raw`."""
        self.buckets["raw"].setdefault(key, []).append(content)
