"""Moves the gang of a run whose nodes do not come to the next node group: a process in a pod of its own.

It knows nothing that is not in the cluster: the run's plan, its JobSet, whose annotation holds every decision, the
pods of the gang, and what is in the run folder. So it may be killed at any moment and started anew, and without it
the run stays where it is.

A JobSet's pods may get another node selector and other tolerations only while it is suspended, as for Kueue: the patch
that suspends it has these and the decision at once, and once the pods are gone another one resumes it.

Of a run that may have fewer nodes each pod has a Job, which has no pod while its parallelism is 0: so nodes that an
attempt does not use are released while it goes on.

A machine that is at fault is excluded by a node affinity, which of a JobSet may never change, but of a pod that has a
scheduling gate: so once a gang got such a machine again, its pods have a gate, which this controller takes away.
"""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import json
import math
import os
import ssl
import sys
from datetime import datetime, timezone
from typing import Any, Callable, Collection, Dict, List, Mapping, Optional, Sequence, Set, Union
from urllib.parse import quote

from . import context, failback, files, placement, pod_context, record, surplus
from .attempt_history import failed_again
from .clock import CLOCK, Clock
from .launch import sizes_of
from .plan import NODE, STANDBY, RunPlan, read_plan
from .run_progress import RunProgress, pods_in_use

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
INTERVAL = 5.0  # seconds between looks at the run
_TIMEOUT = 30.0  # seconds of a request
_BETWEEN_RETURNS = 60.0  # seconds between decisions about a gang that has all its nodes
_TEMPLATE = "/spec/replicatedJobs/%d/template/spec/template"
_JSON_PATCH = "application/json-patch+json"
_ENDED = ("Completed", "Failed")
_NO_SCALE_UP = "NotTriggerScaleUp"  # the cluster autoscaler's reason of events
_BACKOFF = "in backoff after failed scale-up"
_OTHER_REASONS = ("max node group size reached", "not ready for scale-up", "limit reached")
_LABEL_ROLE = "jobset.sigs.k8s.io/replicatedjob-name"
_POINTER = pod_context.PLACEMENT_ANNOTATION.replace("/", "~1")  # RFC 6901

Object = Dict[str, Any]
Patch = List[Dict[str, Any]]


class RequestFailed(Exception):
    """The API server refused a request, with this HTTP status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ClusterApi:
    """The API server, with the rights of this pod's service account; `now` is its clock at its last answer."""

    def __init__(self, account: str = ACCOUNT, environment: Mapping[str, str] = os.environ) -> None:
        self.now = 0.0
        self.namespace = _read(account, "namespace")
        self._forbidden: Set[str] = set()  # what this pod's service account may not do
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
        answer = self._unless_forbidden("GET", path, "what the autoscaler says is not known")
        return list((answer or {}).get("items") or [])

    def scale(self, job: str, parallelism: int) -> bool:
        """Let a Job have so many pods; False where this pod's service account may not."""
        path, patch = "/apis/batch/v1/namespaces/%s/jobs/%s" % (self.namespace, job), "/spec/parallelism"
        consequence = "nodes that an attempt does not use are not released"
        return self._unless_forbidden("PATCH", path, consequence, [_replace(patch, parallelism)]) is not None

    def change_pod(self, name: str, patch: Patch) -> bool:
        """Change a pod by a JSON patch; False where that failed, as without the right."""
        path, consequence = "/api/v1/namespaces/%s/pods/%s" % (self.namespace, name), "no machine at fault is excluded"
        return self._unless_forbidden("PATCH", path, consequence, patch) is not None

    def _unless_forbidden(
        self, method: str, path: str, consequence: str, body: Optional[Patch] = None
    ) -> Optional[Object]:
        """The answer; None where the request failed. Where the account lacks the right, that is reported once."""
        if consequence in self._forbidden:
            return None
        try:
            return self._request(method, path, body)
        except RequestFailed as error:
            remedy = ""
            if error.status == http.client.FORBIDDEN:
                self._forbidden.add(consequence)
                remedy = ": `spotmpi up` gives the right"
            sys.stderr.write("%s; %s%s\n" % (error, consequence, remedy))
            return None

    def patch(self, run: str, patch: Patch) -> None:
        """Change the JobSet of a run by a JSON patch, all of it or nothing."""
        self._request("PATCH", self._jobset(run), patch)

    def _jobset(self, run: str) -> str:
        return "/apis/jobset.x-k8s.io/v1alpha2/namespaces/%s/jobsets/%s" % (self.namespace, run)

    def _request(self, method: str, path: str, body: Union[Object, Patch, None] = None) -> Optional[Object]:
        """The answer, or None where there is no such object; ``now`` is then the time of the API server.

        Raises:
            RequestFailed: it answered with an error.
            OSError: it did not answer.
        """
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
            raise RequestFailed("%s %s: %d %s" % (method, path, response.status, text[:300]), response.status)
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
        capacity, sizes = plan["capacity"], sizes_of(plan)
        following, usable = placement.next_state(state, gang, capacity, sizes, now), gang.usable(sizes)
        if following is not None or usable is None or now - self._read_at < _BETWEEN_RETURNS:
            return following
        self._read_at = now
        if self._progress is None:
            self._progress = RunProgress(os.path.join(self._runs, plan["run"]), plan.get("submitted", 0.0))
        found = failback.find_failback(state, capacity, self._progress.read(now), now, usable / sizes[-1])
        return None if found is None else placement.with_decision(state, found.group, now, found.reason)


