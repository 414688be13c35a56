"""What lives in Kubernetes: where it comes from, whom it obeys, what it may do, and that it goes with the cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from pulumi.runtime import rpc

from infra import kubernetes_versions
from infra.autoscaling import priorities
from infra.quotas import quotas
from infra.settings import Group, Team
from infra.sources import CHARTS, Sources
from spotmpi.plan.placement import PURPOSE
from spotmpi.plan.volume_pod import LABEL_PURPOSE
from tests.engine.providers.tls import private_key, self_signed
from tests.infra.mock_engine import Recording, run
from tests.tools import REPOSITORY
from tests.unit.agent.peer_ends import Pair, identity, new_identity
from tests.unit.agent.placed_cluster import IDLE

QUEUES = {"enabled": True, "teams": [{"name": "vision", "gpus": 1}, {"name": "speech", "gpus": 1}]}
P4D = {"name": "p4d", "type": "p4d.24xlarge", "max": 4, "efa": True}
RBAC = "kubernetes:rbac.authorization.k8s.io/v1"
KUEUE = "kubernetes:kueue.x-k8s.io/v1beta1"


def releases(recording: Recording) -> dict[str, Mapping[str, Any]]:
    return {resource.inputs["name"]: resource.inputs for resource in recording.of("Release")}


def network_policies(recording: Recording) -> dict[str, Any]:
    return {each.inputs["metadata"]["name"]: each.inputs["spec"] for each in recording.of("NetworkPolicy")}


@pytest.mark.parametrize("stack", ["lab", "g5", "cpu"])
def test_every_object_and_no_other_resource_is_deleted_with_the_cluster_and_uses_its_provider(stack: str) -> None:
    """The engine hands a parent's `deleted_with` to its children, so no component may carry one."""
    recording = run(stack, queueing=QUEUES)
    control_plane = recording.one("eks:index:Cluster").urn
    objects = [resource for resource in recording.resources if resource.kind.startswith("kubernetes:")]
    assert len(objects) > 15
    for resource in objects:
        assert resource.deleted_with == control_plane, resource.name
        assert "pulumi:providers:kubernetes::" in resource.provider, resource.name
    assert [each.name for each in recording.resources if each.deleted_with and each not in objects] == []


def test_the_provider_waits_for_nodes_add_ons_and_storage() -> None:
    provider = run("lab").one("pulumi:providers:kubernetes")
    for kind in ("aws:eks/nodeGroup:NodeGroup", "Addon", "MountTarget", "SecurityGroupIngressRule"):
        assert {resource.urn for resource in run("lab").of(kind)} <= provider.depends_on, kind


def test_a_stack_has_the_charts_it_needs_and_no_others() -> None:
    assert set(releases(run("lab"))) == {"jobset", "cluster-autoscaler", "nvidia-device-plugin"}
    assert set(releases(run("cpu"))) == {"jobset", "cluster-autoscaler"}


def test_every_chart_is_pinned_and_rolls_back() -> None:
    charts = releases(run("g5", groups=[P4D], queueing=QUEUES, accelerators={"dcgm": True}))
    assert set(charts) == set(CHARTS)
    for name, inputs in charts.items():
        assert inputs["version"] == CHARTS[name].version
        assert (inputs["atomic"], inputs["cleanupOnFail"]) == (True, True)


def test_the_test_cluster_has_the_kubernetes_and_the_controllers_of_new_environments() -> None:
    def version(tool: str, module: str) -> str:
        text = (REPOSITORY / "scripts" / "tools.d" / tool / "go.mod").read_text()
        (found,) = re.finditer(rf"^\s*(?:require )?{re.escape(module)} v(\S+)", text, re.MULTILINE)
        return found[1]

    assert version("kubernetes", "k8s.io/kubernetes").startswith(f"1.{kubernetes_versions.DEFAULT}.")
    assert version("kubernetes-newest", "k8s.io/kubernetes").startswith(f"1.{kubernetes_versions.NEWEST}.")
    assert version("kubernetes-oldest", "k8s.io/kubernetes").startswith(f"1.{kubernetes_versions.OLDEST}.")
    for controller in ("jobset", "kueue"):
        assert version(controller, f"sigs.k8s.io/{controller}") == CHARTS[controller].version


