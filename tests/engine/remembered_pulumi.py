"""The real Pulumi, which is not asked again what it was asked of the same state and settings."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from spotmpi.environments.changes import Preview
from spotmpi.environments.pulumi_cli import Pulumi
from tests.engine.engine import Engine
from tests.engine.engine_environment import EngineEnvironment
from tests.engine.providers.cloud import Cloud

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class RememberedPulumi(Pulumi):
    """Starts no process for a question whose answer is in `answers`; everything that changes a stack is run."""

    states: Path = Path()
    answers: dict[object, Any] = field(default_factory=dict)

    def run(self, stack: str, *arguments: str) -> None:
        """Run a command; a stack that exists is selected once."""
        run = super().run
        if arguments[:2] == ("stack", "select"):
            self._once((stack, *arguments), lambda: run(stack, *arguments))
        else:
            run(stack, *arguments)

    def preview(self, stack: str, *options: str) -> Preview:
        """The steps of an update."""
        preview, settings = super().preview, (self.project / "stacks" / f"Pulumi.{stack}.yaml").read_text()
        variables = frozenset(self.variables.items())
        return self._once((stack, "preview", options, settings, variables), lambda: preview(stack, *options))

    def state(self, stack: str) -> dict[str, Any] | None:
        """The state of a stack."""
        state = super().state
        return self._once((stack, "state"), lambda: state(stack))

    def outputs(self, stack: str) -> dict[str, Any]:
        """The outputs of a stack."""
        outputs = super().outputs
        return self._once((stack, "outputs"), lambda: outputs(stack))

    def _once(self, question: tuple[object, ...], ask: Callable[[], Answer]) -> Answer:
        """The answer to a question, which depends on the states of all stacks, too; not of one that changes any."""
        key = (question, self._digest())
        if key in self.answers:
            known: Answer = self.answers[key]
            return known
        answer = ask()
        if self._digest() == key[1]:
            self.answers[key] = answer
        return answer

    def _digest(self) -> bytes:
        states = tuple((each.name, each.read_bytes()) for each in sorted(self.states.glob("*/*.json")))
        return hashlib.sha256(repr(states).encode()).digest()


class RememberingEnvironment(EngineEnvironment):
    """An environment that remembers what Pulumi answered."""

    def __init__(self, engine: Engine, cloud: Cloud) -> None:
        super().__init__(engine, cloud)
        self._answers: dict[object, Any] = {}

    @property
    def pulumi(self) -> Pulumi:
        """The real program, as far as it was not asked before."""
        engine = self.engine
        states = engine.folder / "state" / ".pulumi" / "stacks"
        return RememberedPulumi(self.output.append, engine.project, engine.variables(), states, self._answers)
