"""Moves the gang of a run whose nodes do not come to the next node group: a process in a pod of its own.

It knows nothing that is not in the cluster: the run's plan, its JobSet, whose annotation holds every decision, the
pods of the gang, and what is in the run folder. So it may be killed at any moment and started anew, and without it
the run stays where it is.

A JobSet's pods may get another node selector and other tolerations only while it is suspended, as for Kueue: the patch
that suspends it has these and the decision at once, and once the pods are gone another one resumes it.
"""

from __future__ import annotations

import email.utils
import http.client
import json
import math
import os
import ssl
import sys
from datetime import datetime, timezone
from typing import Any, Callable, Dict, List, Mapping, Optional, Union
from urllib.parse import quote

from . import context, placement, pod_context, returns
from .clock import CLOCK, Clock
from .plan import RunPlan, read_plan
from .run_progress import RunProgress

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
INTERVAL = 5.0  # seconds between looks at the run
_TIMEOUT = 30.0  # seconds of a request
_BETWEEN_RETURNS = 60.0  # seconds between decisions about a gang that has all its nodes
_TEMPLATE = "/spec/replicatedJobs/0/template/spec/template"
_JSON_PATCH = "application/json-patch+json"
_ENDED = ("Completed", "Failed")
_NO_SCALE_UP = "NotTriggerScaleUp"  # the cluster autoscaler's reason of events
_BACKOFF = "in backoff after failed scale-up"
_OTHER_REASONS = ("max node group size reached", "not ready for scale-up", "limit reached")
_POINTER = pod_context.PLACEMENT_ANNOTATION.replace("/", "~1")  # RFC 6901

Object = Dict[str, Any]
Patch = List[Dict[str, Any]]


class RequestFailed(Exception):
    """The API server refused a request."""


