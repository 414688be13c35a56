"""The one place that imports boto3: an account, its clients, and calls whose errors are one line with a remedy."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeVar

from spotmpi.aws.concurrent_calls import MAX_CALLS
from spotmpi.aws.errors import (
    THROTTLED_SHORT,
    CallError,
    CloudError,
    RegionNotEnabled,
    rejects_key,
    translate_error,
)
from spotmpi.core.redaction import guard_logs, remember
from spotmpi.core.reminders import LONG_QUIET
from spotmpi.core.wording import Echo, print_message

ANY_REGION = "us-east-1"  # enabled in every account, so any call about other regions can go there
IAM_PREFIXES = {"service-quotas": "servicequotas", "efs": "elasticfilesystem"}  # of services, also in ARNs
_MAX_ATTEMPTS = 6
_READ_TIMEOUT = 20  # seconds
_PAUSES = (10.0, 20.0, 40.0)  # seconds after which a call is sent again that AWS throttles after all these attempts
_SUFFIXES = {"aws-cn": "amazonaws.com.cn", "aws-eusc": "amazonaws.eu"}  # of hosts, by partition
_FILTER_VALUES = 200  # that EC2 takes in all filters of one call: FilterLimitExceeded (gossm#47)
_NEXT_TOKENS = ("NextToken", "nextToken", "NextPageToken")  # of answers that are not the last one
_Answer = TypeVar("_Answer")


class Aws:
    """An AWS account as the environment's credentials see it; may be used from several threads.

    With *echo* a call that AWS throttles for long is sent again for another minute or so, and each pause is reported.
    """

    def __init__(
        self,
        session: Any,
        region: str | None,
        attempts: int = _MAX_ATTEMPTS,
        echo: Echo | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._session = session
        self.region = region
        self._attempts = attempts
        self._echo, self._sleep = echo, sleep
        self._clients: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()
        self._is_announced = False  # that AWS is silent

    def client(self, service: str, region: str) -> Any:
        """The boto3 client of *service* in *region*, created once; CloudError without region or credentials."""
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        with self._lock:  # creating clients is the one operation of a boto3 session that is not thread-safe
            if (service, region) not in self._clients:
                config = Config(
                    retries={"mode": "standard", "total_max_attempts": self._attempts},
                    connect_timeout=5,
                    read_timeout=_READ_TIMEOUT,
                    max_pool_connections=MAX_CALLS,
                    user_agent_extra="spotmpi",
                    **(_s3_options() if service == "s3" else {}),
                )
                try:
                    self._clients[service, region] = self._session.client(service, region, config=config)
                except (BotoCoreError, ValueError) as error:
                    raise translate_error(error, service, region) from error
            return self._clients[service, region]

    def call(self, service: str, region: str, method: str, **arguments: Any) -> dict[str, Any]:
        """The response to one call, retried with backoff; CallError or CloudError."""
        client = self.client(service, region)

        def send() -> dict[str, Any]:
            try:
                response: dict[str, Any] = getattr(client, method)(**arguments)
            except Exception as error:
                raise self._call_error(error, client, service, method, region) from error
            return response

        return self._unless_throttled(send, f"{service} in {region}")

    def _call_error(self, error: Exception, client: Any, service: str, method: str, region: str) -> Exception:
        if rejects_key(error) and region != ANY_REGION and self._is_accepted(region):
            return RegionNotEnabled(region)
        return _call_error(error, client, service, method, region)

    def _is_accepted(self, region: str) -> bool:
        """Whether AWS accepts the credentials where every account is, in the partition of *region*."""
        if self.partition(region) != self.partition(ANY_REGION):
            return False
        try:
            self.account_id(ANY_REGION)
        except CloudError:
            return False
        return True

    @contextlib.contextmanager
    def _announcement(self, what: str) -> Iterator[None]:
        """Print once, of all calls, that AWS is silent: *what* names the service that has not answered for a while."""

        def announce() -> None:
            with self._lock:
                is_first, self._is_announced = not self._is_announced, True
            if is_first:
                limit = f"gives up after {self._attempts} tries of up to {_READ_TIMEOUT} s"
                print_message(f"waiting until AWS answers ({what}; {limit})")

        timer = threading.Timer(LONG_QUIET, announce)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _unless_throttled(self, send: Callable[[], _Answer], what: str) -> _Answer:
        """What *send* returns, which is called again, after a pause, while AWS throttles it."""
        for pause in _PAUSES if self._echo else ():
            try:
                with self._announcement(what):
                    return send()
            except CallError as error:
                if error.short != THROTTLED_SHORT:
                    raise
                assert self._echo is not None
                self._echo(f"{str(error).partition(';')[0]}; sent again in {pause:g} s")
            self._sleep(pause)
        with self._announcement(what):
            return send()

    def find(
        self, service: str, region: str, method: str, absent: Collection[str], **arguments: Any
    ) -> dict[str, Any] | None:
        """As `call`; None where AWS answers with one of these error codes, by which something does not exist."""
        try:
            return self.call(service, region, method, **arguments)
        except CallError as error:
            if error.code not in absent:
                raise
            return None

    def pages(self, service: str, region: str, method: str, key: str, **arguments: Any) -> list[Any]:
        """The items under *key* of all pages of a call, or of one without pages; CallError or CloudError.

        A filter with more values than EC2 takes is asked for in parts, so one item may come with several of them.
        """
        return [item for each in _parts(arguments) for item in self._pages(service, region, method, key, each)]

    def _pages(self, service: str, region: str, method: str, key: str, arguments: Mapping[str, Any]) -> list[Any]:
        client = self.client(service, region)
        if not client.can_paginate(method):
            return list(self._items(service, region, method, key, arguments))

        def send() -> list[Any]:
            pages = client.get_paginator(method).paginate(**arguments)
            try:
                return [item for page in pages for item in page.get(key, [])]
            except Exception as error:
                raise self._call_error(error, client, service, method, region) from error

        return self._unless_throttled(send, f"{service} in {region}")

    def _items(self, service: str, region: str, method: str, key: str, arguments: Mapping[str, Any]) -> Iterator[Any]:
        """The items of a call that boto3 knows no pages of; it has some even so, as Cost Explorer's."""
        token: dict[str, Any] = {}
        while True:
            answer = self.call(service, region, method, **arguments, **token)
            yield from answer.get(key, [])
            token = {name: answer[name] for name in _NEXT_TOKENS if answer.get(name)}
            if not token:
                return

    def account_id(self, region: str) -> str:
        """The number of the account that the credentials belong to; CallError or CloudError."""
        return str(self.call("sts", region, "get_caller_identity")["Account"])

    def partition(self, region: str) -> str:
        """The partition of *region*, as ARNs have it: aws, aws-cn or another."""
        return str(self._session.get_partition_for_region(region))

    def presign_identity(self, region: str, headers: Mapping[str, str], seconds: int) -> str:
        """An address with which others learn from STS in *region* who we are, if they send *headers* too; CloudError.

        Nothing is called, except to renew credentials.
        """
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.model import ServiceId
        from botocore.signers import RequestSigner

        url = f"https://{_sts_host(self._session, region)}/?Action=GetCallerIdentity&Version=2011-06-15"
        request = {"method": "GET", "url": url, "body": {}, "headers": dict(headers), "context": {}}
        try:
            credentials = self._session.get_credentials()
            signer = RequestSigner(ServiceId("STS"), region, "sts", "v4", credentials, self._session.events)
            signed: str = signer.generate_presigned_url(
                request, region_name=region, expires_in=seconds, operation_name=""
            )
        except (BotoCoreError, ClientError) as error:
            raise translate_error(error, "sts:GetCallerIdentity", region) from error
        return signed


