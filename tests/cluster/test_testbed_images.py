"""The images run as restricted pods, and tell what they hold."""

from __future__ import annotations

import json

import pytest

from tests.testbed.cluster import Cluster
from tests.testbed.objects import pod, pod_spec
from tests.testbed.waiting import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1200),
    pytest.mark.nightly("wants every image, 6 minutes to build where they are missing"),
]


def output_of(testbed: Cluster, namespace: str, image: str, script: str) -> str:
    """Give what a shell script prints in a pod of that image; the test fails where the script does."""
    spec = pod_spec(testbed.images[image], ["bash", "-c", f"set -eu; {script}"])
    testbed.apply(pod("asked", spec), namespace=namespace)
    wait_for("the pod ends", lambda: testbed.phase(namespace, "asked") in ("Succeeded", "Failed"), 120)
    output = testbed.kubectl("logs", "-n", namespace, "asked")
    assert testbed.phase(namespace, "asked") == "Succeeded", output
    return output


@pytest.mark.parametrize(
    ("image", "framework"),
    [
        pytest.param("chainermn", "chainer", marks=pytest.mark.pod_images("chainermn")),
        pytest.param("pytorch", "torch", marks=pytest.mark.pod_images("pytorch")),
    ],
)
def test_an_image_has_and_records_its_locked_framework(
    testbed: Cluster, namespace: str, image: str, framework: str
) -> None:
    script = f"cat /opt/spotmpi/image.json; python -W ignore -c 'import {framework}; print({framework}.__version__)'"
    record, _, version = output_of(testbed, namespace, image, script).rstrip().rpartition("\n")
    facts = json.loads(record)
    assert (facts["image"], facts["user"], facts["sshd_capabilities"]) == (image, [1000, 1000], False)
    assert facts["mpi"].startswith("Open MPI v5.0.11")
    assert facts["versions"][framework] == version.partition("+")[0]
    # The plain base has no CUDA; the wheels of PyTorch bring their own.
    assert facts["cuda_of_base"] is None
    assert bool(facts["architectures"]) == (image == "pytorch")


@pytest.mark.pod_images("chainermn")
def test_an_image_has_no_host_key_and_sshd_accepts_a_mounted_one(testbed: Cluster, namespace: str) -> None:
    script = """
      ! ls /etc/ssh/ssh_host_* 2> /dev/null
      ssh-keygen -q -t ed25519 -N '' -f /tmp/key
      /usr/sbin/sshd -t -f /dev/null -o HostKey=/tmp/key -o UsePAM=no && echo $(id -un) $(id -u):$(id -g)
    """
    assert output_of(testbed, namespace, "chainermn", script).strip() == "spotmpi 1000:1000"
