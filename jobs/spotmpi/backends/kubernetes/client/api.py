"""The asynchronous client of a cluster's API: objects as plain values, by the API server's clock."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, BinaryIO

import httpx2
from lightkube import ApiError, codecs
from lightkube.core.decoders import decode_list, decode_watch_event
from lightkube.core.generic_client import GenericAsyncClient
from lightkube.core.selector import build_selector
from lightkube.generic_resource import create_namespaced_resource
from lightkube.models.meta_v1 import ObjectMeta, Status
from lightkube.resources import apps_v1, authorization_v1, batch_v1, core_v1, networking_v1
from lightkube.types import CascadeType, OnErrorAction, OnErrorResult, PatchType

from spotmpi.agent import protocol
from spotmpi.backends.kubernetes.client.answers import Answer, ErrorOutput
from spotmpi.backends.kubernetes.client.errors import is_missing, status_code, websocket_errors
from spotmpi.backends.kubernetes.client.kubeconfig import (
    Connection,
    access_of,
    configuration,
    in_pod,
    proxy_of,
)
from spotmpi.backends.kubernetes.client.login_program import ACCESS
from spotmpi.core.reminders import QUIET
from spotmpi.core.structs import inspected
from spotmpi.core.wording import print_message
from spotmpi.plan.pods import CONTAINER

Object = dict[str, Any]

JOBSET = "JobSet"
POD = "Pod"
EVENT = "Event"
CONFIG_MAP = "ConfigMap"
JOB = "Job"
NETWORK_POLICY = "NetworkPolicy"
CLAIM = "PersistentVolumeClaim"
SECRET = "Secret"
RESYNC = "RESYNC"
_RESOURCES: dict[str, Any] = {
    JOBSET: create_namespaced_resource("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets"),
    POD: core_v1.Pod,
    EVENT: core_v1.Event,
    CONFIG_MAP: core_v1.ConfigMap,
    JOB: batch_v1.Job,
    NETWORK_POLICY: networking_v1.NetworkPolicy,
    CLAIM: core_v1.PersistentVolumeClaim,
    "Node": core_v1.Node,
    SECRET: core_v1.Secret,
    "PersistentVolume": core_v1.PersistentVolume,
    "DaemonSet": apps_v1.DaemonSet,
    "Deployment": apps_v1.Deployment,
}
_OTHER_MODELS = (core_v1.PodEviction, authorization_v1.SelfSubjectAccessReview, Status)
_MODELS_LOCK = threading.Lock()
CONNECT_TIMEOUT = 10.0  # seconds
READ_TIMEOUT = 60.0  # seconds: a busy API server thinks long about the pods of a large run
# Seconds after which a silent watch or log is requested anew: of a connection that a laptop's sleep, a VPN or a NAT has
# cut off, nobody ever sees the end.
MAX_SILENCE = 120.0
LOG_CHUNK = 1 << 16  # bytes of a log that are yielded together where it is not followed
LONGEST_LINE = 4 * protocol.MAX_REPORT  # bytes: agents print no longer ones, and an image may print without an end
_LONGEST_LAST = 1 << 16  # bytes of the last line of a log, which shows progress
_PAGE = 500  # objects that one request lists
_POD_SPEC_KEYS = frozenset({"nodeName", "terminationGracePeriodSeconds"})
RETRY_DELAY = 1.0  # seconds between tries when the API does not answer
_BUSY = (429, 503)
_BUSY_TRIES = 10  # of a request, as client-go does
_LONGEST_DELAY = 10.0  # seconds
_REFUSED = (401, 403, 404)
# In a row, which takes 155 s; one more is final. A server that has just started refuses users until it knows their
# rights: for more than 55 s once, on a busy machine.
MAX_REFUSALS = 20
_SILENT_FAILURES = 3  # of a watch in a row; 6 seconds, and more where connecting takes its time
CLOCK_TOLERANCE = 2.0  # seconds of difference that count as none: Date has whole seconds, and travels


def inspect_models() -> None:
    """Let msgspec inspect the models of objects, once, in one thread only; see `core.structs.inspected`.

    It takes 20 ms of processor time, so not at import.
    """
    with _MODELS_LOCK:
        _inspect_models()


@functools.cache
def _inspect_models() -> None:
    for resource in _RESOURCES.values():
        decode_list(b'{"items":[]}', resource)
    for model in _OTHER_MODELS:
        inspected(model)
    decode_watch_event(b'{"type":"BOOKMARK","object":{}}')


class ClusterClock:
    """The API server's clock: *clock* plus how far that is behind the ``Date`` of the server's latest response.

    All times of a run are compared with this one, whatever this machine's clock says.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._offset = 0.0

    def update(self, date: str | None) -> None:
        """Take the ``Date`` header of a response that has just arrived; anything that is not a date changes nothing."""
        try:
            server = parsedate_to_datetime(date or "").timestamp()
        except ValueError:
            return
        offset = server + 0.5 - self._clock()
        self._offset = offset if abs(offset) > CLOCK_TOLERANCE else 0.0

    def now(self) -> float:
        """Unix seconds by the server's clock; by this machine's until there was a response."""
        return self._clock() + self._offset