def _parts(arguments: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The arguments of a call, or of several where its longest filter has too many values for one."""
    filters = [dict(each) for each in arguments.get("Filters", ()) if "Values" in each]
    longest = max(filters, key=lambda each: len(each["Values"]), default=None)
    if longest is None or sum(len(each["Values"]) for each in filters) <= _FILTER_VALUES:
        yield dict(arguments)
        return
    size = _FILTER_VALUES - sum(len(each["Values"]) for each in filters if each is not longest)
    for first in range(0, len(longest["Values"]), size):
        part = {**longest, "Values": longest["Values"][first : first + size]}
        yield {**arguments, "Filters": [part if each is longest else each for each in filters]}


def _sts_host(session: Any, region: str) -> str:
    """STS's own host in *region*, whichever endpoints are configured: what it signs is for others to read."""
    return f"sts.{region}.{_SUFFIXES.get(session.get_partition_for_region(region), 'amazonaws.com')}"


def _s3_options() -> dict[str, Any]:
    """How S3 is called and addresses are signed: by default boto3 signs by version 2 in the older regions.

    S3 accepts that neither for objects encrypted by KMS nor in newer regions (Amazon S3 API Reference, Specifying the
    Signature Version in Request Authentication). A bucket's own host is in its region; other stores may have none.
    """
    is_other_store = any(os.environ.get(name) for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"))
    style = {"addressing_style": "auto" if is_other_store else "virtual", "us_east_1_regional_endpoint": "regional"}
    return {"signature_version": "s3v4", "s3": style}


def default_region() -> str | None:
    """The region of AWS_REGION, which boto3 ignores, unlike the AWS CLI and Pulumi, or else that of the profile."""
    import boto3

    return os.environ.get("AWS_REGION") or boto3.Session().region_name


def open_account(region: str | None = None, attempts: int = _MAX_ATTEMPTS, echo: Echo | None = None) -> Aws:
    """The account of the environment's AWS credentials and profile; *region* replaces the default region.

    Each call is sent at most *attempts* times; one that AWS throttles still, after a pause again if there is an *echo*.
    """
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    guard_logs()
    try:
        session = boto3.Session(region_name=region or default_region())
        credentials = session.get_credentials()
        if credentials is not None:
            remember(credentials.secret_key, credentials.token)  # which logs in, by SSO or to a role
    except (BotoCoreError, ClientError) as error:
        raise translate_error(error, "credentials", region or "any region") from error
    return Aws(session, session.region_name, attempts, echo)


def _call_error(error: Exception, client: Any, service: str, method: str, region: str) -> Exception:
    from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

    if not isinstance(error, BotoCoreError | ClientError | HTTPClientError):
        return error
    operation = client.meta.method_to_api_mapping.get(method, method)
    return translate_error(error, f"{IAM_PREFIXES.get(service, service)}:{operation}", region)
