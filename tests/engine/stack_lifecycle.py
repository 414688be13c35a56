"""The life of one ready stack in the real engine, each stage written down: nothing, half, all, more, nothing."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.engine.engine import GUARDRAILS, Engine, Outcome, repository_project
from tests.engine.providers.aws_network import NODE_GROUP
from tests.engine.providers.cloud import Cloud
from tests.engine.providers.script import Call
from tests.engine.providers.server import serve_cloud

ACCESS = ["198.51.100.0/24"]


@dataclass(frozen=True)
class Stage:
    """One command: how it ended, the calls that it made, and what existed afterwards."""

    outcome: Outcome
    calls: tuple[Call, ...]
    existing: frozenset[str]

    def changed(self, method: str) -> list[tuple[str, str]]:
        """Type and name of everything that was created, updated or deleted, in order."""
        return [
            (call.token, call.name)
            for call in self.calls
            if call.method == method and not call.preview and not call.refused
        ]


@dataclass
class StackLifecycle:
    """All stages of a stack by name, and what was exported and left over."""

    stack: str
    group: str = ""
    stages: dict[str, Stage] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)
    leftovers: list[str] = field(default_factory=list)

    def __getitem__(self, name: str) -> Stage:
        return self.stages[name]

    def record_stage(self, name: str, cloud: Cloud, outcome: Outcome) -> None:
        """Write one stage down and start a new page in the journal."""
        existing = frozenset(record.key for record in cloud.records)
        self.stages[name] = Stage(outcome, tuple(cloud.script.calls), existing)
        cloud.script.calls.clear()


def prepare(engine: Engine, stack: str) -> None:
    """Make a ready stack usable, and build the storage that it keeps elsewhere."""
    engine.init(stack, {"spotmpi:access": ACCESS})
    if (engine.project / "stacks" / f"Pulumi.{stack}-data.yaml").exists():
        engine.init(f"{stack}-data")
        engine.up(f"{stack}-data").require_success()


def run_lifecycle(stack: str, folder: Path) -> StackLifecycle:
    """Take a ready stack from nothing over a failure to its full size, change one number, and destroy it."""
    cloud, stack_lifecycle = Cloud(), StackLifecycle(stack)
    with serve_cloud(cloud) as servers:
        engine = Engine(folder, servers)
        repository_project(engine)
        prepare(engine, stack)
        cloud.script.calls.clear()
        stack_lifecycle.record_stage("before", cloud, Outcome(0, ""))
        stack_lifecycle.record_stage("preview", cloud, engine.preview(stack, "--policy-pack", str(GUARDRAILS)))
        cloud.script.fail("create", NODE_GROUP)
        stack_lifecycle.record_stage("broken up", cloud, engine.up(stack))
        stack_lifecycle.record_stage("up", cloud, engine.up(stack))
        stack_lifecycle.record_stage("same up", cloud, engine.up(stack))
        stack_lifecycle.outputs = engine.outputs(stack)
        groups = engine.config(stack)["spotmpi:groups"]
        groups[-1]["max"] += 1
        stack_lifecycle.group = groups[-1]["name"]
        engine.configure(stack, {"spotmpi:groups": groups})
        stack_lifecycle.record_stage("bigger", cloud, engine.up(stack))
        cloud.script.fail("delete", NODE_GROUP)
        stack_lifecycle.record_stage("broken destroy", cloud, engine.destroy(stack))
        stack_lifecycle.record_stage("destroy", cloud, engine.destroy(stack))
        stack_lifecycle.leftovers = list(cloud.leftovers)
    return stack_lifecycle
