"""On which machines a run really was: what AWS says of them now, to stand beside what its environment claims."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from spotmpi.core.environment import Environment
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.names import RunPaths
from spotmpi.runs import reader

if TYPE_CHECKING:
    from spotmpi.aws.account import Aws
    from spotmpi.backends.kubernetes.client.view import ClusterReader

Machines = dict[str, str | None]  # a Kubernetes node's name -> its EC2 instance, where that is known


class Whereabouts:
    """Asks AWS about the machines of runs that have ended, and writes down what it says or why it says nothing.

    *account* and *cluster* give those of an environment; what keeps AWS from being asked, *say* hears once.
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
        self._said: set[str] = set()

    def note(self, paths: RunPaths) -> None:
        """Write a run's ``nodes.json`` where it was in an environment; elsewhere there is nobody to ask."""
        there = reader.plan(paths).environment if paths.plan.is_file() else None
        machines = machines_of(paths)
        if not there or not machines:
            return
        try:
            found, failure = self._asked(Environment.model_validate(there), machines), None
        except SpotmpiError as error:
            found, failure = {}, str(error)
            if failure not in self._said:
                self._said.add(failure)
                self._say(f"where its nodes really are is not known, since AWS can't be asked: {failure}")
        aside = paths.nodes.with_suffix(".part")
        aside.write_text(json.dumps({"failure": failure, "nodes": found}, indent=1) + "\n")
        aside.replace(paths.nodes)

    def _asked(self, environment: Environment, machines: Machines) -> dict[str, Any]:
        from spotmpi.aws.instances import instances

        self._aws = self._aws or self._account(environment)
        unknown = [name for name, instance in machines.items() if instance is None]
        # Older kinds of machine do not tell a pod which one they are; then the cluster has to.
        known = {**machines, **(self._instances_of(environment, unknown) if unknown else {})}
        told = instances(self._aws, environment.region, [each for each in known.values() if each])
        return {name: asdict(told[each]) for name, each in known.items() if each in told}

    def _instances_of(self, environment: Environment, names: Sequence[str]) -> Machines:
        from spotmpi.aws.instances import of_provider

        nodes = {node["metadata"]["name"]: node for node in self._cluster(environment).list("Node")}
        there = {name: nodes[name].get("spec", {}) for name in names if name in nodes}
        return {name: of_provider(str(spec.get("providerID") or "")) for name, spec in there.items()}


def machines_of(paths: RunPaths) -> Machines:
    """The machines of all attempts of a run, as their pods told them; empty where no pods ran."""
    started = (event.get("machines") or [] for event in reader.lines(paths.events))
    return {each["name"]: each.get("instance") for told in started for each in told if each.get("name")}


def read(paths: RunPaths) -> Mapping[str, Any]:
    """What `Whereabouts.note` wrote: ``nodes`` by name and, where AWS could not be asked, the ``failure``."""
    try:
        found: dict[str, Any] = json.loads(paths.nodes.read_text())
    except (OSError, ValueError):
        return {"nodes": {}, "failure": None}
    return found


def _account(environment: Environment) -> Aws:
    from spotmpi.aws.account import open_account

    return open_account(environment.region)


def _cluster(environment: Environment) -> ClusterReader:
    from spotmpi.backends.kubernetes.client.view import view_of

    return view_of(environment.cluster, environment.region)