class _Client(GenericAsyncClient):
    """lightkube's client, which waits where a busy API server asks for that (429 or 503 with ``Retry-After``).

    lightkube requests a watch that has ended without an error anew at once; where a proxy ends each, this one waits.
    """

    _is_announced = False

    async def send(self, req: httpx2.Request, stream: bool = False) -> Any:
        """The response to a request; that of the last try if the server stays busy."""
        if "watch" in req.url.params:
            await self._pause(str(req.url.copy_remove_param("resourceVersion")))
        tries = 1
        while True:
            with contextlib.nullcontext() if stream else self._announcement(req):
                response: Any = await super().send(req, stream)  # type: ignore[no-untyped-call]
            delay = response.headers.get("Retry-After", "")
            if response.status_code not in _BUSY or not delay.isdecimal() or tries == _BUSY_TRIES:
                return response
            tries += 1
            await response.aclose()
            await asyncio.sleep(min(float(delay), _LONGEST_DELAY))

    @contextlib.contextmanager
    def _announcement(self, request: httpx2.Request) -> Iterator[None]:
        """Print what is waited for where a cluster that has not answered yet is silent; a login speaks for itself."""

        def announce() -> None:
            logs_in = ACCESS in request.extensions and "Authorization" not in request.headers
            if not (self._is_announced or logs_in):
                self._is_announced = True
                print_message(f"waiting until the cluster answers (gives up after {READ_TIMEOUT:g} s)")

        wait = None if self._is_announced else asyncio.get_running_loop().call_later(QUIET, announce)
        try:
            yield
            self._is_announced = True  # it is not silent
        finally:
            if wait is not None:
                wait.cancel()

    async def _pause(self, watch: str) -> None:
        """Wait until the last request of the same *on_event* is a moment ago."""
        watches: dict[str, float] = self.__dict__.setdefault("_watches", {})
        since = time.monotonic() - watches.get(watch, -math.inf)
        if since < RETRY_DELAY:
            await asyncio.sleep(RETRY_DELAY - since)
        watches[watch] = time.monotonic()