class ClusterApi:
    """The API server, with the rights of this pod's service account; `now` is its clock at its last answer."""

    def __init__(self, account: str = ACCOUNT, environment: Mapping[str, str] = os.environ) -> None:
        self.now = 0.0
        self.namespace = _read(account, "namespace")
        self._lists_events = True
        self._account = account
        self._address = environment["KUBERNETES_SERVICE_HOST"], int(environment["KUBERNETES_SERVICE_PORT"])
        self._context = ssl.create_default_context(cafile=os.path.join(account, "ca.crt"))
        # Authorities may have no key identifiers, which Python demands from 3.13 on and kubectl does not.
        self._context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)

    def jobset(self, run: str) -> Optional[Object]:
        """The JobSet of a run, or None."""
        return self._request("GET", self._jobset(run))

    def pods(self, selector: str) -> List[Object]:
        """The pods with these labels."""
        path = "/api/v1/namespaces/%s/pods?labelSelector=%s" % (self.namespace, quote(selector))
        answer: Object = self._request("GET", path) or {}
        return list(answer.get("items") or [])

    def events(self, reason: str) -> List[Object]:
        """The events with this reason; none where this pod's service account may not list events."""
        path = "/api/v1/namespaces/%s/events?fieldSelector=%s" % (self.namespace, quote("reason=" + reason))
        if not self._lists_events:
            return []
        try:
            answer: Object = self._request("GET", path) or {}
        except RequestFailed as error:
            self._lists_events = False
            sys.stderr.write("%s; what the autoscaler says is not known: `spotmpi up` gives the right\n" % error)
            return []
        return list(answer.get("items") or [])

    def patch(self, run: str, patch: Patch) -> None:
        """Change the JobSet of a run by a JSON patch, all of it or nothing."""
        self._request("PATCH", self._jobset(run), patch)

    def _jobset(self, run: str) -> str:
        return "/apis/jobset.x-k8s.io/v1alpha2/namespaces/%s/jobsets/%s" % (self.namespace, run)

    def _request(self, method: str, path: str, body: Union[Object, Patch, None] = None) -> Optional[Object]:
        """The answer, or None where there is no such object."""
        # A token is replaced in its file within the hour.
        headers = {"Authorization": "Bearer " + _read(self._account, "token"), "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = _JSON_PATCH
        connection = http.client.HTTPSConnection(*self._address, timeout=_TIMEOUT, context=self._context)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read().decode("utf-8", "replace")
        finally:
            connection.close()
        date = response.getheader("Date")
        if date:
            self.now = email.utils.parsedate_to_datetime(date).timestamp()
        if response.status == 404:
            return None
        if response.status >= 300:
            raise RequestFailed("%s %s: %d %s" % (method, path, response.status, text[:300]))
        answer: Object = json.loads(text)
        return answer


Policy = Callable[[RunPlan, placement.State, placement.Gang, float], Optional[placement.State]]


class OrderPolicy:
    """The `Policy` of ``capacity.order``; *runs* is the folder of run folders, which is empty without a run volume."""

    def __init__(self, runs: str = pod_context.RUNS) -> None:
        self._runs = runs
        self._progress: Optional[RunProgress] = None
        self._read_at = -math.inf

    def __call__(
        self, plan: RunPlan, state: placement.State, gang: placement.Gang, now: float
    ) -> Optional[placement.State]:
        """The state that follows from what is seen of the gang at the time *now*; None while nothing does."""
        capacity, size = plan["capacity"], len(plan["hosts"])
        following = placement.next_state(state, gang, capacity, size, now)
        if following is not None or not gang.is_whole(size) or now - self._read_at < _BETWEEN_RETURNS:
            return following
        self._read_at = now
        if self._progress is None:
            self._progress = RunProgress(os.path.join(self._runs, plan["run"]), plan.get("submitted", 0.0))
        found = returns.find_return(state, capacity, self._progress.read(now), now)
        return None if found is None else placement.decided(state, found.group, now, found.reason)


class Controller:
    """Decides for one run, again and again; *api* is a `ClusterApi`."""

    def __init__(self, api: ClusterApi, plan: RunPlan, policy: Optional[Policy] = None) -> None:
        self._api = api
        self._plan = plan
        self._capacity = plan["capacity"]
        self._policy = policy or OrderPolicy()

    def look(self) -> bool:
        """Look at the run once, and change what is to be changed; whether there is nothing to decide any more."""
        jobset = self._api.jobset(self._plan["run"])
        if jobset is None or _has_ended(jobset):
            return True
        state = placement.parse((jobset["metadata"].get("annotations") or {}).get(pod_context.PLACEMENT_ANNOTATION))
        if state is None:
            return True
        pods = self._api.pods(self._capacity["pods"])
        if jobset["spec"].get("suspend"):
            # A JobSet that was just submitted is suspended too, until it is complete.
            is_due = self._api.now >= (placement.waits_until(state) or 0.0)
            if state["moving"] and is_due and not pods and _condition(jobset, "Suspended"):
                self._patch(jobset, {**state, "moving": False}, [_replace("/spec/suspend", False)])
            return False
        seen = gang(pods)
        if seen.waiting_since is not None:
            seen = seen._replace(refusal=refusal(self._api.events(_NO_SCALE_UP), pods, seen))
        following = self._policy(self._plan, state, seen, self._api.now)
        if following is not None:
            self._patch(jobset, following, self._move(following) if following["moving"] else [])
        return False

    def _move(self, state: placement.State) -> Patch:
        """What suspends the JobSet, for pods on the node group of *state*."""
        target = placement.placement_of(self._capacity, state["at"])
        note = placement.to_text({**state, "moving": False})
        return [
            _replace("/spec/suspend", True),
            _replace(_TEMPLATE + "/spec/nodeSelector", target["node_selector"]),
            _replace(_TEMPLATE + "/spec/tolerations", target["tolerations"]),
            _replace("%s/metadata/annotations/%s" % (_TEMPLATE, _POINTER), note),
        ]

    def _patch(self, jobset: Object, state: placement.State, changes: Patch) -> None:
        """Apply *changes* with the *state* to the JobSet as it was seen, or not at all."""
        seen = {"op": "test", "path": "/metadata/resourceVersion", "value": jobset["metadata"]["resourceVersion"]}
        note = _replace("/metadata/annotations/" + _POINTER, placement.to_text(state))
        self._api.patch(self._plan["run"], [seen, *changes, note])
        sys.stdout.write("%s\n" % placement.to_text(state))
        sys.stdout.flush()


def gang(pods: List[Object]) -> placement.Gang:
    """What is seen of the pods of a gang; those that are going away do not count."""
    own = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]
    own = [pod for pod in own if pod["status"].get("phase") in ("Pending", "Running")]
    waiting, since = [pod for pod in own if not pod["spec"].get("nodeName")], _first_created(own)
    if not waiting:
        return placement.Gang(len(own), None, since)
    waits = _first_created(waiting) or 0.0
    idle = tuple(max(waits, _scheduled(pod)) for pod in own if pod["spec"].get("nodeName"))
    return placement.Gang(len(idle), waits, since, idle)


