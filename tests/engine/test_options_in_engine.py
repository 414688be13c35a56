"""Environments that differ from the ready ones, in the real engine: very large, and with everything switched on."""

import pytest

from infra.settings import BLOCK
from tests.engine.engine import GUARDRAILS, Engine
from tests.engine.providers.aws_cluster import SCALING_TAG
from tests.engine.providers.aws_network import NODE_GROUP
from tests.engine.providers.cloud import Cloud
from tests.engine.stack_lifecycle import prepare

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.timeout(600),
    pytest.mark.nightly("20 to 40 s each; tests/infra builds the same settings under the mock engine"),
]
_ME = "arn:aws:iam::123456789012:role/me"
_YOU = "arn:aws:iam::123456789012:role/you"
_EVERYTHING = {
    "spotmpi:network": {"private": True, "https_out": False},
    "spotmpi:cluster": {"encrypt_secrets": True, "admins": [_ME], "users": [_YOU]},
    "spotmpi:accelerators": {"dcgm": True},
    "spotmpi:storage": {"one_zone": False, "backup": True},
    "spotmpi:queueing": {"enabled": True, "teams": [{"name": "vision", "gpus": 8}, {"name": "speech", "gpus": 8}]},
    "spotmpi:budget": {"monthly_usd": 500, "email": "ops@example.org"},
    "spotmpi:groups": [
        {"name": "g5", "type": "g5.48xlarge", "max": 2, "efa": True},
        {"name": "g4dn", "type": "g4dn.xlarge", "max": 4, "placement_group": False},
        {"name": "cpu", "type": "c6i.xlarge", "max": 4, "placement_group": False},
        {"name": "block", "type": "p5.48xlarge", "max": 2, "market": BLOCK, "reservation": "cr-0123456789abcdef0"},
    ],
}


def test_everything_that_can_be_switched_on_is_built_passes_the_guardrails_and_goes(
    engine: Engine, cloud: Cloud
) -> None:
    cloud.existing_arns |= {_ME, _YOU}
    prepare(engine, "lab")
    engine.configure("lab", _EVERYTHING)
    engine.up("lab", "--policy-pack", str(GUARDRAILS)).require_success()
    tokens = {record.token.split(":")[-1] for record in cloud.records}
    assert {"Key", "NatGateway", "Budget", "LocalQueue", "PlacementGroup"} <= tokens
    types = [record.inputs["capacityType"] for record in cloud.records.of(NODE_GROUP)]
    assert types.count("CAPACITY_BLOCK") == 1
    again = engine.up("lab")
    assert again.changes == [], again.text
    engine.destroy("lab").require_success()
    assert [record.key for record in cloud.records] == []
    assert cloud.leftovers == []


def test_the_roles_of_ci_are_a_stack_of_their_own_and_so_are_those_of_a_second_repository(
    engine: Engine, cloud: Cloud
) -> None:
    roles = {"repository": "someone/spotmpi", "state_bucket": "someones-state"}
    for stack in ("account", "second"):
        engine.init(stack, {"aws:region": "us-east-1", "spotmpi:kind": "account", "spotmpi:ci": roles})
        engine.up(stack, "--policy-pack", str(GUARDRAILS)).require_success()
        assert engine.up(stack).changes == []
        (issuer,) = (each.outputs["arn"] for each in cloud.records if each.token.endswith("OpenIdConnectProvider"))
        roles = {**roles, "repository": "someone/else", "provider_arn": str(issuer)}
    assert len([each for each in cloud.records if each.token.endswith(":Policy")]) == 2
    for stack in ("second", "account"):
        engine.destroy(stack).require_success()
    assert [record.key for record in cloud.records] == []


def test_a_group_that_grows_past_the_quota_of_nodes_gets_a_piece_and_moves_none(engine: Engine, cloud: Cloud) -> None:
    prepare(engine, "lab")
    group = engine.config("lab")["spotmpi:groups"][0]
    engine.configure("lab", {"spotmpi:groups": [{**group, "max": 400}]})
    engine.up("lab").require_success()
    cloud.script.calls.clear()
    engine.configure("lab", {"spotmpi:groups": [{**group, "max": 512}]})
    engine.up("lab").require_success()
    changes = [(call.method, call.name) for call in cloud.script.changes() if call.token in (NODE_GROUP, SCALING_TAG)]
    assert [name for method, name in changes if method == "update"] == ["spotmpi-lab-g4dn-sizes"]
    assert ("create", "spotmpi-lab-g4dn-2") in changes
    sizes = [record.inputs["scalingConfig"]["maxSize"] for record in cloud.records.of(NODE_GROUP)]
    assert sorted(sizes) == [3, 62, 450]
    assert "delete" not in {call.method for call in cloud.script.changes()}
