"""Removes secrets from messages and logs: texts that look like one, and known ones."""

from __future__ import annotations

import logging
import re
from typing import Any

_PLACEHOLDER = "[redacted]"
_KEY_ID = re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b")
_NAMED = re.compile(
    r"(?i)((?:x-amz-)?(?:security[-_]?token|signature|credential)|session[-_]?token|secret[-_]?access[-_]?key|password)"
    r"(['\"]?\s*[:=]\s*(?:b(?=['\"]))?['\"]?)([^\s'\"&,}<]+)"  # b'...' as Python prints bytes
)
_LIBRARIES = ("boto", "urllib3", "spotmpi", "s3transfer")
_secrets: set[str] = set()


def remember(*secrets: str | None) -> None:
    """Remove these texts from now on, wherever they appear."""
    _secrets.update(secret for secret in secrets if secret and len(secret) >= 8)


def redacted(text: str) -> str:
    """*text* without access keys, signatures, session tokens and every remembered secret."""
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, _PLACEHOLDER)
    text = _NAMED.sub(rf"\1\2{_PLACEHOLDER}", text)
    return _KEY_ID.sub(_PLACEHOLDER, text)


def guard_logs() -> None:
    """Redact every log record of ours and of the AWS libraries, whichever handler writes it; once per process.

    A filter on a logger misses its children, and handlers belong to the caller: records are redacted as they are made.
    """
    make = logging.getLogRecordFactory()
    if getattr(make, "redacts", False):
        return

    def factory(*args: Any, **more: Any) -> logging.LogRecord:
        record = make(*args, **more)
        if record.name and record.name.startswith(_LIBRARIES):  # logging.makeLogRecord names none at first
            record.msg, record.args = redacted(record.getMessage()), None
            if record.exc_info:
                record.exc_text = redacted(logging.Formatter().formatException(record.exc_info))
        return record

    factory.redacts = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(factory)
