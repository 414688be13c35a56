"""The stand-ins refuse what real providers would: for each rule a deliberately broken program fails in the engine."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import pytest

from tests.engine.engine import GUARDRAILS, Engine, small_project
from tests.engine.providers.cloud import Cloud
from tests.engine.providers.server import serve_cloud

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.timeout(300)]

_RAW = """
import json
import pulumi
class Raw(pulumi.CustomResource):
    def __init__(self, token, name, props):
        super().__init__(token, name, props)
"""
# Importing an SDK takes longer than most of these programs, so each gets only those that it uses.
_SDKS = {
    "aws.": "import pulumi_aws as aws",
    "eks.": "import pulumi_eks as eks",
    "k8s.": "import pulumi_kubernetes as k8s",
    "tls.": "import pulumi_tls as tls",
}
_NETWORK = """
vpc = aws.ec2.Vpc("net", cidr_block="10.0.0.0/16")
one = aws.ec2.Subnet("one", vpc_id=vpc.id, cidr_block="10.0.0.0/24", availability_zone="us-east-1a")
two = aws.ec2.Subnet("two", vpc_id=vpc.id, cidr_block="10.0.1.0/24", availability_zone="us-east-1b")
"""
_BROKEN = {
    "an unknown key": (
        'Raw("aws:ec2/vpc:Vpc", "net", {"cidrBlock": "10.0.0.0/16", "enableDnsNames": True})',
        "enableDnsNames: unknown",
    ),
    "a value of another type": (
        'Raw("aws:ec2/vpc:Vpc", "net", {"cidrBlock": "10.0.0.0/16", "enableDnsSupport": "yes"})',
        "enableDnsSupport: bool is wanted",
    ),
    "a required key that is missing": (
        'Raw("aws:efs/mountTarget:MountTarget", "nfs", {"fileSystemId": "fs-1"})',
        "subnetId: required, and not given",
    ),
    "an unknown key deep inside": (
        'k8s.core.v1.Namespace("team", metadata={"name": "team", "label": {"a": "b"}})',
        "metadata.label: unknown",
    ),
    "a type that no SDK has": ('Raw("aws:ec2/vpn:Vpn", "net", {})', "the SDK has no such resource"),
    "an id that was never handed out": (
        'Raw("aws:ec2/subnet:Subnet", "one", {"vpcId": "vpc-0123456789abcdef0", "cidrBlock": "10.0.0.0/24"})',
        "no aws:ec2/vpc:Vpc has that id",
    ),
    "a name that nothing has": (
        'Raw("aws:eks/addon:Addon", "dns", {"clusterName": "nowhere", "addonName": "vpc-cni"})',
        "no aws:eks/cluster:Cluster has that name",
    ),
    "an ARN of ours that was never handed out": (
        'Raw("aws:cloudwatch/logGroup:LogGroup", "log", {"kmsKeyId": "arn:aws:kms:us-east-1:123456789012:key/none"})',
        "was never handed out",
    ),
    "a component with an unknown key": (
        _NETWORK + 'eks.Cluster("lab", vpc_id=vpc.id, subnet_ids=[one.id, two.id], access_entries={"a": '
        '{"principalArn": "arn:aws:iam::123456789012:role/me", "policies": {}}})',
        "accessEntries.a.policies: unknown",
    ),
    "a component whose child is refused": (
        _NETWORK + 'eks.Cluster("lab", vpc_id=vpc.id, subnet_ids=[one.id], authentication_mode="API")',
        "at least two different AZs",
    ),
    "Kubernetes before there is a cluster": (
        'k8s.core.v1.Namespace("team", opts=pulumi.ResourceOptions(provider=k8s.Provider("k", kubeconfig=json.dumps('
        '{"clusters": [{"cluster": {"server": "https://nowhere"}}]}))))',
        "cluster is unreachable",
    ),
    "a wrong key of a provider": ('aws.Provider("p", region="us-east-1", assume_roles=[{"arn": "a"}])', "arn: unknown"),
}


@contextmanager
def _small(folder: Path, cloud: Cloud, program: str) -> Iterator[Engine]:
    with serve_cloud(cloud) as servers:
        engine = Engine(folder, servers)
        small_project(engine, _whole(program))
        yield engine


def _whole(program: str) -> str:
    text = dedent(program)
    return "\n".join([_RAW, *(line for used, line in _SDKS.items() if used in text), text])


# One of each provider; the stand-ins' own rules are tested without an engine too, in test_standin_rules.
_EACH_CHANGE = ("an unknown key", "an unknown key deep inside", "a component with an unknown key")
_AT_NIGHT = pytest.mark.nightly("7 s a rule, all by the same way through the engine")


@pytest.mark.parametrize(
    "rule", [rule if rule in _EACH_CHANGE else pytest.param(rule, marks=_AT_NIGHT) for rule in _BROKEN]
)
def test_a_program_is_refused_that_has(rule: str, tmp_path: Path, cloud: Cloud) -> None:
    program, message = _BROKEN[rule]
    with _small(tmp_path, cloud, program) as engine:
        refused = engine.up("small").require_failure()
    assert message in refused.text


def test_a_preview_knows_nothing_that_only_up_can_know(tmp_path: Path, cloud: Cloud) -> None:
    program = """
        vpc = aws.ec2.Vpc("net", cidr_block="10.0.0.0/16")
        key = tls.PrivateKey("key", algorithm="ED25519")
        for name, output in (("id", vpc.id), ("arn", vpc.arn), ("key", key.public_key_openssh)):
            output.apply(lambda value, name=name: pulumi.log.info(f"{name} is known"))
        vpc.cidr_block.apply(lambda value: pulumi.log.info("cidr is known"))
    """
    with _small(tmp_path, cloud, program) as engine:
        preview, outcome = engine.preview("small"), engine.up("small")
    assert "cidr is known" in preview.text
    for name in ("id", "arn", "key"):
        assert f"{name} is known" not in preview.text
        assert f"{name} is known" in outcome.text


def test_a_private_key_is_encrypted_in_the_state(tmp_path: Path, cloud: Cloud) -> None:
    with _small(tmp_path, cloud, 'tls.PrivateKey("key", algorithm="ED25519")') as engine:
        engine.up("small").require_success()
        key = next(item for item in engine.resources("small") if item["type"].startswith("tls:"))
    assert "PRIVATE KEY" not in str(key)
    assert key["outputs"]["publicKeyOpenssh"].startswith("ssh-ed25519 ")


@pytest.mark.nightly("14 s; test_guardrails holds each rule without an engine, the stack lifecycle passes them in it")
def test_the_guardrails_refuse_forbidden_resources_in_the_engine(tmp_path: Path, cloud: Cloud) -> None:
    program = """
        vpc = aws.ec2.Vpc("net", cidr_block="10.0.0.0/16")
        group = aws.ec2.SecurityGroup("open", vpc_id=vpc.id)
        aws.vpc.SecurityGroupIngressRule(
            "open", security_group_id=group.id, ip_protocol="tcp", from_port=22, to_port=22, cidr_ipv4="0.0.0.0/0"
        )
        aws.efs.FileSystem("plain")
    """
    with _small(tmp_path, cloud, program) as engine:
        refused = engine.preview("small", "--policy-pack", str(GUARDRAILS))
        refused_up = engine.up("small", "--policy-pack", str(GUARDRAILS))
    assert refused.status != 0
    assert "allows ingress from 0.0.0.0/0" in refused.text
    assert "is not encrypted" in refused.text
    # An update is broken off at the first violation, before the thing is made and sometimes before the reason is said.
    assert refused_up.status != 0
    assert [record.token for record in cloud.records if "Rule" in record.token or "efs" in record.token] == []
