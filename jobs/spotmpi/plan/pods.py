"""The pod template of a run: restricted, non-root, with the agent as its only process. Pure."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any

from spotmpi.agent import boot, hardware, pod_context, unpack
from spotmpi.agent.plan import NODE, WORKERS
from spotmpi.core import names
from spotmpi.plan import templates
from spotmpi.plan.agent_plan import VOLUME
from spotmpi.plan.cluster import ClusterTarget
from spotmpi.spec.job import JobSpec
from spotmpi.spec.kubernetes import Mount
from spotmpi.spec.workers import quantity

CONTAINER = "node"
KEYS = "secret"  # the volume with the run's SSH keys
USER = 1000
UNREACHABLE_SECONDS = 30
GPU = "nvidia.com/gpu"
# Without site-packages and variables: whoever can write to the HOME of a pod, such as the program of a run, could put
# code of his own into each Python that starts there (usercustomize), and so into what it answers.
PYTHON = ("python3", "-I", "-S")
_RUN_MODULE = """\
import runpy, sys
sys.path.insert(0, sys.argv.pop(1))
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)"""
EFA = "vpc.amazonaws.com/efa"
# For libfabric, where the image has it. No huge pages: a group at zero nodes offers none, and would never grow for a
# pod that requests them; a process that maps them without a request is killed. Data loaders fork.
_FABRIC = {"FI_PROVIDER": "efa", "FI_EFA_USE_HUGE_PAGE": "0", "FI_EFA_FORK_SAFE": "1"}
FILLING = 600  # millicores that a pod requests of each CPU of a node that it is to fill


def on_exit(action: str, *codes: int) -> dict[str, Any]:
    """The rule of a Job's pod failure policy for these exit codes of our container."""
    return {"action": action, "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": [*codes]}}


