"""A run by a deadline or an order, on a cluster that a test scripts: with all its nodes it works and is recorded."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from spotmpi.agent import placement, pod_context
from spotmpi.agent.attempt_history import AttemptHistory
from spotmpi.agent.launch import largest_size, on_hosts
from spotmpi.agent.outcomes import INTERRUPTION, SUCCEEDED, Outcome
from spotmpi.agent.placement_controller import Controller, OrderPolicy, Policy, RequestFailed
from spotmpi.agent.plan import COORDINATOR, NODE, Block, Forecast, Member
from spotmpi.agent.progress import Progress
from spotmpi.agent.record import Record
from spotmpi.capacity.controller import DeadlinePolicy
from spotmpi.plan.cluster import ClusterTarget
from spotmpi.plan.manifests import Submission, kubernetes_plan
from spotmpi.plan.placement import Beginning
from spotmpi.plan.templates import Template
from spotmpi.spec.source import from_values
from tests.clocks import SetClock
from tests.unit.agent.placed_cluster import START, PlacedCluster

SIZE = 4
NEAR, OTHER, FAR, BLOCK = "near", "other", "far", "block"
RATES = {NEAR: 4.0, OTHER: 5.0, FAR: 12.0, BLOCK: 0.1}  # dollars per hour of all nodes
LEAVE = 1920.0  # seconds before the end of a Capacity Block
PACE = 1.0  # seconds per iteration
FORECAST: Forecast = {
    "dollars": 3.5,
    "low": 1.4,
    "high": 4.2,
    "in_time": 1.0,
    "on_demand": 4.4,
    "deadline": 3000.0,
}


def target(group: str) -> ClusterTarget:
    market = {FAR: "on-demand", BLOCK: "capacity-block"}.get(group, "spot")
    zone = "us-east-1b" if group == OTHER else "us-east-1a"  # otherwise like NEAR
    kind = "far.xlarge" if group == FAR else "near.xlarge"
    machine = {"node_group": group, "type": kind, "market": market, "zone": zone}
    return ClusterTarget("here", "any:1", "claim", {"group": group}, (), False, machine=tuple(machine.items()))


def planned(
    groups: tuple[str, ...],
    nodes: int | list[int] = SIZE,
    block: tuple[float, float] | None = None,
    standby: int = 0,
    template: dict[str, Any] | None = None,
    **capacity: Any,
) -> tuple[Any, Any]:
    """The JobSet of a run on *groups*, and the plan of its agents; the *block* starts and ends at these seconds.

    The user's pod *template* is merged over its own.
    """
    blocks = {}
    if block is not None:
        start, end = (START + each for each in block)
        blocks[BLOCK] = Block(reservation="cr-00000001", start=start, leave=end - LEAVE, end=end)
    spec = from_values({"command": ["x"], "nodes": nodes, "standby": standby, "capacity": capacity})
    job_per_node = isinstance(nodes, list) or standby > 0
    templates = () if template is None else (Template("pod.yaml", {"spec": template}),)
    order = tuple(replace(target(each), job_per_node=job_per_node, templates=templates) for each in groups)
    rate, beginning = RATES[groups[0]], Beginning("it is the cheapest", FORECAST, blocks)
    submission = Submission("x-1", "ann", {}, {}, {}, rate=rate, rates=RATES, beginning=beginning)
    objects = kubernetes_plan(spec, replace(order[0], order=order), submission)
    return objects[0], {**json.loads(objects[1]["data"]["plan.json"]), "submitted": float(START)}


class Killed(Exception):
    """The process of a controller is killed between two of its steps."""


class PlacedRun:
    """A run of *iterations*, with a controller that is killed after every look where it is *mortal*.

    Its agents take *start* seconds from the nodes to the first iteration. A checkpoint is written ``every`` so many
    iterations, if any, and before a move where the program writes one ``at_notice``; later iterations are repeated.
    With several numbers of ``nodes`` it begins on what is there after the patience, goes on with what is left at once,
    and is as fast as these are many. One of ``standby`` takes the place of a lost node at once. Nodes that are ``sick``
    fail the check of each attempt on them; one with several numbers of nodes goes on without those, except for node 0
    (`ElasticCoordinator`).
    """

    def __init__(self, folder: Path, free: dict[str, int], iterations: int, start: float, **capacity: Any) -> None:
        nodes, block = capacity.pop("nodes", SIZE), capacity.pop("block", None)
        standby, template = capacity.pop("standby", 0), capacity.pop("template", None)
        order = capacity.get("order") or capacity.pop("groups", (NEAR, OTHER, FAR))
        groups = tuple(group for group in order if group in free)
        jobset, self.plan = planned(groups, nodes, block, standby, template, **capacity)
        self.used: list[int] = []  # the pods of the nodes of an attempt
        self.share = 1.0  # of the speed that the nodes should have, which they have
        self._enough = 0.0  # seconds for which there were enough nodes
        self.cluster = PlacedCluster(jobset, SIZE, free)
        self.cluster.blocks = {BLOCK: (START + block[0], START + block[1])} if block else {}
        self.iterations, self.start = iterations, start
        self.mortal = False
        self.sick: set[str] = set()
        self.checked: list[str] = []  # the nodes that failed, one entry for each time
        self._checking: set[str] = set()  # those that do not work yet
        self.api: Any = self.cluster  # as the controller reaches it
        self.every: int | None = 60
        self.at_notice = True
        self.ended: float | None = None  # seconds after the submission
        self.stored = 0
        self.step = 10.0  # seconds between looks
        self._runs = folder
        self._controller: Controller | None = None
        self._clock = SetClock(0.0)
        self._clock.unix = float(START)
        self._whole = 0.0  # seconds for which the gang had all nodes
        self._history: AttemptHistory | None = None
        self._progress = Progress(0.0)
        self._number = 0

    @property
    def seconds(self) -> float:
        return self.cluster.now - START

    @property
    def state(self) -> placement.State:
        return self.cluster.state

    @property
    def groups(self) -> list[str]:
        return [each["group"] for each in self.state["decisions"]]

    def lose_a_node(self, **free: int) -> None:
        """Lose a node without notice; from now on so many are *free*."""
        self.cluster.free |= free
        self._end_attempt(INTERRUPTION, lost=True)
        self.cluster.lose_a_node()

    def run_until(self, is_over: Callable[[], bool], limit: float) -> None:
        """Let time pass until *is_over*, the run has ended, or *limit* seconds after its submission."""
        while not is_over() and self.ended is None and self.seconds < limit:
            self.look()
            self.pass_time()

    def run_for(self, seconds: float) -> None:
        self.run_until(lambda: False, self.seconds + seconds)

    def look(self) -> None:
        """One look of the controller."""
        if self._controller is None or self.mortal:
            self._controller = self.new_controller(self.api)
        try:
            self._controller.look()
        except Killed:
            self._controller = None
        except (RequestFailed, OSError):
            if self.api is self.cluster:
                raise
            # else as in the loop of a controller, which looks again
        if self.cluster.suspended:
            self._end_attempt(INTERRUPTION)

    def new_controller(self, api: Any) -> Controller:
        """A controller that was just started."""
        return Controller(api, self.plan, self._policy(), str(self._runs))

    def _policy(self) -> Policy:
        runs = str(self._runs)
        return OrderPolicy(runs) if self.plan["capacity"]["deadline"] is None else DeadlinePolicy(runs)

    def pass_time(self) -> None:
        self.cluster.pass_time(self.step)
        self._clock.seconds = self.seconds
        here = self.cluster.placed()
        size = largest_size(self.plan["elastic"], len(here)) if "elastic" in self.plan else len(here) // SIZE * SIZE
        self._enough = self._enough + self.step if size and 0 in here else 0.0
        if 0 in here and self._fail_checks():
            return
        if "elastic" in self.plan:
            here = [number for number in here if self.cluster.node_of(number) not in self.sick]
            size = largest_size(self.plan["elastic"], len(here))
        if self.used and (not set(self.used) <= set(here) or (size or 0) > len(self.used)):
            self._end_attempt(INTERRUPTION, lost=not set(self.used) <= set(here))
            self.used = []
        if not self.used and self._enough and size:
            patience = self.plan["elastic"]["patience"] if "elastic" in self.plan and not self.stored else 0.0
            self.used = here[:size] if len(here) == SIZE or self._enough >= patience else []
        if not self.used:
            self._whole = 0.0
            return
        self._whole += self.step
        if self._whole >= self.start:
            self._work()

    def _work(self) -> None:
        if self._history is None:
            self._history = self._open_history()
            plan = placement.with_placement(self.plan, self.state)
            self._clock.seconds -= self.start  # its agents have held the nodes since then
            self._number = self._history.begin()
            self._clock.seconds += self.start
            self._history.record_decisions(self._decisions())
            if "elastic" in plan:
                own = on_hosts(plan, [plan["hosts"][number] for number in self.used])
                self._history.set_pods(own, [Member(NODE, number) for number in self.used], 0)
            self._history.record_start(self._number, [])
            self._progress = Progress(0.0)
            self._progress.resumed = self._progress.iteration = self.stored
            self._progress.first_iteration = self.stored + 1
            self._progress.first_iteration_elapsed = self._clock.elapsed()
            self._history.record.metric(self._number, COORDINATOR, "context", {"total_iterations": self.iterations})
        speed = len(self.used) / SIZE * (1.0 if len(self.used) == SIZE else self.share)
        iteration = min(self.iterations, int((self._progress.iteration or 0) + self.step / PACE * speed))
        self._progress.iteration = iteration
        self._history.record.metric(self._number, COORDINATOR, "metric", {"iteration": iteration})
        if self.every and iteration // self.every * self.every > self.stored:
            self._store(iteration // self.every * self.every)
        if iteration == self.iterations:
            self.ended = self.seconds
            self._end_attempt(SUCCEEDED)
            self.cluster.end()

    def _open_history(self) -> AttemptHistory:
        (self._runs / "x-1").mkdir(exist_ok=True)
        record = Record(str(self._runs / "x-1"), self._clock)
        return AttemptHistory(
            record, placement.with_placement(self.plan, self.state), self.plan["submitted"], self._clock
        )

    def _fail_checks(self) -> bool:
        """Let the nodes that are sick fail their check, which takes a look; whether any did, for new pods then."""
        present, before = self.sick & set(self.cluster.nodes()), self._checking
        self._checking = present
        failed = sorted(present & before)
        if not failed:
            return False
        self._checking = set()
        if "elastic" in self.plan and self.cluster.node_of(0) not in self.sick:
            history = self._history or self._open_history()
            for each in sorted(set(failed) - set(self.checked)):
                history.avoid(each, "0 of 8 GPUs visible", True)
            if history is not self._history:
                history.record.close()
            self.checked += failed
            return False
        self._end_attempt(INTERRUPTION, lost=True)
        history = self._open_history()
        number = history.begin()
        for each in failed:
            history.avoid(each, "0 of 8 GPUs visible", True)
        history.end(number, Progress(self._clock()), Outcome(INTERRUPTION, "why"), self._clock())
        history.record.close()
        self.checked += failed
        self.used = []
        self.cluster.lose_a_node()
        return True

    def fail_on(self, machine: str) -> None:
        """Let node 0's agent find that attempts failed twice on a *machine*: pods stay in a cluster."""
        assert self._history is not None
        self._history.avoid(machine, "attempts 1 and 2 failed there, after different iterations", False)

    def _decisions(self) -> list[placement.Decision]:
        """Those with which the present pods were created: JobSet gives them the annotation of their template."""
        jobset = self.cluster.jobset("x-1")
        assert jobset is not None
        template = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
        state = placement.parse(template["metadata"]["annotations"][pod_context.PLACEMENT_ANNOTATION])
        assert state is not None
        return state["decisions"]

    def _store(self, iteration: int) -> None:
        assert self._history is not None
        self.stored = iteration
        self._progress.checkpoint = iteration
        self._history.record.metric(self._number, COORDINATOR, "checkpoint", {"iteration": iteration})

    def _end_attempt(self, cause: str, lost: bool = False) -> None:
        history, self._history = self._history, None
        self._whole = 0.0
        if history is None:
            return
        self._history = history
        if not lost and self._progress.iteration and (self.at_notice or cause == SUCCEEDED):
            self._store(self._progress.iteration)
        self._history = None
        outcome = Outcome(cause, "why")
        history.end(self._number, self._progress, outcome, self._clock())
        if cause == SUCCEEDED:
            history.finish(outcome)
        history.record.close()
