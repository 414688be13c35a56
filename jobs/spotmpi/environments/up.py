"""From a stack's file to an environment that has run something: `spotmpi up` as a function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from spotmpi.agent import record
from spotmpi.aws import log_group, state_bucket
from spotmpi.aws.errors import CallFailed
from spotmpi.aws.registry import in_registry
from spotmpi.backends.targets import Target
from spotmpi.core import environment
from spotmpi.core.environment import Environment
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.environments import ledger, node_group_sizes, version_pins
from spotmpi.environments.dependencies import Dependencies
from spotmpi.environments.inventory import LOGS, cluster_exists
from spotmpi.environments.stack_file import StackFile, read_stack
from spotmpi.images.build import Build, build_for

PROVEN = "images that ran"
# The variable that lets the program of an environment replace nodes that run; infra/names.py has it too.
REPLACE_NODES = "SPOTMPI_REPLACE_NODES"


class NotAgreed(SpotmpiError):
    """Somebody said no; nothing was changed."""


@dataclass(frozen=True)
class UpOptions:
    """How far to go, after what time the groups are closed, and data as (source, folder on the storage)."""

    images: bool = True
    smoke: bool = True
    expires: timedelta | None = None
    data: tuple[tuple[str, str], ...] = ()


def up(stack: str, hands: Dependencies, wishes: UpOptions | None = None) -> Environment:
    """Bring *stack* up, step by step; each looks at what is there first, so the same call goes on where one stopped.

    Raises:
        InputError: the stack's file is missing or lacks its zone.
        NotAgreed: the preview was not agreed to.
        SpotmpiError: a step failed; what it says ends with what to do.
    """
    building = _Building(read_stack(stack), hands, wishes or UpOptions())
    steps = building.steps()
    for number, (title, step) in enumerate(steps, 1):
        hands.say(f"{number}/{len(steps)} {title}")
        step()
    return building.there


class _Building:
    def __init__(self, stack: StackFile, hands: Dependencies, wishes: UpOptions) -> None:
        self._stack, self._hands, self._wishes = stack, hands, wishes
        self._found: Environment | None = None

    @property
    def there(self) -> Environment:
        """The environment, once its machines are built."""
        assert self._found is not None
        return self._found

    def steps(self) -> list[tuple[str, Callable[[], None]]]:
        """Title and work of each step, in order."""
        if self._stack.kind == "data":
            remedy = f"it is built with the stack that uses it: `spotmpi up {self._stack.stack.removesuffix('-data')}`"
            raise input_error("STACK", self._stack.stack, remedy)
        steps = [("doctor: account, tools, quota", self._prepare)]
        if self._stack.keep:
            steps.append(("storage that outlives the environment", self._storage))
        steps.append(("network, cluster, node groups", self._machines))
        steps.append(("what to look for when it is gone again", self._write_down))
        steps.append(("the way to the cluster", self._reach))
        steps.append(("sizes of the node groups", self._open))
        if self._wishes.images:
            steps.append(("images", self._images))
        if self._wishes.data:
            steps.append(("data", self._data))
        if self._wishes.images and self._wishes.smoke:
            steps.append(("a small run", self._smoke))
        return steps

    def _prepare(self) -> None:
        self._examine()
        self._make_state_bucket()

    def _make_state_bucket(self) -> None:
        """Make the bucket that Pulumi's state is to be in, after a yes, where there is none."""
        aws, bucket = self._hands.aws, state_bucket.named_in(self._hands.pulumi.variables)
        region = self._stack.region or aws.region or ""
        if bucket is None:
            return
        try:
            if state_bucket.condition(aws, region, bucket):
                return
        except CallFailed as error:  # one may use a bucket without being allowed to look at its settings
            self._hands.say(f"the bucket of Pulumi's state can't be looked at: {error}")
            return
        where = f"{bucket.name} in {bucket.region or region}"
        if not self._hands.agree(f"Make bucket {where} for Pulumi's state, private, encrypted and versioned?"):
            remedy = f"make it, or set {state_bucket.VARIABLE} to a state that exists"
            raise NotAgreed(f"there is no bucket {bucket.name} for Pulumi's state: {remedy}")
        state_bucket.make(aws, region, bucket)
        self._hands.say(f"made bucket {where}")

    def _examine(self) -> None:
        if self._stack.zone is None:
            types = ",".join(sorted({group.type for group in self._stack.groups if group.type})) or "TYPES"
            command = f"spotmpi zones --types {types} --nodes N --write {self._stack.stack}"
            raise input_error("spotmpi:zone", None, f"the stack has none yet: `{command}` compares zones and sets one")
        found = [each for each in self._hands.examine(self._stack.stack, self._hands.aws) if each.level != "ok"]
        for each in found:
            self._hands.say(f"{each.level}: {each.check} {each.message}")
        bad = [each for each in found if each.level == "error"]
        if bad:
            first = next((each for each in bad if each.remedy), bad[0])
            raise SpotmpiError(f"{len(bad)} errors stand in the way; the first: {first.message}: {first.remedy}")

    def _clear_log_group(self) -> None:
        """Delete the log group that EKS made again after a former environment: a new one can't be made beside it."""
        aws, name = self._hands.aws, self._stack.environment
        region, group = self._stack.region or aws.region or "", log_group.name_of(name)
        if not log_group.exists(aws, region, name) or self._holds(LOGS, group):
            return
        if cluster_exists(aws, region, name):
            remedy = "set PULUMI_BACKEND_URL to the state that holds it, or give the stack another name"
            raise SpotmpiError(f"a cluster {name} exists in {region}, and is not of this stack's state: {remedy}")
        why = f"EKS made it again after a former {name} was deleted, and the new environment needs the name"
        if not self._hands.agree(f"Delete log group {group}? {why}."):
            command = f"aws logs delete-log-group --log-group-name {group} --region {region}"
            raise NotAgreed(f"log group {group} was left as it is: `{command}`, then the same command goes on")
        log_group.delete(aws, region, name)

    def _holds(self, kind: str, id: str) -> bool:
        """Whether the stack's state has a thing of that kind and id."""
        state = self._hands.pulumi.state(self._stack.stack) or {}
        return (kind, id) in ledger.of_state(state)

    def _storage(self) -> None:
        self._build(f"{self._stack.stack}-data")

    def _machines(self) -> None:
        self._clear_log_group()
        version_pins.follow(self._stack, self._hands.aws, self._hands.say)
        self._build(self._stack.stack)
        self._found = environment.parse(self._hands.pulumi.outputs(self._stack.stack))

    def _build(self, stack: str) -> None:
        """Preview and build one stack; where nothing would change nothing is asked."""
        pulumi = self._hands.pulumi
        pulumi.run(stack, "stack", "select", "--create")
        try:
            changes = pulumi.shows_changes(stack)
        except SpotmpiError as error:
            if REPLACE_NODES not in str(error):
                raise
            self._require_no_runs(error)
            pulumi = pulumi.allowing(REPLACE_NODES)
            changes = pulumi.shows_changes(stack)
        if changes:
            if not self._hands.agree(f"Build {stack} as shown?"):
                raise NotAgreed(f"{stack} was left as it is")
            pulumi.run(stack, "up", "--yes", "--skip-preview")

    def _require_no_runs(self, refusal: SpotmpiError) -> None:
        """Raise *refusal* to replace nodes, with the runs that would be lost; nodes without a run may be replaced."""
        live = [run.id for run in self._hands.list_runs(Target(self._stack.stack)) if not run.over]
        if live:
            raise SpotmpiError(f"{refusal}; live runs: {', '.join(live)}") from refusal
        self._hands.say("nodes run, but no run is on them: they are replaced")

    def _write_down(self) -> None:
        trace = ledger.read(self.there.name, self.there.region)
        ledger.add(trace, ledger.of_state(self._hands.pulumi.state(self._stack.stack) or {}))

    def _reach(self) -> None:
        if not self._hands.knows(self.there):
            where = ["--name", self.there.cluster, "--region", self.there.region]
            self._hands.command(["aws", "eks", "update-kubeconfig", *where])
        self._hands.cluster(self.there).list("Node")

    def _open(self) -> None:
        until = datetime.now(UTC) + self._wishes.expires if self._wishes.expires else None
        node_group_sizes.open_groups(self._hands.aws, self.there, until)
        if until:
            when = f"{until.astimezone():%Y-%m-%d %H:%M}"
            self._hands.say(f"AWS takes all nodes of {', '.join(g.name for g in self.there.node_groups)} at {when}")

    def _images(self) -> None:
        for image, repository in sorted(self.there.repositories.items()):
            if in_registry(self._hands.aws, self.there.region, repository, self._build_of(image).tag):
                self._hands.say(f"{image} is in the registry")
            else:
                self._hands.push(image, self.there, self._hands.say)

    def _data(self) -> None:
        for source, folder in self._wishes.data:
            self._hands.stage(source, folder, Target(self._stack.stack), self._hands.say)

    def _build_of(self, image: str) -> Build:
        return build_for(image, self.there.has_gpus)

    def _smoke(self) -> None:
        trace, image = ledger.read(self.there.name, self.there.region), min(self.there.repositories)
        gpus = max(group.gpus for group in self.there.node_groups)
        # Two nodes show what one cannot: that pods reach each other through the network and its policies.
        nodes = min(2, max(group.max for group in self.there.node_groups if bool(group.gpus) == bool(gpus)))
        proof = f"{image}:{self._build_of(image).tag} on {nodes}"
        if proof in trace.of(PROVEN):
            self._hands.say(f"{image} has run here before")
            return
        values = {
            "name": "smoke",
            "image": image,
            "program": "digits",
            "args": ["--global-batch", "64", "--epochs", "1"],
            "nodes": nodes,
            "resources": {"gpu": min(1, gpus)},
            "limits": {"start": "20m", "failures": 0},
        }
        state = self._hands.run(values, on=Target(self._stack.stack), say=self._hands.say)
        if state.state != record.SUCCEEDED:
            look = f"`spotmpi logs {state.id}` shows more, `spotmpi doctor {self._stack.stack}` looks around"
            raise SpotmpiError(f"the small run {state.state}: {state.reason}; {look}")
        ledger.add(trace, [(PROVEN, proof)])