class Controller:
    """Decides for one run, again and again; *api* is a `ClusterApi`, and *runs* the folder of run folders."""

    def __init__(
        self, api: ClusterApi, plan: RunPlan, policy: Optional[Policy] = None, runs: str = pod_context.RUNS
    ) -> None:
        self._api = api
        self._plan = plan
        self._capacity, self._sizes = plan["capacity"], sizes_of(plan)
        self._policy = policy or OrderPolicy(runs)
        self._folder = os.path.join(runs, plan["run"])
        self._shared = ""  # the state in the run folder
        self._parallelism: Dict[int, int] = {}  # of Jobs, as far as this controller has set it
        self._gated: Dict[str, float] = {}  # until when each pod was seen to have a scheduling gate, by name

    def look(self) -> bool:
        """Look at the run once, and change what is to be changed; whether there is nothing to decide any more."""
        jobset = self._api.jobset(self._plan["run"])
        if jobset is None or _has_ended(jobset):
            return True
        note = (jobset["metadata"].get("annotations") or {}).get(pod_context.PLACEMENT_ANNOTATION, "")
        state = placement.parse(note)
        if state is None:
            return True
        self._share(note)
        pods = self._api.pods(self._capacity["pods"])
        if jobset["spec"].get("suspend"):
            self._resume(jobset, state, pods)
        else:
            self._decide(jobset, state, pods)
        return False

    def _resume(self, jobset: Object, state: placement.State, pods: List[Object]) -> None:
        """Resume a JobSet that was suspended to move its gang, once its pods are gone and its wait is over."""
        is_due = self._api.now >= (placement.waits_until(state) or 0.0)
        # A JobSet that was just submitted is suspended too, until it is complete.
        if state["moving"] and is_due and not pods and _condition(jobset, "Suspended"):
            self._patch(jobset, {**state, "moving": False}, [_replace("/spec/suspend", False)])
            self._scale(state)

    def _decide(self, jobset: Object, state: placement.State, pods: List[Object]) -> None:
        """Let pods have nodes, and change what follows from those that have come."""
        self._note_gates(pods)
        failed = self._failed_again()
        if failed is not None:  # else nobody knows at the moment, and pods keep their gates
            self._admit(pods, failed)
        excluded = failed if failed and self._may_change(pods) else []
        seen = gang(pods, self._sizes, excluded, self._gated)
        if self._capacity["standby"]:
            seen = placement.waiting_since_whole(state, seen, self._api.now)
        if seen.waiting_since is not None:
            seen = seen._replace(refusal=refusal(self._api.events(_NO_SCALE_UP), pods, seen))
        following = self._without(state, seen, at_fault(pods, excluded))
        following = following or self._policy(self._plan, state, seen, self._api.now) or self._surplus(state, seen)
        if following is not None:
            moves = following["moving"]
            self._patch(jobset, following, self._move(jobset, following, bool(excluded)) if moves else [])
        self._scale(following or state, [number for number, _ in seen.nodes])

    def _note_gates(self, pods: List[Object]) -> None:
        """Note which of *pods* have a scheduling gate now, and forget those that are gone."""
        former, self._gated = self._gated, {}
        for pod in pods:
            name = pod["metadata"]["name"]
            if pod["spec"].get("schedulingGates"):
                self._gated[name] = self._api.now
            elif name in former:
                self._gated[name] = former[name]

    def _failed_again(self) -> Optional[List[str]]:
        """The machines on which no pod is to run any more; None where the run folder does not tell."""
        try:
            return failed_again(self._folder, self._plan.get("submitted", 0.0))
        except OSError:
            return None

    def _may_change(self, pods: List[Object]) -> bool:
        """Whether this controller may change *pods*, as a change of nothing shows."""
        name = pods[0]["metadata"]["name"] if pods else ""
        return bool(pods) and self._api.change_pod(name, [{"op": "test", "path": "/metadata/name", "value": name}])

    def _admit(self, pods: List[Object], excluded: Sequence[str]) -> None:
        """Let those of *pods* that have a gate get a node, but none that is *excluded*."""
        for pod in pods:
            others = _other_gates(pod)
            if len(others) < len(pod["spec"].get("schedulingGates") or []):
                patch = [_replace("/spec/schedulingGates", others)]
                if excluded:
                    affinity = pod_context.affinity_without(pod["spec"].get("affinity") or {}, excluded)
                    patch.append(_replace("/spec/affinity", affinity))
                self._api.change_pod(pod["metadata"]["name"], patch)

    def _without(
        self, state: placement.State, seen: placement.Gang, at_fault: Sequence[str]
    ) -> Optional[placement.State]:
        """The state of a gang that gets other nodes for those *at fault*, without which it has too few; or None."""
        if not at_fault or seen.waiting_since is None:
            return None
        reason = "%s is at fault again, and the run goes on without" % " and ".join(at_fault)
        here = placement.placement_of(self._capacity, state["at"])
        return {**placement.with_decision(state, here, self._api.now, reason), "moving": True}

    def _surplus(self, state: placement.State, seen: placement.Gang) -> Optional[placement.State]:
        """The state without nodes that the present attempt does not have, or with a request for these."""
        if len(self._sizes) == 1:
            return None
        used = None
        if seen.placed > self._sizes[0]:
            used = pods_in_use(self._folder, self._plan.get("submitted", 0.0))
        following = surplus.next_state(state, seen, used, self._capacity, self._sizes, self._api.now)
        away = None if following is None else following["away"]
        if away is not None and away["pods"] and not self._api.scale(self._job(0), 1):
            return None  # it may not change Jobs, as this change of nothing shows
        return following

    def _scale(self, state: placement.State, present: Sequence[int] = ()) -> None:
        """Let Jobs have the pods that *state* says, where this controller does not know that they have.

        It may have been started since, and JobSet makes a Job anew whose pod failed: its pod is *present* then.
        """
        away = state["away"]
        for number in range(self._sizes[-1]) if away is not None else ():
            wanted = 0 if away is not None and number in away["pods"] else 1
            is_known = self._parallelism.get(number) == wanted and not (number in present and wanted == 0)
            if not is_known and self._api.scale(self._job(number), wanted):
                self._parallelism[number] = wanted

    def _job(self, number: int) -> str:
        """The name of the Job of a node, where each has one."""
        return "%s-%s-%d" % (self._plan["run"], NODE, number)

    def _share(self, note: str) -> None:
        """Let node 0's agent record the decisions of the state in *note*, once there is a run folder."""
        if note == self._shared:
            return
        with contextlib.suppress(OSError):  # there is no folder yet; tried again at the next look
            files.write_atomically(os.path.join(self._folder, record.PLACEMENT), note + "\n")
            self._shared = note

    def _move(self, jobset: Object, state: placement.State, is_gated: bool) -> Patch:
        """What suspends the JobSet, for pods on the node group of *state*: nodes, and those that stand by.

        Pods that are *gated* get a node once this controller has excluded machines at fault.
        """
        target = placement.placement_of(self._capacity, state["at"])
        note = placement.to_text({**state, "moving": False})
        changes = [_replace("/spec/suspend", True)]
        for index, replicated in enumerate(jobset["spec"]["replicatedJobs"]):
            template = _TEMPLATE % index
            changes += [
                _replace(template + "/spec/nodeSelector", target["node_selector"]),
                _replace(template + "/spec/tolerations", target["tolerations"]),
                _replace("%s/metadata/annotations/%s" % (template, _POINTER), note),
            ]
            if is_gated:
                gates = [*_other_gates(replicated["template"]["spec"]["template"]), {"name": pod_context.MACHINES_GATE}]
                changes.append(_replace(template + "/spec/schedulingGates", gates))
        return changes

    def _patch(self, jobset: Object, state: placement.State, changes: Patch) -> None:
        """Apply *changes* with the *state* to the JobSet as it was seen, or not at all."""
        seen = {"op": "test", "path": "/metadata/resourceVersion", "value": jobset["metadata"]["resourceVersion"]}
        note = _replace("/metadata/annotations/" + _POINTER, placement.to_text(state))
        self._api.patch(self._plan["run"], [seen, *changes, note])
        sys.stdout.write("%s\n" % placement.to_text(state))
        sys.stdout.flush()


