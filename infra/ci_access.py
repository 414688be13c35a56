"""Roles that GitHub workflows assume by OIDC: to read, build and destroy; and the boundary of the roles they create."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulumi
from pulumi.runtime import register_resource_transform
from pulumi_aws import iam

from infra import policies
from infra.settings import Ci

_ISSUER = "token.actions.githubusercontent.com"
# What `spotmpi doctor --iam` prints for each role; tests/infra/test_rights.py writes the file.
_RIGHTS = Path(__file__).with_name("ci_rights.json")
# CI may change roles that are named spotmpi-*, so its own have another prefix.
_PREFIX = "ci-"
_ROLE = "aws:iam/role:Role"


@dataclass(frozen=True)
class Workflow:
    """One role: the subjects of GitHub's tokens that may take it, and whether from the main branch only."""

    subjects: tuple[str, ...]
    main_only: bool


WORKFLOWS: Mapping[str, Workflow] = {
    "preview": Workflow(("pull_request",), main_only=False),
    "build": Workflow(("environment:spotmpi-deploy",), main_only=True),
    "destroy": Workflow(("environment:spotmpi-destroy", "environment:spotmpi-nightly"), main_only=True),
}


def rights() -> dict[str, Any]:
    """The IAM policy of each role by its name."""
    documents: dict[str, Any] = json.loads(_RIGHTS.read_text(encoding="utf-8"))
    return documents


class CiAccess(pulumi.ComponentResource):
    """GitHub's OIDC provider (unless the account has it), `role_arns` by workflow, and `boundary_arn`."""

    def __init__(self, name: str, ci: Ci, tags: Mapping[str, str], opts: pulumi.ResourceOptions | None = None):
        super().__init__("spotmpi:ci:CiAccess", name, None, opts)
        self._ci, self._tags, self._child = ci, dict(tags), pulumi.ResourceOptions(parent=self)
        provider = pulumi.Output.from_input(ci.provider_arn or self._issuer(name))
        self.role_arns = {what: self._role(name, what, provider) for what in WORKFLOWS}
        self.boundary_arn: pulumi.Output[str] = iam.Policy(
            f"{name}-boundary",
            policy=json.dumps(policies.boundary()),
            tags=self._tags,
            opts=self._child,
        ).arn
        self.register_outputs({"role_arns": self.role_arns, "boundary_arn": self.boundary_arn})

    def _issuer(self, name: str) -> pulumi.Output[str]:
        return iam.OpenIdConnectProvider(
            f"{name}-github",
            url=f"https://{_ISSUER}",
            client_id_lists=["sts.amazonaws.com"],
            tags=self._tags,
            opts=self._child,
        ).arn

    def _role(self, name: str, what: str, provider: pulumi.Output[str]) -> pulumi.Output[str]:
        """A role with its rights and its part of the state as inline policies."""
        ci, workflow, logical = self._ci, WORKFLOWS[what], f"{_PREFIX}{name}-{what}"
        ref = f"refs/heads/{ci.branch}" if workflow.main_only else None
        trust = provider.apply(
            lambda arn: json.dumps(policies.github_trust(arn, ci.repository, workflow.subjects, ref))
        )
        role = iam.Role(logical, assume_role_policy=trust, max_session_duration=7200, tags=self._tags, opts=self._child)
        writes = policies.state_writer(ci.state_bucket, ci.secrets_key_arn)
        state = policies.state_reader(ci.state_bucket) if what == "preview" else writes
        for part, document in (("rights", rights()[what]), ("state", state)):
            iam.RolePolicy(f"{logical}-{part}", role=role.name, policy=json.dumps(document), opts=self._child)
        return role.arn


def set_role_boundary(policy_arn: str) -> None:
    """Set the policy as the boundary of every role declared after this call, those of nested components included."""

    def add_boundary(args: pulumi.ResourceTransformArgs) -> pulumi.ResourceTransformResult | None:
        if args.type_ != _ROLE:
            return None
        props = {**args.props, "permissionsBoundary": policy_arn}
        return pulumi.ResourceTransformResult(props=props, opts=args.opts)

    register_resource_transform(add_boundary)
