"""The doctor on a live environment: each check passing and failing, against scripted AWS and a scripted cluster."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from jobs import environment
from jobs.cloud.checks.finding import Finding
from jobs.cloud.checks.live import Live
from jobs.cloud.doctor import doctor
from jobs.cloud.reasons import REASONS, reason_of
from jobs.cloud.rights import LOOK
from jobs.errors import NotPermitted, SpotmpiError
from jobs.images import Build
from tests.jobs.scripted_account import Refusal, ScriptedAccount, World
from tests.jobs.scripted_cluster import Object, ScriptedCluster, node
from tests.jobs.test_cloud_doctor import tell
from tests.jobs.test_environment import OUTPUTS

STACK = """config:
  aws:region: us-east-1
  spotmpi:zone: us-east-1a
  spotmpi:groups:
    - {name: g4dn, type: g4dn.xlarge, max: 2}
"""
PUBLIC = f"ssh-ed25519 {'A' * 68} spotmpi"
PRIVATE = "-----BEGIN OPENSSH PRIVATE KEY-----\nthisIsTheKey\n-----END OPENSSH PRIVATE KEY-----\n"
KEY = {"id": PRIVATE, "id.pub": PUBLIC, "authorized_keys": PUBLIC}
TEMPLATE = "k8s.io/cluster-autoscaler/node-template"
TAGS = {
    "eks:cluster-name": "spotmpi-mine",
    f"{TEMPLATE}/label/spotmpi.dev/group": "g4dn",
    f"{TEMPLATE}/taint/nvidia.com/gpu": "present:NoSchedule",
    f"{TEMPLATE}/resources/nvidia.com/gpu": "1",
    "k8s.io/cluster-autoscaler/enabled": "true",
    "k8s.io/cluster-autoscaler/spotmpi-mine": "owned",
}


def deployment(name: str, namespace: str, running: int = 1, kind: str = "Deployment") -> Object:
    status = {"availableReplicas": running, "desiredNumberScheduled": 1, "numberReady": running}
    return {"kind": kind, "metadata": {"name": name, "namespace": namespace}, "status": status}


def secret(values: Mapping[str, str]) -> Object:
    data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    return {"kind": "Secret", "metadata": {"name": "mpi-ssh", "namespace": "training"}, "data": data}


def healthy() -> ScriptedCluster:
    """A cluster in which all is well."""
    status = "time: 2026-11-20\nautoscalerStatus: Running\nclusterWide:\n  health:\n    status: Healthy\n"
    return ScriptedCluster(
        [
            node("a"),
            {**node("system", gpus=0), "metadata": {**node("system")["metadata"], "labels": {}}},
            deployment("jobset-controller", "jobset-system"),
            deployment("cluster-autoscaler", "kube-system"),
            deployment("coredns", "kube-system", 2),
            deployment("nvidia-device-plugin", "kube-system", 1, "DaemonSet"),
            {
                "kind": "ConfigMap",
                "metadata": {"name": "cluster-autoscaler-status", "namespace": "kube-system"},
                "data": {"status": status},
            },
            secret(KEY),
            {
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": "runs", "namespace": "training"},
                "status": {"phase": "Bound"},
            },
        ]
    )


class Here:
    """An account with a live environment, its cluster, and what the doctor says of both."""

    def __init__(self, account: ScriptedAccount) -> None:
        self.account, self.cluster = account, healthy()
        group = {**OUTPUTS["node_groups"][0], "placement_group": True}
        named = {"name": "spotmpi-mine", "cluster": "spotmpi-mine", "node_groups": [group]}
        self.environment = environment.parse({**OUTPUTS, **named})
        self.trouble: SpotmpiError | None = None

    def look(self, stack: str) -> Live:
        assert stack == "mine"
        if self.trouble:
            raise self.trouble
        return Live(self.environment, self.cluster)

    def findings(self) -> dict[str, Finding]:
        return {finding.check: finding for finding in doctor("mine", self.account.aws, tell, self.look)}

    def answer(self, operation: str, **values: Any) -> None:
        self.account.answers[operation] = lambda region, asked: values


def group_of(tags: Mapping[str, str]) -> dict[str, Any]:
    listed = [{"Key": key, "Value": value} for key, value in tags.items()]
    sizes = {"MinSize": 0, "MaxSize": 2, "DesiredCapacity": 1, "Instances": [{"InstanceId": "i-1"}]}
    return {"AutoScalingGroupName": "eks-g4dn", "Tags": listed, **sizes}


@pytest.fixture
def here(one_account: ScriptedAccount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    World().script(one_account)
    one_account.rights.clear()
    made = Here(one_account)
    nodegroup = {
        "status": "ACTIVE",
        "health": {"issues": []},
        "scalingConfig": {"minSize": 0, "maxSize": 2},
        "resources": {"autoScalingGroups": [{"name": "eks-g4dn"}]},
    }
    rule = {"IsEgress": False, "IpProtocol": "tcp", "FromPort": 2049, "ToPort": 2049}
    answers: dict[str, dict[str, Any]] = {
        "GetCallerIdentity": {"Account": "123456789012", "Arn": "arn:aws:sts::123456789012:x/me"},
        "DescribeCluster": {"cluster": {"resourcesVpcConfig": {"clusterSecurityGroupId": "sg-nodes"}}},
        "ListAddons": {"addons": ["vpc-cni", "coredns", "kube-proxy", "eks-pod-identity-agent", "aws-efs-csi-driver"]},
        "DescribeAddon": {"addon": {"status": "ACTIVE", "addonVersion": "v1.2", "health": {"issues": []}}},
        "ListNodegroups": {"nodegroups": ["spotmpi-mine-g4dn-1234567"]},
        "DescribeNodegroup": {"nodegroup": nodegroup},
        "DescribeScalingActivities": {"Activities": [{"Description": "Terminating EC2 instance: i-0"}]},
        "DescribeAutoScalingGroups": {"AutoScalingGroups": [group_of(TAGS)]},
        "DescribeMountTargets": {
            "MountTargets": [
                {"MountTargetId": "fsmt-12345678", "AvailabilityZoneName": "us-east-1a", "LifeCycleState": "available"}
            ]
        },
        "DescribeMountTargetSecurityGroups": {"SecurityGroups": ["sg-nfs"]},
        "DescribeSecurityGroupRules": {
            "SecurityGroupRules": [
                {"IsEgress": True, "IpProtocol": "-1", "ReferencedGroupInfo": {"GroupId": "sg-nodes"}},
                {**rule, "ReferencedGroupInfo": {"GroupId": "sg-nodes"}},
            ]
        },
        "DescribeImages": {"imageDetails": []},
    }
    for operation, values in answers.items():
        made.answer(operation, **values)
    place = {"AvailabilityZone": "us-east-1a", "GroupName": "spotmpi-mine-g4dn"}
    # Placement is asked by instance id, the quota's use by life cycle.
    usual = one_account.answers["DescribeInstances"]

    def instances(region: str, asked: Mapping[str, Any]) -> Any:
        if asked["Filters"][0]["Name"] != "instance-id":
            return usual(region, asked)
        ids = asked["Filters"][0]["Values"]
        return {"Reservations": [{"Instances": [{"InstanceId": each, "Placement": place} for each in ids]}]}

    one_account.answers["DescribeInstances"] = instances
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks" / "Pulumi.mine.yaml").write_text(STACK)
    monkeypatch.setenv("SPOTMPI_STATE", str(tmp_path / "kept"))
    monkeypatch.chdir(tmp_path)
    return made


def test_where_all_is_well_every_line_of_a_live_environment_is_ok(here: Here) -> None:
    findings = here.findings()

    assert {name: each.message for name, each in findings.items() if each.level != "ok"} == {}
    assert findings["node a"].message == "g4dn.xlarge in us-east-1a, 3.92 CPU, 15 GiB, 1 GPUs, driver 580.95.05"
    assert findings["API"].message == "answers; 2 nodes"
    assert findings["scaling of g4dn"].message == "1 of 2 nodes"
    assert {"add-on coredns", "node group spotmpi-mine-g4dn-1234567", "mount target", "port 2049"} <= set(findings)
    assert findings["image chainermn"].message == f"tag {Build('chainermn').tag} is in the registry"
    (asked,) = here.account.calls("DescribeImages")
    assert asked["repositoryName"] == "spotmpi-lab/chainermn"


def test_the_policy_to_look_allows_what_a_live_environment_is_asked(here: Here) -> None:
    here.findings()

    assert here.account.rights - {"sts:GetCallerIdentity"} <= set(LOOK)


def changed(key: str, value: Any, name: str = "a") -> Object:
    """The node with one thing different, by a path with slashes where labels have none."""
    made = node(name)
    where = made
    *path, last = key.split("|")
    for part in path:
        where = where[part]
    where[last] = value
    return made


NODES = [
    (changed("status|conditions", [{"type": "Ready", "status": "Unknown"}]), "is not ready"),
    (changed("metadata|labels|node.kubernetes.io/instance-type", "g5.xlarge"), "is a g5.xlarge, group g4dn has g4dn"),
    (changed("status|allocatable", {"cpu": "4", "memory": "15Gi"}), "offers 0 of 1 GPUs"),
]


@pytest.mark.parametrize(("made", "said"), NODES)
def test_a_node_that_is_not_what_its_group_says_is_named(here: Here, made: Object, said: str) -> None:
    here.cluster.objects[0] = made

    finding = here.findings()["node a"]

    assert finding.level == "error" and said in finding.message and finding.remedy


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ({"AvailabilityZone": "us-east-1b", "GroupName": "x"}, "is in us-east-1b, the environment in us-east-1a"),
        ({"AvailabilityZone": "us-east-1a", "GroupName": ""}, "is in no placement group, its group asks for one"),
    ],
)
def test_a_machine_in_the_wrong_place_is_named(here: Here, place: dict[str, str], said: str) -> None:
    machine = {"InstanceId": f"i-{'a':0>17}", "Placement": place}
    here.answer("DescribeInstances", Reservations=[{"Instances": [machine]}])

    assert here.findings()["node a"].message == said


@pytest.mark.parametrize(
    ("name", "check", "said"),
    [
        ("jobset-controller", "JobSet", "and carries every run"),
        ("cluster-autoscaler", "autoscaler", "and brings and takes nodes"),
        ("coredns", "DNS", "and lets pods find each other"),
        ("nvidia-device-plugin", "device plugin", "on 0 of 1 GPU nodes"),
    ],
)
def test_a_controller_that_does_not_run_is_an_error_and_so_is_one_that_is_gone(
    here: Here, name: str, check: str, said: str
) -> None:
    for each in here.cluster.objects:
        if each["metadata"]["name"] == name:
            each["status"] = {"desiredNumberScheduled": 1}
    finding = here.findings()[check]
    assert finding.level == "error" and said in finding.message

    here.cluster.objects = [each for each in here.cluster.objects if each["metadata"]["name"] != name]
    assert "is not installed" in here.findings()[check].message


def test_what_the_autoscaler_says_of_itself_is_heard(here: Here) -> None:
    (told,) = [each for each in here.cluster.objects if each["kind"] == "ConfigMap"]
    told["data"]["status"] = "clusterWide:\n  health:\n    status: Unhealthy\n"
    assert here.findings()["scaling"].message == "the autoscaler calls the cluster Unhealthy"
    here.cluster.objects.remove(told)
    assert here.findings()["scaling"].level == "warning"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({**KEY, "id": ""}, "lacks id"),
        ({**KEY, "id": PRIVATE.rstrip()}, "has an `id` that is no OpenSSH private key"),
        ({**KEY, "id": "thisIsTheKey\n"}, "has an `id` that is no OpenSSH private key"),
        ({**KEY, "id.pub": "ssh-rsa AAAA"}, "has an `id.pub` that is no ED25519 public key"),
        ({**KEY, "authorized_keys": PUBLIC.replace("A", "B")}, "has `authorized_keys` without its own public key"),
    ],
)
def test_a_key_that_is_not_whole_is_an_error_and_is_never_shown(here: Here, values: dict[str, str], said: str) -> None:
    here.cluster.objects = [each for each in here.cluster.objects if each["kind"] != "Secret"] + [secret(values)]

    finding = here.findings()["SSH key"]

    assert finding.level == "error" and finding.message.startswith(f"Secret mpi-ssh {said}")
    assert "thisIsTheKey" not in str(finding)


def test_a_key_that_is_gone_and_a_claim_that_is_not_bound_are_errors(here: Here) -> None:
    here.cluster.objects = [each for each in here.cluster.objects if each["kind"] != "Secret"]
    here.cluster.objects[-1]["status"] = {"phase": "Pending"}

    findings = here.findings()

    assert findings["SSH key"].message == "Secret mpi-ssh is not there"
    assert findings["volume"].message == "claim runs is Pending" and "describe pvc runs" in findings["volume"].command


def test_add_ons_that_are_missing_or_ill_are_errors(here: Here) -> None:
    issue = {"code": "InsufficientNumberOfReplicas", "message": "no node for it"}
    here.answer("ListAddons", addons=["vpc-cni"])
    here.answer("DescribeAddon", addon={"status": "DEGRADED", "health": {"issues": [issue]}})

    findings = here.findings()

    assert findings["add-on coredns"].message == "is not installed"
    assert findings["add-on vpc-cni"].message == "is DEGRADED: no node for it"


NODE_GROUP = "node group spotmpi-mine-g4dn-1234567"


@pytest.mark.parametrize("code", REASONS)
def test_a_sick_node_group_tells_awss_reason_in_words(here: Here, code: str) -> None:
    issue = {"code": code, "message": "long story"}
    here.answer("DescribeNodegroup", nodegroup={"status": "DEGRADED", "health": {"issues": [issue]}})

    finding = here.findings()[NODE_GROUP]

    assert (finding.level, finding.message, finding.remedy) == ("error", *REASONS[code])


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("Could not launch Spot Instances. MaxSpotInstanceCountExceeded - Max spot instance count exceeded. Launching "
         "EC2 instance failed.", "MaxSpotInstanceCountExceeded"),
        ("We currently do not have sufficient g5.xlarge capacity in the Availability Zone you requested (us-east-1a).",
         "UnfulfillableCapacity"),
        ("Could not launch Spot Instances. UnfulfillableCapacity - Unable", "UnfulfillableCapacity"),
        ("You have requested more vCPU capacity than your current vCPU limit of 0 allows", "VcpuLimitExceeded"),
    ],
)  # fmt: skip
def test_a_machine_that_could_not_be_started_is_a_warning_with_the_reason(here: Here, message: str, code: str) -> None:
    failed = {
        "Description": "Launching a new EC2 instance.  Status Reason: ...",
        "StatusCode": "Failed",
        "StatusMessage": message,
        "StartTime": datetime(2026, 11, 20, 3, 4, tzinfo=UTC),
    }
    here.answer("DescribeScalingActivities", Activities=[failed])

    finding = here.findings()[NODE_GROUP]

    assert finding.level == "warning" and finding.remedy == REASONS[code].remedy
    assert finding.message == f"the last start of a machine failed (2026-11-20 03:04 UTC): {REASONS[code].words}"


def test_an_unknown_reason_stays_in_awss_own_words() -> None:
    assert reason_of("NewCode", "never\nseen").words == "NewCode: never seen"


@pytest.mark.parametrize("key", [key for key in TAGS if key != "eks:cluster-name"])
def test_a_scaling_group_that_does_not_tell_the_autoscaler_enough_is_an_error(here: Here, key: str) -> None:
    here.answer("DescribeAutoScalingGroups", AutoScalingGroups=[group_of({**TAGS, key: "other"})])

    finding = here.findings()["scaling of g4dn"]

    assert finding.level == "error" and finding.remedy.startswith("run `pulumi up`")
    assert key in finding.message or "no Auto Scaling group says that it is this group's" in finding.message


def test_nodes_that_are_kept_warm_are_told(here: Here) -> None:
    here.answer("DescribeAutoScalingGroups", AutoScalingGroups=[{**group_of(TAGS), "MinSize": 2}])

    assert here.findings()["scaling of g4dn"].message == "1 of 2 nodes; 2 kept ready by `spotmpi scale`"


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (
            {"AvailabilityZoneName": "us-east-1b", "LifeCycleState": "available"},
            "none in us-east-1a (there: us-east-1b)",
        ),
        ({"AvailabilityZoneName": "us-east-1a", "LifeCycleState": "creating"}, "is creating"),
    ],
)
def test_a_mount_target_that_is_of_no_use_is_an_error(here: Here, target: dict[str, str], said: str) -> None:
    here.answer("DescribeMountTargets", MountTargets=[{"MountTargetId": "fsmt-12345678", **target}])

    findings = here.findings()

    assert findings["mount target"].message == said and "port 2049" not in findings


@pytest.mark.parametrize(
    "rule",
    [
        {"IsEgress": False, "IpProtocol": "tcp", "FromPort": 22, "ToPort": 22},
        {"IsEgress": True, "IpProtocol": "tcp", "FromPort": 2049, "ToPort": 2049},
        {"IsEgress": False, "IpProtocol": "udp", "FromPort": 2049, "ToPort": 2049},
    ],
)
def test_a_port_that_the_nodes_do_not_reach_is_an_error(here: Here, rule: dict[str, Any]) -> None:
    here.answer(
        "DescribeSecurityGroupRules", SecurityGroupRules=[{**rule, "ReferencedGroupInfo": {"GroupId": "sg-nodes"}}]
    )
    assert "lets the nodes (sg-nodes) in: mounting would hang" in here.findings()["port 2049"].message

    strange = {"IsEgress": False, "IpProtocol": "-1", "ReferencedGroupInfo": {"GroupId": "sg-other"}}
    here.answer("DescribeSecurityGroupRules", SecurityGroupRules=[strange])
    assert here.findings()["port 2049"].level == "error"
    here.answer(
        "DescribeSecurityGroupRules", SecurityGroupRules=[{**strange, "ReferencedGroupInfo": {"GroupId": "sg-nodes"}}]
    )
    assert here.findings()["port 2049"].level == "ok"


@pytest.mark.parametrize("code", ["ImageNotFoundException", "RepositoryNotFoundException"])
def test_an_image_that_is_not_in_the_registry_is_told_with_the_command(here: Here, code: str) -> None:
    here.account.refuse("DescribeImages", code)

    finding = here.findings()["image chainermn"]

    assert finding.level == "warning" and finding.command == "spotmpi image push chainermn --on mine"


def test_what_may_not_be_read_is_a_warning_and_what_cannot_be_reached_an_error(here: Here) -> None:
    class Closed(ScriptedCluster):
        def list(self, kind: str, namespace: str | None = None, labels: dict[str, str] | None = None) -> list[Object]:
            if kind == "Deployment":
                raise NotPermitted("could not list Deployments: not permitted (User ann)")
            if kind == "Secret":
                raise SpotmpiError("could not read Secret mpi-ssh: the cluster cannot be reached")
            return super().list(kind, namespace, labels)

    here.cluster = Closed(healthy().objects)
    here.account.refuse("ListAddons", "AccessDeniedException")
    findings = here.findings()

    assert findings["controllers"].level == "warning" and "User ann" in findings["controllers"].message
    assert findings["SSH key"].level == "error" and findings["add-ons"].level == "warning"
    assert findings["node a"].level == "ok"


def test_an_environment_that_cannot_be_looked_at_is_one_error_and_the_rest_is_there(here: Here) -> None:
    here.trouble = SpotmpiError("this machine's kubeconfig has no context of cluster spotmpi-mine")

    findings = here.findings()

    assert "no context of cluster spotmpi-mine" in findings["environment"].message
    assert findings["group g4dn"].level == "ok" and "API" not in findings


def test_an_environment_that_is_not_built_is_not_looked_at(here: Here) -> None:
    def no_cluster(region: str, asked: Mapping[str, Any]) -> Any:
        raise Refusal("ResourceNotFoundException")

    here.account.answers["DescribeCluster"] = no_cluster
    here.trouble = SpotmpiError("asked all the same")
    here.answer("DescribeFileSystems", FileSystems=[])

    findings = here.findings()

    assert "environment" not in findings and "API" not in findings
    assert replace(findings["credentials"], message="").level == "ok"
