"""What AWS and its library complain of, in one line that says what to do."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from spotmpi.core.errors import SpotmpiError
from spotmpi.core.redaction import redacted

_DENIED = {
    "AccessDenied",
    "AccessDeniedException",
    "UnauthorizedOperation",
    "AuthorizationError",
    "Client.Unauthorized",
}
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"}
_THROTTLED = {
    "Throttling",
    "ThrottlingException",
    "RequestLimitExceeded",
    "TooManyRequestsException",
    "RequestThrottled",
    "SlowDown",
}
_UNKNOWN_KEY = {"AuthFailure", "UnrecognizedClientException", "InvalidClientTokenId", "OptInRequired"}
_SIGNATURE = {"SignatureDoesNotMatch", "InvalidSignatureException", "RequestTimeTooSkewed", "RequestExpired"}
_SKEW = timedelta(minutes=4)  # AWS takes 5 minutes; what lies just below would not have been refused
_LOG_IN = "log in again (`aws sso login`, or new keys), then repeat the command"


class CloudError(SpotmpiError):
    """AWS can't be asked at all: credentials, region, clock or network."""


class CallFailed(CloudError):
    """One call failed and others may not; `short` fits into a table's cell, `code` is AWS's own word."""

    def __init__(self, message: str, short: str, code: str = "") -> None:
        super().__init__(message)
        self.short = short
        self.code = code


def translated(error: Exception, action: str, region: str, now: datetime | None = None) -> CloudError:
    """The one line for *error*, which `action` (as IAM names it) in *region* raised; *now* is this machine's clock."""
    response = getattr(error, "response", None)
    if isinstance(response, dict) and "Error" in response:
        return _of_answer(response, action, region, now or datetime.now(UTC))
    return _of_library(error, action, region)


def _of_answer(response: Mapping[str, Any], action: str, region: str, now: datetime) -> CloudError:
    code = str(response["Error"].get("Code", "Unknown"))
    said = redacted(str(response["Error"].get("Message", ""))).splitlines()
    if code in _UNKNOWN_KEY | _SIGNATURE | _EXPIRED:
        return _of_identity(code, response, region, now)
    if code in _DENIED:
        return CallFailed(f"{action} in {region} is not permitted: let your IAM policy allow it", "not permitted", code)
    if code in _THROTTLED:
        return CallFailed(f"{action} in {region}: AWS throttles it; repeat the command in a minute", "throttled", code)
    if code == "MaxConfigLimitExceeded":
        message = f"{action}: too many different questions in 24 hours; ask for the same types and nodes as before"
        return CallFailed(message, "daily limit", code)
    return CallFailed(f"{action} in {region} failed with {code}: {' '.join(said)}", code, code)


def _of_identity(code: str, response: Mapping[str, Any], region: str, now: datetime) -> CloudError:
    off = _clock_difference(response, now)
    # EC2 answers AuthFailure to a wrong clock as well, so the clock is looked at before the code.
    if off is not None and abs(off) > _SKEW:
        way = "ahead of" if off > timedelta(0) else "behind"
        minutes = round(abs(off).total_seconds() / 60)
        return CloudError(f"this machine's clock is {minutes} minutes {way} AWS's: set it (`timedatectl`), then repeat")
    if code in _EXPIRED or code == "RequestExpired":
        return CloudError(f"the AWS credentials have expired: {_LOG_IN}")
    if code in _SIGNATURE:
        return CloudError("AWS refuses the signature: the secret access key does not belong to its key id; " + _LOG_IN)
    return CloudError(
        f"AWS does not accept these credentials in {region} ({code}): they are wrong, or the region is not enabled "
        f"(`aws account enable-region --region-name {region}`)"
    )


def _clock_difference(response: Mapping[str, Any], now: datetime) -> timedelta | None:
    date = response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    try:
        return now - parsedate_to_datetime(date) if date else None
    except (TypeError, ValueError):
        return None


def _of_library(error: Exception, action: str, region: str) -> CloudError:
    name = type(error).__name__
    said = " ".join(redacted(str(error)).split())
    if name in ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"):
        return CloudError("no usable AWS credentials: run `aws configure sso`, or set AWS_PROFILE or AWS_ACCESS_KEY_ID")
    if name in ("ProfileNotFound", "ConfigParseError"):
        return CloudError(f"{said}: set AWS_PROFILE to one of `aws configure list-profiles`")
    if "Token" in name or "SSO" in name:
        return CloudError(f"the AWS login has expired ({said}): {_LOG_IN}")
    if name in ("NoRegionError", "InvalidRegionError"):
        return CloudError("no usable AWS region: name it with --region, or set AWS_REGION")
    if name in ("EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "ConnectionClosedError"):
        return CallFailed(
            f"{action}: no answer from {region}; is the region's name right, and the network up?", "no answer"
        )
    return CallFailed(f"{action} in {region} failed: {name}: {said}", name)