class ClusterApi:
    """One namespace of one cluster, for one event loop; methods raise lightkube's and httpx2's errors.

    `translate_errors` makes them ours.
    """

    def __init__(self, context: str | None, namespace: str | None) -> None:
        self.outage: str | None = None  # why the API has not answered its watches for a while
        self._clock = ClusterClock()
        self._silence = httpx2.Timeout(CONNECT_TIMEOUT, read=MAX_SILENCE)
        self._access = access_of(context)
        if self._access is None:
            self._config = configuration(context)
            self.context = None if in_pod() else str(self._config.context_name)
            self.namespace = str(namespace or self._config.namespace)
        else:
            self.context, self.namespace = context, namespace or "default"

    @functools.cached_property
    def _connection(self) -> tuple[Connection, Any]:
        """How to connect, and the connection settings; for an environment's cluster EKS is asked, so not before use."""
        config = self._access.configuration() if self._access else self._config
        timeout = httpx2.Timeout(CONNECT_TIMEOUT, read=READ_TIMEOUT)
        return Connection(timeout, self._clock.update, proxy_of(config), self._access), config

    @functools.cached_property
    def _client(self) -> Any:
        inspect_models()
        # lightkube's AsyncClient has no way to stream a log that is not followed, nor to set the clock.
        client = _Client(*self._connection, namespace=self.namespace, lazy=True, field_manager="spotmpi")
        client._watch_timeout = self._silence  # else without limit
        return client

    def now(self) -> float:
        """Unix seconds by the API server's clock, once it has answered."""
        return self._clock.now()

    def http_client(self) -> httpx2.AsyncClient:
        """A client with this cluster's address and credentials, for what has no method here."""
        connection, config = self._connection
        return httpx2.AsyncClient(**connection.httpx_params(config))

    async def create(self, values: Object, dry_run: bool = False) -> Object:
        """The object created from *values*, with *dry_run* only checked; AlreadyExists is an error."""
        resource = _RESOURCES.get(values["kind"])
        with _MODELS_LOCK:  # it may be of any other kind
            obj = resource(values) if values["kind"] == JOBSET and resource else codecs.from_dict(values)
        parameters = {"dryRun": "All" if dry_run else None}
        created: Object = (await self._client.request("post", obj=obj, params=parameters)).to_dict()
        return created

    async def find(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        """The object of that name, or None."""
        if not _is_name(name):
            return None
        try:
            obj = await self._client.request("get", res=_RESOURCES[kind], name=name, namespace=namespace)
        except ApiError as error:
            if is_missing(error):
                return None
            raise
        values: Object = obj.to_dict()
        return values

    async def may(self, verb: str, kind: str) -> bool:
        """Whether this user may do that with objects of a kind in the namespace; every user may ask that."""
        info = _RESOURCES[kind]._api_info
        attributes = {"verb": verb, "group": info.resource.group, "resource": info.plural}
        attributes["namespace"] = self.namespace
        review = authorization_v1.SelfSubjectAccessReview.from_dict({"spec": {"resourceAttributes": attributes}})
        answer = await self._client.request("post", obj=review)
        return bool(answer.status.allowed)

    async def has_queue(self, name: str) -> bool:
        """Whether the namespace has a LocalQueue of that name; False also where Kueue is not installed."""
        if not _is_name(name):
            return False
        async with self.http_client() as http:
            group = await http.get("/apis/kueue.x-k8s.io")  # no release serves the version of all others
            if group.status_code == 404:
                return False
            self._client.raise_for_status(group)
            version = group.json()["preferredVersion"]["groupVersion"]
            queue = await http.get(f"/apis/{version}/namespaces/{self.namespace}/localqueues/{name}")
        if queue.status_code != 404:
            self._client.raise_for_status(queue)
        return queue.status_code != 404

    async def list(
        self,
        kind: str,
        labels: Mapping[str, str] | None = None,
        about: str | None = None,
        namespace: str | None = None,
    ) -> list[Object]:
        """The objects that carry *labels*; of events those that are *about* the object of that name.

        *namespace* is the client's own by default, all of them where it is ``*``.
        """
        fields = None if about is None else {"involvedObject.name": about}
        return [_trim(kind, item) async for item in self._pages(kind, labels, fields, namespace)]

    def _pages(
        self,
        kind: str,
        labels: Mapping[str, str] | None,
        fields: Mapping[str, str] | None,
        namespace: str | None = None,
    ) -> Any:
        parameters = {"limit": _PAGE, **_selectors(labels, fields)}
        request = self._client.prepare_request("list", _RESOURCES[kind], namespace=namespace, params=parameters)
        return self._client.list(request)

    async def node_events(self) -> Sequence[Object]:
        """The events about nodes, which have no namespace: their events are in ``default``."""
        pages = self._pages(EVENT, None, {"involvedObject.kind": "Node"}, "default")
        return [_trim(EVENT, item) async for item in pages]

    async def watch(
        self, kind: str, labels: Mapping[str, str] | None = None, name: str | None = None, listed: bool = False
    ) -> AsyncIterator[tuple[str, Object]]:
        """Changes (ADDED, MODIFIED, DELETED) with the object, existing objects first, without an end.

        Where changes may have been missed, RESYNC comes with all objects that exist now as ``items``; at the beginning,
        too, if *listed*, which tells when all of them are known.
        """
        fields = None if name is None else {"metadata.name": name}
        version, answered, failures = None, False, 0
        if listed:
            items, version = await self._resync(kind, labels, fields, 0)
            answered = True
            yield RESYNC, {"items": items}
        while True:
            parameters = {"resourceVersion": version, **_selectors(labels, fields)}
            request = self._client.prepare_request("list", _RESOURCES[kind], watch=True, params=parameters)
            try:
                async for change, item in self._client.watch(request, on_error=_retry):
                    answered, failures = True, 0
                    yield change, _trim(kind, item)
            except (httpx2.HTTPError, ValueError):  # ValueError: a proxy answers with something else than JSON
                pass  # The client's own retries cover neither a version that is too old nor a refused connection.
            items, version = await self._resync(kind, labels, fields, MAX_REFUSALS if answered else 0)
            answered = True
            yield RESYNC, {"items": items}
            failures += 1
            await asyncio.sleep(retry_delay(failures))

    async def _resync(
        self, kind: str, labels: Mapping[str, str] | None, fields: Mapping[str, str] | None, refusals: int
    ) -> tuple[Sequence[Object], str | None]:
        """All objects and their version, as soon as the API answers; more than *refusals* in a row are final."""
        for failures in itertools.count(1):
            pages = self._pages(kind, labels, fields)
            try:
                items = [_trim(kind, item) async for item in pages]
                self.outage = None
                return items, pages.resourceVersion
            except (httpx2.HTTPError, ValueError) as error:  # ValueError: what answers is no API server
                # A server that has just started may refuse a user it knows.
                refusals -= status_code(error) in _REFUSED
                if refusals < 0:
                    raise
                if failures > _SILENT_FAILURES:
                    self.outage = str(error) or type(error).__name__
            await asyncio.sleep(retry_delay(failures))
        raise AssertionError

    async def patch(self, kind: str, name: str, values: Object) -> None:
        """Merge *values* into an object."""
        headers = {"Content-Type": PatchType.MERGE.value}
        await self._client.request("patch", res=_RESOURCES[kind], name=name, obj=values, headers=headers)

    async def delete(self, kind: str, name: str, wait: bool = False, now: bool = False) -> None:
        """Delete an object and all it owns; with *wait* it stays visible until those are gone; none is not an error."""
        cascade = CascadeType.FOREGROUND if wait else CascadeType.BACKGROUND
        parameters = {"propagationPolicy": cascade.value, "gracePeriodSeconds": 0 if now else None}
        try:
            await self._client.request("delete", res=_RESOURCES[kind], name=name, params=parameters)
        except ApiError as error:
            if not is_missing(error):
                raise

    async def evict(self, pod: str) -> None:
        """Evict a pod as a drain does: with its grace period, and marked as a disruption."""
        eviction = core_v1.PodEviction(metadata=ObjectMeta(name=pod, namespace=self.namespace))
        await self._client.request("post", obj=eviction, name=pod)

    async def execute(self, pod: str, command: Sequence[str], limit: int | None = None) -> str:
        """What *command* printed in a pod's container, whatever its exit status; OversizedAnswer beyond *limit* bytes.

        The limit is `answers.LIMIT` by default.
        """
        output = Answer(pod, limit)
        await self.stream(pod, command, None, output)
        return output.getvalue().decode("utf-8", "replace")

    async def stream(
        self, pod: str, command: Sequence[str], stdin: BinaryIO | None, stdout: BinaryIO | None
    ) -> tuple[int, str]:
        """Exit status and end of the error output of *command* in a pod that reads *stdin* and writes to *stdout*."""
        errors = ErrorOutput()
        streams = {"stdout": stdout or False, "stderr": errors}
        streams |= {} if stdin is None else {"stdin": stdin}  # else it stays open
        parameters = {"container": CONTAINER, "command": list(command), **streams}
        with websocket_errors():
            response = await self._client.ws_request(
                "exec", name=pod, namespace=None, params=parameters, raise_on_error=False
            )
        return int(response.exit_code), errors.text()

    async def last_line(self, pod: str) -> str:
        """The newest line of a pod's log, empty where there is none."""
        parameters = {"container": CONTAINER, "tailLines": 1, "limitBytes": _LONGEST_LAST}
        request = self._client.prepare_request("get", core_v1.PodLog, name=pod, params=parameters)
        response = await self._client.send(self._client.build_adapter_request(request))
        self._client.raise_for_status(response)
        lines = response.text.splitlines()
        return str(lines[-1]) if lines else ""

    async def log(self, pod: str, since: int | None, follow: bool) -> AsyncIterator[str]:
        """Whole lines of a pod's log from *since* seconds ago; with *follow* as they come, until the container ends.

        Of a line beyond `LONGEST_LINE`, which no agent prints, only the end is kept.
        """
        parameters = {"container": CONTAINER, "follow": follow, "sinceSeconds": since}
        request = self._client.prepare_request("get", core_v1.PodLog, name=pod, params=parameters)
        if follow:
            request.timeout = self._silence
        response = await self._client.send(self._client.build_adapter_request(request), stream=True)
        try:
            if response.is_error:
                await response.aread()
            self._client.raise_for_status(response)
            rest, least = bytearray(), 0 if follow else LOG_CHUNK
            async for data in response.aiter_bytes():
                rest += data
                if (len(rest) > least and b"\n" in data) or len(rest) > LONGEST_LINE:
                    lines, newline, rest = rest.rpartition(b"\n")
                    if newline:
                        yield lines.decode("utf-8", "replace")
                    if len(rest) > LONGEST_LINE:
                        del rest[:-LOG_CHUNK]
            if rest:
                yield rest.removesuffix(b"\n").decode("utf-8", "replace")
        finally:
            await response.aclose()


def _is_name(name: str) -> bool:
    """Whether an object can have that name; with others a request has another meaning."""
    return bool(name.strip(".")) and not set("/%?#") & set(name)


def _selectors(labels: Mapping[str, str] | None, fields: Mapping[str, str] | None) -> dict[str, str | None]:
    return {
        "labelSelector": build_selector(dict(labels)) if labels else None,
        "fieldSelector": build_selector(dict(fields), for_fields=True) if fields else None,
    }


def _trim(kind: str, item: Any) -> Object:
    """An object as plain values, without what nobody here reads: of a thousand pods that would be most of it."""
    values: Object = item.to_dict()
    values["metadata"].pop("managedFields", None)
    if kind == POD and "spec" in values:
        values["spec"] = {key: value for key, value in values["spec"].items() if key in _POD_SPEC_KEYS}
    return values


def _retry(error: Exception, count: int) -> OnErrorResult:
    """Try again while the API is out of reach or busy."""
    if status_code(error) in (*_REFUSED, 410):
        return OnErrorResult(OnErrorAction.RAISE)
    return OnErrorResult(OnErrorAction.RETRY, retry_delay(count))


def retry_delay(failures: int) -> float:
    """Seconds until what has failed so often in a row is tried again."""
    return min(RETRY_DELAY * failures, _LONGEST_DELAY)
