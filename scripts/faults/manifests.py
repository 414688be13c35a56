"""The pods of all sides but spotmpi's own, as their users would write them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scripts.speed_manifests import POD, SSH, SSH_FOLDER, SSHD

Object = dict[str, Any]

NAME, PODS, VOLUME = "bench", 2, "/bench"
MANY = 1000  # restarts: none of the sides should give up
_HOSTS = [f"{NAME}-node-0-{index}.{NAME}" for index in range(PODS)]  # of a JobSet
_DISRUPTED = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
_WAIT = "until ssh {ssh} {host} true 2>/dev/null; do sleep 0.1; done"
# mpirun of Open MPI 5.0.11 ends with exit code 0 where it loses a pod, so it alone does not tell that a job is done.
_MPIRUN = f'mpirun -np {PODS} --bind-to none {{hosts}} --prtemca plm_ssh_args "{SSH}" /opt/venv/bin/python -u'
_HAS_RESULT = f"test -f {VOLUME}/run/result.json"


def jobset_with_torchrun(image: str, program: str) -> list[Object]:
    """A JobSet whose pods run torchrun; all are replaced when one fails."""
    options = f"--node-rank=$JOB_COMPLETION_INDEX --master-addr={_HOSTS[0]} --master-port=29500"
    resolved = f"until getent hosts {_HOSTS[0]} >/dev/null; do sleep 0.1; done"
    return [_jobset(pod(image, f"{resolved}\nexec {_torchrun(options, program)}"))]


def jobset_with_mpirun(image: str, program: str, key: Mapping[str, str]) -> list[Object]:
    """A JobSet whose first pod runs mpirun over sshd of the second; all are replaced when one fails."""
    wait = _WAIT.format(ssh=SSH, host=_HOSTS[1])
    mpirun = _MPIRUN.format(hosts="-H " + ",".join(f"{host}:1" for host in _HOSTS))
    launch = f"{wait}\n{mpirun} {program} --with mpi &\ntrap 'kill $!' TERM\nwait $! && {_HAS_RESULT}\nexit $?"
    script = f"if [ $JOB_COMPLETION_INDEX = 0 ]; then\n{launch}\nfi\n{SSHD}"
    spec = pod(image, script)
    spec["volumes"].append({"name": "keys", "secret": {"secretName": "keys", "defaultMode": 0o440}})
    spec["containers"][0]["volumeMounts"].append({"name": "keys", "mountPath": SSH_FOLDER, "readOnly": True})
    secret: Object = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": dict(key)}
    return [secret, _jobset(spec)]


def elastic_job(image: str, program: str) -> list[Object]:
    """A Job whose pods run torchrun with a rendezvous; it replaces a failed pod, and the others wait for it."""
    endpoint = f"{NAME}-0.{NAME}:29400"
    options = (
        f"--max-restarts={MANY} --rdzv-id={NAME} --rdzv-backend=c10d --rdzv-endpoint={endpoint}"
        ' --rdzv-conf="is_host=$([ $JOB_COMPLETION_INDEX = 0 ] && echo 1 || echo 0)"'
    )
    resolved = f"until getent hosts {NAME}-0.{NAME} >/dev/null; do sleep 0.1; done"
    return [headless_service(NAME), _job(pod(image, f"{resolved}\nexec {_torchrun(options, program)}"))]


def mpi_job(image: str, program: str) -> list[Object]:
    """An MPIJob: the operator replaces a lost worker, and its launcher starts mpirun again until there is a result."""
    hostfile = "/etc/mpi/hostfile"
    hosts = f"for host in $(cut -d' ' -f1 {hostfile}); do {_WAIT.format(ssh=SSH, host='$host')}; done"
    mpirun = _MPIRUN.format(hosts=f"--hostfile {hostfile}")
    launch = f"{hosts}\n{mpirun} {program} --with mpi && {_HAS_RESULT}"

    def replica(count: int, policy: str, script: str, cpu: str) -> Object:
        return {"replicas": count, "restartPolicy": policy, "template": {"spec": pod(image, script, cpu=cpu)}}

    replicas = {"Launcher": replica(1, "OnFailure", launch, "100m"), "Worker": replica(PODS, "Never", SSHD, "1")}
    spec = {
        "slotsPerWorker": 1,
        "sshAuthMountPath": SSH_FOLDER,
        "runPolicy": {"backoffLimit": MANY},
        "mpiReplicaSpecs": replicas,
    }
    return [{"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": {"name": NAME}, "spec": spec}]


def torchft_job(image: str, program: str) -> list[Object]:
    """A Job whose pods are a replica group each, and a pod with torchft's lighthouse."""
    light = "exec python /bench/torchft/bin/torchft_lighthouse --min_replicas 1 --quorum_tick_ms 100"
    lighthouse: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "lighthouse", "labels": {"app": "lighthouse"}},
        "spec": pod(image, f"{light} --join_timeout_ms 10000", {"PYTHONPATH": f"{VOLUME}/torchft"}, cpu="100m"),
    }
    variables = {
        "PYTHONPATH": f"{VOLUME}/torchft",
        "TORCHFT_LIGHTHOUSE": "http://lighthouse:29510",
        "REPLICAS": str(PODS),
    }
    run = f"torchrun --standalone --nproc-per-node=1 --max-restarts={MANY} {program} --with torchft"
    script = f"until getent hosts lighthouse >/dev/null; do sleep 0.1; done\nREPLICA=$JOB_COMPLETION_INDEX exec {run}"
    services = [headless_service("lighthouse"), headless_service(NAME)]
    # A group that comes back fetches the state from the host name of another, which must be known outside of its pod.
    spec = {**pod(image, script, variables), "setHostnameAsFQDN": True}
    return [*services, lighthouse, _job(spec)]


