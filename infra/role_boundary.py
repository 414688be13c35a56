"""The permissions boundary of an environment's roles: what they may never exceed, whatever is attached to them."""

import pulumi
from pulumi.runtime import register_resource_transform

_ROLE = "aws:iam/role:Role"


def bound_roles(policy_arn: str) -> None:
    """Give every role that is made from here on the policy as its boundary, those inside of components included."""

    def bound(args: pulumi.ResourceTransformArgs) -> pulumi.ResourceTransformResult | None:
        if args.type_ != _ROLE:
            return None
        props = {**args.props, "permissionsBoundary": policy_arn}
        return pulumi.ResourceTransformResult(props=props, opts=args.opts)

    register_resource_transform(bound)
