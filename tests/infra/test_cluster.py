"""The control plane, the system nodes and the add-ons."""

from __future__ import annotations

import json

from infra import names
from tests.infra.mock_engine import run

ALICE = "arn:aws:iam::123456789012:user/alice"
TRAINERS = "arn:aws:iam::123456789012:role/trainers"
BEFORE_NODES = {"vpc-cni", "kube-proxy", "eks-pod-identity-agent"}
AFTER_NODES = {"coredns", "metrics-server", "aws-efs-csi-driver", "eks-node-monitoring-agent"}


def test_the_control_plane_has_every_input() -> None:
    inputs = run("lab").one("eks:index:Cluster").inputs
    expected = {
        "name": "spotmpi-lab",
        "version": "1.36",
        "authenticationMode": "API",
        "accessEntries": {},
        "endpointPublicAccess": True,
        "endpointPrivateAccess": True,
        "publicAccessCidrs": ["198.51.100.7/32"],
        "enabledClusterLogTypes": ["api", "audit", "authenticator"],
        "upgradePolicy": {"supportType": "STANDARD"},
        "skipDefaultNodeGroup": True,
        "skipDefaultSecurityGroups": True,
        "createOidcProvider": False,
        "createInstanceRole": False,
        "bootstrapSelfManagedAddons": False,
        "useDefaultVpcCni": True,
        "corednsAddonOptions": {"enabled": False},
        "kubeProxyAddonOptions": {"enabled": False},
    }
    assert {key: inputs.get(key) for key in expected} == expected
    assert "encryptionConfigKeyArn" not in inputs


def test_admins_administer_and_users_only_join_a_group() -> None:
    recording = run("lab", cluster={"admins": [ALICE], "users": [TRAINERS]})
    entries = recording.one("eks:index:Cluster").inputs["accessEntries"]
    alice, trainers = sorted(entries.values(), key=lambda entry: "kubernetesGroups" in entry)
    assert alice["principalArn"] == ALICE
    policy = alice["accessPolicies"]["admin"]
    assert policy["policyArn"].endswith("AmazonEKSClusterAdminPolicy")
    assert policy["accessScope"] == {"type": "cluster"}
    assert trainers == {"principalArn": TRAINERS, "kubernetesGroups": ["spotmpi:users"]}


def test_an_access_entry_has_the_same_name_wherever_its_principal_is_listed() -> None:
    """Pulumi creates before it deletes, and EKS refuses a second entry of one principal."""
    lists: list[dict[str, list[str]]] = [{"admins": [ALICE, TRAINERS]}, {"admins": [TRAINERS]}, {"users": [TRAINERS]}]
    names = [
        {entry["principalArn"]: name for name, entry in cluster.inputs["accessEntries"].items()}
        for cluster in (run("lab", cluster=each).one("eks:index:Cluster") for each in lists)
    ]
    assert len({each[TRAINERS] for each in names}) == 1 and len(set(names[0].values())) == 2


def test_nodes_open_a_shell_by_session_manager_only_if_set() -> None:
    def policies(**cluster: bool) -> set[str]:
        attachments = run("lab", cluster=cluster).of("RolePolicyAttachment")
        return {each.inputs["policyArn"].rpartition("/")[2] for each in attachments if "-nodes-" in each.name}

    assert policies(ssm=True) - policies() == {"AmazonSSMManagedInstanceCore"}


def test_secrets_are_encrypted_with_a_separate_key_if_set() -> None:
    assert run("lab").of("aws:kms/key:Key") == []
    encrypted = run("lab", cluster={"encrypt_secrets": True})
    key = encrypted.one("aws:kms/key:Key")
    assert key.inputs["enableKeyRotation"] is True
    assert encrypted.one("eks:index:Cluster").inputs["encryptionConfigKeyArn"] == f"arn:aws:mock:::{key.name}"


def test_control_plane_logs_are_deleted_with_the_environment() -> None:
    logs = run("lab").one("LogGroup")
    assert (logs.inputs["name"], logs.inputs["retentionInDays"]) == ("/aws/eks/spotmpi-lab/cluster", 14)
    assert logs.urn in run("lab").one("eks:index:Cluster").depends_on


