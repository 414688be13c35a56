"""A file at an https address: its size, its version and its pieces, with retries."""

from __future__ import annotations

import http.client
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, TypeVar

TRIES = 6
PAUSE = 1.0  # seconds before the second try; each further pause is twice as long
_PERMANENT_STATUS = (401, 403, 404, 410)
T = TypeVar("T")


class Unavailable(Exception):
    """The file cannot be fetched, and a retry would not help."""


class Changed(Exception):
    """The file at the address has been replaced by another version."""


def probe(url: str) -> tuple[int, str]:
    """Bytes and version (ETag or modification time) of the file at *url*; Unavailable without range requests."""
    answer = request_range(url, 0, 1)
    if answer is None:
        return 0, ""
    with answer:
        total = (answer.headers.get("Content-Range") or "").rpartition("/")[2]
        if answer.status != 206 or not total.isdigit():
            raise Unavailable("the server does not support range requests (status %d)" % answer.status)
        return int(total), answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""


def read(url: str, start: int, end: int, tag: str | None) -> bytes:
    """The bytes of *url* from *start* to before *end*; OSError where they are fewer.

    Changed where they are not of the version with the entity *tag*, if one is given.
    """
    answer = request_range(url, start, end, tag)
    if answer is not None:
        with answer:
            # A server may ignore If-Match; the answer names its version.
            if tag and answer.headers.get("ETag") != tag:
                raise Changed
            data: bytes = answer.read()
        if len(data) == end - start:
            return data
    elif tag:
        raise Changed  # it has become shorter
    raise OSError("the server closed the connection early")


def retry(work: Callable[[], T]) -> T:
    """The result of *work*, tried up to `TRIES` times; OSError if all fail, Unavailable if a retry cannot help."""
    for number in range(TRIES):
        try:
            return work()
        except (OSError, http.client.HTTPException) as error:
            if number == TRIES - 1:
                raise OSError("no answer after %d tries: %s" % (TRIES, error)) from error
        time.sleep(PAUSE * 2**number)
    raise AssertionError


def request_range(url: str, start: int, end: int, tag: str | None = None) -> Any:
    """The response to a range request, None where the range is empty; Unavailable where a retry cannot help.

    Changed where the server has another version of the file than that of the entity *tag*.
    """
    headers = {"Range": "bytes=%d-%d" % (start, end - 1)}
    if tag:
        headers["If-Match"] = tag
    request = urllib.request.Request(url, headers=headers)
    try:
        return urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            return None
        if error.code == http.client.PRECONDITION_FAILED:
            raise Changed from error
        if error.code in _PERMANENT_STATUS:
            raise Unavailable("HTTP %d: the file does not exist, or access to it is denied" % error.code) from error
        raise
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            problem = error.reason.verify_message
            raise Unavailable("certificate not trusted (%s); use --ca FILE for your own authority" % problem) from error
        raise


def trust(authority: str) -> None:
    """Trust the certificates in the file *authority*, if it has any, in addition to the default ones.

    As for curl, they need not have the extensions that Python 3.13 demands by default: many authorities lack them.
    """
    if os.path.getsize(authority):
        context = ssl.create_default_context()
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.load_verify_locations(authority)
        urllib.request.install_opener(urllib.request.build_opener(urllib.request.HTTPSHandler(context=context)))
