"""Changes of a node group that are refused before anything is touched.

Those that replace its nodes while nodes run, as all would be replaced at once, and those that EKS would refuse.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulumi

from infra import names
from infra.scaling_groups import ScalingGroup

# Changes for which EKS replaces every node (UpdateNodegroupVersion), besides a new launch template version.
_VERSIONS = ("releaseVersion", "version")


def version_hook(name: str, group: str, control_plane: str) -> pulumi.ResourceHook:
    """A hook for the creation of the node group *name*: EKS creates one only with its control plane's version.

    Nodes that exist may be older (CreateNodegroup in the EKS API reference: it is "the only accepted specified value").
    """

    def require_version(args: pulumi.ResourceHookArgs) -> None:
        version = (args.new_inputs or {}).get("version")
        if version != control_plane:
            raise pulumi.RunError(
                f"group {group} would be created with Kubernetes {version}, and EKS creates node groups only with the "
                f"control plane's version: set `ami_release` to one of {control_plane}, or leave it out"
            )

    return pulumi.ResourceHook(f"{name}-version", require_version, pulumi.ResourceHookOptions(on_dry_run=True))


@dataclass(frozen=True)
class NodeProtection:
    """Refuses to replace the running nodes of the node group *name* of a cluster, unless names.REPLACE_NODES is set.

    `control_plane` is the cluster's Kubernetes version.
    """

    name: str
    cluster: str
    control_plane: str
    scaling: ScalingGroup

    def hooks(self) -> pulumi.ResourceHookBinding:
        """Hooks for the node group: of an update that replaces nodes, and of the creation that a replacement starts."""
        options = pulumi.ResourceHookOptions(on_dry_run=True)
        update = pulumi.ResourceHook(f"{self.name}-replacement", self.before_update, options)
        creation = pulumi.ResourceHook(f"{self.name}-creation", self.before_creation, options)
        version = version_hook(self.name, self.scaling.group, self.control_plane)
        return pulumi.ResourceHookBinding(before_update=[update], before_create=[version, creation])

    def before_update(self, args: pulumi.ResourceHookArgs) -> None:
        """RunError for an older AMI release, and for a change that would replace running nodes."""
        old, new = args.old_outputs or {}, args.new_inputs or {}
        runs, requested = old.get("releaseVersion"), new.get("releaseVersion")
        if runs and requested and _order(requested) < _order(runs):
            remedy = "EKS can't go back: set it to that release or a newer one, or leave it out"
            raise pulumi.RunError(f"group {self.scaling.group} runs AMI release {runs}, not {requested}: {remedy}")
        changed = _changed(old, new)
        if changed and not _allowed():
            (resources,) = old["resources"]
            running = self.scaling.describe(resources["autoscalingGroups"][0]["name"])["DesiredCapacity"]
            self._require_idle(running, f"the change of its {', '.join(changed)} (disk, tags or version)")

    def before_creation(self, args: pulumi.ResourceHookArgs) -> None:
        """RunError where the group exists already with running nodes: the new one is to replace it."""
        if not _allowed():
            change = "the change of what can't change in place (type or market)"
            self._require_idle(self.scaling.running(self.cluster, self.name), change)

    def _require_idle(self, running: int, change: str) -> None:
        if running:
            raise pulumi.RunError(
                f"group {self.scaling.group} has {running} running nodes; {change} would replace all of them at once "
                f"and interrupt their runs: wait until they are gone, stop the runs, or set {names.REPLACE_NODES}=1 to "
                "interrupt them"
            )


def _allowed() -> bool:
    return bool(os.environ.get(names.REPLACE_NODES))


def _changed(state: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The changed inputs that replace nodes; one that is unknown in a preview counts as changed."""
    template = new["launchTemplate"]["version"] != state["launchTemplate"]["version"]
    versions = [key for key in _VERSIONS if new.get(key) not in (None, state.get(key))]
    return ["launch template"] * template + versions


def _order(release: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", release))
