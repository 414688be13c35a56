"""The machines that a run was on, as AWS describes them, to check against what its environment expects."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from spotmpi.agent.files import write_atomically
from spotmpi.core.environment import Environment
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.names import RunPaths
from spotmpi.runs import reader, recorded_plan

if TYPE_CHECKING:
    from spotmpi.aws.account import Aws
    from spotmpi.backends.kubernetes.client.view import ClusterReader

Machines = dict[str, str | None]  # a Kubernetes node's name -> its EC2 instance, where that is known


class PlacementRecorder:
    """Records what AWS says about the machines of a finished run, or why AWS could not be asked.

    *account* and *cluster* connect to those of an environment; *say* receives each failure once.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        account: Callable[[Environment], Aws] | None = None,
        cluster: Callable[[Environment], ClusterReader] | None = None,
    ) -> None:
        self._say = say
        self._account = account or _account
        self._cluster = cluster or _cluster
        self._aws: Aws | None = None
        self._reported_failures: set[str] = set()

    def record(self, paths: RunPaths) -> None:
        """Write ``nodes.json`` of a run; nothing to do for a run outside an environment."""
        environment = recorded_plan.read(paths).environment if paths.plan.is_file() else None
        machines = reported_machines(paths)
        if not environment or not machines:
            return
        try:
            nodes, failure = self._describe(Environment.model_validate(environment), machines), None
        except SpotmpiError as error:
            nodes, failure = {}, str(error)
            if failure not in self._reported_failures:
                self._reported_failures.add(failure)
                self._say(f"cannot verify the nodes with AWS: {failure}")
        write_atomically(paths.nodes, json.dumps({"failure": failure, "nodes": nodes}, indent=1) + "\n")

    def _describe(self, environment: Environment, machines: Machines) -> dict[str, Any]:
        from spotmpi.aws.instances import instances

        self._aws = self._aws or self._account(environment)
        unknown = [name for name, instance in machines.items() if instance is None]
        # Pods on older machine types cannot read their instance id; the cluster has it.
        known = {**machines, **(self._instances_of(environment, unknown) if unknown else {})}
        described = instances(self._aws, environment.region, [each for each in known.values() if each])
        return {name: asdict(described[each]) for name, each in known.items() if each in described}

    def _instances_of(self, environment: Environment, names: Sequence[str]) -> Machines:
        from spotmpi.aws.instances import instance_id

        nodes = {node["metadata"]["name"]: node for node in self._cluster(environment).list("Node")}
        specs = {name: nodes[name].get("spec", {}) for name in names if name in nodes}
        return {name: instance_id(str(spec.get("providerID") or "")) for name, spec in specs.items()}


def reported_machines(paths: RunPaths) -> Machines:
    """The machines of all attempts of a run, as its pods reported them; empty for a run without pods."""
    started = (event.get("machines") or [] for event in reader.lines(paths.events))
    return {each["name"]: each.get("instance") for machines in started for each in machines if each.get("name")}


def read_placement(paths: RunPaths) -> Mapping[str, Any]:
    """What `PlacementRecorder.record` wrote: ``nodes`` by name, and the ``failure`` if AWS could not be asked."""
    try:
        placement: dict[str, Any] = json.loads(paths.nodes.read_text())
    except (OSError, ValueError):
        return {"nodes": {}, "failure": None}
    return placement


def _account(environment: Environment) -> Aws:
    from spotmpi.aws.account import open_account

    return open_account(environment.region)


def _cluster(environment: Environment) -> ClusterReader:
    from spotmpi.backends.kubernetes.client.view import view_of

    return view_of(environment.cluster, environment.region)
