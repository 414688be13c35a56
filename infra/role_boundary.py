"""The permissions boundary of an environment's roles: the most that they may do, whatever policies are attached."""

import pulumi
from pulumi.runtime import register_resource_transform

_ROLE = "aws:iam/role:Role"


def bound_roles(policy_arn: str) -> None:
    """Set the policy as the boundary of every role declared after this call, those of nested components included."""

    def add_boundary(args: pulumi.ResourceTransformArgs) -> pulumi.ResourceTransformResult | None:
        if args.type_ != _ROLE:
            return None
        props = {**args.props, "permissionsBoundary": policy_arn}
        return pulumi.ResourceTransformResult(props=props, opts=args.opts)

    register_resource_transform(add_boundary)