def headless_service(name: str) -> Object:
    """A service by which the pods with the label `app` of that name are found, ready or not."""
    spec = {"clusterIP": "None", "selector": {"app": name}, "publishNotReadyAddresses": True}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def pod(image: str, script: str, variables: Mapping[str, str] | None = None, cpu: str = "1") -> Object:
    """The spec of a pod that runs a script of bash with the shared volume."""
    container = {
        "name": "main",
        "image": image,
        "command": ["bash", "-c", f"trap 'exit 143' TERM\n{script}"],  # a shell without it ignores SIGTERM
        "env": [{"name": name, "value": value} for name, value in (variables or {}).items()],
        "resources": {"requests": {"cpu": cpu}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "bench", "mountPath": VOLUME}],
    }
    volume = {"name": "bench", "persistentVolumeClaim": {"claimName": "bench"}}
    return {
        **POD,
        "terminationGracePeriodSeconds": 30,  # as Kubernetes has it where nothing else is said
        "enableServiceLinks": False,
        "containers": [container],
        "volumes": [volume],
    }


def _torchrun(options: str, program: str) -> str:
    return f"torchrun --nnodes={PODS} --nproc-per-node=1 {options} {program}"


def _jobset(spec: Object) -> Object:
    job = {**_indexed(spec), "backoffLimit": 0}
    content = {
        "replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": job}}],
        "failurePolicy": {"maxRestarts": MANY},
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
    }
    metadata = {"name": NAME}
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata, "spec": content}


def _job(spec: Object) -> Object:
    """A Job that replaces pods that fail; those that are evicted count as no failure."""
    rules: Sequence[Object] = [_DISRUPTED]
    job = {**_indexed({**spec, "subdomain": NAME}), "backoffLimit": MANY, "podFailurePolicy": {"rules": rules}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": NAME}, "spec": job}


def _indexed(spec: Object) -> Object:
    template = {"metadata": {"labels": {"app": NAME}}, "spec": spec}
    return {"completionMode": "Indexed", "completions": PODS, "parallelism": PODS, "template": template}
