"""From an environment to nothing that bills: `spotmpi down` as a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from spotmpi.aws import backups, eks
from spotmpi.backends.kubernetes.client import kubeconfig_entries
from spotmpi.backends.targets import Target
from spotmpi.core import environment
from spotmpi.core.environment import Environment
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.core.pulumi import unfinished_creations
from spotmpi.core.wording import counted
from spotmpi.environments import location, node_group_sizes
from spotmpi.environments.dependencies import Dependencies
from spotmpi.environments.leftovers import (
    LeftoverResource,
    delete_unused_interfaces,
    delete_unused_security_groups,
    existing_interfaces,
    find_leftovers,
)
from spotmpi.environments.resource_inventory import (
    ResourceInventory,
    delete_inventory,
    read_inventory,
    record_resources,
)
from spotmpi.environments.resource_kinds import (
    FILE_SYSTEM,
    LOG_GROUP,
    NETWORK,
    cluster_exists,
    ebs_volumes,
    holds_storage,
    log_group_of,
    resources_in_state,
)
from spotmpi.environments.stack_file import StackFile, read_stack
from spotmpi.environments.up import NotConfirmed

_CHECKS, _INTERVAL = 6, 10.0  # whether EKS recreates the log group, and seconds between these checks


def down(stack: str, dependencies: Dependencies, delete_data: str | None = None) -> tuple[LeftoverResource, ...]:
    """Destroy *stack* step by step and return the resources that still bill; a repeated call continues.

    Persistent storage stays, and is billed, unless *delete_data* is the environment's name.

    Raises:
        InputError: *delete_data* is another name, or the stack is persistent storage itself.
        NotConfirmed: the confirmation was declined; nothing was changed.
        SpotmpiError: a step failed; the message ends with the remedy.
    """
    stack_file = read_stack(stack)
    task = _Down(stack_file, dependencies, delete_data)
    task.require_allowed()
    dependencies.carry_out(task.steps(), dependencies.region_of(stack_file))
    return task.leftovers


class _Down:
    def __init__(self, stack: StackFile, dependencies: Dependencies, delete_data: str | None) -> None:
        self._stack, self._dependencies, self._delete_data = stack, dependencies, delete_data
        self._environment: Environment | None = None
        self._inventory = ResourceInventory(stack.environment, dependencies.region_of(stack), "")
        self._data_inventory = replace(self._inventory, name=f"{stack.environment}-data")
        self._destroyed, self._keep = False, stack.keep
        self.leftovers: tuple[LeftoverResource, ...] = ()

    def require_allowed(self) -> None:
        """Raise unless the stack may be destroyed and the user confirms."""
        stack, name = self._stack, self._stack.environment
        if stack.kind == "data":
            owner = stack.stack.removesuffix("-data")
            remedy = f"persistent storage: delete it with `spotmpi down {owner} --delete-data spotmpi-{owner}`"
            raise input_error("STACK", stack.stack, remedy)
        if stack.kind == "account":
            raise input_error("STACK", stack.stack, f"the roles of CI: `pulumi destroy --stack {stack.stack}`")
        stack.check_deletion(self._delete_data)
        # The state tells where the file was changed since the build.
        state = self._dependencies.pulumi.state(stack.stack)
        own = _file_systems(state)
        self._keep = stack.keep or self._has_storage()
        elsewhere = self._keep or stack.file_system is not None
        deleted = bool(own) or not elsewhere or self._deletes_kept
        if self._delete_data and not deleted:
            command = FILE_SYSTEM.deletion(str(stack.file_system), self._inventory.region)
            remedy = f"`storage.file_system_id`, {stack.file_system}, is your own, which is never deleted here: leave"
            remedy += f" this out, or delete it by `{command}`"
            raise input_error("--delete-data", name, remedy)
        if self._deletes_kept:
            own += _file_systems(self._dependencies.pulumi.state(stack.data_stack))
        data = ""
        if deleted:
            left = backups.exception(self._dependencies.aws, self._inventory.region, own)
            data = f" and ALL DATA on its storage{left}"
        if not self._dependencies.confirm(f"Destroy {name}{data}?"):
            raise NotConfirmed(f"{name} was not changed")

    @property
    def _deletes_kept(self) -> bool:
        """Whether the storage in a stack of its own is destroyed too."""
        return self._keep and self._delete_data is not None

    def _has_storage(self) -> bool:
        """Whether there is storage in a stack of its own, which the file may not say any more."""
        return holds_storage(self._dependencies.pulumi.state(self._stack.data_stack))

    def steps(self) -> list[tuple[str, Callable[[], None]]]:
        """The title and the function of each step, in order."""
        steps = [
            ("resource inventory", self._record_inventory),
            ("preview", self._preview),
            ("runs", self._stop_runs),
            ("nodes", self._remove_nodes),
            ("cluster, network, registry", self._destroy_environment),
        ]
        if self._deletes_kept:
            steps.append(("data", self._destroy_data))
        return [*steps, ("leftovers", self._find_leftovers)]

    def _record_inventory(self) -> None:
        state, region = self._dependencies.pulumi.state(self._stack.stack), self._inventory.region
        account = self._dependencies.aws.account_id(region)
        self._inventory = read_inventory(self._inventory.name, region, account)
        self._data_inventory = read_inventory(self._data_inventory.name, region, account)
        self._require_account(state)
        if state is None:
            return
        self._inventory = record_resources(self._inventory, resources_in_state(state))
        self._inventory = record_resources(
            self._inventory, existing_interfaces(self._dependencies.aws, self._inventory)
        )
        if (outputs := self._dependencies.pulumi.outputs(self._stack.stack)).get("contract"):
            self._environment = environment.parse(outputs)
            location.require_location(self._dependencies.aws, region, self._environment)
            self._try("the cluster's volumes can't be listed", self._record_volumes)

    def _require_account(self, state: Mapping[str, Any] | None) -> None:
        aws, pulumi, region = self._dependencies.aws, self._dependencies.pulumi, self._inventory.region
        location.require_account_of_state(aws, region, self._stack.stack, state)
        if self._deletes_kept:
            data = self._stack.data_stack
            stored = pulumi.state(data)
            location.require_account_of_state(aws, region, data, stored)
            if any(kind == NETWORK.names for kind, _ in resources_in_state(stored)):
                what = f"stack {data} is an environment, not the storage of {self._stack.stack}"
                raise SpotmpiError(f"{what}: nothing was changed; leave --delete-data out")

    def _record_volumes(self) -> None:
        assert self._environment is not None
        volumes = self._dependencies.cluster(self._environment).list("PersistentVolume")
        self._inventory = record_resources(self._inventory, ebs_volumes(volumes))

    def _preview(self) -> None:
        """Preview what will be destroyed: a lock, or whatever else would refuse it, is found while the runs still work.

        Pulumi takes its lock for such a preview, unlike for that of an update (pkg/backend/diy/backend.go, Destroy).
        """
        previews: dict[str, tuple[str, ...]] = {self._stack.stack: ()}
        if self._deletes_kept:
            previews[self._stack.data_stack] = ("--exclude-protected",)  # the protection is lifted at the end
        for stack, options in previews.items():
            if (state := self._dependencies.pulumi.state(stack)) is not None:
                self._dependencies.pulumi.run(stack, "destroy", "--preview-only", *options)
                if unfinished := unfinished_creations(stack, state):
                    self._dependencies.echo(unfinished)

    def _stop_runs(self) -> None:
        if self._environment is not None:
            self._try("the environment's runs can't be listed", self._stop_each)

    def _stop_each(self) -> None:
        target = Target(self._stack.stack)
        for run in self._dependencies.list_runs(target):
            if not run.over:
                self._dependencies.echo(f"stopping {run.id} with a checkpoint")
                self._try(f"{run.id} can't be stopped", partial(self._dependencies.stop_run, run.id, on=target))

    def _remove_nodes(self) -> None:
        if self._environment is not None:
            self._try("the node groups can't be scaled to 0; they are deleted with their nodes", self._close_groups)

    def _close_groups(self) -> None:
        assert self._environment is not None
        aws, sleep = self._dependencies.aws, self._dependencies.sleep
        limit = node_group_sizes.TIMEOUT
        self._dependencies.echo(f"waiting until all nodes have terminated, for at most {limit:.0f} s")
        if remaining := node_group_sizes.close_groups(aws, self._environment, sleep):
            self._dependencies.echo(f"nodes still terminating: {remaining}; they are deleted with their groups")

    def _try(self, failure: str, work: Callable[[], object]) -> None:
        """Do optional work and print a failure: a half-deleted cluster must not block the destroy."""
        try:
            work()
        except SpotmpiError as error:
            self._dependencies.echo(f"{failure}: {error}")

    def _destroy_environment(self) -> None:
        self._destroyed = self._destroy(self._stack.stack)

    def _destroy(self, stack: str) -> bool:
        """Destroy; a second time without the CNI's interfaces and EKS's security group, which can block the network.

        Returns whether there was anything to destroy.
        """
        if self._dependencies.pulumi.state(stack) is None:
            self._dependencies.echo(f"stack {stack} does not exist in Pulumi's state")
            return False
        try:
            self._dependencies.pulumi.run(stack, "destroy", "--yes", "--skip-preview")
        except SpotmpiError:
            interfaces = delete_unused_interfaces(self._dependencies.aws, self._inventory)
            groups = delete_unused_security_groups(self._dependencies.aws, self._inventory)
            if not interfaces and not groups:
                raise
            deleted = [f"{counted(len(interfaces), 'interface')} of the CNI"] * bool(interfaces)
            deleted += [f"security group {id} of EKS" for id in groups]
            self._dependencies.echo(f"deleted from the network: {', '.join(deleted)}; destroying again")
            self._dependencies.pulumi.run(stack, "destroy", "--yes", "--skip-preview")
        return True

    def _destroy_data(self) -> None:
        data = self._stack.data_stack
        state = self._dependencies.pulumi.state(data)
        if state is not None:
            self._data_inventory = record_resources(self._data_inventory, resources_in_state(state))
            self._dependencies.pulumi.run(data, "state", "unprotect", "--all", "--yes")
            self._destroy(data)
            self._dependencies.pulumi.run(data, "stack", "rm", "--yes", "--preserve-config")

    def _delete_log_group(self) -> None:
        """Delete the control plane's log group, again where EKS recreates it after the destroy."""
        aws, inventory = self._dependencies.aws, self._inventory
        if cluster_exists(aws, inventory.region, inventory.name):
            return
        group, deleted = log_group_of(inventory.name), False
        if self._destroyed:
            watch = f"watching for {_INTERVAL * (_CHECKS - 1):.0f} s whether EKS recreates its log group, to delete it"
            self._dependencies.echo(watch)
        for check in range(_CHECKS if self._destroyed else 1):
            if check:
                self._dependencies.sleep(_INTERVAL)
            if LOG_GROUP.existing(aws, inventory.region, [group]):
                LOG_GROUP.remove(aws, inventory.region, group)
                deleted = True
        if deleted:
            self._dependencies.echo(f"deleted log group {group}, which EKS had recreated")

    def _forget_cluster(self) -> None:
        """Remove the cluster from the kubeconfig of this machine, unless it exists still."""
        aws, region, name = self._dependencies.aws, self._inventory.region, self._inventory.name
        cluster = eks.Cluster(region, self._inventory.account, name)
        if cluster not in kubeconfig_entries.clusters() or cluster_exists(aws, region, name):
            return
        for path in kubeconfig_entries.remove(cluster):
            self._dependencies.echo(f"removed the cluster from {path}")

    def _find_leftovers(self) -> None:
        for id in delete_unused_interfaces(self._dependencies.aws, self._inventory):
            self._dependencies.echo(f"deleted interface {id}, left by the CNI")
        self._delete_log_group()
        self._try("the kubeconfig can't be cleaned", self._forget_cluster)
        file_systems = self._inventory.of(FILE_SYSTEM.names)
        if self._deletes_kept:
            file_systems |= self._data_inventory.of(FILE_SYSTEM.names)
        backups.report(self._dependencies.aws, self._inventory.region, file_systems, self._dependencies.echo)
        self.leftovers = find_leftovers(self._dependencies.aws, self._inventory)
        if self._deletes_kept:
            self.leftovers += find_leftovers(self._dependencies.aws, self._data_inventory)
        elif self._has_storage():
            command = f"spotmpi down {self._stack.stack} --delete-data {self._inventory.name}"
            storage = f"the storage {self._data_inventory.name}, which `{command}` deletes"
            self._dependencies.echo(f"not deleted, and billed by the GB: {storage}")
        if self.leftovers:
            return
        if self._dependencies.pulumi.state(self._stack.stack) is not None:
            self._dependencies.pulumi.run(self._stack.stack, "stack", "rm", "--yes", "--preserve-config")
        delete_inventory(self._inventory)
        if self._delete_data:
            delete_inventory(self._data_inventory)


def _file_systems(state: Mapping[str, Any] | None) -> list[str]:
    """The ids of the file systems in the output of `pulumi stack export`."""
    return [id for kind, id in resources_in_state(state) if kind == FILE_SYSTEM.names]