def test_controllers_stay_on_system_nodes_and_plugins_on_gpu_nodes() -> None:
    charts = releases(run("lab", queueing=QUEUES, accelerators={"dcgm": True}))
    system, gpu = {"spotmpi.dev/role": "system"}, {"spotmpi.dev/role": "gpu"}
    assert charts["jobset"]["values"]["controller"]["nodeSelector"] == system
    assert jobset_configuration(charts["jobset"]["values"])["featureGates"] == {"RestartJob": True}
    assert charts["kueue"]["values"]["controllerManager"]["nodeSelector"] == system
    assert charts["cluster-autoscaler"]["values"]["nodeSelector"] == system
    for name in ("nvidia-device-plugin", "dcgm-exporter"):
        values = charts[name]["values"]
        assert values["nodeSelector"] == gpu
        assert values["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]


def test_the_efa_plugin_runs_on_nodes_with_efa() -> None:
    values = releases(run("g5", groups=[P4D]))["efa-device-plugin"]["values"]
    assert values["supportedInstanceLabels"]["values"] == ["p4d.24xlarge"]


def test_a_mirror_replaces_address_version_and_image() -> None:
    image = {"repository": "mirror.example/jobset", "tag": "v1"}
    chart = {"chart": "oci://mirror.example/jobset", "version": "0.11.0"}
    jobset = {**chart, "image": image["repository"], "tag": image["tag"]}
    inputs = releases(run("lab", sources={"jobset": jobset}))["jobset"]
    assert {key: inputs[key] for key in chart} == chart
    assert inputs["values"]["image"] == {**image, "pullPolicy": "IfNotPresent"}
    assert "clientConnection" not in inputs["values"]["controller"], "a feature gate that this version does not know"


@pytest.mark.parametrize("name", ["dcgm-exporter", "efa-device-plugin", "nvidia-device-plugin"])
def test_a_mirror_replaces_the_image_of_a_device_plugin_too(name: str) -> None:
    mirror = {name: {"image": f"mirror.example/{name}", "tag": "v1"}}
    values = releases(run("g5", groups=[P4D], accelerators={"dcgm": True}, sources=mirror))[name]["values"]
    assert values["image"] == {"repository": f"mirror.example/{name}", "tag": "v1"}


def test_the_autoscaler_prefers_groups_in_the_order_of_the_settings() -> None:
    values = releases(run("g5"))["cluster-autoscaler"]["values"]
    assert values["autoDiscovery"] == {"clusterName": "spotmpi-g5"}
    assert values["extraArgs"]["expander"] == "priority,least-waste"
    assert values["extraArgs"]["scale-down-unneeded-time"] == f"{IDLE / 60:g}m", "as in simulated clusters"
    assert yaml.safe_load(values["expanderPriorities"]) == {
        100: ["^eks-spotmpi-g5-g5-[0-9a-f]{7}-[0-9a-f]{8}.*"],
        99: ["^eks-spotmpi-g5-g6-[0-9a-f]{7}-[0-9a-f]{8}.*"],
        98: ["^eks-spotmpi-g5-g5-spread-[0-9a-f]{7}-[0-9a-f]{8}.*"],
    }


@pytest.mark.parametrize(
    ("version", "tag"),
    [("1.31", "v1.31.1"), ("1.34", "v1.34.4"), ("1.35", "v1.35.0@sha256:2fc9433dd3b4"), ("1.36", "v1.36.1")],
)
def test_the_autoscaler_has_the_minor_version_of_its_cluster(version: str, tag: str) -> None:
    values = releases(run("lab", cluster={"version": version}))["cluster-autoscaler"]["values"]
    assert values["image"]["tag"].startswith(tag)


def test_a_kubernetes_version_without_an_autoscaler_gets_the_newest() -> None:
    charts = [Sources.for_cluster(version, {}).charts["cluster-autoscaler"] for version in ("1.36", "1.39")]
    assert charts[0] == charts[1]


def test_another_tag_of_an_image_drops_the_digest_of_the_old_one() -> None:
    chart = Sources.for_cluster("1.35", {"cluster-autoscaler": {"tag": "v1.35.2"}}).charts["cluster-autoscaler"]
    assert (chart.tag, chart.digest) == ("v1.35.2", None)
    mirror = Sources.for_cluster("1.35", {"cluster-autoscaler": {"image": "mirror.example/a"}})
    assert mirror.charts["cluster-autoscaler"].digest


@pytest.mark.parametrize("second", [{"name": "g5-2"}, {"name": "g5-abcdef0"}, {"name": "g6"}])
def test_an_auto_scaling_group_has_the_priority_of_its_own_group_only(second: dict[str, str]) -> None:
    groups = [{"name": "g5", "type": "g5.xlarge", "max": 460 if second["name"] == "g6" else 4}]
    groups.append({**second, "type": "g5.xlarge", "max": 4})
    recording = run("lab", groups=groups)
    table = yaml.safe_load(releases(recording)["cluster-autoscaler"]["values"]["expanderPriorities"])
    prefix = "eks-spotmpi-lab-{}-0123abc-f6c72a0d-1d3f-7b1e-1c2d-3e4f5a6b7c8d"
    names = [name for name in recording.node_groups if name != "system"]
    matching = [
        [priority for priority, (pattern,) in table.items() if re.match(pattern, prefix.format(name))] for name in names
    ]
    assert sorted(each[0] for each in matching) == sorted(table) and all(len(each) == 1 for each in matching)
    assert max(matching)[0] == matching[names.index("g5")][0]


def test_thirty_groups_have_thirty_priorities() -> None:
    groups = [f"g{index}" for index in range(30)]
    assert len(yaml.safe_load(priorities("spotmpi-lab", groups))) == 30


def test_the_autoscaler_starts_after_its_role_is_associated() -> None:
    release = run("lab").one("Release", "spotmpi-lab-cluster-autoscaler")
    assert {run("lab").one(kind).urn for kind in ("PodIdentityAssociation", "RolePolicy")} <= release.depends_on


def test_the_namespace_is_restricted_in_every_mode() -> None:
    metadata = run("lab").one("Namespace").inputs["metadata"]
    modes = ("enforce", "audit", "warn")
    assert metadata["name"] == "training"
    assert metadata["labels"] == {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in modes}


def test_all_traffic_is_denied_but_dns_and_https_if_set() -> None:
    policies = network_policies(run("lab"))
    assert set(policies) == {"deny-all", "allow-dns", "allow-https", "allow-api-server"}
    assert policies["deny-all"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    (dns,) = policies["allow-dns"]["egress"]
    assert dns["ports"] == [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]
    assert dns["to"][0]["podSelector"]["matchLabels"] == {"k8s-app": "kube-dns"}
    internet = {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]}}
    assert policies["allow-https"]["egress"] == [{"to": [internet], "ports": [{"protocol": "TCP", "port": 443}]}]
    closed = network_policies(run("lab", network={"https_out": False}))
    assert set(closed) == {"deny-all", "allow-dns", "allow-api-server"}


