"""Runs the trials of a sweep on a backend, and records the machines that they were on."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spotmpi.agent.files import write_atomically
from spotmpi.backends import follow
from spotmpi.backends.base import Backend
from spotmpi.core import file_status, names
from spotmpi.core.environment import Environment
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.events import Event
from spotmpi.core.names import RunPaths
from spotmpi.core.progress import Say
from spotmpi.runs import reader, recorded_plan
from spotmpi.runs.reader import RunState
from spotmpi.spec.job import JobSpec
from spotmpi.spec.validate import require_valid

if TYPE_CHECKING:
    from spotmpi.aws.account import Aws
    from spotmpi.backends.kubernetes.client.view import ClusterReader


_TRIAL = follow.Messages(
    "stopping the trial and the sweep; Ctrl-C again kills", "killing the trial", "the same command continues the study"
)


class BackendRunner:
    """Runs trials on *backend*, whose records are in *runs_folder*; Ctrl-C stops the current trial.

    *watch* receives the events of the trials, *say* all other messages.
    """

    def __init__(self, backend: Backend, runs_folder: Path, watch: Callable[[Event], None], say: Say) -> None:
        self._backend = backend
        self._runs_folder = runs_folder
        self._placement = PlacementRecorder(say)
        self._watch = watch
        self._say = say
        self._shown_notes: set[str] = set()

    def require_valid(self, spec: JobSpec, wrong: Iterable[str] = ()) -> None:
        """Raise InputError with every reason why *spec* cannot run here, whatever the values of its *wrong* keys."""
        require_valid(spec, self._backend.inspect(spec), wrong)

    def new_id(self, spec: JobSpec) -> str:
        """An id for a new run."""
        return names.run_id(spec.title, datetime.now(), secrets.randbelow(1 << 20))

    def run(self, spec: JobSpec, run: str) -> RunState:
        """Run *spec* under that id and return its final state."""
        plan = self._backend.plan(spec, run, self._say_once)
        for note in plan["notes"]:
            self._say_once(note)
        follow.submit(self._backend, spec, plan, self._say)
        return self.follow(run)

    def _say_once(self, text: str) -> None:
        """Show *text* unless an earlier trial has: trials of a kind have the same notes."""
        if text not in self._shown_notes:
            self._shown_notes.add(text)
            self._say(text)

    def follow(self, run: str) -> RunState:
        """Wait for the end of a run; UnknownRun if there is none."""
        state = follow.follow(self._backend, run, self._watch, self._say, _TRIAL)
        self._placement.record(names.RunPaths(self._runs_folder / run))
        return state


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
        environment = recorded_plan.read(paths).environment if file_status.is_file(paths.plan) else None
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


def _account(environment: Environment) -> Aws:
    from spotmpi.aws.account import open_account

    return open_account(environment.region)


def _cluster(environment: Environment) -> ClusterReader:
    from spotmpi.backends.kubernetes.client.view import ClusterView

    return ClusterView(environment.context)
