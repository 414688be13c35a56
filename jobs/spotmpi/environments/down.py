"""From an environment to nothing that bills: `spotmpi down` as a function."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from spotmpi.aws import log_group
from spotmpi.backends.targets import Target
from spotmpi.core import environment
from spotmpi.core.environment import Environment
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.environments import ledger, node_group_sizes
from spotmpi.environments.billed_resources import Left, interfaces_in_use, still_billed, sweep_interfaces
from spotmpi.environments.dependencies import Dependencies
from spotmpi.environments.inventory import Trace, cluster_exists
from spotmpi.environments.security_groups import sweep_security_groups
from spotmpi.environments.stack_file import StackFile, read_stack
from spotmpi.environments.up import NotAgreed


def down(stack: str, hands: Dependencies, delete_data: str | None = None) -> tuple[Left, ...]:
    """Take *stack* down, step by step, and give what still bills then; the same call goes on where one stopped.

    Persistent storage stays, and so does its bill, unless *delete_data* is the environment's name.

    Raises:
        InputError: *delete_data* is another name, or the stack is persistent storage itself.
        NotAgreed: somebody said no; nothing was changed.
        SpotmpiError: a step failed; what it says ends with what to do.
    """
    removing = _Removing(read_stack(stack), hands, delete_data)
    removing.require_allowed()
    steps = removing.steps()
    for number, (title, step) in enumerate(steps, 1):
        hands.say(f"{number}/{len(steps)} {title}")
        step()
    return removing.left


class _Removing:
    def __init__(self, stack: StackFile, hands: Dependencies, delete_data: str | None) -> None:
        self._stack, self._hands, self._delete_data = stack, hands, delete_data
        self._there: Environment | None = None
        self._trace = Trace(stack.environment, stack.region or hands.aws.region or "")
        self._kept = Trace(f"{self._trace.name}-data", self._trace.region)
        self._destroyed = False
        self.left: tuple[Left, ...] = ()

    def require_allowed(self) -> None:
        """Raise unless what goes may go, and somebody agrees."""
        stack, name = self._stack, self._stack.environment
        if stack.kind == "data":
            owner = stack.stack.removesuffix("-data")
            remedy = f"is persistent storage: `spotmpi down {owner} --delete-data spotmpi-{owner}` deletes it"
            raise input_error("STACK", stack.stack, remedy)
        if self._delete_data not in (None, name):
            raise input_error(
                "--delete-data", self._delete_data, f"write the environment's name, {name}, to delete its data"
            )
        data = "" if stack.keep and not self._delete_data else " and ALL DATA on its storage"
        if not self._hands.agree(f"Take down {name}{data}?"):
            raise NotAgreed(f"{name} was left as it is")

    def steps(self) -> list[tuple[str, Callable[[], None]]]:
        """Title and work of each step, in order."""
        steps = [
            ("what there is, written down", self._write_down),
            ("runs", self._stop_runs),
            ("nodes", self._shrink),
            ("cluster, network, registry", self._destroy_environment),
        ]
        if self._stack.keep and self._delete_data:
            steps.append(("data", self._destroy_data))
        return [*steps, ("what still bills", self._look_around)]

    def _write_down(self) -> None:
        state = self._hands.pulumi.state(self._stack.stack)
        self._trace = ledger.read(self._trace.name, self._trace.region)
        if state is None:
            return
        self._trace = ledger.add(self._trace, ledger.of_state(state))
        self._trace = ledger.add(self._trace, interfaces_in_use(self._hands.aws, self._trace))
        if (outputs := self._hands.pulumi.outputs(self._stack.stack)).get("contract"):
            self._there = environment.parse(outputs)
            self._or_say("its volumes can't be listed", self._write_down_volumes)

    def _write_down_volumes(self) -> None:
        assert self._there is not None
        volumes = self._hands.cluster(self._there).list("PersistentVolume")
        self._trace = ledger.add(self._trace, ledger.of_volumes(volumes))

    def _stop_runs(self) -> None:
        if self._there is not None:
            self._or_say("its runs can't be stopped one by one", self._stop_each)

    def _stop_each(self) -> None:
        target = Target(self._stack.stack)
        for run in self._hands.list_runs(target):
            if not run.over:
                self._hands.say(f"stopping {run.id} with a checkpoint")
                self._or_say(f"{run.id} can't be stopped", partial(self._hands.stop_run, run.id, on=target))

    def _shrink(self) -> None:
        if self._there is not None:
            left = node_group_sizes.close_groups(self._hands.aws, self._there, self._hands.sleep)
            if left:
                self._hands.say(f"{left} nodes are still on their way out; they go with their groups")

    def _or_say(self, what: str, work: Callable[[], object]) -> None:
        """Do what helps, but is not needed: a cluster that is half gone must not keep its environment alive."""
        try:
            work()
        except SpotmpiError as error:
            self._hands.say(f"{what}: {error}")

    def _destroy_environment(self) -> None:
        self._destroyed = self._destroy(self._stack.stack)

    def _destroy(self, stack: str) -> bool:
        """Destroy, and once more without what may hold the network: the CNI's interfaces, EKS's security group.

        Gives whether there was anything to destroy.
        """
        if self._hands.pulumi.state(stack) is None:
            self._hands.say(f"Pulumi holds nothing of {stack}")
            return False
        try:
            self._hands.pulumi.run(stack, "destroy", "--yes", "--skip-preview")
        except SpotmpiError:
            swept = sweep_interfaces(self._hands.aws, self._trace)
            groups = sweep_security_groups(self._hands.aws, self._trace)
            if not swept and not groups:
                raise
            left = [f"{len(swept)} interfaces of the CNI"] * bool(swept)
            left += [f"security group {id} of EKS" for id in groups]
            self._hands.say(f"deleted what was left in the network: {', '.join(left)}; once more")
            self._hands.pulumi.run(stack, "destroy", "--yes", "--skip-preview")
        return True

    def _destroy_data(self) -> None:
        data = f"{self._stack.stack}-data"
        state = self._hands.pulumi.state(data)
        self._kept = ledger.read(self._kept.name, self._kept.region)
        if state is not None:
            self._kept = ledger.add(self._kept, ledger.of_state(state))
            self._hands.pulumi.run(data, "state", "unprotect", "--all", "--yes")
            self._destroy(data)
            self._hands.pulumi.run(data, "stack", "rm", "--yes", "--preserve-config")

    def _delete_log_group(self) -> None:
        """Delete the control plane's log group, and once more where EKS makes it again after the destroy."""
        aws, trace = self._hands.aws, self._trace
        if cluster_exists(aws, trace.region, trace.name):
            return
        if self._destroyed:
            self._hands.say(f"looking for {log_group.WATCH:.0f} s whether EKS makes its log group again, to delete it")
            deleted = log_group.keep_deleted(aws, trace.region, trace.name, self._hands.sleep)
        elif deleted := log_group.exists(aws, trace.region, trace.name):
            log_group.delete(aws, trace.region, trace.name)
        if deleted:
            self._hands.say(f"deleted log group {log_group.name_of(trace.name)}, which EKS had made again")

    def _look_around(self) -> None:
        for id in sweep_interfaces(self._hands.aws, self._trace):
            self._hands.say(f"deleted interface {id} that the CNI had left")
        self._delete_log_group()
        self.left = still_billed(self._hands.aws, self._trace)
        if self._stack.keep and self._delete_data:
            self.left += still_billed(self._hands.aws, self._kept)
        elif self._stack.keep:
            self._hands.say(f"kept, and billed by the GB: the storage of {self._kept.name}")
        if self.left:
            return
        if self._hands.pulumi.state(self._stack.stack) is not None:
            self._hands.pulumi.run(self._stack.stack, "stack", "rm", "--yes", "--preserve-config")
        ledger.forget(self._trace.name)
        if self._delete_data:
            ledger.forget(self._kept.name)
