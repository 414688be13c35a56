"""From a stack's file to an environment that has run a job: `spotmpi up` as a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from spotmpi.agent import record
from spotmpi.aws import backups, state_bucket
from spotmpi.aws.account import default_region
from spotmpi.aws.errors import CallError
from spotmpi.aws.registry import has_image
from spotmpi.aws.scaling import running_nodes
from spotmpi.backends.targets import Target
from spotmpi.core import environment, names
from spotmpi.core.environment import Environment
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.environments import changes, location, node_group_sizes
from spotmpi.environments.changes import Losses, Step, find_losses, not_offered
from spotmpi.environments.deleted_resources import correct_state
from spotmpi.environments.dependencies import Dependencies
from spotmpi.environments.resource_inventory import ResourceInventory, read_inventory, record_resources
from spotmpi.environments.resource_kinds import (
    LOG_GROUP,
    cluster_exists,
    holds_storage,
    log_group_of,
    resources_in_state,
)
from spotmpi.environments.stack_file import StackFile, read_stack
from spotmpi.environments.versions import pin_running_versions
from spotmpi.images.build import Build, build_for

SMOKE_RUNS = "images that ran"  # the key in the inventory file
# The variable that allows the Pulumi program to replace running nodes; same name as in infra/names.py.
REPLACE_NODES = "SPOTMPI_REPLACE_NODES"


class NotConfirmed(SpotmpiError):
    """The confirmation was declined."""


@dataclass(frozen=True)
class UpOptions:
    """What to do after the build, when the node groups expire, and data as (source, folder on the storage).

    An update may delete data if `delete_data` is the environment's name, and with `replace_nodes` interrupt runs. It
    has to be what the Pulumi policies in the folder `policy_pack` allow.
    """

    images: bool = True
    smoke_run: bool = True
    expires: timedelta | None = None
    data: tuple[tuple[str, str], ...] = ()
    delete_data: str | None = None
    replace_nodes: bool = False
    policy_pack: Path | None = None


def up(stack: str, dependencies: Dependencies, options: UpOptions | None = None) -> Environment:
    """Build and prepare *stack* step by step; each step checks what exists, so a repeated call continues.

    Raises:
        InputError: the stack's file is missing or lacks its zone.
        NotConfirmed: a confirmation was declined.
        SpotmpiError: a step failed; the message ends with the remedy.
    """
    stack_file = read_stack(stack)
    task = _Up(stack_file, dependencies, options or UpOptions())
    dependencies.carry_out(task.steps(), dependencies.region_of(stack_file))
    return task.environment


class _Up:
    def __init__(self, stack: StackFile, dependencies: Dependencies, options: UpOptions) -> None:
        self._stack, self._dependencies, self._options = stack, dependencies, options
        self._region = dependencies.region_of(stack)
        self._environment: Environment | None = None

    @property
    def environment(self) -> Environment:
        """The environment, once it is built."""
        assert self._environment is not None
        return self._environment

    def steps(self) -> list[tuple[str, Callable[[], None]]]:
        """The title and the function of each step, in order."""
        self._stack.check_deletion(self._options.delete_data)
        if self._stack.kind == "data":
            owner = self._stack.stack.removesuffix("-data")
            if owner == self._stack.stack:
                remedy = f"set `kind` to compute, or rename the stack to {owner}-data if it holds storage"
                raise input_error("spotmpi:kind", "data", remedy)
            raise input_error("STACK", self._stack.stack, f"build it with the stack that uses it: `spotmpi up {owner}`")
        if self._stack.kind == "account":
            name = self._stack.stack
            remedy = f"the roles of CI, no environment: `pulumi up --stack {name}`, or set `spotmpi:kind` to compute"
            raise input_error("STACK", self._stack.stack, remedy)
        steps = [("doctor: account, tools, quota", self._prepare)]
        if self._stack.keep:
            self._require_data_stack()
            steps.append(("persistent storage", self._build_storage))
        steps.append(("network, cluster, node groups", self._build_environment))
        steps.append(("resource inventory", self._record_inventory))
        steps.append(("access to the cluster", self._connect))
        steps.append(("node group sizes", self._open_groups))
        if self._options.images:
            steps.append(("images", self._push_images))
        if self._options.data:
            steps.append(("data", self._push_data))
        if self._options.images and self._options.smoke_run:
            steps.append(("smoke run", self._smoke_run))
        return steps

    def _require_data_stack(self) -> None:
        """Raise where the stack of the storage's name is something else, such as an environment."""
        data = read_stack(self._stack.data_stack)
        if data.kind != "data":
            remedy = f"its storage is to be in stack {data.stack}, which has `kind: {data.kind}`: "
            remedy += "set `kind` there back to data, or, if it is something else, rename one of the two"
            raise input_error("spotmpi:storage.keep", True, remedy)

    def _prepare(self) -> None:
        self._run_doctor()
        self._create_state_bucket()

    def _create_state_bucket(self) -> None:
        """Create the bucket of Pulumi's state, after a confirmation, where it does not exist."""
        aws, bucket = self._dependencies.aws, state_bucket.from_variables(self._dependencies.pulumi.variables)
        if bucket is None:
            return
        # Pulumi looks for it in the default region, whatever the stack's is.
        region = default_region() or self._stack.region or ""
        try:
            if state_bucket.status(aws, region, bucket):
                return
        except CallError as error:  # a bucket can be usable without the permission to read its settings
            self._dependencies.echo(f"the settings of Pulumi's state bucket can't be read: {error}")
            return
        bucket_text = f"{bucket.name} in {bucket.region or region}"
        if not self._dependencies.confirm(
            f"Create bucket {bucket_text} for Pulumi's state (private, encrypted, versioned)?"
        ):
            remedy = f"create it, or set {state_bucket.VARIABLE} to an existing backend"
            raise NotConfirmed(f"bucket {bucket.name} for Pulumi's state does not exist: {remedy}")
        state_bucket.create(aws, region, bucket)
        self._dependencies.echo(f"created bucket {bucket_text}")

    def _run_doctor(self) -> None:
        if self._stack.zone is None:
            types = ",".join(sorted({group.type for group in self._stack.groups if group.type})) or "TYPES"
            command = f"spotmpi zones --types {types} --nodes N --write {self._stack.stack}"
            raise input_error("spotmpi:zones", None, f"has no list of zones: `{command}` compares zones and writes one")
        findings = [
            each
            for each in self._dependencies.run_doctor(self._stack.stack, self._dependencies.aws)
            if each.level != "ok"
        ]
        for each in findings:
            self._dependencies.echo(f"{each.level}: {each.check} {each.message}")
        errors = [each for each in findings if each.level == "error"]
        if errors:
            first = errors[0]
            remedy = f": {first.remedy}" if first.remedy else ""
            raise SpotmpiError(f"errors of the doctor: {len(errors)}; the first: {first.check} {first.message}{remedy}")

    def _clear_log_group(self) -> None:
        """Delete the log group that EKS recreated after a former environment, so that a new one can be created."""
        aws, name = self._dependencies.aws, self._stack.environment
        region, group = self._region, log_group_of(name)
        if not LOG_GROUP.existing(aws, region, [group]) or self._state_has(LOG_GROUP.names, group):
            return
        if cluster_exists(aws, region, name):
            remedy = "set PULUMI_BACKEND_URL to the backend that manages it, or rename the stack"
            raise SpotmpiError(f"cluster {name} exists in {region} but is not in this stack's state: {remedy}")
        why = f"EKS recreated it after a former {name} was deleted, and the new environment needs the name"
        if not self._dependencies.confirm(f"Delete log group {group}? {why}."):
            remedy = f"delete it with `{LOG_GROUP.deletion(group, region)}`, then repeat the command"
            raise NotConfirmed(f"log group {group} was not deleted: {remedy}")
        LOG_GROUP.remove(aws, region, group)

    def _state_has(self, kind: str, id: str) -> bool:
        """Whether the stack's state has a resource of that kind and id."""
        return (kind, id) in resources_in_state(self._dependencies.pulumi.state(self._stack.stack))

    def _build_storage(self) -> None:
        self._require_place()
        self._update(self._stack.data_stack)

    def _build_environment(self) -> None:
        self._require_place()
        self._clear_log_group()
        pin_running_versions(self._stack, self._dependencies.aws, self._dependencies.echo)
        self._update(self._stack.stack, self._unused_storage())
        self._environment = environment.parse(self._dependencies.pulumi.outputs(self._stack.stack))

    def _require_place(self) -> None:
        """Raise where the stack is built elsewhere: Pulumi would miss everything, and build it again."""
        aws, pulumi, stack = self._dependencies.aws, self._dependencies.pulumi, self._stack.stack
        region, state = self._region, pulumi.state(stack)
        if state is not None and (outputs := pulumi.outputs(stack)).get("contract"):
            location.require_location(aws, region, environment.parse(outputs))
        location.require_account_of_state(aws, region, stack, state)
        if self._stack.keep:
            data = self._stack.data_stack
            location.require_account_of_state(aws, region, data, pulumi.state(data))

    def _unused_storage(self) -> str:
        """What stays billed because the file has taken back `storage.keep`; empty if nothing does."""
        data = self._stack.data_stack
        if self._stack.keep or not holds_storage(self._dependencies.pulumi.state(data)):
            return ""
        command = f"pulumi state unprotect --all --yes --stack {data} && pulumi destroy --stack {data}"
        storage = f"the storage {self._stack.environment}-data, which this environment does not use: `{command}`"
        return f"not deleted, and billed by the GB: {storage} deletes it with its data"

    def _update(self, stack: str, warning: str = "") -> None:
        """Preview and update one stack, after a *warning*; without changes there is no confirmation."""
        pulumi = self._dependencies.pulumi
        # A new stack would get a passphrase in place of the provider in its file.
        provider = read_stack(stack).secrets_provider
        pulumi.run(stack, "stack", "select", "--create", *(("--secrets-provider", provider) if provider else ()))
        correct_state(stack, self._stack.stack, self._region, self._dependencies)
        # The steps are complete only if the program refuses no replacement of nodes; `_require_allowed` does.
        pack = self._options.policy_pack
        policies = ("--policy-pack", str(pack)) if pack else ()
        preview = pulumi.with_flags(REPLACE_NODES).preview(stack, *policies)
        if warning:
            self._dependencies.echo(warning)
        if not preview.changes:
            return
        self._require_offered(stack, preview.steps)
        losses = find_losses(preview.steps, self._running_nodes)
        self._require_allowed(stack, losses)
        question = f"Build {stack} as shown?"
        if str(losses):
            left = backups.exception(self._dependencies.aws, self._region, losses.file_systems)
            question = f"Build {stack} as shown, and lose {losses}{left}?"
        if not self._dependencies.confirm(question):
            raise NotConfirmed(f"{stack} was not changed")
        self._require_no_more(stack, preview.steps, losses)
        if losses.nodes:
            pulumi = pulumi.with_flags(REPLACE_NODES)
        pulumi.update(stack, preview, *policies)
        backups.report(self._dependencies.aws, self._region, losses.file_systems, self._dependencies.echo)

    def _require_offered(self, stack: str, steps: Sequence[Step]) -> None:
        """Raise where EKS would refuse a version in the middle of the update."""
        try:
            refused = not_offered(steps, self._dependencies.aws, self._region, self._stack.environment)
        except CallError as error:  # building does not need the permission to read what EKS offers
            self._dependencies.echo(f"the versions that EKS offers can't be read: {error}")
            return
        if refused:
            remedy = "set versions that it offers, or undo the change"
            raise SpotmpiError(f"{stack} was not changed: EKS would refuse {'; '.join(refused)}: {remedy}")

    def _running_nodes(self) -> dict[str, int]:
        return running_nodes(self._dependencies.aws, self._region, self._stack.environment)

    def _require_allowed(self, stack: str, losses: Losses) -> None:
        """Raise where the update would lose data, or nodes and storage of live runs, and no option allows that."""
        options = self._options

        def live_runs() -> list[str]:
            if options.replace_nodes and not losses.in_use:
                return []
            return [run.id for run in self._dependencies.list_runs(Target(self._stack.stack)) if not run.over]

        changes.require_allowed(stack, losses, self._stack.environment, options.delete_data, live_runs)

    def _require_no_more(self, stack: str, steps: Sequence[Step], confirmed: Losses) -> None:
        """Raise where runs, or more nodes, have started on what the update ends since the question was asked.

        Somebody may answer it much later, and Pulumi deletes a node group with whatever nodes it has then.
        """
        now = find_losses(steps, self._running_nodes)
        self._require_allowed(stack, now)
        if more := [group for group, nodes in now.nodes.items() if nodes > confirmed.nodes.get(group, 0)]:
            what = f"nodes of {', '.join(more)}, which it would end, have started since its preview"
            raise SpotmpiError(f"{stack} was not changed: {what}: repeat the command")

    def _record_inventory(self) -> None:
        state = self._dependencies.pulumi.state(self._stack.stack)
        record_resources(self._inventory(), resources_in_state(state))

    def _inventory(self) -> ResourceInventory:
        region = self.environment.region
        return read_inventory(self.environment.name, region, self._dependencies.aws.account_id(region))

    def _connect(self) -> None:
        self._dependencies.cluster(self.environment).list("Node")

    def _open_groups(self) -> None:
        until = datetime.now(UTC) + self._options.expires if self._options.expires else None
        node_group_sizes.open_groups(self._dependencies.aws, self.environment, until)
        if until:
            when = f"{until.astimezone():%Y-%m-%d %H:%M}"
            self._dependencies.echo(
                f"AWS scales {', '.join(g.name for g in self.environment.node_groups)} to 0 nodes at {when}"
            )

    def _push_images(self) -> None:
        for image, repository in sorted(self.environment.repositories.items()):
            if has_image(self._dependencies.aws, self.environment.region, repository, self._build_of(image).tag):
                self._dependencies.echo(f"{image} is already in the registry")
            else:
                self._dependencies.push_image(image, self.environment, self._dependencies.echo)

    def _push_data(self) -> None:
        for source, folder in self._options.data:
            self._dependencies.push_data(source, folder, Target(self._stack.stack), self._dependencies.echo)

    def _build_of(self, image: str) -> Build:
        return build_for(image, self.environment.has_gpus)

    def _smoke_run(self) -> None:
        if not self.environment.repositories:
            self._dependencies.echo("no images, so there is nothing to run")
            return
        groups = [group for group in self.environment.node_groups if group.market != names.CAPACITY_BLOCK]
        if not groups:
            self._dependencies.echo("all node groups are in Capacity Blocks, so nothing is run before these start")
            return
        inventory, image = self._inventory(), min(self.environment.repositories)
        gpus = max(group.gpus for group in groups)
        # Two nodes also show that pods reach each other through the network and its policies.
        nodes = min(2, max(group.max for group in groups if bool(group.gpus) == bool(gpus)))
        smoke_run = f"{image}:{self._build_of(image).tag} on {nodes}"
        if smoke_run in inventory.of(SMOKE_RUNS):
            self._dependencies.echo(f"{image} has passed a smoke run before")
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
        state = self._dependencies.run_job(values, on=Target(self._stack.stack), echo=self._dependencies.echo)
        if state.state != record.SUCCEEDED:
            remedy = f"see `spotmpi logs {state.id}` and `spotmpi doctor {self._stack.stack}`"
            raise SpotmpiError(f"the smoke run {state.state}: {state.reason}; {remedy}")
        record_resources(inventory, [(SMOKE_RUNS, smoke_run)])
