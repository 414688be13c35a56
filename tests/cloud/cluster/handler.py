"""How a fake cluster answers a request; what it copies of the original is listed in `FakeCluster`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from urllib.parse import parse_qs, parse_qsl, unquote, urlsplit

from tests.cloud.cluster import channels
from tests.cloud.cluster.answers import Request, stamp_of, status
from tests.cloud.cluster.kinds import BY_KIND, BY_PATH, GROUPS, Resource
from tests.cloud.cluster.store import Key, Object
from tests.cloud.json_values import copied

if TYPE_CHECKING:
    from tests.cloud.cluster.fake_cluster import FakeCluster

_FIELDS = ("metadata.name", "involvedObject.name", "involvedObject.kind")  # by which kinds used here can be selected
_ENDED = ("Succeeded", "Failed")
# JobSet 0.12, webhooks/jobset_webhook.go, validateFailurePolicy
NO_RESTART_JOB = (
    'admission webhook "vjobset.kb.io" denied the request: JobSet.jobset.x-k8s.io: RestartJob and '
    "RestartJobAndIgnoreMaxRestarts failure policy actions are not allowed when RestartJob feature gate is disabled"
)
_VERBS = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}


class _Place(NamedTuple):
    """What a path leads to."""

    resource: Resource
    namespace: str  # empty for all of them, and for kinds without
    name: str
    subresource: str


class _Refused(Exception):
    """An answer that is a refusal."""

    def __init__(self, code: int, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.code, self.reason = code, reason


class Handler(BaseHTTPRequestHandler):
    """One connection to a `FakeCluster`."""

    cluster: ClassVar[FakeCluster]
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # or headers and body would be two packets, the second of which Nagle's algorithm delays
    disable_nagle_algorithm = True

    def handle_one_request(self) -> None:
        """Answer the next request, and note what must not happen."""
        try:
            super().handle_one_request()
        except (ConnectionError, TimeoutError):
            self.close_connection = True  # the client has gone
        except BaseException as error:
            self.cluster.problems.append(error)
            self.close_connection = True

    def finish(self) -> None:
        """End the connection, which the client may have ended before."""
        with contextlib.suppress(ConnectionError):
            super().finish()

    def _handle(self) -> None:
        if self.cluster.over.is_set():
            self.close_connection = True
            return
        length = int(self.headers.get("Content-Length") or 0)
        values = json.loads(self.rfile.read(length)) if length else None
        place = _place(urlsplit(self.path).path)
        parameters = dict(parse_qsl(urlsplit(self.path).query))
        try:
            self._admit()
            if place is None or place.resource.group in self.cluster.missing:
                self._answer_group()
                return
            request = self._request(place, parameters, values)
            self.cluster.before_request(request)
            self.cluster.requests.append(request)
            self.cluster.paths.append(self.path)
            if self._is_refused(request):
                return
            self._authorize(request, place)
            self._answer(request, place)
        except _Refused as refused:
            self._send(refused.code, status(refused.code, str(refused), refused.reason))

    do_GET = do_POST = do_PATCH = do_DELETE = _handle

    def _admit(self) -> None:
        self.cluster.tokens.append(self.headers.get("Authorization", ""))
        impersonated = [(name.lower(), value) for name, value in self.headers.items() if "mpersonate" in name]
        self.cluster.impersonated.append(impersonated)
        if not self.cluster.admits(self.cluster.tokens[-1]):
            raise _Refused(401, "Unauthorized", "Unauthorized")

    def _request(self, place: _Place, parameters: Mapping[str, str], values: Any) -> Request:
        verb = _VERBS.get(self.command) or ("watch" if "watch" in parameters else "get" if place.name else "list")
        resource = "/".join(filter(None, (place.resource.plural, place.subresource)))
        name = place.name or (values or {}).get("metadata", {}).get("name", "")
        return Request(verb, resource, place.namespace, name, parameters, values)

    def _is_refused(self, request: Request) -> bool:
        refusal = self.cluster.next_refusal(request)
        if refusal is None:
            return False
        if refusal.code is None:
            self.cluster.over.wait(10)
            self.close_connection = True
        elif refusal.code == 0:
            self.close_connection = True
        else:
            self._send(refusal.code, refusal.body, refusal.headers)
        return True

    def _authorize(self, request: Request, place: _Place) -> None:
        if not self.cluster.is_forbidden(request.verb, request.resource):
            return
        title = place.resource.title + (f' "{place.name}"' if place.name else "")
        user = f'User "ann" cannot {request.verb} resource "{request.resource}" in API group "{place.resource.group}"'
        where = f' in the namespace "{place.namespace}"' if place.namespace else " at the cluster scope"
        raise _Refused(403, f"{title} is forbidden: {user}{where}", "Forbidden")

    def _answer(self, request: Request, place: _Place) -> None:
        if place.subresource:
            self._answer_subresource(request, place)
        elif place.resource.kind == "SelfSubjectAccessReview":
            self._review(request.values)
        elif request.verb == "watch":
            self._watch(place, request.parameters)
        elif request.verb == "list":
            self._list(place, request.parameters)
        else:
            item = getattr(self, f"_{request.verb}")(place, request)
            if "dryRun" not in request.parameters:
                self.cluster.on_request(request)
            self._send(201 if request.verb == "create" else 200, item)

    # --- objects

    def _get(self, place: _Place, request: Request) -> Object:
        item = copied(self._find(place))
        if item["metadata"].get("deletionTimestamp") and place.resource.kind != "Pod":
            self.cluster.store.remove(_key(place))  # what it owned is gone after this look
        return item

    def _create(self, place: _Place, request: Request) -> Object:
        item, cluster = copied(request.values), self.cluster
        metadata = item["metadata"]
        key = Key(place.resource.plural, place.namespace, metadata["name"])
        if (item["apiVersion"], item["kind"]) != (place.resource.api_version, place.resource.kind):
            raise _Refused(400, f"the API version or kind in the data does not match {self.path}", "BadRequest")
        if metadata.get("namespace", place.namespace) != place.namespace:
            raise _Refused(400, "the namespace of the provided object does not match the namespace sent", "BadRequest")
        if key in cluster.store.objects:
            raise _Refused(409, f'{place.resource.title} "{key.name}" already exists', "AlreadyExists")
        created = _without(item, cluster.pruned) if place.resource.kind in ("JobSet", "Job") else item
        if "RestartJob" in _actions(created) and not cluster.restarts_jobs:
            raise _Refused(422, NO_RESTART_JOB, "Invalid")
        stamps = {"namespace": place.namespace, "creationTimestamp": stamp_of(cluster.now())}
        created = {**created, "metadata": {**created["metadata"], **stamps}}
        if place.resource.kind == "Pod":
            created["status"] = {"phase": "Pending"}
        if "All" in request.parameters.get("dryRun", ""):
            return created
        cluster.created.append(request.values)
        return cluster.store.put(key, created)

    def _patch(self, place: _Place, request: Request) -> Object:
        if self.headers["Content-Type"] != "application/merge-patch+json":
            raise _Refused(415, "the body of the request was in an unknown format", "UnsupportedMediaType")
        patched = _merged(self._find(place), request.values)
        item = self.cluster.store.put(_key(place), patched)
        self.cluster.patched.append((place.resource.kind, place.name, request.values))
        return item

    def _delete(self, place: _Place, request: Request) -> Object:
        item, store = self._find(place), self.cluster.store
        self.cluster.deleted.append(place.name)
        if request.parameters.get("propagationPolicy") == "Foreground":
            deletion = {"deletionTimestamp": stamp_of(self.cluster.now()), "finalizers": ["foregroundDeletion"]}
            item = store.put(_key(place), {**item, "metadata": {**item["metadata"], **deletion}})
        else:
            store.remove(_key(place))
        return item

    def _find(self, place: _Place) -> Object:
        item = self.cluster.store.objects.get(_key(place))
        if item is None:
            raise _Refused(404, f'{place.resource.title} "{place.name}" not found', "NotFound")
        return item

    def _review(self, values: Object) -> None:
        wanted = values["spec"]["resourceAttributes"]
        allowed = not self.cluster.is_forbidden(wanted["verb"], wanted["resource"])
        self._send(201, {**values, "status": {"allowed": allowed}})

    def _answer_group(self) -> None:
        """Discovery of an API group, and text for what nobody serves."""
        self.cluster.paths.append(self.path)
        group = urlsplit(self.path).path.removeprefix("/apis/")
        if group not in GROUPS.keys() - self.cluster.missing:
            self._send(404, "404 page not found\n")
            return
        version = {"groupVersion": f"{group}/{GROUPS[group]}", "version": GROUPS[group]}
        self._send(200, {"kind": "APIGroup", "apiVersion": "v1", "name": group, "preferredVersion": version})

    # --- lists and watches

    def _list(self, place: _Place, parameters: Mapping[str, str]) -> None:
        items = [item for _, item in self.cluster.store.select(_selection(place, parameters))]
        start, limit = int(parameters.get("continue", 0)), int(parameters.get("limit", 0)) or len(items)
        metadata: Object = {"resourceVersion": str(self.cluster.store.version)}
        if start + limit < len(items):
            metadata |= {"continue": str(start + limit), "remainingItemCount": len(items) - start - limit}
        kind, items = place.resource.kind, items[start : start + limit]
        self._send(
            200,
            {"kind": f"{kind}List", "apiVersion": place.resource.api_version, "metadata": metadata, "items": items},
        )

    def _watch(self, place: _Place, parameters: Mapping[str, str]) -> None:
        store, since = self.cluster.store, parameters.get("resourceVersion")
        fits = _selection(place, parameters)
        expired = status(410, f"too old resource version: {since} ({store.oldest})", "Expired")
        if since is not None and int(since) < store.oldest:
            self._send(410, expired)
            return
        with store.changed:
            epoch, version = self.cluster.watch_epoch, int(since) if since is not None else store.version
            first = [] if since is not None else [("ADDED", item) for _, item in store.select(fits)]
        self._begin_chunks("application/json")
        for kind, item in first:
            self._chunk(_line(kind, item))
        while not self.cluster.over.is_set() and epoch == self.cluster.watch_epoch:
            with store.changed:
                if version < store.oldest:
                    self._chunk(_line("ERROR", expired))
                    break
                new = [each for each in store.history if each.version > version]
                if not new and epoch == self.cluster.watch_epoch:
                    store.changed.wait(10)
                    continue
            for each in new:
                version = each.version
                if fits(each.key, each.item):
                    self._chunk(_line(each.kind, each.item))
        self._end_chunks()

    # --- pods

    def _answer_subresource(self, request: Request, place: _Place) -> None:
        pod = self._find(_Place(BY_KIND["Pod"], place.namespace, place.name, ""))
        if place.subresource == "log":
            self._log(pod, request.parameters)
        elif place.subresource == "eviction":
            self.cluster.store.remove(_key(place))
            self._send(201, {"kind": "Status", "apiVersion": "v1", "status": "Success"})
        elif place.subresource == "portforward":
            channels.forward_port(self, self.cluster, request.parameters)
            self.close_connection = True
        else:
            if pod.get("status", {}).get("phase") != "Running" and pod["kind"] == "Pod":
                channels.refuse_container(self)
            else:
                command = parse_qs(urlsplit(self.path).query)["command"]
                channels.execute(self, self.cluster, place.name, command, request.parameters)
            self.close_connection = True

    def _log(self, pod: Object, parameters: Mapping[str, str]) -> None:
        name = pod["metadata"]["name"]
        if not _has_started(pod):
            waiting = f'container "node" in pod "{name}" is waiting to start: ContainerCreating'
            raise _Refused(400, waiting, "BadRequest")
        store = self.cluster.store
        since = self.cluster.now() - float(parameters.get("sinceSeconds", "inf"))
        lines = [text for at, text in self.cluster.logs.get(name, []) if at >= since]
        sent = len(self.cluster.logs.get(name, []))
        if "tailLines" in parameters:
            lines = lines[-int(parameters["tailLines"]) :]
        text = "".join(lines)[-int(parameters.get("limitBytes", 1 << 40)) :]
        self._begin_chunks("text/plain")
        self._chunk(text)
        while parameters.get("follow", "").lower() == "true" and not self.cluster.over.is_set():
            with store.changed:
                current = store.objects.get(self.cluster.key(pod))
                more = self.cluster.logs.get(name, [])[sent:]
                if not more:
                    if current is None or _has_ended(current):
                        break
                    store.changed.wait(10)
                    continue
            sent += len(more)
            self._chunk("".join(line for _, line in more))
        self._end_chunks()

    # --- bytes

    def _send(self, code: int, body: Object | str, headers: Mapping[str, str] | None = None) -> None:
        content = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if content:  # some proxies answer without any
            kinds = {b"{": "application/json", b"<": "text/html; charset=utf-8"}
            self.send_header("Content-Type", kinds.get(content[:1], "text/plain"))
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        self.wfile.flush()

    def _begin_chunks(self, content_type: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()

    def _chunk(self, text: str) -> None:
        content = text.encode()
        if content:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))
            self.wfile.flush()

    def _end_chunks(self) -> None:
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def date_time_string(self, timestamp: float | None = None) -> str:
        """The ``Date`` header."""
        return super().date_time_string(self.cluster.now())

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def _place(path: str) -> _Place | None:
    parts = [unquote(part) for part in path.split("/")[1:]]
    group, version, rest = ("", parts[1], parts[2:]) if parts[0] == "api" else (parts[1], parts[2:3], parts[3:])
    version = version if isinstance(version, str) else "".join(version)
    namespace = ""
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    resource = BY_PATH.get((group, version, rest[0])) if rest else None
    return _Place(resource, namespace, *(*rest[1:3], "", "")[:2]) if resource else None


def _key(place: _Place) -> Key:
    return Key(place.resource.plural, place.namespace, place.name)


def _selection(place: _Place, parameters: Mapping[str, str]) -> Any:
    labels = [each.partition("=")[::2] for each in _terms(parameters, "labelSelector")]
    fields = [each.partition("=")[::2] for each in _terms(parameters, "fieldSelector")]
    if unknown := [name for name, _ in fields if name not in _FIELDS]:
        raise _Refused(400, f"field label not supported: {unknown[0]}", "BadRequest")

    def fits(key: Key, item: Object) -> bool:
        own = item["metadata"].get("labels") or {}
        return (
            key.plural == place.resource.plural
            and place.namespace in ("", key.namespace)
            and all(own.get(name) == value for name, value in labels)
            and all(_field(item, name) == value for name, value in fields)
        )

    return fits


def _terms(parameters: Mapping[str, str], name: str) -> Iterator[str]:
    return filter(None, parameters.get(name, "").split(","))


def _field(item: Object, path: str) -> Any:
    for part in path.split("."):
        item = item.get(part, {})
    return item


def _line(kind: str, item: Object) -> str:
    return json.dumps({"type": kind, "object": item}) + "\n"


def _merged(item: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    old = item if isinstance(item, dict) else {}
    rest = {key: value for key, value in old.items() if key not in patch}
    return rest | {key: _merged(old.get(key), value) for key, value in patch.items() if value is not None}


def _actions(jobset: Object) -> set[str]:
    """The actions of the failure policy of what may be a JobSet."""
    rules = ((jobset.get("spec") or {}).get("failurePolicy") or {}).get("rules") or []
    return {str(rule.get("action")) for rule in rules}


def _without(values: Any, names: Any) -> Any:
    if isinstance(values, dict):
        return {key: _without(value, names) for key, value in values.items() if key not in names}
    return [_without(each, names) for each in values] if isinstance(values, list) else values


def _state(pod: Object) -> set[str]:
    statuses = pod.get("status", {}).get("containerStatuses") or []
    return next((set(each["state"]) for each in statuses if each["name"] == "node"), set())


def _has_started(pod: Object) -> bool:
    return pod["status"]["phase"] in ("Running", *_ENDED) or bool(_state(pod) - {"waiting"})


def _has_ended(pod: Object) -> bool:
    return pod["status"]["phase"] in _ENDED or "terminated" in _state(pod)
