"""A file at an https address: its size, its version and its pieces, asked for again where an answer breaks off."""

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
_GONE = (401, 403, 404, 410)
T = TypeVar("T")


class Gone(Exception):
    """The address does not give the file, however often one asks."""


class Changed(Exception):
    """The address gives another version of the file by now."""


def probe(url: str) -> tuple[int, str]:
    """Bytes of the file at *url*, and what changes with its content; Gone where it gives no pieces."""
    answer = asked(url, 0, 1)
    if answer is None:
        return 0, ""
    with answer:
        total = (answer.headers.get("Content-Range") or "").rpartition("/")[2]
        if answer.status != 206 or not total.isdigit():
            raise Gone("the server gives no pieces of it (answer %d), so nothing could be taken up" % answer.status)
        return int(total), answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""


def read(url: str, start: int, end: int, tag: str | None) -> bytes:
    """The bytes of *url* from *start* to before *end*; OSError where they are fewer.

    Changed where they are no longer of the version with that entity *tag*, where one is given.
    """
    answer = asked(url, start, end, tag)
    if answer is not None:
        with answer:
            # A server may not know If-Match; what it sends says of which version it is.
            if tag and answer.headers.get("ETag") != tag:
                raise Changed
            data: bytes = answer.read()
        if len(data) == end - start:
            return data
    elif tag:
        raise Changed  # it has become shorter
    raise OSError("the server breaks off")


def again(work: Callable[[], T]) -> T:
    """What *work* gives, after some tries if need be; OSError where none helps now, Gone where none ever will."""
    for number in range(TRIES):
        try:
            return work()
        except (OSError, http.client.HTTPException) as error:
            if number == TRIES - 1:
                raise OSError("no answer after %d tries: %s" % (TRIES, error)) from error
        time.sleep(PAUSE * 2**number)
    raise AssertionError


def asked(url: str, start: int, end: int, tag: str | None = None) -> Any:
    """The answer to a question for some bytes, None where there are none; Gone where asking again is of no use.

    Changed where the server has no such version of the file: an entity *tag* is compared before anything is sent.
    """
    headers = {"Range": "bytes=%d-%d" % (start, end - 1)}
    if tag:
        headers["If-Match"] = tag
    wanted = urllib.request.Request(url, headers=headers)
    try:
        return urllib.request.urlopen(wanted, timeout=60)
    except urllib.error.HTTPError as error:
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            return None
        if error.code == http.client.PRECONDITION_FAILED:
            raise Changed from error
        if error.code in _GONE:
            raise Gone("the address answers %d: the file is gone, or access to it has ended" % error.code) from error
        raise
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            said = error.reason.verify_message
            raise Gone(
                "its certificate is not trusted (%s); --ca FILE names an authority of your own" % said
            ) from error
        raise


def trust(authority: str) -> None:
    """Trust the certificates in the file *authority*, where it has any, besides the usual ones."""
    if os.path.getsize(authority):
        context = ssl.create_default_context()
        context.load_verify_locations(authority)
        urllib.request.install_opener(urllib.request.build_opener(urllib.request.HTTPSHandler(context=context)))