def test_system_nodes_are_few_on_demand_and_without_taint() -> None:
    system = run("lab").node_groups["system"].inputs
    assert system["capacityType"] == "ON_DEMAND"
    assert system["scalingConfig"] == {"desiredSize": 2, "minSize": 2, "maxSize": 3}
    assert system["labels"] == {"spotmpi.dev/role": "system"}
    assert system["nodeRepairConfig"]["enabled"] is True
    assert "taints" not in system
    assert system["updateConfig"] == {"maxUnavailable": 1, "updateStrategy": "MINIMAL"}
    alone = run("lab", cluster={"system": {"nodes": 1}}).node_groups["system"].inputs
    assert alone["updateConfig"]["updateStrategy"] == "DEFAULT"  # none may be unavailable


def test_an_update_leaves_the_number_of_system_nodes_to_the_autoscaler() -> None:
    system = run("lab").node_groups["system"]
    assert system.ignore_changes == ("scalingConfig",)
    sizes = run("lab").one("aws:autoscaling/tag:Tag", "spotmpi-lab-system-sizes").inputs
    assert sizes["tag"] == {"key": "spotmpi:nodes", "value": "2-3", "propagateAtLaunch": False}
    assert sizes["autoscalingGroupName"] == "eks-spotmpi-lab-system-asg"


def test_nodes_wait_for_network_add_ons_and_all_other_add_ons_wait_for_nodes() -> None:
    addons = {resource.inputs["addonName"]: resource for resource in run("lab").of("Addon")}
    assert set(addons) == BEFORE_NODES | AFTER_NODES
    system = run("lab").node_groups["system"]
    assert {addons[name].urn for name in BEFORE_NODES} <= system.depends_on
    assert all(system.urn in addons[name].depends_on for name in AFTER_NODES)


def test_everything_in_the_cluster_waits_for_the_control_plane() -> None:
    control_plane = run("lab").one("eks:index:Cluster").urn
    named = [resource for resource in run("lab").resources if resource.inputs.get("clusterName") == "spotmpi-lab"]
    assert len(named) == 7 + 2 + 1
    assert all(control_plane in resource.depends_on for resource in named)


def test_network_policies_are_enforced_and_warm_addresses_match_the_plan() -> None:
    text = run("lab").one("Addon", "spotmpi-lab-vpc-cni").inputs["configurationValues"]
    addresses = {"MINIMUM_IP_TARGET": "8", "WARM_IP_TARGET": "1"}
    assert json.loads(text) == {"enableNetworkPolicy": "true", "env": addresses}


def test_an_add_on_version_is_pinned_if_set_and_else_eks_default() -> None:
    recording = run("lab", cluster={"addon_versions": {"coredns": "v1.12.4-eksbuild.1"}})
    assert recording.one("Addon", "spotmpi-lab-coredns").inputs["addonVersion"] == "v1.12.4-eksbuild.1"
    assert "addonVersion" not in recording.one("Addon", "spotmpi-lab-vpc-cni").inputs


def test_the_add_ons_whose_versions_can_be_set_are_those_of_a_cluster() -> None:
    assert {addon.inputs["addonName"] for addon in run("lab").of("Addon")} == set(names.ADDONS)


def test_every_node_group_has_its_version_and_its_ami_release_if_set() -> None:
    cluster = {"version": "1.35", "system": {"ami_release": "1.35.2-20260901"}}
    groups = [
        {"name": "new", "type": "g4dn.xlarge", "max": 2},
        {"name": "old", "type": "g4dn.xlarge", "max": 2, "ami_release": "1.34.6-20260501"},
    ]
    node_groups = {name: each.inputs for name, each in run("lab", cluster=cluster, groups=groups).node_groups.items()}
    assert {name: (each["version"], each.get("releaseVersion")) for name, each in node_groups.items()} == {
        "system": ("1.35", "1.35.2-20260901"),
        "new": ("1.35", None),
        "old": ("1.34", "1.34.6-20260501"),
    }


def test_the_efs_driver_has_its_role_by_pod_identity() -> None:
    association = {"roleArn": "arn:aws:mock:::spotmpi-lab-efs-csi", "serviceAccount": "efs-csi-controller-sa"}
    addon = run("lab").one("Addon", "spotmpi-lab-aws-efs-csi-driver")
    assert addon.inputs["podIdentityAssociations"] == [association]
    trust = json.loads(run("lab").one("aws:iam/role:Role", "spotmpi-lab-efs-csi").inputs["assumeRolePolicy"])
    assert trust["Statement"][0]["Principal"] == {"Service": "pods.eks.amazonaws.com"}


def test_node_roles_are_attached_before_any_node_is_created() -> None:
    attached = {resource.urn for resource in run("lab").of("RolePolicyAttachment") if "-nodes-" in resource.name}
    assert len(attached) == 3
    assert all(attached <= group.depends_on for group in run("lab").node_groups.values())
