"""No secret in any message or log: what looks like one, or is known to be one, is blotted out."""

from __future__ import annotations

import logging
import re
from typing import Any

_BLOT = "[redacted]"
_KEY_ID = re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b")
_NAMED = re.compile(
    r"(?i)((?:x-amz-)?(?:security[-_]?token|signature|credential)|session[-_]?token|secret[-_]?access[-_]?key|password)"
    r"(['\"]?\s*[:=]\s*b?['\"]?)([^\s'\"&,}<]+)"
)
_LIBRARIES = ("boto", "urllib3", "jobs", "s3transfer")
_known: set[str] = set()


def remember(*secrets: str | None) -> None:
    """Blot out these very texts from now on, however they are spelled around."""
    _known.update(secret for secret in secrets if secret and len(secret) >= 8)


def redacted(text: str) -> str:
    """*text* without access keys, signatures, session tokens and every secret that was remembered."""
    for secret in sorted(_known, key=len, reverse=True):
        text = text.replace(secret, _BLOT)
    text = _NAMED.sub(rf"\1\2{_BLOT}", text)
    return _KEY_ID.sub(_BLOT, text)


def guard_logs() -> None:
    """Redact every log record of ours and of the AWS libraries, whichever handler writes it; once per process.

    A filter on a logger would miss its children, and handlers are the caller's: so it is done where records are made.
    """
    make = logging.getLogRecordFactory()
    if getattr(make, "redacts", False):
        return

    def factory(*args: Any, **more: Any) -> logging.LogRecord:
        record = make(*args, **more)
        if record.name.startswith(_LIBRARIES):
            record.msg, record.args = redacted(record.getMessage()), None
            if record.exc_info:
                record.exc_text = redacted(logging.Formatter().formatException(record.exc_info))
        return record

    factory.redacts = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(factory)
