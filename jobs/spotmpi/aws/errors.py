"""Errors of AWS and of boto3, as one line that says what to do."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from spotmpi.core.errors import SpotmpiError
from spotmpi.core.redaction import redacted
from spotmpi.core.wording import counted

DENIED = {
    "AccessDenied",
    "AccessDeniedException",
    "UnauthorizedOperation",
    "AuthorizationError",
    "Client.Unauthorized",
}
EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"}
# As in botocore's retries/standard.py, but for codes that some services have for quotas, too.
THROTTLED = {
    *("Throttling", "ThrottledException", "ThrottlingException", "RequestThrottled", "RequestThrottledException"),
    *("RequestLimitExceeded", "TooManyRequestsException", "SlowDown", "EC2ThrottledException"),
    *("BandwidthLimitExceeded", "PriorRequestNotComplete", "ProvisionedThroughputExceededException"),
}
THROTTLED_SHORT = "throttled"  # the `short` of these
NO_ANSWER = "no answer"  # the `short` of a call that reached nothing
_COST_EXPLORER = "ce:", "LimitExceededException"  # which it answers to too many calls (Cost Explorer API reference)
UNKNOWN_KEY = {
    *("AuthFailure", "UnrecognizedClientException", "InvalidClientTokenId", "OptInRequired"),
    *("InvalidAccessKeyId", "InvalidToken"),  # S3's
}
SIGNATURE = {"SignatureDoesNotMatch", "InvalidSignatureException", "RequestTimeTooSkewed", "RequestExpired"}
_MAX_SKEW = timedelta(minutes=4)  # AWS accepts 5 minutes; a smaller difference is not the cause
LOG_IN = "log in again (`aws sso login`, or new keys)"


class CloudError(SpotmpiError):
    """No call to AWS can succeed: credentials, region, clock or network."""


class RegionNotEnabled(CloudError):
    """No call to one region can succeed, though the credentials are valid elsewhere."""

    def __init__(self, region: str) -> None:
        command = f"aws account enable-region --region-name {region}"
        # Tokens of the global STS are for the regions that every account has (aws-vault#512).
        again = "if it is enabled, log in again with AWS_STS_REGIONAL_ENDPOINTS=regional"
        valid = f"{region} rejects these credentials, which AWS accepts elsewhere"
        super().__init__(f"{valid}: enable it (`{command}`); {again}")


class CallError(CloudError):
    """One call failed and others may succeed; `short` fits into a table cell, `code` is AWS's error code.

    `headers` are those of AWS's answer, in lower case.
    """

    def __init__(self, message: str, short: str, code: str = "") -> None:
        super().__init__(message)
        self.short = short
        self.code = code
        self.headers: Mapping[str, str] = {}


def rejects_key(error: Exception) -> bool:
    """Whether AWS answered that it does not know the access key, as a region does that is not enabled."""
    response = getattr(error, "response", None)
    return isinstance(response, dict) and response.get("Error", {}).get("Code") in UNKNOWN_KEY


def translate_error(error: Exception, action: str, region: str, now: datetime | None = None) -> CloudError:
    """*error*, raised by `action` (its IAM name) in *region*, as a CloudError; *now* is this machine's clock."""
    response = getattr(error, "response", None)
    if isinstance(response, dict) and "Error" in response:
        translated = _from_response(response, action, region, now or datetime.now(UTC))
        if isinstance(translated, CallError):
            translated.headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        return translated
    return _from_library(error, action, region)


def _from_response(response: Mapping[str, Any], action: str, region: str, now: datetime) -> CloudError:
    code = str(response["Error"].get("Code", "Unknown"))
    message = redacted(str(response["Error"].get("Message", ""))).splitlines()
    if code in UNKNOWN_KEY | SIGNATURE | EXPIRED:
        return _from_authentication(code, response, region, now)
    if code in DENIED:
        return CallError(f"{action} in {region} is not permitted: allow it in your IAM policy", "not permitted", code)
    if code in THROTTLED or (action[:3], code) == _COST_EXPLORER:
        return CallError(
            f"{action} in {region}: throttled by AWS; repeat the command in a minute", THROTTLED_SHORT, code
        )
    if code == "MaxConfigLimitExceeded":
        reason = f"{action}: too many different requests in 24 hours; repeat with the same types and nodes as before"
        return CallError(reason, "daily limit", code)
    return CallError(f"{action} in {region} failed with {code}: {' '.join(message)}", code, code)


def _from_authentication(code: str, response: Mapping[str, Any], region: str, now: datetime) -> CloudError:
    """Why AWS does not accept the credentials; *now* tells whether this machine's clock is wrong."""
    skew = _clock_skew(response, now)
    # EC2 returns AuthFailure for a wrong clock too, so the clock is checked before the code.
    if skew is not None and abs(skew) > _MAX_SKEW:
        direction = "ahead of" if skew > timedelta(0) else "behind"
        minutes = counted(round(abs(skew).total_seconds() / 60), "minute")
        return CloudError(f"this machine's clock is {minutes} {direction} AWS's: set it (`timedatectl`), then repeat")
    if code in EXPIRED or code == "RequestExpired":
        return CloudError(f"the AWS credentials have expired: {LOG_IN}, then repeat the command")
    if code in SIGNATURE:
        return CloudError(
            "the signature is invalid: the secret access key does not match the access key id; "
            f"{LOG_IN}, then repeat the command"
        )
    return CloudError(
        f"AWS rejects these credentials in {region} ({code}): they are invalid, or the region is not enabled "
        f"(`aws account enable-region --region-name {region}`)"
    )


def _clock_skew(response: Mapping[str, Any], now: datetime) -> timedelta | None:
    date = response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    try:
        return now - parsedate_to_datetime(date) if date else None
    except (TypeError, ValueError):
        return None


def _from_library(error: Exception, action: str, region: str) -> CloudError:
    """The error of a call that got no answer, or was never sent."""
    name = type(error).__name__
    message = " ".join(redacted(str(error)).split())
    if name in ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"):
        return CloudError("no usable AWS credentials: run `aws configure sso`, or set AWS_PROFILE or AWS_ACCESS_KEY_ID")
    if name == "ProfileNotFound":
        return CloudError(f"{message}: set AWS_PROFILE to one of `aws configure list-profiles`")
    if name == "ConfigParseError":
        return CloudError(f"{message}: correct that file (`aws configure` writes it)")
    if "Token" in name or "SSO" in name:
        return CloudError(f"the AWS login has expired ({message}): {LOG_IN}, then repeat the command")
    if name == "InvalidRegionError":
        return CloudError(f"{message.rstrip('.')}: give a region such as us-east-1 (AWS_REGION, or the profile's)")
    if name == "NoRegionError":
        return CloudError("no AWS region is set: set AWS_REGION to one such as us-east-1")
    if name in ("EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "ConnectionClosedError"):
        return CallError(f"{action}: no answer from {region}; check the region's name and the network", NO_ANSWER)
    return CallError(f"{action} in {region} failed: {name}: {message}", name)
