"""A cluster that runs the gang of one JobSet on node groups whose free nodes a test sets, as a controller sees it.

It knows from where it has its rules:

- The pod template of a JobSet may change only while the JobSet is suspended or by the patch that suspends it, and only
  in labels, annotations, node selector, tolerations and scheduling gates (kubernetes-sigs/jobset,
  pkg/webhooks/jobset_webhook.go, ValidateUpdate). The rest of the template is immutable.
- A Job of a replicated Job that depends on another one being Ready is created, and resumed, while all pods of that run,
  also where it is restarted (kubernetes-sigs/jobset, pkg/controllers/depends_on.go).
- Suspending deletes the pods, and then the JobSet gets the condition Suspended; resuming merges the selector into that
  of the Job, whose keys stay (pkg/controllers/jobset_controller.go, suspendJobs and resumeJob).
- A Job whose `parallelism` is 0 has no pod, and its pod that was deleted for that counts as no failure; 1 brings a new
  pod (Kubernetes, Job, "Controlling parallelism"; kubernetes/kubernetes, pkg/controller/job, deleteJobPods, which takes
  the finalizer away first). JobSet creates missing Jobs and leaves the parallelism of others (pkg/controllers/
  jobset_controller.go, reconcileReplicatedJobs; where its alpha ElasticJobSet is off).
- A JSON patch applies in whole or, where a test operation does not hold, not at all (RFC 6902, section 5).
- A Capacity Block has its nodes from its start on, and 30 minutes before its end EC2 begins to end those that still run
  (EC2 User Guide, Capacity Blocks for ML). A JobSet whose gang waits for one is submitted suspended, and it gets the
  condition Suspended without ever having had pods (jobset_controller.go, suspendJobs).
- The scheduler knows nothing of what is wrong with a node: the next pod gets the same one, as long as it is there. The
  autoscaler removes one that nothing has used for three minutes (scale-down-unneeded-time).
- A pod with a scheduling gate gets no node, and no autoscaler looks at it. Its gates can be taken away, and its node
  affinity be narrowed while it has one, by requirements behind those of its terms; nothing else of a pod may change
  that matters here (kubernetes/kubernetes, pkg/apis/core/validation, ValidatePodUpdate and
  validateNodeAffinityMutation). At a resume gates of the template are added to those of the Job, and a Job that is made
  anew has those of the template alone (jobset_controller.go, resumeJob and constructJobsFromTemplate).
- One term of the affinity has to hold, and all requirements of it; `matchFields` of `metadata.name` have one value
  (Kubernetes, "Assigning Pods to Nodes").
- Times are whole seconds by the API server's clock.
- The cluster autoscaler says of each pod for which it starts no node why not, with the numbers of node groups by reason
  and without their names, again in each of its loops (kubernetes/autoscaler, cluster-autoscaler/processors/status/
  eventing_scale_up_processor.go and core/scaleup/orchestrator/skippedreasons.go; Azure/AKS#2543 shows such an event).
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import Any

from spotmpi.agent import placement, pod_context
from spotmpi.agent.placement_controller import RequestFailed
from spotmpi.core.names import LABEL_ROLE
from tests.cloud.json_values import copied

Object = dict[str, Any]
START = 1_795_000_000
IDLE = 180.0  # seconds after which the autoscaler removes a node
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
MUTABLE = ("nodeSelector", "tolerations", "schedulingGates")


class PlacedCluster:
    """The `ClusterApi` of a controller; `pass_time` lets the scheduler and the JobSet controller do their work."""

    def __init__(self, jobset: Object, size: int, free: dict[str, int]) -> None:
        self.now = float(START)
        self.free = free  # nodes by group
        self.size = size
        self._jobset = {**copied(jobset), "status": {}}
        self._answer: Object | None = None  # a copy of it, until it changes
        self._jobset["metadata"]["resourceVersion"] = "1"
        self._jobset["spec"]["suspend"] = self.state["moving"]
        self.blocks: dict[str, tuple[float, float]] = {}  # start and end by group
        self.ended_by_ec2 = 0  # nodes
        self._selectors: list[Object] = [dict(each["spec"]["nodeSelector"]) for each in self._templates]  # of the Jobs
        self.standby = sum(each["replicas"] for each in self._jobset["spec"]["replicatedJobs"][1:])
        self.parallelism = dict.fromkeys(range(size), 1)  # of the Job of each node
        self.may_scale = True
        self.may_change_pods = True
        self._gates: dict[int, list[Object]] = {}  # of the Job of each pod, once it was made
        self.last_first = False  # the scheduler, which has no order for pods of one time, takes the last pods first
        self.gone = False
        self.meddle = False  # somebody else changes the JobSet between a look and a patch, once
        self.patches: list[Object] = []  # the JobSet after each
        self.refusals: dict[str, str] = {}  # what the autoscaler says of pods that wait, by group
        self._pods: list[Object] = []
        self._used: dict[tuple[str, int], tuple[int, float]] = {}  # by group and place: which node, and when it was
        if not self.suspended:
            self._create_pods()

    @property
    def _templates(self) -> list[Object]:
        """The pod templates: of nodes, and of pods that stand by, if there are any."""
        return [each["template"]["spec"]["template"] for each in self._jobset["spec"]["replicatedJobs"]]

    @property
    def suspended(self) -> bool:
        return bool(self._jobset["spec"]["suspend"])

    def jobset(self, run: str) -> Object | None:
        """A copy for all who read it until it changes, which they leave as it is."""
        if self._answer is None:
            self._answer = copied(self._jobset)
        assert self._answer == self._jobset, "a reader has changed it, not the server"
        return None if self.gone else self._answer

    @property
    def state(self) -> placement.State:
        """What the annotation of the JobSet says."""
        state = placement.parse(self._jobset["metadata"]["annotations"][pod_context.PLACEMENT_ANNOTATION])
        assert state is not None
        return state

    def pods(self, selector: str) -> list[Object]:
        """Those of the roles that *selector* has, as ``role=NAME`` or ``role in (NAME,NAME)``."""
        roles = set(re.split(r"role=|role in \(|,|\)", selector.partition(",")[2]))
        return copied([pod for pod in self._pods if pod["metadata"]["labels"][LABEL_ROLE] in roles])

    def events(self, reason: str) -> list[Object]:
        message = self.refusals.get(self._selectors[0]["group"])
        if reason != "NotTriggerScaleUp" or message is None:
            return []
        waiting = [pod["metadata"]["name"] for pod in self._pods if "nodeName" not in pod["spec"]]
        named = [*waiting, "of-another-run"]
        text = "pod didn't trigger scale-up: " + message
        return [
            {"involvedObject": {"name": name}, "reason": reason, "message": text, "lastTimestamp": self._stamp()}
            for name in named
        ]

    def patch(self, run: str, patch: list[Object]) -> None:
        if self.meddle:
            self.meddle = False
            self._count_change()
        changed = copied(self._jobset)
        for operation in patch:
            self._apply(changed, operation)
        self._check(changed)
        self._jobset = changed
        self._count_change()
        self.patches.append(copied(changed))

    def scale(self, job: str, parallelism: int) -> bool:
        start, _, number = job.rpartition("-")
        assert start == self._jobset["metadata"]["name"] + "-node"
        if self.may_scale and self.parallelism[int(number)] != parallelism:
            self.parallelism[int(number)] = parallelism
            self._pods = [pod for pod in self._pods if pod["metadata"]["name"] != number]
            if parallelism and not self.suspended:
                self._pods.append(self._pod(int(number)))
        return self.may_scale

    def change_pod(self, name: str, patch: list[Object]) -> bool:
        if not self.may_change_pods:
            return False
        pod = next(each for each in self._pods if each["metadata"]["name"] == name)
        changed, gates = copied(pod), pod["spec"].get("schedulingGates", [])
        for operation in patch:
            self._apply(changed, operation)
        new = changed["spec"].get("schedulingGates", [])
        assert all(each in gates for each in new), "only deletion is allowed"
        assert gates or changed == pod, "pod updates may not change fields other than these"
        before, after = _terms(pod), _terms(changed)
        assert not before or len(before) == len(after), "no term may be added or removed"
        for old, narrowed in zip(before, after, strict=False):
            for key in ("matchExpressions", "matchFields"):
                assert narrowed.get(key, [])[: len(old.get(key, []))] == old.get(key, []), "only additions are allowed"
        others = [{key: each for key, each in _affinity(at).items() if key != _REQUIRED} for at in (pod, changed)]
        assert others[0] == others[1], "nothing else of the affinity may change"
        self._pods[self._pods.index(pod)] = changed
        return True

    def end(self) -> None:
        """Let the run succeed."""
        self._set_condition("Completed", "True")

    def replace_a_pod(self, number: int = -1) -> None:
        """JobSet restarts the Job of one node alone, by default the last; or of a pod that stands by."""
        number = self.size - 1 if number < 0 else number
        self._gates.pop(number, None)
        if number < self.size:
            self.parallelism[number] = 1  # of the new Job
        self._pods = [pod for pod in self._pods if pod["metadata"]["name"] != str(number)]
        self._pods += [self._pod(number)] if number < self.size else []

    def lose_a_node(self) -> None:
        """JobSet restarts the gang of a run that lost a node: all Jobs and pods anew."""
        self._gates = {}
        self._create_pods()

    def open_gate(self, name: str) -> None:
        """Somebody else takes the scheduling gate of this *name* from all pods."""
        for pod in self._pods:
            pod["spec"]["schedulingGates"] = [
                each for each in pod["spec"].get("schedulingGates", []) if each["name"] != name
            ]

    def pass_time(self, seconds: float = 5.0) -> None:
        """What happens in some seconds."""
        self.now += seconds
        self._end_blocks()
        if self.suspended:
            if self._pods:
                self._pods = []
            else:
                self._set_condition("Suspended", "True")
            return
        if not self._pods:
            self._set_condition("Suspended", "False")
            both = zip(self._selectors, self._templates, strict=True)
            self._selectors = [{**selector, **template["spec"]["nodeSelector"]} for selector, template in both]
            for pod, gates in self._gates.items():
                gates += [each for each in self._template(pod).get("schedulingGates", []) if each not in gates]
            self._create_pods()
        self._schedule()
        for name in self.nodes():
            group, place, number = name.split(".")
            self._used[group, int(place)] = int(number), self.now
        present = {pod["metadata"]["name"] for pod in self._pods}
        others = [number for number in range(self.size, self.size + self.standby) if str(number) not in present]
        if others and set(range(self.size)) <= set(self.placed()):
            self._pods += map(self._pod, others)

    def _end_blocks(self) -> None:
        """EC2 ends the nodes that still run 30 minutes before the end of their Capacity Block."""
        for group, (_, end) in self.blocks.items():
            lost = [pod for pod in self._pods if group_of(pod) == group and self.now >= end - 1800]
            self.ended_by_ec2 += len(lost)
            self._pods = [self._pod(int(each["metadata"]["name"])) if each in lost else each for each in self._pods]

    def _free(self, group: str) -> int:
        start, end = self.blocks.get(group, (-math.inf, math.inf))
        return self.free.get(group, 0) if start <= self.now < end - 1800 else 0

    def places(self) -> list[str | None]:
        """The group of each pod."""
        return [group_of(each) for each in self._pods]

    def nodes(self) -> list[str]:
        """The names of the nodes that the pods have."""
        return sorted(each["spec"]["nodeName"] for each in self._pods if "nodeName" in each["spec"])

    def node_of(self, number: int) -> str | None:
        """The name of the node of a pod, if it has one."""
        return next((pod["spec"].get("nodeName") for pod in self._pods if pod["metadata"]["name"] == str(number)), None)

    def placed(self) -> list[int]:
        """The numbers of the pods that have a node."""
        return sorted(int(pod["metadata"]["name"]) for pod in self._pods if "nodeName" in pod["spec"])

    def _create_pods(self) -> None:
        self._pods = [self._pod(number) for number, parallelism in self.parallelism.items() if parallelism]

    def _pod(self, number: int) -> Object:
        role, index = ("node", number) if number < self.size else ("standby", number - self.size)
        labels = {
            "batch.kubernetes.io/job-completion-index": "0",
            "jobset.sigs.k8s.io/job-index": str(index),
            "jobset.sigs.k8s.io/replicatedjob-name": role,
            LABEL_ROLE: role,
        }
        metadata = {"name": str(number), "creationTimestamp": self._stamp(), "labels": labels}
        template = self._template(number)
        gates = self._gates.setdefault(number, copied(template.get("schedulingGates", [])))
        spec = {"schedulingGates": copied(gates)} if gates else {}
        if "affinity" in template:
            spec["affinity"] = copied(template["affinity"])
        return {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}

    def _template(self, number: int) -> Object:
        """The spec of the template of a pod, in the JobSet."""
        spec: Object = self._templates[int(number >= self.size)]["spec"]
        return spec

    def _stamp(self) -> str:
        return datetime.fromtimestamp(int(self.now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _schedule(self) -> None:
        for pod in sorted(self._pods, key=lambda pod: pod["metadata"]["name"], reverse=self.last_first):
            group = self._selectors[int(pod["metadata"]["name"]) >= self.size]["group"]
            node = None if "nodeName" in pod["spec"] or pod["spec"].get("schedulingGates") else self._node(group, pod)
            if node is not None:
                pod["spec"]["nodeName"] = node
                scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": self._stamp()}
                pod["status"] = {"phase": "Running", "conditions": [scheduled]}

    def _node(self, group: str, pod: Object) -> str | None:
        """The name of the next free node of *group* for *pod*: that of its place, until that was idle for too long."""
        if self.places().count(group) >= self._free(group):
            return None
        taken = {name.split(".")[1] for name in self.nodes() if name.startswith(group + ".")}
        for place in range(self._free(group)):
            number, used = self._used.get((group, place), (0, self.now))
            name = f"{group}.{place}.{number + (self.now - used > IDLE)}"
            if str(place) not in taken and _admits(pod, name):
                return name
        return None

    def _set_condition(self, kind: str, status: str) -> None:
        self._jobset["status"] = {"conditions": [{"type": kind, "status": status}]}
        self._answer = None

    def _count_change(self) -> None:
        self._answer = None
        metadata = self._jobset["metadata"]
        metadata["resourceVersion"] = str(int(metadata["resourceVersion"]) + 1)

    def _apply(self, values: Any, operation: Object) -> None:
        *path, last = [part.replace("~1", "/") for part in operation["path"].split("/")[1:]]
        for part in path:
            values = values[int(part)] if isinstance(values, list) else values[part]
        if operation["op"] == "test":
            if values[last] != operation["value"]:
                raise RequestFailed("422 the server rejected our request due to an error in our request", 422)
        else:
            assert operation["op"] == "add"
            values[last] = copied(operation["value"])

    def _check(self, changed: Object) -> None:
        """As JobSet's webhook checks an update."""
        before, after = copied(self._jobset), copied(changed)
        for jobset in (before, after):
            for template in [each["template"]["spec"]["template"] for each in jobset["spec"]["replicatedJobs"]]:
                if before["spec"]["suspend"] or changed["spec"]["suspend"]:
                    template["metadata"]["annotations"] = {}
                    for field in MUTABLE:
                        template["spec"].pop(field, None)
        if before["spec"]["replicatedJobs"] != after["spec"]["replicatedJobs"]:
            raise RequestFailed("422 spec.replicatedJobs: field is immutable", 422)


def group_of(pod: Object) -> str | None:
    """The node group of the node that *pod* has."""
    name: str | None = pod["spec"].get("nodeName")
    return name and name.partition(".")[0]


def _affinity(pod: Object) -> Object:
    """The node affinity of *pod*."""
    affinity: Object = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    return affinity


def _terms(pod: Object) -> list[Object]:
    terms: list[Object] = _affinity(pod).get(_REQUIRED, {}).get("nodeSelectorTerms", [])
    return terms


def _admits(pod: Object, node: str) -> bool:
    """Whether the affinity of *pod* permits the *node*, which has its place as a label."""
    terms = _terms(pod)
    fields = [each for term in terms for each in term.get("matchFields", [])]
    assert all(each["key"] == "metadata.name" and each["operator"] == "NotIn" for each in fields)
    assert all(len(each["values"]) == 1 for each in fields)
    labels = {"place": node.split(".")[1]}
    return not terms or any(
        all(node not in each["values"] for each in term.get("matchFields", []))
        and all(labels.get(each["key"]) in each["values"] for each in term.get("matchExpressions", []))
        for term in terms
    )
