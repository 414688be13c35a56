"""No secret in any message or log."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import boto3
import pytest

from spotmpi.aws.account import open_account
from spotmpi.aws.errors import CloudError
from spotmpi.core import redaction
from spotmpi.core.redaction import redacted
from tests.cloud.account.answers import KEY_ID, SECRET, TOKEN


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """All that any logger says at the finest level."""
    stream, root, factory = io.StringIO(), logging.getLogger(), logging.getLogRecordFactory()
    handler, level = logging.StreamHandler(stream), root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield stream
    root.removeHandler(handler)
    root.setLevel(level)
    logging.setLogRecordFactory(factory)
    redaction._secrets.clear()


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # no server: signed, but never sent
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr("spotmpi.aws.account._MAX_ATTEMPTS", 1)


@pytest.mark.usefixtures("credentials")
def test_a_signed_call_logs_neither_key_nor_token_nor_signature(log: io.StringIO) -> None:
    with pytest.raises(CloudError, match="no answer from us-east-1"):
        open_account().call("sts", "us-east-1", "get_caller_identity")
    text = log.getvalue()
    assert "[redacted]" in text and "GetCallerIdentity" in text
    assert TOKEN not in text and SECRET not in text and KEY_ID not in text
    assert "Signature=[redacted]" in text


@pytest.mark.usefixtures("credentials")
def test_without_the_guard_the_library_logs_the_token(log: io.StringIO) -> None:
    logging.setLogRecordFactory(logging.LogRecord)
    client = boto3.client("sts", region_name="us-east-1")
    with pytest.raises(Exception, match="Could not connect"):
        client.get_caller_identity()
    assert TOKEN in log.getvalue() and KEY_ID in log.getvalue()


def test_tracebacks_and_records_of_the_package_are_redacted_too_and_others_are_left_alone(log: io.StringIO) -> None:
    redaction.guard_logs()
    factory = logging.getLogRecordFactory()
    redaction.guard_logs()
    assert logging.getLogRecordFactory() is factory, "guarding twice is guarding once"
    redaction.remember(SECRET)
    try:
        raise ValueError(SECRET)
    except ValueError:
        logging.getLogger("botocore.some.child").exception("failed with %s", SECRET)
    logging.makeLogRecord({"name": "other"})  # is made without a name
    logging.getLogger("other").info("%s here", "Signature=mine")
    logging.getLogger("spotmpi.somewhere").warning("the key is %s", KEY_ID)

    assert SECRET not in log.getvalue() and "ValueError: [redacted]" in log.getvalue()
    assert log.getvalue().endswith("Signature=mine here\nthe key is [redacted]\n"), "others are left alone"


@pytest.mark.parametrize(
    "text",
    [
        f"key {KEY_ID} here",
        f"https://x/?X-Amz-Credential={KEY_ID}/2026&X-Amz-Signature=abc123def&x=1",
        f"{{'x-amz-security-token': b'{TOKEN}'}}",
        f"aws_secret_access_key = {SECRET}",
        f'"SecretAccessKey": "{SECRET}"',
        f'"SessionToken":"{TOKEN}"',
        "Authorization: AWS4-HMAC-SHA256 Credential=x/y, SignedHeaders=host, Signature=abc123def",
        "Authorization: AWS4-HMAC-SHA256 Credential=x/y, SignedHeaders=host, Signature=bcd123efa",
    ],
)
def test_text_that_looks_like_a_secret_is_redacted(text: str) -> None:
    redacted_text = redacted(text)
    assert "[redacted]" in redacted_text
    assert not any(secret in redacted_text for secret in (KEY_ID, SECRET, TOKEN, "abc123def", "cd123efa"))


@pytest.mark.parametrize("text", ["", "g5.xlarge in us-east-1a", "quota L-3819A6DF", "signature of the function"])
def test_text_without_a_secret_is_unchanged(text: str) -> None:
    assert redacted(text) == text
