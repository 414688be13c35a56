"""Explicit providers, so that nothing depends on the account or cluster that a shell is configured for."""

from collections.abc import Sequence

import pulumi
import pulumi_aws
import pulumi_kubernetes

from infra.settings import Settings


def aws_provider(settings: Settings) -> pulumi_aws.Provider:
    """AWS in the stack's region, only in its account if one is set, with the stack's tags on every resource."""
    return pulumi_aws.Provider(
        settings.name,
        region=settings.region,
        allowed_account_ids=[settings.account] if settings.account else None,
        default_tags=pulumi_aws.ProviderDefaultTagsArgs(tags=settings.all_tags),
    )


def kubernetes_provider(
    name: str, kubeconfig: pulumi.Input[str], after: Sequence[pulumi.Resource]
) -> pulumi_kubernetes.Provider:
    """Kubernetes in the environment's cluster; all its objects are created after `after` and deleted before it."""
    return pulumi_kubernetes.Provider(
        name,
        kubeconfig=kubeconfig,
        enable_server_side_apply=True,
        opts=pulumi.ResourceOptions(depends_on=list(after)),
    )
