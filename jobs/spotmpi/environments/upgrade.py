"""From one Kubernetes version to the next: control plane, then add-ons, then nodes; `spotmpi upgrade` as a function."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from spotmpi.aws.errors import CallFailed
from spotmpi.core import environment
from spotmpi.core.environment import Environment
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.environments import versions
from spotmpi.environments.dependencies import Dependencies
from spotmpi.environments.nodes import list_nodes, runs_by_group
from spotmpi.environments.pulumi_cli import Pulumi
from spotmpi.environments.stack_file import Pins, StackFile, read_stack, with_pins, write_stack
from spotmpi.environments.up import REPLACE_NODES, NotAgreed
from spotmpi.environments.versions import KubernetesVersion, RunningVersions, minor, next_minor, order


@dataclass(frozen=True)
class Request:
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
    def moves(self) -> bool:
        """Whether there is anything to do."""
        return self.now != self.then


@dataclass(frozen=True)
class UpgradePlan:
    """What an upgrade changes; `held` are the AMI releases that nodes keep until it is their turn, by node group.

    `offered` is empty where EKS did not tell what it offers, and `unknown` says why.
    """

    environment: Environment
    control_plane: Change
    addons: tuple[Change, ...]
    node_groups: tuple[Change, ...]
    held: Mapping[str, str]
    offered: Mapping[str, KubernetesVersion]
    unknown: str

    @property
    def moves_cluster(self) -> bool:
        """Whether control plane or add-ons change."""
        return self.control_plane.moves or any(each.moves for each in self.addons)

    @property
    def replaced(self) -> tuple[str, ...]:
        """The node groups whose nodes are replaced."""
        return tuple(each.name for each in self.node_groups if each.moves)


def upgrade(stack: str, hands: Dependencies, request: Request, show: Callable[[UpgradePlan], None]) -> UpgradePlan:
    """Upgrade *stack* by one minor version at most, after a preview and a yes for each of two steps.

    *show* gets the plan before anything is asked. Where one call stopped, the next goes on.

    Raises:
        InputError: the stack is no built environment, or EKS would refuse the version.
        NotAgreed: somebody said no; the message tells what has been done.
        SpotmpiError: runs have pods on nodes that would be replaced, or a step failed.
    """
    upgrading = _Upgrading(read_stack(stack), hands, request)
    plan = upgrading.plan()
    show(plan)
    upgrading.carry_out(plan)
    return plan


class _Upgrading:
    def __init__(self, stack: StackFile, hands: Dependencies, request: Request) -> None:
        self._stack, self._hands, self._request = stack, hands, request

    def plan(self) -> UpgradePlan:
        """What runs, and what it becomes; changes nothing."""
        there = self._environment()
        running = versions.running(self._hands.aws, there.region, there.cluster)
        busy = [each.name for each in running.node_groups if each.status in ("CREATING", "UPDATING", "DELETING")]
        busy += [there.cluster] if running.status != "ACTIVE" else []
        if busy:
            raise SpotmpiError(f"EKS is still at work on {', '.join(busy)}: wait until all are ACTIVE, then repeat")
        offered, unknown = self._offered(there)
        target = self._target(running, offered, there.region)
        return UpgradePlan(
            environment=there,
            control_plane=Change("control plane", running.control_plane, target),
            addons=tuple(self._addon(there, name, now, target) for name, now in sorted(running.addons.items())),
            node_groups=self._node_groups(there, running, target),
            held=running.newest_releases,
            offered=offered,
            unknown=unknown,
        )

    def carry_out(self, plan: UpgradePlan) -> None:
        """Control plane and add-ons with the nodes held, then the nodes."""
        if plan.replaced:
            self._require_idle(plan)
        target = plan.control_plane.then
        addons = {each.name: each.then for each in plan.addons}
        if plan.moves_cluster:
            self._hands.say(f"control plane {target} and add-ons; nodes stay as they are")
            self._apply(Pins(target, addons, plan.held), "control plane and add-ons", self._hands.pulumi)
        if plan.replaced:
            if plan.moves_cluster and not self._request.dry_run:
                self._require_idle(plan)  # a run may have started meanwhile: a control plane takes its time
            self._hands.say(f"nodes of {', '.join(plan.replaced)}")
            releases = {each.name: each.then for each in plan.node_groups}
            # That no run is on them was looked up before.
            pulumi = self._hands.pulumi.allowing(REPLACE_NODES)
            self._apply(Pins(target, addons, releases), f"nodes of {', '.join(plan.replaced)}", pulumi)

    def _environment(self) -> Environment:
        stack = self._stack.stack
        if self._stack.kind == "data":
            raise input_error("STACK", stack, "it is persistent storage, which has no versions")
        if self._hands.pulumi.state(stack) is None:
            raise input_error("STACK", stack, f"it is not built yet: `spotmpi up {stack}`")
        return environment.parse(self._hands.pulumi.outputs(stack))

    def _offered(self, there: Environment) -> tuple[dict[str, KubernetesVersion], str]:
        try:
            return versions.offered(self._hands.aws, there.region), ""
        except CallFailed as error:
            return {}, str(error)

    def _target(self, running: RunningVersions, offered: Mapping[str, KubernetesVersion], region: str) -> str:
        now, wanted = running.control_plane, self._request.to
        behind = [each.name for each in running.node_groups if each.version != now]
        if wanted is None:
            follows = offered.get(next_minor(now))
            return next_minor(now) if follows and follows.in_standard_support and not behind else now
        if not re.fullmatch(r"1\.\d+", wanted):
            raise input_error("--to", wanted, f"write a Kubernetes version such as {next_minor(now)}")
        if minor(wanted) < minor(now):
            raise input_error("--to", wanted, f"the control plane has {now}, and an upgrade does not go back")
        if minor(wanted) > minor(now) + 1:
            raise input_error(
                "--to", wanted, f"EKS takes one minor version at a time: from {now} to {next_minor(now)} first"
            )
        if offered and wanted not in offered:
            raise input_error("--to", wanted, f"EKS offers {', '.join(offered)} in {region}")
        if wanted != now and behind:
            first = f"`spotmpi upgrade {self._stack.stack} --to {now}` replaces them first"
            rule = f"EKS updates a control plane once all nodes have its version, {now}"
            raise SpotmpiError(f"{rule}; {', '.join(behind)} are older: {first}")
        return wanted

    def _addon(self, there: Environment, name: str, now: str, target: str) -> Change:
        return Change(name, now, versions.addon_version(self._hands.aws, there.region, name, target, now))

    def _node_groups(self, there: Environment, running: RunningVersions, target: str) -> tuple[Change, ...]:
        """What each node group of the file runs and will run; one with the newest AMI release or a newer one stays."""
        made: dict[str, Change] = {}
        for each in running.node_groups:
            if each.group is None:
                continue
            then = each.ami_release
            if self._request.nodes:
                newest = versions.ami_release(self._hands.aws, there.region, target, each.ami_type)
                then = max(newest, each.ami_release, key=order)
            known = made.get(each.group)
            # Of a group of several EKS node groups, the oldest says whether there is anything to do.
            if known is None or order(each.ami_release) < order(known.now):
                made[each.group] = Change(each.group, each.ami_release, then)
        return tuple(made[name] for name in sorted(made))

    def _require_idle(self, plan: UpgradePlan) -> None:
        """Raise where runs have pods on nodes that would be replaced; a dry run says so and goes on."""
        there, stack = plan.environment, self._stack.stack
        found = runs_by_group(list_nodes(self._hands.cluster(there), there.namespace))
        busy = [f"{', '.join(found[group])} on {group}" for group in plan.replaced if group in found]
        if not busy:
            return
        message = f"new nodes would interrupt {'; '.join(busy)}: "
        if plan.moves_cluster:
            message += f"`spotmpi upgrade {stack} --no-nodes` upgrades control plane and add-ons now, "
        message += f"`spotmpi upgrade {stack} --to {plan.control_plane.then}` replaces the nodes once the runs are over"
        if not self._request.dry_run:
            raise SpotmpiError(message)
        self._hands.say(message)

    def _apply(self, pins: Pins, what: str, pulumi: Pulumi) -> None:
        """Preview the stack with these versions; after a yes write them into its file and update it."""
        stack = self._stack.stack
        text = with_pins(stack, pins)
        # Refreshed: EKS may have moved versions by itself (support that ended, a new launch template).
        with TemporaryDirectory() as folder:
            candidate = Path(folder) / self._stack.path.name
            candidate.write_text(text, encoding="utf-8")
            changes = pulumi.shows_changes(stack, "--refresh", "--config-file", str(candidate))
        if self._request.dry_run:
            return
        if changes and not self._hands.agree(f"Upgrade {what} of {stack} as shown?"):
            raise NotAgreed(f"{what} of {stack} were left as they are")
        write_stack(self._stack.path, text)
        if changes:
            pulumi.run(stack, "up", "--yes", "--skip-preview", "--refresh")