def test_what_moves_runs_reaches_the_api_server_alone_with_rights_that_each_user_has() -> None:
    recording = run("lab")
    policy = network_policies(recording)["allow-api-server"]
    assert policy["podSelector"] == {"matchLabels": {LABEL_PURPOSE: PURPOSE}}
    assert policy["egress"] == [{"ports": [{"protocol": "TCP", "port": 443}]}]
    role, users = (recording.one("Role", f"spotmpi-lab-{name}").inputs["rules"] for name in ("placement", "users"))
    own = {("jobsets", "get"), ("jobsets", "patch"), ("jobs", "patch")}
    own |= {("pods", "list"), ("pods", "patch"), ("events", "list")}
    assert rights(role) == own < rights(users)
    binding = recording.one("RoleBinding", "spotmpi-lab-placement").inputs
    account = recording.one("ServiceAccount", "spotmpi-lab-placement").inputs["metadata"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", **account}]
    assert recording.exports["placement_account"] == account["name"]


def rights(rules: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(kind, verb) for rule in rules for kind in rule["resources"] for verb in rule["verbs"]}


def test_users_may_run_jobs_in_the_namespace_and_only_read_nodes() -> None:
    role = run("lab").one("Role", "spotmpi-lab-users").inputs
    assert role["metadata"]["namespace"] == "training"
    groups = {group for rule in role["rules"] for group in rule["apiGroups"]}
    assert groups == {"", "batch", "jobset.x-k8s.io", "networking.k8s.io"}
    everywhere = run("lab").one("ClusterRole").inputs["rules"]
    assert {verb for rule in everywhere for verb in rule["verbs"]} == {"get", "list", "watch"}
    subjects = run("lab").one("RoleBinding", "spotmpi-lab-users").inputs["subjects"]
    assert subjects == [{"kind": "Group", "name": "spotmpi:users", "apiGroup": "rbac.authorization.k8s.io"}]


def test_users_may_only_list_events_in_the_namespace_of_node_events() -> None:
    roles = [resource.inputs for resource in run("lab").of(f"{RBAC}:Role")]
    (role,) = [role for role in roles if role["metadata"]["namespace"] == "default"]
    assert role["rules"] == [{"apiGroups": [""], "resources": ["events"], "verbs": ["list"]}]
    binding = run("lab").one("RoleBinding", "spotmpi-lab-node-events").inputs
    assert binding["metadata"] == role["metadata"] == {"name": "spotmpi-node-events", "namespace": "default"}
    assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == ("Role", "spotmpi-node-events")
    assert binding["subjects"] == run("lab").one("RoleBinding", "spotmpi-lab-users").inputs["subjects"]


def test_nobody_gets_a_wildcard() -> None:
    recording = run("lab", queueing=QUEUES)
    roles = [*recording.of(f"{RBAC}:Role"), *recording.of(f"{RBAC}:ClusterRole")]
    assert len(roles) == 5
    for rule in (rule for role in roles for rule in role.inputs["rules"]):
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]


