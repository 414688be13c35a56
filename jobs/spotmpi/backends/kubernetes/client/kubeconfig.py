"""The connection settings of clusters: from this machine's kubeconfig, or from AWS for an environment.

The kubeconfig is read as kubectl does: several files in KUBECONFIG are merged; without any file, a pod of a cluster
uses its service account. An environment's cluster needs none: EKS tells its endpoint, and tokens are renewed.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import msgspec
import yaml
from lightkube import KubeConfig
from lightkube.config.client_adapter import ConnectionParams, ExecAuth
from lightkube.config.kubeconfig import SERVICE_ACCOUNT, SingleConfig, to_mapping
from lightkube.config.models import Cluster, Context, User
from lightkube.config.models import Cluster as ClusterEntry
from lightkube.core.exceptions import ConfigError

from spotmpi.agent.files import is_file
from spotmpi.aws import eks
from spotmpi.aws.account import Aws, open_account
from spotmpi.aws.errors import CallError, CloudError
from spotmpi.backends.kubernetes.client.login_program import RenewedToken, login_of
from spotmpi.core import names
from spotmpi.core.errors import input_error
from spotmpi.core.structs import inspected
from spotmpi.core.wording import reason_of

for _model in (Cluster, Context, User):
    inspected(_model)

LISTS = ("clusters", "contexts", "users")
_PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
_EXEC = "client.authentication.k8s.io"
_REMEDY = "check KUBECONFIG and `kubectl config get-contexts`"

_LARGEST = 16 << 20  # characters of a kubeconfig, which has some thousand for each cluster
_ENDPOINT_LIFETIME = 60.0  # seconds: a cluster that is built anew has another endpoint
_TOKEN_LIFETIME = 10 * 60.0  # seconds, well below those of `eks.LIFETIME`


@inspected
class ProxiedCluster(Cluster, omit_defaults=True):
    """A cluster with the proxy that leads to it and the name in its certificate, if they are not as usual."""

    proxy: str | None = msgspec.field(name="proxy-url", default=None)
    tls_server_name: str | None = msgspec.field(name="tls-server-name", default=None)


@inspected
class Impersonator(User, omit_defaults=True):
    """A user who acts as another one, if any."""

    as_user: str | None = msgspec.field(name="as", default=None)
    as_uid: str | None = msgspec.field(name="as-uid", default=None)
    as_groups: list[str] | None = msgspec.field(name="as-groups", default=None)
    as_extra: dict[str, list[str]] | None = msgspec.field(name="as-user-extra", default=None)


def configuration(context: str | None) -> Any:
    """The connection settings of a context, by default the current one; InputError where there are none."""
    try:
        config: Any = read().get(context_name=context)
    except ConfigError as error:
        raise input_error("context", context, f"{error}; {_REMEDY}") from error
    except KeyError as error:
        raise input_error(
            "context", context, f"it refers to {error}, which is not in the kubeconfig; {_REMEDY}"
        ) from error
    proxy = proxy_of(config)
    if proxy and not proxy.startswith(("http://", "https://")):
        problem = f"proxy-url {proxy} of its cluster is not supported; use an HTTP proxy"
        raise input_error("context", str(config.context_name), problem)
    return config if config.user else config._replace(user=User())  # the cluster may admit anonymous users


def proxy_of(config: Any) -> str | None:
    """The proxy that leads to the cluster of these connection settings."""
    proxy: str | None = getattr(config.cluster, "proxy", None)
    return proxy


def tls_server_name(config: Any) -> str | None:
    """The name that the certificate of the cluster has to have, where it is not that of its address."""
    name: str | None = getattr(config.cluster, "tls_server_name", None)
    return name


def impersonation(config: Any) -> list[tuple[str, str]]:
    """The headers by which a user acts as another one (Kubernetes, Authenticating, User impersonation)."""
    user = config.user
    if not isinstance(user, Impersonator) or user.as_user is None:
        return []
    headers = [("Impersonate-User", user.as_user), *(("Impersonate-Group", group) for group in user.as_groups or [])]
    headers += [("Impersonate-Uid", user.as_uid)] if user.as_uid else []
    extra = (user.as_extra or {}).items()
    return [
        *headers,
        *((f"Impersonate-Extra-{quote(key, safe='')}", value) for key, values in extra for value in values),
    ]


def require_certificates(config: Any) -> None:
    """ConfigError where a file that the settings of a context name cannot be read."""
    user = config.user or User()
    files = {
        "certificate-authority": None if config.cluster.certificate_auth_data else config.cluster.certificate_auth,
        "client-certificate": None if user.client_cert_data else user.client_cert,
        "client-key": None if user.client_key_data else user.client_key,
    }
    for key, path in files.items():
        try:
            if path:
                Path(path).open("rb").close()
        except OSError as error:
            raise ConfigError(f"the {key} {path} of the kubeconfig cannot be read ({error.strerror})") from error


def read() -> KubeConfig:
    """All contexts; ConfigError where nothing is configured, InputError where a file cannot be read."""
    if in_pod():
        return KubeConfig.from_service_account(SERVICE_ACCOUNT)
    contents = [_content(path) for path in paths() if is_file(path)]
    if not contents:
        raise ConfigError(f"no kubeconfig at {', '.join(map(str, paths()))}")
    # Of a name that is in several files, and of the current context, the first one counts.
    merged: dict[str, Any] = {key: [item for each in reversed(contents) for item in each[key]] for key in LISTS}
    currents = [each["current-context"] for each in contents if each.get("current-context")]
    return _parse({**merged, "current-context": next(iter(currents), None)})


def _parse(values: Mapping[str, Any]) -> KubeConfig:
    """All contexts of the content of a kubeconfig, also with what lightkube does not know."""
    config = KubeConfig.from_dict(dict(values))
    config.clusters = to_mapping(values["clusters"], "cluster", ProxiedCluster)
    config.users = to_mapping(values["users"], "user", Impersonator)
    return config


def in_pod() -> bool:
    """Whether the cluster is that of the pod in which this process runs, by its service account and without a context.

    As with kubectl, a kubeconfig takes precedence: a notebook's pod may use another cluster.
    """
    has_account = "KUBERNETES_SERVICE_HOST" in os.environ and Path(SERVICE_ACCOUNT, "token").is_file()
    return has_account and not any(map(is_file, paths()))


def paths() -> list[Path]:
    """The kubeconfig files, which need not exist."""
    listed = [Path(name) for name in os.environ.get("KUBECONFIG", "").split(os.pathsep) if name]
    return listed or [names.absolute("~/.kube/config")]


def require_kubeconfig(path: Path) -> Mapping[str, Any]:
    """The content of one file as it is; InputError where it is not a kubeconfig."""
    try:
        with path.open(encoding="utf-8") as file:  # a device has no end
            text = file.read(_LARGEST + 1)
        if len(text) > _LARGEST:
            raise ValueError(f"it is larger than {_LARGEST >> 20} MiB")
        values = yaml.safe_load(text) or {}
        _parse({**values, **{key: values.get(key) or [] for key in LISTS}})
    except (
        OSError,
        ValueError,
        yaml.YAMLError,
        msgspec.ValidationError,
        KeyError,
        TypeError,
        AttributeError,
    ) as error:
        is_shape = isinstance(error, KeyError | TypeError | AttributeError)
        detail = "its clusters, users and contexts are not lists of tables" if is_shape else reason_of(error)
        message = f"not a kubeconfig ({detail}); repair it, or name another"
        raise input_error("KUBECONFIG", str(path), message) from error
    content: Mapping[str, Any] = values
    return content


class EksAccess(RenewedToken):
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


class Connection(ConnectionParams):
    """lightkube's connection settings; *on_date* gets the ``Date`` of each response, and *access* logs in to EKS."""

    def __init__(
        self,
        timeout: httpx2.Timeout,
        on_date: Callable[[str | None], None],
        proxy: str | None,
        access: EksAccess | None,
    ) -> None:
        super().__init__(timeout=timeout, proxy=proxy)
        self._on_date, self._access = on_date, access

    def httpx_params(self, config: Any) -> dict[str, Any]:
        """The arguments of the HTTP client; ConfigError where a certificate cannot be used."""
        require_certificates(config)
        try:
            parameters: dict[str, Any] = super().httpx_params(config)
        except (ssl.SSLError, ValueError, TypeError) as error:  # certificates without a key are a TypeError
            raise ConfigError(f"the certificates of the kubeconfig cannot be used ({error})") from error
        if config.user.exec and isinstance(parameters["auth"], ExecAuth):
            parameters["auth"] = login_of(config.user.exec)
        if self._access:
            parameters["auth"] = self._access
        # Authorities may have no key identifiers (EKS's are reported so): Python 3.13 demands them, kubectl does not.
        parameters["verify"].verify_flags &= ~ssl.VERIFY_X509_STRICT
        parameters["headers"] = impersonation(config)
        hooks: dict[str, Any] = {"response": [self._check_response]}
        if name := tls_server_name(config):

            async def expect_certificate_of(request: httpx2.Request) -> None:
                request.extensions = {**request.extensions, "sni_hostname": name}

            hooks["request"] = [expect_certificate_of]
        return {**parameters, "event_hooks": hooks}

    async def _check_response(self, response: httpx2.Response) -> None:
        """Take the server's time from a response; RemoteProtocolError where it is a page for people, as of a login."""
        self._on_date(response.headers.get("Date"))
        response.headers.setdefault("Content-Type", "")  # lightkube relies on it, and not every proxy sends one
        if response.has_redirect_location:
            where = response.headers["Location"]
            raise httpx2.RemoteProtocolError(f"its address sends us on to {where}, as a login page does")
        if response.is_success and response.headers["Content-Type"].startswith("text/html"):
            raise httpx2.RemoteProtocolError("its address answers with a web page, as a proxy or a login does")


