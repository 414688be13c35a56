"""The stand-ins refuse what real providers would, in the engine: a broken program for each way to a refusal."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import pytest

from tests.engine.engine import GUARDRAILS, Engine, small_project
from tests.engine.providers.cloud import Cloud
from tests.engine.providers.server import serve_cloud

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.timeout(300)]

_AT_NIGHT = pytest.mark.nightly("7 s each; by day a wrong key takes the same ways through the engine")
_NETWORK = """
vpc = aws.ec2.Vpc("net", cidr_block="10.0.0.0/16")
subnets = [
    aws.ec2.Subnet(zone, vpc_id=vpc.id, cidr_block=f"10.0.{number}.0/24", availability_zone=f"us-east-1{zone}")
    for number, zone in enumerate("ab")
]
"""
_OPTIONS = """
less = {"skip_default_node_group": True, "skip_default_security_groups": True, "use_default_vpc_cni": True}
less |= {"coredns_addon_options": {"enabled": False}, "kube_proxy_addon_options": {"enabled": False}}
"""
_BROKEN = [
    pytest.param(
        'pulumi.CustomResource("aws:ec2/vpc:Vpc", "net", {"cidrBlock": "10.0.0.0/16", "enableDnsNames": True})',
        "enableDnsNames: unknown",
        id="an unknown key",
    ),
    pytest.param(
        'k8s.core.v1.Namespace("team", metadata={"name": "team", "label": {"a": "b"}})',
        "metadata.label: unknown",
        id="an unknown key deep inside",
    ),
    pytest.param(
        _NETWORK + 'eks.Cluster("lab", vpc_id=vpc.id, subnet_ids=[one.id for one in subnets], access_entries={"a": '
        '{"principalArn": "arn:aws:iam::123456789012:role/me", "policies": {}}})',
        "accessEntries.a.policies: unknown",
        id="a component with an unknown key",
    ),
    pytest.param(
        _NETWORK + _OPTIONS + 'eks.Cluster("lab", vpc_id=vpc.id, subnet_ids=[subnets[0].id], **less)',
        "at least two different AZs",
        id="a component whose child is refused",
        marks=_AT_NIGHT,
    ),
    pytest.param(
        'aws.Provider("p", region="us-east-1", assume_roles=[{"arn": "a"}])',
        "arn: unknown",
        id="a wrong key of a provider",
        marks=_AT_NIGHT,
    ),
]


@contextmanager
def _small(folder: Path, cloud: Cloud, program: str) -> Iterator[Engine]:
    with serve_cloud(cloud) as servers:
        engine = Engine(folder, servers)
        small_project(engine, _whole(program))
        yield engine


def _whole(program: str) -> str:
    """The program with the SDKs that it uses, since importing one takes longer than most of these programs."""
    sdks = {"aws": "pulumi_aws", "eks": "pulumi_eks", "k8s": "pulumi_kubernetes", "tls": "pulumi_tls"}
    imports = [f"import {module} as {name}" for name, module in sdks.items() if f"{name}." in program]
    return "\n".join(["import pulumi", *imports, dedent(program)])


@pytest.mark.parametrize(("program", "message"), _BROKEN)
def test_a_program_is_refused_that_has(program: str, message: str, tmp_path: Path, cloud: Cloud) -> None:
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
