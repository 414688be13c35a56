"""The way to an environment's cluster by the AWS credentials: its endpoint from EKS, and tokens that are renewed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable
from functools import cached_property

import httpx2
from lightkube.config.kubeconfig import SingleConfig
from lightkube.config.models import Cluster as ClusterEntry
from lightkube.config.models import Context, User

from spotmpi.aws import eks
from spotmpi.aws.account import Aws, open_account
from spotmpi.aws.errors import CallError, CloudError
from spotmpi.core import names

ACCESS = "spotmpi.access"  # the extension of a request with the access that signed it
_ENDPOINT_LIFETIME = 60.0  # seconds: a cluster that is built anew has another endpoint
_TOKEN_LIFETIME = 10 * 60.0  # seconds, well below those of `eks.LIFETIME`


class EksAccess(httpx2.Auth):
    """The endpoint of one cluster, and tokens for it, renewed by a clock that nobody sets and where one is refused."""

    def __init__(self, cluster: eks.Cluster, clock: Callable[[], float] = time.monotonic) -> None:
        self.cluster, self._clock, self._lock = cluster, clock, threading.Lock()
        self._endpoint: tuple[float, eks.Endpoint] | None = None  # when EKS was asked, and its answer
        self._token: tuple[float, str] | None = None  # when it was made

    @cached_property
    def _aws(self) -> Aws:
        return open_account(self.cluster.region)

    def endpoint(self) -> eks.Endpoint:
        """Where the cluster answers; CloudError where EKS does not describe it."""
        with self._lock:
            if self._endpoint is None or self._clock() - self._endpoint[0] > _ENDPOINT_LIFETIME:
                try:
                    self._endpoint = self._clock(), eks.describe(self._aws, self.cluster)
                except CloudError as error:
                    # A call that fails for a moment, as after a machine's sleep, makes no address wrong.
                    if self._endpoint is None or not isinstance(error, CallError):
                        self._forget()
                        raise
            return self._endpoint[1]

    def _forget(self) -> None:
        """Let the next client of this process read the credentials again: a user may log in meanwhile."""
        _accesses.pop(self.cluster, None)

    def configuration(self) -> SingleConfig:
        """The connection settings, as of a kubeconfig's context; CloudError where EKS does not describe the cluster."""
        endpoint = self.endpoint()
        entry = ClusterEntry(server=endpoint.server, certificate_auth_data=endpoint.authority)
        return SingleConfig(endpoint.arn, Context(cluster=endpoint.arn), entry, User())

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """The request with a token, and with a new one if the cluster does not accept that."""
        request.extensions[ACCESS] = self
        used = request.headers["Authorization"] = await self._bearer()
        response = yield request
        # The sleep of a machine can stop the clock, but delays no end of a token.
        if response.status_code == 401:
            request.headers["Authorization"] = await self._bearer(refused=used)
            yield request

    async def _bearer(self, refused: str = "") -> str:
        now = self._clock()
        if self._token is None or self._token[1] == refused or now - self._token[0] > _TOKEN_LIFETIME:
            try:  # it may take a request to renew the credentials
                token = await asyncio.to_thread(self.token)
            except CallError as error:  # as transient as a cluster that does not answer
                raise httpx2.ConnectError(str(error)) from error
            self._token = now, f"Bearer {token}"
        return self._token[1]

    def token(self) -> str:
        """A new token; CloudError without credentials."""
        return eks.token(self._aws, self.cluster)

    def refusal(self) -> str:
        """Why the cluster accepts no token of these credentials."""
        self._forget()
        return eks.refusal(self._aws, self.cluster)


_accesses: dict[eks.Cluster, EksAccess] = {}  # of this process, as its clients are many


def access_of(context: str | None) -> EksAccess | None:
    """The access to the cluster of an environment's context; None for contexts of a kubeconfig. Calls nothing yet."""
    cluster = eks.parse(context.removeprefix(names.EKS)) if context and context.startswith(names.EKS) else None
    if cluster is None:
        return None
    return _accesses.setdefault(cluster, EksAccess(cluster))
