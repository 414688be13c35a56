"""The way to a cluster's API: objects as plain values, and every fault said in one line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

import httpx2
from lightkube import ApiError, AsyncClient, codecs
from lightkube.core.exceptions import ConfigError
from lightkube.generic_resource import create_namespaced_resource
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources import batch_v1, core_v1, networking_v1
from lightkube.types import CascadeType, OnErrorAction, OnErrorResult, PatchType

from spotmpi.backends.kubernetes.client.clock import ClusterClock
from spotmpi.backends.kubernetes.client.kubeconfig import configuration, in_pod
from spotmpi.core.errors import NotPermitted, SpotmpiError
from spotmpi.plan.pods import CONTAINER

Object = dict[str, Any]

JOBSET = "JobSet"
POD = "Pod"
EVENT = "Event"
CONFIG_MAP = "ConfigMap"
JOB = "Job"
NETWORK_POLICY = "NetworkPolicy"
CLAIM = "PersistentVolumeClaim"
AGAIN = "AGAIN"
_RESOURCES: dict[str, Any] = {
    JOBSET: create_namespaced_resource("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets"),
    POD: core_v1.Pod,
    EVENT: core_v1.Event,
    CONFIG_MAP: core_v1.ConfigMap,
    JOB: batch_v1.Job,
    NETWORK_POLICY: networking_v1.NetworkPolicy,
    CLAIM: core_v1.PersistentVolumeClaim,
}
CONNECTING = 10.0  # seconds to reach the API
ANSWERING = 60.0  # seconds for it to say something: a busy one thinks long about the pods of a large run
PIECE = 1 << 16  # bytes of a log that are handed on together where it is not followed
_PAGE = 500  # objects that are listed by one request
_OF_PODS = frozenset({"nodeName", "terminationGracePeriodSeconds"})
RETRY = 1.0  # seconds between tries when the API does not answer
_REFUSED = (401, 403, 404)
REFUSALS = 10  # in a row, after which one is believed

_INSTALL = (
    "the cluster has no JobSet, which carries our runs; install its chart with "
    "`helm install jobset oci://registry.k8s.io/jobset/charts/jobset --namespace jobset-system --create-namespace`"
)


class ClusterApi:
    """One namespace of one cluster; methods raise lightkube's errors, which `told` translates."""

    def __init__(self, context: str | None, namespace: str | None) -> None:
        patience = httpx2.Timeout(CONNECTING, read=ANSWERING)
        config = configuration(context)
        self._client: Any = AsyncClient(config=config, namespace=namespace, timeout=patience, field_manager="spotmpi")
        self._clock = ClusterClock()
        self._client._client._client.event_hooks = {"response": [self._take_date]}
        self.context = None if in_pod() else str(config.context_name)
        self.namespace = str(self._client.namespace)

    def now(self) -> float:
        """Unix seconds by the API server's clock, once it has answered."""
        return self._clock.now()

    async def _take_date(self, answer: httpx2.Response) -> None:
        self._clock.take(answer.headers.get("Date"))

    async def create(self, values: Object) -> Object:
        """The object made from *values*; AlreadyExists is an error."""
        resource = _RESOURCES.get(values["kind"])
        made = resource(values) if values["kind"] == JOBSET and resource else codecs.from_dict(values)
        created: Object = (await self._client.create(made)).to_dict()
        return created

    async def find(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        """The object of that name, or None."""
        try:
            found: Object = (await self._client.get(_RESOURCES[kind], name, namespace=namespace)).to_dict()
        except ApiError as error:
            if missing(error):
                return None
            raise
        return found

    async def list(self, kind: str, labels: dict[str, str] | None = None, about: str | None = None) -> list[Object]:
        """The objects that carry *labels*; of events those that are *about* the object of that name."""
        fields = None if about is None else {"involvedObject.name": about}
        return [_lean(kind, item) async for item in self._listing(kind, labels, fields)]

    def _listing(self, kind: str, labels: dict[str, str] | None, fields: dict[str, str] | None) -> Any:
        return self._client.list(_RESOURCES[kind], labels=labels, fields=fields, chunk_size=_PAGE)

    async def node_events(self) -> Sequence[Object]:
        """The events about nodes, which have no namespace: theirs are kept in ``default``."""
        fields = {"involvedObject.kind": "Node"}
        listing = self._client.list(core_v1.Event, namespace="default", fields=fields, chunk_size=_PAGE)
        return [_lean(EVENT, item) async for item in listing]

    async def watch(
        self, kind: str, labels: dict[str, str] | None = None, name: str | None = None
    ) -> AsyncIterator[tuple[str, Object]]:
        """Changes (ADDED, MODIFIED, DELETED) with the object, first those that are there, without an end.

        Where changes may have been missed, AGAIN comes with all that is there now as ``items``.
        """
        fields = None if name is None else {"metadata.name": name}
        version, known = None, False
        while True:
            watching = self._client.watch(
                _RESOURCES[kind], labels=labels, fields=fields, resource_version=version, on_error=_patient
            )
            try:
                async for change, item in watching:
                    known = True
                    yield change, _lean(kind, item)
            except httpx2.HTTPError:
                pass  # The client's own patience covers neither a version that is too old nor a refused connection.
            there, version = await self._patiently_listed(kind, labels, fields, REFUSALS if known else 0)
            yield AGAIN, {"items": there}
            await asyncio.sleep(RETRY)

    async def _patiently_listed(
        self, kind: str, labels: dict[str, str] | None, fields: dict[str, str] | None, refusals: int
    ) -> tuple[Sequence[Object], str | None]:
        """All objects and their version, as soon as the API gives them; more than *refusals* in a row are believed."""
        while True:
            listing = self._listing(kind, labels, fields)
            try:
                return [_lean(kind, item) async for item in listing], listing.resourceVersion
            except httpx2.HTTPError as error:
                # A server that has just started may refuse whom it knows.
                refusals -= _code(error) in _REFUSED
                if refusals < 0:
                    raise
            await asyncio.sleep(RETRY)

    async def patch(self, kind: str, name: str, values: Object) -> None:
        """Merge *values* into an object."""
        await self._client.patch(_RESOURCES[kind], name, values, patch_type=PatchType.MERGE)

    async def delete(self, kind: str, name: str, wait: bool = False, now: bool = False) -> None:
        """Delete an object and all it owns; with *wait* it stays visible until those are gone; none is no error."""
        cascade = CascadeType.FOREGROUND if wait else CascadeType.BACKGROUND
        try:
            await self._client.delete(_RESOURCES[kind], name, cascade=cascade, grace_period=0 if now else None)
        except ApiError as error:
            if not missing(error):
                raise

    async def evict(self, pod: str) -> None:
        """Evict a pod as a drain does: with its grace, and marked as a disruption."""
        eviction = core_v1.PodEviction(metadata=ObjectMeta(name=pod, namespace=self.namespace))
        await self._client.create(eviction, pod)

    async def execute(self, pod: str, command: Sequence[str]) -> str:
        """What *command* printed in a pod's container; its exit status is its own."""
        with _over_websocket():
            done = await self._client.exec(pod, container=CONTAINER, command=command, stdout=True, stderr=True)
        return str(done.stdout)

    async def stream(
        self, pod: str, command: Sequence[str], given: BinaryIO | None, into: BinaryIO | None
    ) -> tuple[int, str]:
        """Exit status and last words of *command* in a pod, fed from *given*, its output written to *into*."""
        with _over_websocket():
            done = await self._client.exec(
                pod, container=CONTAINER, command=command, stdin=given, stdout=into or False, stderr=True
            )
        return int(done.exit_code), str(done.stderr)

    async def last_line(self, pod: str) -> str:
        """The newest line of a pod's log, empty where there is none."""
        lines = [line async for line in self._client.log(pod, container=CONTAINER, tail_lines=1, newlines=False)]
        return str(lines[-1]) if lines else ""

    async def log(self, pod: str, since: int | None, follow: bool) -> AsyncIterator[str]:
        """Whole lines of a pod's log from *since* seconds ago; with *follow* as they come, until the container ends."""
        # The client's own `log` takes a log that is not followed into memory, and cannot read a refusal of one that is.
        client = self._client._client
        asked = {"container": CONTAINER, "follow": follow, "sinceSeconds": since}
        request = client.prepare_request("get", core_v1.PodLog, name=pod, params=asked)
        if follow:
            request.timeout = httpx2.Timeout(CONNECTING, read=None)
        answer = await client.send(client.build_adapter_request(request), stream=True)
        try:
            if answer.is_error:
                await answer.aread()
            client.raise_for_status(answer)
            rest, least = b"", 0 if follow else PIECE
            async for data in answer.aiter_bytes():
                rest += data
                if len(rest) > least and b"\n" in data:
                    whole, _, rest = rest.rpartition(b"\n")
                    yield whole.decode("utf-8", "replace")
            if rest:
                yield rest.removesuffix(b"\n").decode("utf-8", "replace")
        finally:
            await answer.aclose()


def _lean(kind: str, item: Any) -> Object:
    """An object as plain values, without what nobody here reads: of a thousand pods that would be most of it."""
    values: Object = item.to_dict()
    values["metadata"].pop("managedFields", None)
    if kind == POD and "spec" in values:
        values["spec"] = {key: value for key, value in values["spec"].items() if key in _OF_PODS}
    return values


@contextmanager
def _over_websocket() -> Iterator[None]:
    """Raise what goes wrong on the way as the other requests do."""
    from httpx2.websockets import HTTPXWSException, WebSocketUpgradeError  # 50 ms that few commands need

    try:
        yield
    except WebSocketUpgradeError as error:
        request, answer = httpx2.Request("GET", "https://cluster/exec"), error.response
        raise httpx2.HTTPStatusError("no connection into the pod", request=request, response=answer) from error
    except HTTPXWSException as error:
        raise httpx2.ReadError(f"the connection into the pod broke off: {error!r}") from error


@contextmanager
def told(doing: str) -> Iterator[None]:
    """Translate what the API or the way to it raises; *doing* completes "could not ..."."""
    try:
        yield
    except ApiError as error:
        kind = NotPermitted if error.status.code == 403 else SpotmpiError
        raise kind(f"could not {doing}: {_words(error)}") from error
    except ConfigError as error:
        said = " ".join(str(error).split())
        raise SpotmpiError(f"could not {doing}: {said}; log in anew, then try `kubectl version`") from error
    except httpx2.HTTPStatusError as error:
        code = error.response.status_code
        # Where no object of a kind's whole API group is known, the answer is no Kubernetes status.
        unknown = code == 404 and "/apis/jobset.x-k8s.io/" in str(error.request.url)
        said = _INSTALL if unknown else f"the cluster answered {code}"
        raise SpotmpiError(f"could not {doing}: {said}") from error
    except httpx2.ReadTimeout as error:
        raise SpotmpiError(
            f"could not {doing}: the cluster has said nothing for {ANSWERING:g} s; try again, or `kubectl version`"
        ) from error
    except (httpx2.HTTPError, OSError) as error:
        said = str(error) or type(error).__name__
        raise SpotmpiError(
            f"could not {doing}: the cluster cannot be reached ({said}); try `kubectl version`"
        ) from error


def _words(error: ApiError) -> str:
    status = error.status
    message = str(status.message or error)
    if status.code == 401:
        return f"it does not know who you are ({message}); log in anew, then try `kubectl version`"
    if status.code == 403 and "admission webhook" not in message:
        return f"not permitted ({message})"
    if status.code == 404 and "jobsets" in str(error.request.url if error.request else ""):
        return _INSTALL if "could not find the requested resource" in message else message
    if "webhook" in message and ("jobset" in message or "refused" in message):
        return f"JobSet's webhook does not answer: check `kubectl -n jobset-system get pods` ({message})"
    return message


def missing(error: ApiError) -> bool:
    """Whether the API knows the kind of object, but not this one."""
    unknown_kind = "could not find the requested resource" in str(error.status.message)
    return error.status.code == 404 and not unknown_kind


def conflicts(error: ApiError) -> bool:
    """Whether an object of that name exists already."""
    return bool(error.status.code == 409)


def _code(error: Exception) -> int | None:
    """The status by which the API refused, where it answered."""
    if isinstance(error, ApiError):
        return error.status.code
    return error.response.status_code if isinstance(error, httpx2.HTTPStatusError) else None


def _patient(error: Exception, count: int) -> OnErrorResult:
    """Try again while the API is out of reach or busy."""
    if _code(error) in (*_REFUSED, 410):
        return OnErrorResult(OnErrorAction.RAISE)
    return OnErrorResult(OnErrorAction.RETRY, min(RETRY * count, 5.0))
