"""What goes wrong at a cluster's API, translated into our errors: one line with its remedy."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import httpx2
import msgspec
from lightkube import ApiError
from lightkube.core.exceptions import ConfigError

from spotmpi.agent import record
from spotmpi.agent.files import error_text
from spotmpi.backends.kubernetes.client.login_program import ACCESS, RenewedToken
from spotmpi.core.errors import NotPermitted, Problem, SpotmpiError, UnknownRun

T = TypeVar("T")

_INSTALL = (
    "JobSet, which runs need, is not installed on the cluster; install its chart with "
    "`helm install jobset oci://registry.k8s.io/jobset/charts/jobset --namespace jobset-system --create-namespace`"
)

_FAILED_WEBHOOK = re.compile(r'failed calling webhook "([^"]*)"')
_SERVICE = re.compile(r'https?://([^./:\s"]+)\.([^./:\s"]+)\.svc\b')  # of a webhook, with its namespace
_QUOTA = re.compile(r"(exceeded|failed) quota: ([^,:\s]+)")
_NAMESPACE = re.compile(r'namespaces "[^"]*" not found')
_TERMINATING = "because it is being terminated"
# How admission refuses what the user may do, with the code of a missing right: webhooks, policies of the API server,
# LimitRanges, Pod Security, and OpenShift's constraints.
_ADMISSION = re.compile(
    r"denied (the )?request|(maximum|minimum) \w+ usage per|max limit to request ratio|violates PodSecurity"
    r"|security context constraint"
)


@contextmanager
def translate_errors(action: str) -> Iterator[None]:
    """Raise SpotmpiError for what the API or the connection raises; *action* completes "could not ...".

    Raises:
        NotPermitted: the user lacks a right.
        OSError: a file of this machine does not take what has come.
        SpotmpiError: any other error.
    """
    try:
        yield
    except ApiError as error:
        kind = NotPermitted if lacks_right(error) else SpotmpiError
        raise kind(f"could not {action}: {_explain(error)}") from error
    except ConfigError as error:
        reason = " ".join(str(error).split())
        raise SpotmpiError(f"could not {action}: {reason}; log in again, then try `kubectl version`") from error
    except httpx2.HTTPStatusError as error:
        code = error.response.status_code
        if code == 401 and (refusal := _refusal(error.request)):
            raise SpotmpiError(f"could not {action}: {refusal}") from error
        if code == 403:  # of a WebSocket, whose refusal has no Status
            raise NotPermitted(f"could not {action}: not permitted (the cluster answered 403)") from error
        # Where no kind of an API group is installed, the answer is not a Kubernetes Status.
        is_unknown = code == 404 and "/apis/jobset.x-k8s.io/" in str(error.request.url)
        reason = _INSTALL if is_unknown else f"the cluster answered {code}"
        raise SpotmpiError(f"could not {action}: {reason}") from error
    except httpx2.ReadTimeout as error:
        seconds = error.request.extensions.get("timeout", {}).get("read")
        duration = "in time" if seconds is None else f"within {seconds:g} s"
        raise SpotmpiError(
            f"could not {action}: the cluster did not answer {duration}; try again, or `kubectl version`"
        ) from error
    except (httpx2.HTTPError, OSError) as error:
        if isinstance(error, OSError) and error.errno in record.DISK_FULL:  # of this machine: no connection has that
            raise
        reason = error_text(error) or type(error).__name__
        raise SpotmpiError(f"could not {action}: cannot reach the cluster ({reason}); try `kubectl version`") from error
    except msgspec.DecodeError as error:
        raise SpotmpiError(
            f"could not {action}: the answer is not one of a Kubernetes API ({error}): a proxy may be in the way; "
            "check the `server` of `kubectl config view --minify`, and try `kubectl version`"
        ) from error


@contextmanager
def websocket_errors() -> Iterator[None]:
    """Raise the errors of a websocket as the other requests do."""
    from httpx2.websockets import HTTPXWSException, WebSocketUpgradeError  # 50 ms that few commands need

    try:
        yield
    except WebSocketUpgradeError as error:
        request, response = httpx2.Request("GET", "https://cluster/exec"), error.response
        raise httpx2.HTTPStatusError("no connection into the pod", request=request, response=response) from error
    except HTTPXWSException as error:
        raise httpx2.ReadError(f"the connection into the pod broke off{reason_of_end(error)}") from error


def reason_of_end(error: Exception) -> str:
    """Why a websocket has ended, after a colon; empty where the error does not say it."""
    code = getattr(error, "code", None)
    reason = getattr(error, "reason", "") or (f"close code {code}" if code else error_text(error.__cause__ or ""))
    return f": {reason}" if reason else ""


def lacks_right(error: ApiError) -> bool:
    """Whether the API refused a request since its user lacks a right, and not by a quota, a policy or a webhook."""
    message = str(error.status.message)
    is_admission = _ADMISSION.search(message) or _QUOTA.search(message) or _TERMINATING in message
    return error.status.code == 403 and not is_admission


async def permitted(request: Awaitable[T], otherwise: T) -> T:
    """What a *request* of the API gives; *otherwise* where its user lacks the right."""
    try:
        return await request
    except ApiError as error:
        if not lacks_right(error):
            raise
        return otherwise


def _refusal(request: httpx2.Request | None) -> str | None:
    """Why the cluster does not accept the token of a request, where that is known."""
    access: RenewedToken | None = request.extensions.get(ACCESS) if request else None
    return access.refusal() if access else None


def _explain(error: ApiError) -> str:
    """Why the API refused a request, in one line, with the remedy where there is one."""
    status = error.status
    message = " ".join(str(status.message or error).split())
    if status.code == 401:
        if refusal := _refusal(error.request):
            return refusal
        return f"the cluster does not accept your credentials ({message}); log in again, then try `kubectl version`"
    if lacks_right(error):
        return f"not permitted ({message})"
    if status.code == 404 and _NAMESPACE.match(message):
        remedy = "create it, or use another with `kubectl config set-context --current --namespace NAME`"
        return f"its namespace does not exist ({message}): {remedy}"
    if status.code == 404 and "jobsets" in str(error.request.url if error.request else ""):
        return _INSTALL if "could not find the requested resource" in message else message
    if webhook := _FAILED_WEBHOOK.search(message):
        return _explain_webhook(webhook[1], message)
    if quota := _QUOTA.search(message):
        return f"{message}; `kubectl describe quota {quota[2]}` shows what is used, and `spotmpi list` the runs"
    if _TERMINATING in message:
        return f"its namespace is being deleted; use another one ({message})"
    return message


def _explain_webhook(name: str, message: str) -> str:
    """That an admission webhook does not answer, which may be JobSet's, with where its pods are."""
    service = _SERVICE.search(message)
    namespace = service[2] if service else "jobset-system" if "jobset" in name else None
    is_jobsets = service is None or "jobset" in service[1]  # Kueue's for JobSets has the same name
    whose = "JobSet's webhook" if is_jobsets and "jobset" in name + message else f"admission webhook {name}"
    check = f"check `kubectl -n {namespace} get pods`" if namespace else "ask the administrator of the cluster"
    return f"{whose} does not answer: {check} ({message})"


def is_missing(error: ApiError) -> bool:
    """Whether the API knows the kind of object, but has none of that name."""
    is_unknown_kind = "could not find the requested resource" in str(error.status.message)
    return error.status.code == 404 and not is_unknown_kind


def no_such_run(run: str) -> UnknownRun:
    """The error of a run that the namespace does not have."""
    return UnknownRun([Problem("run", run, "no such run in the namespace; `spotmpi list` lists the runs")])


def already_exists(error: ApiError) -> bool:
    """Whether an object of that name exists already."""
    return bool(error.status.code == 409)


def status_code(error: Exception) -> int | None:
    """The HTTP status with which the API answered; None where it did not answer."""
    if isinstance(error, ApiError):
        return error.status.code
    return error.response.status_code if isinstance(error, httpx2.HTTPStatusError) else None