def gang(
    pods: List[Object],
    sizes: Sequence[int],
    excluded: Collection[str] = (),
    gated: Optional[Mapping[str, float]] = None,
) -> placement.Gang:
    """What is seen of the pods of a gang with these allowed numbers of nodes; those that are going away do not count.

    It waits since a node was asked for by the pod without which too few have one, or by that of node 0. One that is
    *excluded* is none. For a pod no node is asked for before its creation, and while it has a scheduling gate, which it
    had until the time in *gated*, by name.
    """
    own = _present(pods)
    waiting = [pod for pod in own if not _has_node(pod, excluded)]
    created = min(map(_created, own), default=None)

    def asked(pod: Object) -> float:
        return max(_created(pod), (gated or {}).get(pod["metadata"]["name"], 0.0))

    fit = [_scheduled(pod) for pod in own if _has_node(pod, excluded)]
    nodes = tuple(sorted((_number(pod, sizes[-1]), _scheduled(pod)) for pod in own if pod["spec"].get("nodeName")))
    newest, missing = sorted(map(asked, waiting), reverse=True), sizes[0] - len(fit)
    waits = [newest[:missing][-1]] if newest and missing > 0 else []
    waits += [asked(pod) for pod in waiting if _number(pod, sizes[-1]) == 0]
    if not waits:
        return placement.Gang(len(fit), None, created, nodes=nodes)
    since = min(waits)
    idle = tuple(max(since, scheduled) for scheduled in fit)
    return placement.Gang(len(fit), since, created, idle, nodes=nodes)