def on_disruption(action: str) -> dict[str, Any]:
    """The rule of a Job's pod failure policy for pods that Kubernetes ends, as on a node that is drained."""
    return {"action": action, "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}


def template(spec: JobSpec, target: ClusterTarget, run: str, role: str = NODE) -> dict[str, Any]:
    """The pod template of every member of *run* in a *role*, with the user's templates merged over it."""
    labels, kind = names.run_labels(run) | {names.LABEL_ROLE: role}, spec.kubernetes.instance_type
    of_type = {names.LABEL_TYPE: kind} if kind else {}
    own = {
        "metadata": {
            "labels": spec.kubernetes.labels | labels,
            "annotations": {
                "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
                "karpenter.sh/do-not-disrupt": "true",
            },
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": math.ceil(spec.checkpoint.grace) + pod_context.END_TIME,
            "securityContext": pod_security(),
            "dnsConfig": {"searches": [f"{run}.{target.namespace}.svc.cluster.local"]},
            "nodeSelector": {**target.node_selector, **of_type, **spec.kubernetes.node_selector},
            **_affinity(target),
            "tolerations": _tolerations(spec, target),
            "imagePullSecrets": [{"name": name} for name in spec.kubernetes.pull_secrets],
            "containers": [_container(spec, target, run, role)],
            "volumes": _volumes(spec, target, run),
            **_spread(target, _selector(spec, run, role)),
        },
    }
    pod = templates.merge(own, target.templates, CONTAINER)
    if spec.kubernetes.avoid:  # whatever node affinity a template has
        with contextlib.suppress(AttributeError, TypeError, ValueError):  # of one that the API server refuses
            affinity = pod["spec"].get("affinity") or {}
            pod["spec"]["affinity"] = pod_context.affinity_without(affinity, [*dict.fromkeys(spec.kubernetes.avoid)])
    return _restricted(pod)


def python(source: str, *arguments: str) -> list[str]:
    """The command that runs the text of a Python program in a pod."""
    return [*PYTHON, "-c", source, *arguments]


def module(folder: str, name: str, *arguments: str) -> list[str]:
    """The command that runs a Python module of the packages in *folder* in a pod."""
    return python(_RUN_MODULE, folder, name, *arguments)


def image(template: dict[str, Any]) -> str | None:
    """The image of the ranks in a pod template."""
    containers = template["spec"]["containers"]
    return next((each.get("image") for each in containers if each.get("name") == CONTAINER), None)


def _restricted(pod: dict[str, Any]) -> dict[str, Any]:
    """*pod* with the restricted standard's security context in containers whose template sets none."""
    for kind in ("containers", "initContainers"):
        for container in templates.objects(pod["spec"].get(kind)):
            container.setdefault("securityContext", container_security())
    return pod


def pod_security() -> dict[str, Any]:
    """The pod's security context under the restricted Pod Security Standard."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> dict[str, Any]:
    """The container's security context under the restricted Pod Security Standard."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def config_files() -> dict[str, str]:
    """The files of the ConfigMap besides plan and code: the boot script with its unpacker, and the user's account."""
    return {
        "boot.py": Path(boot.__file__).read_text(encoding="utf-8"),
        "unpack.py": Path(unpack.__file__).read_text(encoding="utf-8"),
        "passwd": f"root:x:0:0:root:/root:/bin/sh\nspotmpi:x:{USER}:{USER}::{pod_context.WORK}:/bin/sh\n",
        "group": f"root:x:0:\nspotmpi:x:{USER}:\n",
    }


def _container(spec: JobSpec, target: ClusterTarget, run: str, role: str) -> dict[str, Any]:
    """The container of the agent and of what it starts."""
    origin: list[dict[str, Any]] = [{"name": pod_context.ENV_ROLE, "value": role}]
    if role not in WORKERS:
        origin.append(_label(pod_context.ENV_RESTART_COUNT, "restart-attempt"))
    if target.job_per_node and role not in WORKERS:
        origin += [
            _label(pod_context.ENV_JOB_INDEX, "job-index"),
            _label(pod_context.ENV_JOB_RESTARTS, "job-restart-attempt"),
        ]
    machine = {"fieldRef": {"fieldPath": "spec.nodeName"}}
    return {
        "name": CONTAINER,
        "image": target.image,
        "command": [*PYTHON, f"{pod_context.CONFIG}/boot.py"],
        "env": [
            *origin,
            {"name": hardware.ENV_NODE_NAME, "valueFrom": machine},
            *({"name": name, "value": value} for name, value in (_FABRIC if target.efa else {}).items()),
            *_secret_variables(spec, run),
        ],
        "envFrom": [{"secretRef": {"name": name}} for name in spec.kubernetes.secrets],
        "resources": _resources(spec, target),
        "securityContext": container_security(),
        "volumeMounts": [
            {"name": "config", "mountPath": pod_context.CONFIG, "readOnly": True},
            {"name": KEYS, "mountPath": pod_context.SECRET, "readOnly": True},
            {"name": "work", "mountPath": pod_context.WORK},
            {"name": "pod", "mountPath": pod_context.POD_INFO, "readOnly": True},
            {"name": "volume", "mountPath": VOLUME},
            {"name": "shm", "mountPath": pod_context.SHARED_MEMORY},
            {"name": "config", "mountPath": "/etc/passwd", "subPath": "passwd", "readOnly": True},
            {"name": "config", "mountPath": "/etc/group", "subPath": "group", "readOnly": True},
            *([{"name": "memory", "mountPath": pod_context.MEMORY}] if _in_memory(spec) else []),
            *_user_mounts(spec),
        ],
    }


def _label(variable: str, label: str) -> dict[str, Any]:
    """The variable of a container that has the value of a label of JobSet."""
    field = {"fieldPath": f"metadata.labels['jobset.sigs.k8s.io/{label}']"}
    return {"name": variable, "valueFrom": {"fieldRef": field}}


def _in_memory(spec: JobSpec) -> bool:
    return spec.checkpoint.memory is not None or (spec.data is not None and spec.data.stage == "memory")


def forwarded_key(name: str) -> str:
    """The key of the run's Secret that holds a forwarded variable."""
    return f"env.{name}"


def _secret_variables(spec: JobSpec, run: str) -> list[dict[str, Any]]:
    """Environment variables by reference to a Secret: no plan holds their values."""
    sources = {name: (names.parts_name(run), forwarded_key(name)) for name in spec.env_passthrough}
    for name, source in spec.kubernetes.secret_env.items():
        secret, _, key = source.partition("/")
        sources[name] = (secret, key)
    return [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
        for name, (secret, key) in sources.items()
    ]


def _user_mounts(spec: JobSpec) -> list[dict[str, Any]]:
    return [
        {"name": _mount_name(index), "mountPath": mount.path, "readOnly": mount.read_only}
        for index, mount in enumerate(spec.kubernetes.mounts)
    ]


def _mount_name(index: int) -> str:
    return f"mount-{index}"


def _source(mount: Mount) -> dict[str, Any]:
    if mount.claim is not None:
        return {"persistentVolumeClaim": {"claimName": mount.claim}}
    if mount.secret is not None:
        return {"secret": {"secretName": mount.secret, "defaultMode": 0o440}}
    if mount.config_map is not None:
        return {"configMap": {"name": mount.config_map}}
    return {"emptyDir": {"sizeLimit": mount.empty}}


def _resources(spec: JobSpec, target: ClusterTarget) -> dict[str, Any]:
    """The resources of one slot times the slots of a node; a pod that is to fill its node requests most of its CPUs.

    More than half of them keeps other such pods off the node, and leaves room for the node's own daemons.
    """
    requests = {"cpu": quantity(spec.resources.cpu, spec.slots)}
    if target.node_cpus is not None:
        requests["cpu"] = f"{target.node_cpus * FILLING}m"
    limits: dict[str, str] = {}
    if spec.resources.memory is not None:
        amount, unit = spec.resources.memory[:-2], spec.resources.memory[-2:]
        requests["memory"] = limits["memory"] = f"{float(amount) * spec.slots:g}{unit}"
    if spec.resources.gpu:
        requests[GPU] = limits[GPU] = str(spec.resources.gpu * spec.slots)
    if target.efa:
        requests[EFA] = limits[EFA] = str(target.efa)
    return {"requests": requests, "limits": limits}


def _tolerations(spec: JobSpec, target: ClusterTarget) -> list[dict[str, Any]]:
    """Those of the GPUs and of *target*, and for how long a pod stays on a node that does not answer."""
    tolerations: list[dict[str, Any]] = [
        {
            "key": f"node.kubernetes.io/{condition}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": UNREACHABLE_SECONDS,
        }
        for condition in ("not-ready", "unreachable")
    ]
    if spec.resources.gpu:
        tolerations.append({"key": GPU, "operator": "Exists", "effect": "NoSchedule"})
    tolerations += [dict(toleration) for toleration in target.tolerations]
    for toleration in spec.kubernetes.tolerations:
        values = toleration.model_dump(exclude_none=True)
        tolerations.append({**values, "operator": "Equal" if toleration.value is not None else "Exists"})
    return tolerations


def is_automatic(toleration: dict[str, Any]) -> bool:
    """Whether spotmpi has set a toleration: for nodes that are lost, with GPUs, or of an environment."""
    key = str(toleration.get("key"))
    return key == GPU or key.startswith(("node.kubernetes.io/", names.PREFIX))


def _volumes(spec: JobSpec, target: ClusterTarget, run: str) -> list[dict[str, Any]]:
    """The volumes of a pod: what its run brings, its own folders, the run volume, and those of the spec."""
    parts = names.parts_name(run)
    fields = ("annotations", hardware.LABELS)
    metadata = [{"path": name, "fieldRef": {"fieldPath": f"metadata.{name}"}} for name in fields]
    source: dict[str, Any] = {"emptyDir": {}}
    if target.volume is not None:
        source = {"persistentVolumeClaim": {"claimName": target.volume}}
    return [
        {"name": "config", "configMap": {"name": parts}},
        {"name": KEYS, "secret": {"secretName": parts, "defaultMode": 0o440}},
        {"name": "work", "emptyDir": {}},
        {"name": "pod", "downwardAPI": {"items": metadata}},
        {"name": "volume", **source},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": spec.kubernetes.shm}},
        *([{"name": "memory", "emptyDir": {"medium": "Memory"}}] if _in_memory(spec) else []),
        *({"name": _mount_name(index), **_source(mount)} for index, mount in enumerate(spec.kubernetes.mounts)),
    ]


def _affinity(target: ClusterTarget) -> dict[str, Any]:
    """Affinity to nodes of several groups; a single group is in the node selector."""
    terms = [
        {"matchExpressions": [{"key": key, "operator": "In", "values": [value]} for key, value in labels.items()]}
        for labels in target.one_of
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": {"nodeAffinity": required}} if terms else {}


def _selector(spec: JobSpec, run: str, role: str) -> dict[str, Any]:
    """What selects the pods of the run of which each gets a node to itself, as those of this role do."""
    selector: dict[str, Any] = {"matchLabels": {names.LABEL_RUN: run}}
    if role in WORKERS:
        selector["matchLabels"][names.LABEL_ROLE] = role
    elif spec.stream is not None:
        workers = [each.role for each in spec.stream.roles]
        selector["matchExpressions"] = [{"key": names.LABEL_ROLE, "operator": "NotIn", "values": workers}]
    return selector


def _spread(target: ClusterTarget, selector: dict[str, Any]) -> dict[str, Any]:
    """One such pod per node by a spread constraint: pod affinity would slow the scheduler down at scale."""
    if not target.exclusive:
        return {}
    constraint = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": selector,
    }
    return {"topologySpreadConstraints": [constraint]}
