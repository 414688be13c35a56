"""The agents of one run as real processes on this machine, for tests."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from spotmpi.agent import hardware, pod_context, protocol
from spotmpi.agent.plan import NODE, STANDBY, WORKER, WORKERS, Member, workers
from spotmpi.core.certificates import write_certificates
from spotmpi.core.events import Event
from spotmpi.core.names import RunPaths
from spotmpi.plan.agent_plan import AgentInputs, agent_plan
from spotmpi.runs import pod_output
from spotmpi.spec.source import from_values
from tests import transient_errors
from tests.forked_python import ForkedPython
from tests.testbed.web import free_pair, free_port
from tests.unit.agent.peer_ends import certificates

RUN = "plain-1"
IMPORTS = [f"spotmpi.agent.{name}" for name in ("__main__", "children", "hardware", "tcp", "worker")]
IMPORTS += ["spotmpi.agent.pod_context", "tests.transient_errors"]  # what agents import at their start
LIMIT = 90.0  # seconds for anything, on a busy machine


class Gang:
    """The agents of one run, each with its own mounts and all with the same run folder."""

    def __init__(self, folder: Path, values: dict[str, Any]) -> None:
        self.folder = folder
        spec = from_values({"launcher": "none", "nodes": 2, **values})
        inputs = AgentInputs({}, {"spec.toml": spec.to_toml()}, machine={"zone": "zone-a", "type": "big"})
        self.plan = agent_plan(spec, RUN, inputs)
        self.plan |= {"submitted": time.time(), "hosts": ["127.0.0.1"] * spec.nodes, "folder": str(folder)}
        self.plan["environment"] |= {"HOME": str(folder), "PYTHONPATH": spec.env.get("PYTHONPATH", "")}
        self.plan["environment"][protocol.ENV_CHECKPOINT_PATH] = str(folder / "runs" / RUN / "checkpoints")
        if staging := self.plan.get("staging"):
            staging["to"] = str(folder / "staged")
        self.paths = RunPaths(folder / "runs" / RUN)
        self.agents: dict[int, ForkedPython] = {}
        self.port = free_port()
        self.copies_port = free_pair()  # of node 0; that of node 1 is one higher

    def start(
        self,
        node: int,
        restart_count: int = 0,
        errors: Sequence[Sequence[Any]] = (),
        pod: str = "",
        authority: str | None = RUN,
        machine: str | None = None,
    ) -> ForkedPython:
        """Start the agent of a node, whose system calls meet the *errors* (see `tests.transient_errors`).

        Agents of different pods share the run folder and nothing else. Its TLS files are those of *authority*, if any.
        Each pod is on a *machine* of its own.
        """
        mounts = self.folder / f"node-{node}{pod}"
        port = free_port() if pod else self.port
        for name in ("config", "secret", "pod", "work"):
            (mounts / name).mkdir(parents=True, exist_ok=True)
        if not (mounts / "runs").exists():
            (self.folder / "runs").mkdir(exist_ok=True)
            (mounts / "runs").symlink_to(self.folder / "runs")
        plan = self.plan
        if memory := plan["environment"].get(protocol.ENV_CHECKPOINT_MEMORY_PATH):
            own = {protocol.ENV_CHECKPOINT_MEMORY_PATH: f"{mounts}{memory}"}
            plan = {**plan, "environment": {**plan["environment"], **own}}
        (mounts / "config" / "plan.json").write_text(json.dumps(plan))
        if authority is not None:
            write_certificates(mounts / "secret", dict(certificates(authority)))
        member = self.member(node)
        environment = {**os.environ, pod_context.ENV_RESTART_COUNT: str(restart_count)}
        environment |= {pod_context.ENV_ROLE: member.role, pod_context.ENV_INDEX: str(member.number)}
        if member.role in WORKERS:
            annotation = f"{pod_context.FAILURE_COUNTS[0]}={json.dumps(str(restart_count))}\n"
            (mounts / "pod" / "annotations").write_text(annotation)
        environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[3])
        environment[hardware.ENV_NODE_NAME] = machine or f"machine-{node}"
        environment["COPIES_PORT"] = str(self.copies_port)
        environment[transient_errors.VARIABLE] = json.dumps(list(errors))
        agent = ["-m", "tests.unit.agent.agent_process", str(mounts), str(port)]
        with (self.folder / f"output-{node}-{restart_count}").open("w") as log, Path(os.devnull).open() as nothing:
            files = nothing.fileno(), log.fileno(), log.fileno()
            self.agents[node] = self.process(node, agent, files, environment)
        return self.agents[node]

    def process(
        self, node: int, arguments: list[str], files: tuple[int, int, int], environment: dict[str, str]
    ) -> ForkedPython:
        """The process of an agent, with these arguments of Python and standard files."""
        return ForkedPython(arguments, files, IMPORTS, environment=environment)

    def member(self, number: int) -> Member:
        """The member of a number: after nodes come pods that stand by, then workers; of the last role any number."""
        counts = {NODE: len(self.plan["hosts"]), STANDBY: len(self.plan.get("standby", []))}
        counts |= {name: role["count"] for name, role in workers(self.plan).items()} or {WORKER: 0}
        for role, count in list(counts.items())[:-1]:
            if number < count:
                return Member(role, number)
            number -= count
        return Member(list(counts)[-1], number)

    def stop(self, reason: str = "enough") -> None:
        """Ask node 0 to stop, as `spotmpi stop` does."""
        text = f'other="x"\n{pod_context.STOP_ANNOTATION}={json.dumps(reason)}\n'
        (self.folder / "node-0" / "pod" / "annotations").write_text(text)

    def codes(self) -> list[int]:
        """The exit code of every agent, by node, once all have ended."""
        return [self.agents[node].wait(LIMIT) for node in sorted(self.agents)]

    def events(self, node: int = 0, restart_count: int = 0) -> list[Event]:
        """The events that an agent has printed."""
        log = self.folder / f"output-{node}-{restart_count}"
        text = log.read_text() if log.exists() else ""
        entries = [pod_output.parse(line) for line in text.splitlines()]
        return [entry.event for entry in entries if entry and entry.event]

    def until(self, what: str, condition: Callable[[], object]) -> None:
        """Wait for something."""
        deadline = time.monotonic() + LIMIT
        while not condition():
            assert time.monotonic() < deadline, f"no {what!r}\n{self._state()}"
            time.sleep(0.02)

    def _state(self) -> str:
        """What each agent has printed, and how it ended."""
        logs = [f"{log.name}:\n{log.read_text()[-2000:]}" for log in sorted(self.folder.glob("output-*"))]
        return "\n".join([*logs, str({node: agent.poll() for node, agent in self.agents.items()})])

    def texts(self, node: int = 0, restart_count: int = 0) -> list[str]:
        """The lines of output that an agent has printed."""
        return [event.values["text"] for event in self.events(node, restart_count) if event.kind == "line"]

    def printed(self, text: str | None = None, node: int = 0, restart_count: int = 0) -> None:
        """Wait until a program on a node has printed *text*, or any line."""

        def has_printed() -> bool:
            texts = self.texts(node, restart_count)
            return text in texts or (text is None and bool(texts))

        self.until(f"output of node {node}", has_printed)

    def printed_by(self, node: int, start: str, restart_count: int = 0) -> None:
        """Wait until a program on a node has printed a line with that *start*."""
        self.until(start, lambda: any(text.startswith(start) for text in self.texts(node, restart_count)))

    def attempt(self) -> dict[str, Any]:
        """The record of the first attempt."""
        values: dict[str, Any] = json.loads((self.paths.attempts / "1" / "node-0.json").read_text())
        return values


def kinds(events: list[Event]) -> list[str]:
    return [event.kind for event in events if event.kind not in ("line", "metric", "waiting")]


def end_well(run: Gang, tmp_path: Path) -> dict[str, Any]:
    """Let the programs end, and the other pods as JobSet does once node 0's has; the summary."""
    (tmp_path / "enough").touch()
    assert run.agents[0].wait(LIMIT) == 0
    for agent in run.agents.values():
        if agent.poll() is None:
            agent.send_signal(signal.SIGTERM)
            agent.wait(LIMIT)
    summary: dict[str, Any] = json.loads(run.paths.summary.read_text())
    return summary