def _content(path: Path) -> Mapping[str, Any]:
    """The content of one file with absolute paths; InputError where it is not a kubeconfig."""
    values = require_kubeconfig(path)
    return {**values, **{key: [_resolve(each, path.parent) for each in values.get(key) or []] for key in LISTS}}


def _resolve(entry: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """A cluster, context or user with absolute paths."""
    return {key: _with_paths(value, folder) if isinstance(value, dict) else value for key, value in entry.items()}


def _with_paths(values: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    paths = {key: str(folder / values[key]) for key in _PATHS if values.get(key)}
    return {**values, **paths, **({"exec": _login_program(values["exec"], folder)} if values.get("exec") else {})}


def _login_program(program: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """An exec credential plugin as lightkube takes it, which does not know version v1.

    As with kubectl, the plugin gets the version that it is configured for in KUBERNETES_EXEC_INFO, and a relative path
    to it is relative to the *folder* of the kubeconfig.
    """
    if os.sep in (command := program["command"]):
        program = {**program, "command": str(folder / command)}
    info = {"kind": "ExecCredential", "apiVersion": program["apiVersion"], "spec": {"interactive": False}}
    variables = [*(program.get("env") or []), {"name": "KUBERNETES_EXEC_INFO", "value": json.dumps(info)}]
    version = f"{_EXEC}/v1beta1" if program["apiVersion"] == f"{_EXEC}/v1" else program["apiVersion"]
    return {**program, "apiVersion": version, "env": variables}