def _present(pods: List[Object]) -> List[Object]:
    """Those of *pods* that wait or run, and are not going away."""
    present = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]
    return [pod for pod in present if pod["status"].get("phase") in ("Pending", "Running")]


def _other_gates(pod: Object) -> List[Object]:
    """The scheduling gates of a *pod*, or of its template, that are not this controller's."""
    gates: List[Object] = pod["spec"].get("schedulingGates") or []
    return [each for each in gates if each["name"] != pod_context.MACHINES_GATE]


def _has_node(pod: Object, excluded: Collection[str]) -> bool:
    return bool(pod["spec"].get("nodeName")) and pod["spec"]["nodeName"] not in excluded


def at_fault(pods: List[Object], excluded: Collection[str]) -> List[str]:
    """The nodes of *pods* that are to be *excluded*."""
    return sorted({pod["spec"].get("nodeName") for pod in _present(pods)} & {*excluded})


def refusal(events: List[Object], pods: List[Object], seen: placement.Gang) -> str:
    """That the autoscaler starts no node for pods that wait, while it backs off, and its message; else empty.

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
            return "the autoscaler starts no more: " + message
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


def _created(pod: Object) -> float:
    return _unix_time(pod["metadata"]["creationTimestamp"])


def _number(pod: Object, nodes: int) -> int:
    """The number of a pod of the gang; those that stand by come after its *nodes*."""
    labels = pod["metadata"].get("labels") or {}
    number = sum(int(labels.get(label) or 0) for label in (pod_context.LABEL_INDEX, pod_context.LABEL_JOB_INDEX))
    return number + nodes if labels.get(_LABEL_ROLE) == STANDBY else number


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
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        return file.read().strip()