def test_runs_get_no_token_for_the_api() -> None:
    assert run("lab").one("ServiceAccount", "spotmpi-lab").inputs["automountServiceAccountToken"] is False


def test_the_shared_secret_holds_keys_for_ssh_and_tls_and_is_encrypted_and_never_exported() -> None:
    keys = [key.inputs for key in run("lab").of("PrivateKey")]
    assert keys == [{"algorithm": "ED25519"}, {"algorithm": "ECDSA", "ecdsaCurve": "P256"}]
    secret = run("lab").one("kubernetes:core/v1:Secret").inputs
    assert secret["metadata"] == {"name": "mpi-ssh", "namespace": "training"}
    ssh = {"id": "PRIVATE", "id.pub": "PUBLIC", "authorized_keys": "PUBLIC"}
    tls = {"ca.pem": "CERTIFICATE", "cert.pem": "CERTIFICATE", "key.pem": "PRIVATE OF TLS"}
    assert secret["stringData"] == {rpc._special_sig_key: rpc._special_secret_sig, "value": {**ssh, **tls}}
    assert "PRIVATE" not in str(run("lab").exports)


def test_agents_accept_the_certificate_of_the_shared_secret_from_each_other_alone() -> None:
    certificate = run("lab").one("SelfSignedCert").inputs
    key = {rpc._special_sig_key: rpc._special_secret_sig, "value": "PRIVATE OF spotmpi-lab-tls"}
    assert certificate["privateKeyPem"] == key
    made = private_key({"algorithm": "ECDSA"})
    pem = self_signed({**certificate, "privateKeyPem": made["privateKeyPem"]})["certPem"]
    files = {"ca.pem": pem, "cert.pem": pem, "key.pem": made["privateKeyPemPkcs8"]}
    own = new_identity(files=files)
    assert Pair(own, own).shake_hands()
    assert not Pair(own, identity()).shake_hands() and not Pair(identity(), own).shake_hands()


def test_without_queues_there_is_no_kueue() -> None:
    assert not [each for each in run("lab").resources if "kueue" in each.kind or "kueue" in each.name]


def test_each_team_has_a_queue_with_its_gpus() -> None:
    recording = run("p3", queueing=QUEUES)
    queue = recording.one(f"{KUEUE}:ClusterQueue", "spotmpi-p3-clusterqueue-vision").inputs
    assert queue["spec"]["cohort"] == "spotmpi-p3"
    group = queue["spec"]["resourceGroups"][0]
    assert group["coveredResources"] == ["cpu", "memory", "nvidia.com/gpu"]
    assert group["flavors"][0]["resources"][2] == {"name": "nvidia.com/gpu", "nominalQuota": "1"}
    local = recording.one(f"{KUEUE}:LocalQueue", "spotmpi-p3-localqueue-vision").inputs
    assert local["metadata"] == {"name": "vision", "namespace": "training"}
    assert local["spec"] == {"clusterQueue": "vision"}


def test_a_queue_waits_for_kueue_and_kueue_for_jobset() -> None:
    recording = run("p3", queueing=QUEUES)
    kueue = recording.one("Release", "spotmpi-p3-kueue")
    assert recording.one("Release", "spotmpi-p3-jobset").urn in kueue.depends_on
    assert kueue.urn in recording.one("ResourceFlavor").depends_on


def test_a_share_of_the_gpus_includes_the_same_share_of_other_resources_and_without_gpus_counts_nodes() -> None:
    assert quotas(Team(name="vision", gpus=6), [Group(name="p3", type="p3.2xlarge", max=8)]) == [
        {"name": "cpu", "nominalQuota": "48"},
        {"name": "memory", "nominalQuota": "374784Mi"},
        {"name": "nvidia.com/gpu", "nominalQuota": "6"},
    ]
    without_gpus = quotas(Team(name="ci", gpus=1), [Group(name="c6i", type="c6i.xlarge", max=4)])
    assert without_gpus[0] == {"name": "cpu", "nominalQuota": "4"}


# Of the chart 0.12.0, templates/controller/configmap.yaml.
JOBSET_CONFIG_MAP = """
data:
  controller_manager_config.yaml: |2

    apiVersion: config.jobset.x-k8s.io/v1alpha1
    kind: Configuration
    clientConnection:
      qps: 500
      burst: {burst}
    internalCertManagement:
      enable: true
"""


def jobset_configuration(values: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of JobSet's controller, as its chart writes it."""
    rendered = JOBSET_CONFIG_MAP.format(burst=values["controller"]["clientConnection"]["burst"])
    configuration = yaml.safe_load(yaml.safe_load(rendered)["data"]["controller_manager_config.yaml"])
    assert configuration["clientConnection"] == {"qps": 500, "burst": 500}
    assert configuration["internalCertManagement"] == {"enable": True}
    return dict(configuration)
