"""The doctor on a live environment as a whole."""

from __future__ import annotations

from dataclasses import replace

from spotmpi.core.errors import NotPermitted, SpotmpiError
from spotmpi.environments.iam import LOOK
from spotmpi.images.build import Build
from tests.unit.backends.kubernetes.scripted_cluster import Object, ScriptedCluster
from tests.unit.environments.doctor.healthy_environment import HealthyEnvironment, healthy_cluster


def test_in_a_healthy_environment_every_line_is_ok(healthy: HealthyEnvironment) -> None:
    findings = healthy.findings()

    assert {name: each.message for name, each in findings.items() if each.level != "ok"} == {}
    assert findings["node a"].message == "g4dn.xlarge in us-east-1a, 3.92 CPU, 15 GiB, 1 GPUs, driver 580.95.05"
    assert findings["API"].message == "responds; 2 nodes"
    assert findings["scaling of g4dn"].message == "1 of 2 nodes"
    assert {"add-on coredns", "node group spotmpi-mine-g4dn-1234567", "mount target", "port 2049"} <= set(findings)
    assert findings["image chainermn"].message == f"tag {Build('chainermn').tag} is in the registry"
    (request,) = healthy.account.requests_of("DescribeImages")
    assert request["repositoryName"] == "spotmpi-lab/chainermn"


def test_the_look_policy_allows_the_checks_of_a_live_environment(healthy: HealthyEnvironment) -> None:
    healthy.findings()

    assert healthy.account.rights - {"sts:GetCallerIdentity"} <= set(LOOK)


def test_a_refused_read_is_a_warning_and_an_unreachable_cluster_an_error(healthy: HealthyEnvironment) -> None:
    class Closed(ScriptedCluster):
        def list(self, kind: str, namespace: str | None = None, labels: dict[str, str] | None = None) -> list[Object]:
            if kind == "Deployment":
                raise NotPermitted("could not list Deployments: not permitted (User ann)")
            if kind == "Secret":
                raise SpotmpiError("could not read Secret mpi-ssh: cannot reach the cluster")
            return super().list(kind, namespace, labels)

    healthy.cluster = Closed(healthy_cluster().objects)
    healthy.account.refuse("ListAddons", "AccessDeniedException")
    findings = healthy.findings()

    assert findings["controllers"].level == "warning" and "User ann" in findings["controllers"].message
    assert findings["SSH key"].level == "error" and findings["add-ons"].level == "warning"
    assert findings["node a"].level == "ok"


def test_an_environment_that_cannot_be_opened_is_one_error_among_the_other_findings(
    healthy: HealthyEnvironment,
) -> None:
    healthy.failure = SpotmpiError("this machine's kubeconfig has no context of cluster spotmpi-mine")

    findings = healthy.findings()

    assert "no context of cluster spotmpi-mine" in findings["environment"].message
    assert findings["group g4dn"].level == "ok" and "API" not in findings


def test_an_environment_that_is_not_built_is_not_checked(healthy: HealthyEnvironment) -> None:
    healthy.account.refuse("DescribeCluster", "ResourceNotFoundException")
    healthy.failure = SpotmpiError("asked all the same")

    findings = healthy.findings()

    assert "environment" not in findings and "API" not in findings
    assert replace(findings["credentials"], message="").level == "ok"
