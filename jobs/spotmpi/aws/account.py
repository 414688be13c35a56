"""The one place that calls boto3: an account, its clients, and calls whose errors are one clear line."""

from __future__ import annotations

import threading
from typing import Any

from spotmpi.aws.concurrent_calls import AT_ONCE
from spotmpi.aws.errors import translated
from spotmpi.core.redaction import guard_logs, remember

_IAM_NAMES = {"service-quotas": "servicequotas", "efs": "elasticfilesystem"}
_ATTEMPTS = 6


class Aws:
    """An AWS account as the environment's credentials see it; may be used from several threads."""

    def __init__(self, session: Any, region: str | None) -> None:
        self._session = session
        self.region = region
        self._clients: dict[tuple[str, str], Any] = {}
        self._making = threading.Lock()

    def client(self, service: str, region: str) -> Any:
        """The boto3 client of *service* in *region*, made once; CloudError without region or credentials."""
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        with self._making:  # making clients is the one thing that boto3 sessions don't do safely in threads
            if (service, region) not in self._clients:
                config = Config(
                    retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
                    connect_timeout=5,
                    read_timeout=20,
                    max_pool_connections=AT_ONCE,
                    user_agent_extra="spotmpi",
                )
                try:
                    self._clients[service, region] = self._session.client(service, region, config=config)
                except (BotoCoreError, ValueError) as error:
                    raise translated(error, service, region) from error
            return self._clients[service, region]

    def call(self, service: str, region: str, method: str, **arguments: Any) -> dict[str, Any]:
        """AWS's answer to one call, retried with back-off; CallFailed or CloudError."""
        client = self.client(service, region)
        try:
            answer: dict[str, Any] = getattr(client, method)(**arguments)
        except Exception as error:
            raise _translated(error, client, service, method, region) from error
        return answer

    def pages(self, service: str, region: str, method: str, key: str, **arguments: Any) -> list[Any]:
        """All of *key* over every page of a call; CallFailed or CloudError."""
        client = self.client(service, region)
        try:
            return [item for page in client.get_paginator(method).paginate(**arguments) for item in page.get(key, [])]
        except Exception as error:
            raise _translated(error, client, service, method, region) from error


def open_account(region: str | None = None) -> Aws:
    """The account of the environment's AWS credentials and profile, asked in *region* unless told otherwise."""
    import boto3
    from botocore.exceptions import BotoCoreError

    guard_logs()
    try:
        session = boto3.Session(region_name=region)
        credentials = session.get_credentials()
    except BotoCoreError as error:
        raise translated(error, "credentials", region or "any region") from error
    if credentials is not None:
        remember(credentials.secret_key, credentials.token)
    return Aws(session, session.region_name)


def _translated(error: Exception, client: Any, service: str, method: str, region: str) -> Exception:
    from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

    if not isinstance(error, BotoCoreError | ClientError | HTTPClientError):
        return error
    operation = client.meta.method_to_api_mapping.get(method, method)
    return translated(error, f"{_IAM_NAMES.get(service, service)}:{operation}", region)
