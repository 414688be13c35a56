"""The sizes of a group: a tag of its Auto Scaling group, whose bounds are set when the tag changes.

The EKS resource sends its sizes together with a desired size, and only the autoscaler knows one that is safe to send:
Pulumi's state can be older than its last change, and so can EKS's own. An Auto Scaling group accepts its bounds alone,
and changes its desired capacity only where that lies outside of them (UpdateAutoScalingGroup in the EC2 Auto
Scaling API reference).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulumi
from pulumi_aws import autoscaling

from infra import names
from infra.scaling_groups import ScalingGroup


@dataclass(frozen=True)
class Sizes:
    """The least and the most nodes; as text, `0-16`."""

    min: int
    max: int

    def __str__(self) -> str:
        return f"{self.min}-{self.max}"


def size_tag(
    name: str, scaling: ScalingGroup, sizes: Sizes, target: pulumi.Input[str], parent: pulumi.Resource
) -> autoscaling.Tag:
    """The tag with the sizes of the Auto Scaling group *target*; a hook sets the sizes before the tag."""

    def before(args: pulumi.ResourceHookArgs) -> None:
        existing = (args.new_inputs or {}).get("autoscalingGroupName")
        old = ((args.old_inputs or {}).get("tag") or {}).get("value")
        if isinstance(existing, str):  # unknown in the preview of a new group
            set_sizes(scaling, existing, sizes, old)

    hook = pulumi.ResourceHook(f"{name}-sizes", before, pulumi.ResourceHookOptions(on_dry_run=True))
    return autoscaling.Tag(
        f"{name}-sizes",
        autoscaling_group_name=target,
        tag=autoscaling.TagTagArgs(key=names.TAG_SIZES, value=str(sizes), propagate_at_launch=False),
        opts=pulumi.ResourceOptions(
            parent=parent, hooks=pulumi.ResourceHookBinding(before_create=[hook], before_update=[hook])
        ),
    )


def set_sizes(scaling: ScalingGroup, target: str, sizes: Sizes, old: str | None) -> None:
    """Set the bounds that differ from the *old* tag; RunError if that would terminate running nodes."""
    current = scaling.describe(target)
    changes = _changes(current, sizes, old)
    if "MaxSize" in changes and (running := current["DesiredCapacity"]) > sizes.max:
        remedy = f"wait until they are gone, stop runs, or set max to {running} or more"
        if scaling.group == "system":
            remedy = f"set cluster.system.nodes to {running - 1}, and to less once the autoscaler has removed nodes"
        raise pulumi.RunError(
            f"group {scaling.group} has {running} running nodes, and the new max {sizes.max} would terminate "
            f"{running - sizes.max} of them: {remedy}"
        )
    if changes and not pulumi.runtime.is_dry_run():
        scaling.update(target, changes)


def _changes(current: Mapping[str, Any], sizes: Sizes, old: str | None) -> dict[str, int]:
    """The bounds to set; one that did not change in the settings keeps what `spotmpi scale` set for a while."""
    closed = current["MaxSize"] == 0  # by `spotmpi down`, or by the end of `spotmpi up --expires`
    low, _, high = ("" if closed or old is None else old).partition("-")
    changes = {}
    if str(sizes.min) != low and sizes.min != current["MinSize"]:
        changes["MinSize"] = sizes.min
    if str(sizes.max) != high and sizes.max != current["MaxSize"]:
        changes["MaxSize"] = sizes.max
    return changes
