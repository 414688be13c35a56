"""Our image in restricted pods: sshd without root, and an allreduce over two of them by real mpirun."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.testbed.cluster import Cluster
from tests.testbed.kubernetes import Object
from tests.testbed.objects import container, headless_service, indexed_job, pod_spec

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.pod_images("chainermn"),
    pytest.mark.timeout(300),
    pytest.mark.nightly("our own launcher over the same SSH is tested by each run of two pods"),
]

SSHD = """\
Port 2222
HostKey /ssh/id
AuthorizedKeysFile /ssh/authorized_keys
UsePAM no
StrictModes no
PidFile none
"""
CLIENT = """\
Host *
  Port 2222
  IdentityFile /ssh/id
  UserKnownHostsFile /ssh/known_hosts
  StrictHostKeyChecking yes
"""
AGENT = """\
set -eu
umask 077
cp /keys/* /ssh/
chmod 600 /ssh/id
/usr/sbin/sshd -e -f /ssh/sshd_config
[ "$JOB_COMPLETION_INDEX" = 0 ] || exec sleep 300
for host in sum-0 sum-1; do
  for try in $(seq 100); do ssh -F /ssh/client_config "$host" true 2> /tmp/said && break; sleep 0.1; done
done
printf 'sum-0 slots=1\\nsum-1 slots=1\\n' > /tmp/hosts
mpirun --hostfile /tmp/hosts -np 2 --map-by slot --prtemca plm_ssh_args "-F /ssh/client_config" \\
  --mca btl_tcp_if_include eth0 /opt/venv/bin/python /program/allreduce.py
"""
PROGRAM = """\
import socket
import chainermn
communicator = chainermn.create_communicator("naive")
total = communicator.allreduce_obj(communicator.rank + 1)
hosts = communicator.gather_obj(socket.gethostname())
if communicator.rank == 0:
    print("sum", total, "on", *sorted(hosts), flush=True)
"""


def keys(folder: Path) -> Object:
    """Give a Secret with one fresh key that is client key and host key at once."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "id"], check=True)
    public = (folder / "id.pub").read_text()
    data = {
        "id": (folder / "id").read_text(),
        "authorized_keys": public,
        "known_hosts": f"* {public}",
        "sshd_config": SSHD,
        "client_config": CLIENT,
    }
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": data}


def test_mpirun_reaches_both_pods_through_sshd_of_an_ordinary_user(
    testbed: Cluster, namespace: str, tmp_path: Path
) -> None:
    program: Object = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "program"},
        "data": {"allreduce.py": PROGRAM},
    }
    mounts = [
        {"name": "keys", "mountPath": "/keys"},
        {"name": "ssh", "mountPath": "/ssh"},
        {"name": "program", "mountPath": "/program"},
        {"name": "memory", "mountPath": "/dev/shm"},
    ]
    image = testbed.images["chainermn"]
    spec = pod_spec(
        image,
        [],
        containers=[container(image, ["bash", "-c", AGENT], volumeMounts=mounts)],
        subdomain="sum",
        dnsConfig={"searches": [f"sum.{namespace}.svc.cluster.local"]},
        volumes=[
            {"name": "keys", "secret": {"secretName": "keys", "defaultMode": 0o440}},
            {"name": "ssh", "emptyDir": {"medium": "Memory"}},
            {"name": "program", "configMap": {"name": "program"}},
            {"name": "memory", "emptyDir": {"medium": "Memory"}},
        ],
    )
    ends_with_launcher = {"rules": [{"succeededIndexes": "0"}]}
    job = indexed_job("sum", 2, spec, successPolicy=ends_with_launcher, activeDeadlineSeconds=90)
    service = headless_service("sum", {"app": "sum"})
    testbed.apply(keys(tmp_path), program, service, job, namespace=namespace)
    result = testbed.try_kubectl("wait", "-n", namespace, "job/sum", "--for=condition=Complete", "--timeout=60s")
    launcher = testbed.kubectl(
        "logs", "-n", namespace, "-l", "batch.kubernetes.io/job-completion-index=0", "--tail=-1", limit=20
    )
    assert result.returncode == 0, launcher
    assert "sum 3 on sum-0 sum-1" in launcher.splitlines()
