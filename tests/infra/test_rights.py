"""The policy that `spotmpi doctor --iam up` prints allows what environments are made of."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from jobs.cloud.rights import BUILD, policy

if TYPE_CHECKING:
    from tests.infra.conftest import Recording

    Run = Callable[..., Recording]

FULL = {
    "cluster": {"encrypt_secrets": True, "admins": ["arn:aws:iam::123456789012:role/a"]},
    "network": {"private": True},
    "groups": [{"name": "big", "type": "p4d.24xlarge", "max": 2, "efa": True}],
    "budget": {"monthly_usd": 5, "email": "a@b.c"},
}


@pytest.mark.parametrize("stack", ["lab", "p3", "g5", "cpu", "p3-data", "full"])
def test_every_kind_of_resource_has_its_rights(run: Run, stack: str) -> None:
    recording = run("lab", **FULL) if stack == "full" else run(stack)
    kinds = {made.kind for made in recording.made if made.kind.startswith(("aws:", "eks:"))}

    assert kinds and kinds <= set(BUILD)


def test_nothing_is_allowed_that_no_resource_needs(run: Run) -> None:
    recordings = [run("lab", **FULL), *(run(stack) for stack in ("lab", "p3", "g5", "cpu", "p3-data"))]

    assert set(BUILD) == {
        made.kind for each in recordings for made in each.made if made.kind.startswith(("aws:", "eks:"))
    }


@pytest.mark.parametrize("wanted", ["look", "run", "up"])
def test_a_policy_fits_into_one_managed_policy_and_hands_out_no_administrator(wanted: str) -> None:
    made = policy(wanted)

    assert len(json.dumps(made, separators=(",", ":"))) <= 6144
    actions = [action for statement in made["Statement"] for action in statement["Action"]]
    assert "*" not in actions and not any(action.endswith(":*") for action in actions)
    wild = [action.partition(":")[2] for action in actions if "*" in action]
    assert all(action in ("Describe*", "Get*", "List*") for action in wild)


def test_roles_may_be_made_and_handed_over_within_the_projects_names_only() -> None:
    statements = {each["Sid"]: each for each in policy("up")["Statement"]}

    assert {"iam:CreateRole", "iam:AttachRolePolicy"} <= set(statements["Roles"]["Action"])
    for name in ("Roles", "HandRolesOver"):
        assert statements[name]["Resource"] == "arn:aws:iam::*:role/spotmpi-*"
    assert not any(action.startswith("iam:") and "Role" in action and "Linked" not in action
                   for action in statements["Build"]["Action"])  # fmt: skip