def refusal(events: List[Object], pods: List[Object], seen: placement.Gang) -> str:
    """The message by which the autoscaler starts no node for pods that wait, while it backs off; empty without one.

    *events* are those of pods for which it started none. A message counts groups by reason and names none. Where it
    has another reason of the kind, such as that a group has reached its size, that may be the reason of the gang's
    group, which may change at any time. A message from before nodes came tells nothing about the others.
    """
    waiting = {pod["metadata"]["name"] for pod in pods if not pod["spec"].get("nodeName")}
    since = min(seen.idle_since, default=0.0)
    for event in events:
        message = str(event.get("message") or "")
        if event["involvedObject"].get("name") not in waiting or _last_seen(event) < since:
            continue
        if _BACKOFF in message and not any(each in message for each in _OTHER_REASONS):
            return message
    return ""


def _last_seen(event: Object) -> float:
    """Unix seconds of an event's newest occurrence."""
    series = event.get("series") or {}
    text = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return _unix_time(str(text or event["metadata"]["creationTimestamp"]))


def _scheduled(pod: Object) -> float:
    """Unix seconds since which *pod* has a node."""
    conditions = pod["status"].get("conditions") or []
    times = [each.get("lastTransitionTime") for each in conditions if each["type"] == "PodScheduled"]
    return _unix_time(times[0] if times and times[0] else pod["metadata"]["creationTimestamp"])


def _first_created(pods: List[Object]) -> Optional[float]:
    return min((_unix_time(pod["metadata"]["creationTimestamp"]) for pod in pods), default=None)


def run(policy: Optional[Policy] = None, clock: Clock = CLOCK) -> int:
    """Decide for the run of this pod by *policy* until it has ended; the exit code."""
    plan = read_plan(context.in_pod().plan)
    controller, failure = Controller(ClusterApi(), plan, policy), ""
    while True:
        try:
            if controller.look():
                return 0
            failure = ""
        except (OSError, http.client.HTTPException, ValueError, RequestFailed) as error:
            if str(error) != failure:
                failure = str(error)
                sys.stderr.write("%s; trying again\n" % failure)
        clock.sleep(INTERVAL)


def _has_ended(jobset: Object) -> bool:
    return bool(jobset["metadata"].get("deletionTimestamp")) or any(_condition(jobset, kind) for kind in _ENDED)


def _condition(jobset: Object, kind: str) -> bool:
    conditions = (jobset.get("status") or {}).get("conditions") or []
    return any(each["type"] == kind and each["status"] == "True" for each in conditions)


def _replace(path: str, value: Any) -> Dict[str, Any]:
    """The operation of a JSON patch that sets what may be there already (RFC 6902)."""
    return {"op": "add", "path": path, "value": value}


def _unix_time(text: str) -> float:
    whole = text.partition(".")[0].rstrip("Z")  # times of events may have microseconds
    return datetime.fromisoformat(whole).replace(tzinfo=timezone.utc).timestamp()


def _read(folder: str, name: str) -> str:
    with open(os.path.join(folder, name)) as file:
        return file.read().strip()
