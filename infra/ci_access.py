"""Roles that GitHub workflows take by OIDC: one that only reads, for previews, and one that builds and destroys."""

import json
from collections.abc import Mapping

import pulumi
from pulumi_aws import iam

from infra import policies
from infra.settings import Ci

_ISSUER = "token.actions.githubusercontent.com"
_READ_ONLY = "arn:aws:iam::aws:policy/ReadOnlyAccess"
_ADMINISTRATOR = "arn:aws:iam::aws:policy/AdministratorAccess"
# Who may do what: pull requests of the repository itself only read; changing anything takes the named environment.
PREVIEW_SUBJECTS = ("pull_request", "ref:refs/heads/main")
DEPLOY_SUBJECTS = ("environment:spotmpi-deploy", "environment:spotmpi-destroy", "environment:spotmpi-nightly")


class CiAccess(pulumi.ComponentResource):
    """GitHub's OIDC provider (unless the account has it) and two roles; gives `preview_role_arn`, `deploy_role_arn`."""

    def __init__(self, name: str, ci: Ci, tags: Mapping[str, str], opts: pulumi.ResourceOptions | None = None):
        super().__init__("spotmpi:ci:CiAccess", name, None, opts)
        self._ci, self._tags, self._child = ci, dict(tags), pulumi.ResourceOptions(parent=self)
        provider = ci.provider_arn or self._issuer(name)
        preview = self._role(f"{name}-preview", provider, PREVIEW_SUBJECTS, _READ_ONLY)
        state = json.dumps(policies.preview_state(ci.state_bucket))
        iam.RolePolicy(f"{name}-preview-state", role=preview.name, policy=state, opts=self._child)
        deploy = self._role(f"{name}-deploy", provider, DEPLOY_SUBJECTS, _ADMINISTRATOR)
        self.preview_role_arn: pulumi.Output[str] = preview.arn
        self.deploy_role_arn: pulumi.Output[str] = deploy.arn
        self.register_outputs({"preview_role_arn": preview.arn, "deploy_role_arn": deploy.arn})

    def _issuer(self, name: str) -> pulumi.Output[str]:
        return iam.OpenIdConnectProvider(
            f"{name}-github",
            url=f"https://{_ISSUER}",
            client_id_lists=["sts.amazonaws.com"],
            tags=self._tags,
            opts=self._child,
        ).arn

    def _role(self, name: str, provider: pulumi.Input[str], subjects: tuple[str, ...], policy: str) -> iam.Role:
        trust = pulumi.Output.from_input(provider).apply(
            lambda arn: json.dumps(policies.github_trust(arn, self._ci.repository, subjects))
        )
        role = iam.Role(name, assume_role_policy=trust, max_session_duration=7200, tags=self._tags, opts=self._child)
        iam.RolePolicyAttachment(name, role=role.name, policy_arn=policy, opts=self._child)
        return role
