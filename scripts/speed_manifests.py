"""What runs on a cluster are measured against: the same pods by a bare JobSet, the same work by the MPI Operator."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]

LINE = "the first line"
POD: Object = {
    "restartPolicy": "Never",
    "automountServiceAccountToken": False,
    "terminationGracePeriodSeconds": 1,
    "securityContext": {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "runAsGroup": 1000,
        "fsGroup": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    },
}
SSH_FOLDER = "/home/spotmpi/.ssh"  # where the operator mounts its keys
SSHD = f"""
mkdir -p /tmp/ssh && ssh-keygen -q -t ed25519 -N '' -f /tmp/ssh/host
printf '%s\\n' 'Port 2222' 'HostKey /tmp/ssh/host' 'StrictModes no' 'UsePAM no' 'PidFile none' \
  'AuthorizedKeysFile {SSH_FOLDER}/authorized_keys' > /tmp/ssh/config
exec /usr/sbin/sshd -D -e -f /tmp/ssh/config
"""
SSH = (
    f"-p 2222 -i {SSH_FOLDER}/id_rsa -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
    " -o ConnectionAttempts=20"
)
_LAUNCH = f"""
for host in $(cut -d' ' -f1 /etc/mpi/hostfile); do until ssh {SSH} $host true 2>/dev/null; do sleep 0.1; done; done
exec mpirun --hostfile /etc/mpi/hostfile -np 2 --prtemca plm_ssh_args "{SSH}" echo '{LINE}'
"""


def printing_jobset(image: str, pods: int = 2, cpu: str | None = None) -> Object:
    """A JobSet of pods that only print a line; each requests *cpu*."""
    pod = _pod(image, f"echo '{LINE}'; sleep 60")
    if cpu is not None:
        pod["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
    job = {
        "completionMode": "Indexed",
        "completions": pods,
        "parallelism": pods,
        "backoffLimit": 0,
        "template": {"spec": pod},
    }
    nodes = {"name": "node", "replicas": 1, "template": {"spec": job}}
    spec = {"replicatedJobs": [nodes], "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True}}
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "bare"}, "spec": spec}


def attached_pod(image: str, command: list[str]) -> Object:
    """What `kubectl run bare` needs for a pod that the restricted Pod Security Standard admits, as its overrides."""
    pod = _pod(image, "")
    container = {**pod["containers"][0], "name": "bare", "command": command}
    return {"apiVersion": "v1", "spec": {**pod, "containers": [container]}}


def mpi_job(image: str) -> Object:
    """An MPIJob whose launcher has two workers print a line by mpirun, once both can be reached."""

    def replica(count: int, script: str) -> Object:
        return {"replicas": count, "restartPolicy": "Never", "template": {"spec": _pod(image, script)}}

    spec = {
        "slotsPerWorker": 1,
        "sshAuthMountPath": SSH_FOLDER,
        "mpiReplicaSpecs": {"Launcher": replica(1, _LAUNCH), "Worker": replica(2, SSHD)},
    }
    return {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": {"name": "peer"}, "spec": spec}


def _pod(image: str, script: str) -> Object:
    container = {
        "name": "main",
        "image": image,
        "command": ["bash", "-c", script],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return {**POD, "containers": [container]}
