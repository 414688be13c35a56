"""Changes that replace the nodes of a group: refused while nodes run, as all would be replaced at once."""

import os
from collections.abc import Mapping
from typing import Any

import pulumi

from infra import names
from infra.scaling_groups import ScalingGroup

# Changes for which EKS replaces every node (UpdateNodegroupVersion), besides a new launch template version.
_VERSIONS = ("releaseVersion", "version")


def protect_running_nodes(name: str, scaling: ScalingGroup) -> pulumi.ResourceHookBinding:
    """Hooks for a node group that refuse to replace running nodes, unless names.REPLACE_NODES is set."""

    def refuse(args: pulumi.ResourceHookArgs) -> None:
        changed = _changed(args.old_outputs or {}, args.new_inputs or {})
        if changed and not os.environ.get(names.REPLACE_NODES):
            _require_idle(scaling, args.old_outputs or {}, changed)

    hook = pulumi.ResourceHook(f"{name}-replacement", refuse, pulumi.ResourceHookOptions(on_dry_run=True))
    return pulumi.ResourceHookBinding(before_update=[hook])


def _changed(state: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The changed inputs that replace nodes; one that is unknown in a preview counts as changed."""
    template = new["launchTemplate"]["version"] != state["launchTemplate"]["version"]
    versions = [key for key in _VERSIONS if new.get(key) not in (None, state.get(key))]
    return ["launch template"] * template + versions


def _require_idle(scaling: ScalingGroup, outputs: Mapping[str, Any], changed: list[str]) -> None:
    (resources,) = outputs["resources"]
    running = scaling.describe(resources["autoscalingGroups"][0]["name"])["DesiredCapacity"]
    if running:
        raise pulumi.RunError(
            f"group {scaling.group} has {running} running nodes; the change of its {', '.join(changed)} (disk, tags or "
            f"version) would replace all of them at once and interrupt their runs: wait until they are gone, stop the "
            f"runs, or set {names.REPLACE_NODES}=1 to interrupt them"
        )
