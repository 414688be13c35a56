"""From one Kubernetes version to the next: control plane, then add-ons, then nodes; `spotmpi upgrade` as a function."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from spotmpi.aws.errors import CallError
from spotmpi.aws.kubernetes_versions import KubernetesVersion, minor
from spotmpi.aws.kubernetes_versions import offered as offered_versions
from spotmpi.aws.scaling import running_nodes
from spotmpi.core import environment
from spotmpi.core.environment import Environment
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.environments import versions
from spotmpi.environments.changes import Preview, find_losses
from spotmpi.environments.dependencies import Dependencies
from spotmpi.environments.location import require_location
from spotmpi.environments.nodes import list_nodes, runs_by_group
from spotmpi.environments.stack_file import Pins, StackFile, order, read_stack, with_pins, write_stack
from spotmpi.environments.up import REPLACE_NODES, NotConfirmed
from spotmpi.environments.versions import RunningVersions, next_minor


@dataclass(frozen=True)
class UpgradeOptions:
    """A Kubernetes version (None: the next one, if EKS supports it), and whether nodes may be replaced too."""

    to: str | None = None
    nodes: bool = True
    dry_run: bool = False


@dataclass(frozen=True)
class Change:
    """The version of one part now and after the upgrade."""

    name: str
    now: str
    then: str

    @property
    def changes(self) -> bool:
        """Whether the version changes."""
        return self.now != self.then


@dataclass(frozen=True)
class UpgradePlan:
    """What an upgrade changes; `current_releases` are the AMI releases that nodes keep until the second step, by group.

    `offered` is empty where the versions that EKS offers are unknown; `unknown` is the reason.
    """

    environment: Environment
    control_plane: Change
    addons: tuple[Change, ...]
    node_groups: tuple[Change, ...]
    current_releases: Mapping[str, str]
    offered: Mapping[str, KubernetesVersion]
    unknown: str

    @property
    def changes_cluster(self) -> bool:
        """Whether control plane or add-ons change."""
        return self.control_plane.changes or any(each.changes for each in self.addons)

    @property
    def replaced_groups(self) -> tuple[str, ...]:
        """The node groups whose nodes are replaced."""
        return tuple(each.name for each in self.node_groups if each.changes)


def upgrade(
    stack: str, dependencies: Dependencies, options: UpgradeOptions, show: Callable[[UpgradePlan], None]
) -> UpgradePlan:
    """Upgrade *stack* by one minor version at most, after a preview and a confirmation for each of two steps.

    *show* gets the plan before the first confirmation. A repeated call continues where one stopped.

    Raises:
        InputError: the stack is not a built environment, or EKS would refuse the version.
        NotConfirmed: a confirmation was declined; the message says what was not changed.
        SpotmpiError: runs have pods on nodes that would be replaced, or a step failed.
    """
    task = _Upgrade(read_stack(stack), dependencies, options)
    plan = task.plan()
    show(plan)
    task.apply(plan)
    return plan


class _Upgrade:
    def __init__(self, stack: StackFile, dependencies: Dependencies, options: UpgradeOptions) -> None:
        self._stack, self._dependencies, self._options = stack, dependencies, options

    def plan(self) -> UpgradePlan:
        """The versions that run and those after the upgrade; changes nothing."""
        current = self._environment()
        aws = self._dependencies.aws
        require_location(aws, self._dependencies.region_of(self._stack), current)
        running = versions.running(aws, current.region, current.cluster)
        busy = [each.name for each in running.node_groups if each.status in ("CREATING", "UPDATING", "DELETING")]
        busy += [current.cluster] if running.status != "ACTIVE" else []
        if busy:
            raise SpotmpiError(
                f"EKS is still updating {', '.join(busy)}: wait until all are ACTIVE, then repeat the command"
            )
        offered, unknown = self._offered(current)
        target = self._target(running, offered, current.region)
        return UpgradePlan(
            environment=current,
            control_plane=Change("control plane", running.control_plane, target),
            addons=tuple(
                Change(name, now, versions.addon_version(aws, current.region, name, target, now))
                for name, now in sorted(running.addons.items())
            ),
            node_groups=self._node_groups(current, running, target),
            current_releases=running.newest_releases,
            offered=offered,
            unknown=unknown,
        )

    def apply(self, plan: UpgradePlan) -> None:
        """Upgrade control plane and add-ons without changing the nodes, then the nodes."""
        if plan.replaced_groups:
            self._require_idle(plan)
        target = plan.control_plane.then
        addons = {each.name: each.then for each in plan.addons}
        if plan.changes_cluster:
            self._dependencies.echo(f"upgrading control plane to {target} and add-ons; nodes stay as they are")
            self._apply(Pins(target, addons, plan.current_releases))
        if plan.replaced_groups:
            if plan.changes_cluster and not self._options.dry_run:
                self._require_idle(plan)  # a run may have started while the control plane was updated
            self._dependencies.echo(f"replacing nodes of {', '.join(plan.replaced_groups)}")
            releases = {each.name: each.then for each in plan.node_groups}
            self._apply(Pins(target, addons, releases), plan)

    def _environment(self) -> Environment:
        stack = self._stack.stack
        if self._stack.kind == "data":
            raise input_error("STACK", stack, "persistent storage has no versions")
        if self._stack.kind == "account":
            raise input_error("STACK", stack, "the roles of CI have no versions")
        if self._dependencies.pulumi.state(stack) is None:
            raise input_error("STACK", stack, f"not built: run `spotmpi up {stack}`")
        return environment.parse(self._dependencies.pulumi.outputs(stack))

    def _offered(self, current: Environment) -> tuple[dict[str, KubernetesVersion], str]:
        try:
            return offered_versions(self._dependencies.aws, current.region), ""
        except CallError as error:
            return {}, str(error)

    def _target(self, running: RunningVersions, offered: Mapping[str, KubernetesVersion], region: str) -> str:
        now, requested = running.control_plane, self._options.to
        behind = [each.name for each in running.node_groups if each.version != now]
        if requested is None:
            return next_minor(now) if _is_better(offered, now) and not behind else now
        if not re.fullmatch(r"1\.\d+", requested):
            raise input_error("--to", requested, f"must be a Kubernetes version such as {next_minor(now)}")
        if minor(requested) < minor(now):
            raise input_error("--to", requested, f"the control plane runs {now}; EKS can't downgrade it")
        if offered and requested not in offered:
            raise input_error("--to", requested, f"EKS offers {', '.join(offered)} in {region}")
        if minor(requested) > minor(now) + 1:
            raise input_error(
                "--to", requested, f"EKS upgrades one minor version at a time: from {now} to {next_minor(now)} first"
            )
        if requested != now and behind:
            first = f"`spotmpi upgrade {self._stack.stack} --to {now}` replaces them first"
            rule = f"EKS upgrades a control plane only when all nodes have its version, {now}"
            raise SpotmpiError(f"{rule}; {', '.join(behind)} are older: {first}")
        return requested

    def _node_groups(self, current: Environment, running: RunningVersions, target: str) -> tuple[Change, ...]:
        """The change of each node group in the stack's file; one with the newest AMI release or a newer one stays."""
        changes: dict[str, Change] = {}
        for each in running.node_groups:
            if each.group is None:
                continue
            then = each.ami_release
            if self._options.nodes:
                newest = versions.ami_release(self._dependencies.aws, current.region, target, each.ami_type)
                then = max(newest, each.ami_release, key=order)
            known = changes.get(each.group)
            # For a group of several EKS node groups, the oldest release decides.
            if known is None or order(each.ami_release) < order(known.now):
                changes[each.group] = Change(each.group, each.ami_release, then)
        return tuple(changes[name] for name in sorted(changes))

    def _require_idle(self, plan: UpgradePlan) -> None:
        """Raise where runs have pods on nodes that would be replaced; a dry run prints it and continues."""
        current, stack = plan.environment, self._stack.stack
        runs = runs_by_group(list_nodes(self._dependencies.cluster(current), current.namespace))
        busy = [f"{', '.join(runs[group])} on {group}" for group in plan.replaced_groups if group in runs]
        if not busy:
            return
        message = f"replacing nodes would interrupt {'; '.join(busy)}: "
        if plan.changes_cluster:
            message += f"`spotmpi upgrade {stack} --no-nodes` upgrades control plane and add-ons now, "
        message += (
            f"`spotmpi upgrade {stack} --to {plan.control_plane.then}` replaces the nodes when the runs have ended"
        )
        if not self._options.dry_run:
            raise SpotmpiError(message)
        self._dependencies.echo(message)

    def _apply(self, pins: Pins, plan: UpgradePlan | None = None) -> None:
        """Preview the stack with these versions; after a confirmation write them into its file and update it.

        With *plan* the nodes of its groups may be replaced: _require_idle has checked that no runs are on them.
        """
        stack, pulumi = self._stack.stack, self._dependencies.pulumi
        replaced = plan.replaced_groups if plan else ()
        what = f"nodes of {', '.join(replaced)}" if replaced else "control plane and add-ons"
        if replaced:
            pulumi = pulumi.with_flags(REPLACE_NODES)
        text = with_pins(stack, pins)
        # With --refresh: EKS may have changed versions itself (end of support, a new launch template).
        with TemporaryDirectory() as folder:
            candidate = Path(folder) / self._stack.path.name
            candidate.write_text(text, encoding="utf-8")
            preview = pulumi.preview(stack, "--refresh", "--config-file", str(candidate))
        self._require_only_upgrade(preview, replaced)
        if self._options.dry_run:
            return
        if preview.changes and not self._dependencies.confirm(f"Upgrade {what} of {stack} as shown?"):
            raise NotConfirmed(f"{what} of {stack} were not changed")
        if plan:
            self._require_idle(plan)  # a run may have started while the question was open
        write_stack(self._stack.path, text)
        if preview.changes:
            pulumi.update(stack, preview, "--refresh")

    def _require_only_upgrade(self, preview: Preview, replaced: Sequence[str]) -> None:
        """Raise where other changes of the stack's file would lose something: `spotmpi up` asks for these."""
        aws, stack = self._dependencies.aws, self._stack
        region = self._dependencies.region_of(stack)
        losses = find_losses(preview.steps, lambda: running_nodes(aws, region, stack.environment))
        others = {group: nodes for group, nodes in losses.nodes.items() if group not in replaced}
        lost = "; ".join(losses.impossible) or str(dataclasses.replace(losses, nodes=others, system=0))
        if lost:
            remedy = f"`spotmpi up {stack.stack}` first, which asks for them, or undo these changes"
            raise SpotmpiError(f"{stack.path} has other changes, which would lose {lost}: {remedy}")


def _is_better(offered: Mapping[str, KubernetesVersion], now: str) -> bool:
    """Whether to go to the next version: in standard support, or on the way there, as EKS skips none."""
    current, following = offered.get(now), offered.get(next_minor(now))
    return following is not None and (following.in_standard_support or not (current and current.in_standard_support))
