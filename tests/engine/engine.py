"""The real Pulumi CLI on a project of the test's own, with a local state and nothing of the user's."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.engine.providers.server import StandInServers
from tests.tools import OF_MARKER, REPOSITORY, bin_folder

GUARDRAILS = REPOSITORY / "infra" / "guardrails"


@dataclass(frozen=True)
class Step:
    """What the engine did with one resource."""

    operation: str
    token: str
    name: str


@dataclass(frozen=True)
class Outcome:
    """How one command of the CLI ended: exit status, everything printed, and the steps it took."""

    status: int
    text: str
    steps: tuple[Step, ...] = ()

    def with_operation(self, *operations: str) -> list[Step]:
        """The steps with one of these operations."""
        return [step for step in self.steps if step.operation in operations]

    def require_success(self) -> Outcome:
        """This outcome; the test fails with the whole output unless the command succeeded."""
        assert self.status == 0, self.text
        return self

    def require_failure(self) -> Outcome:
        """This outcome; the test fails with the whole output unless the command failed."""
        assert self.status != 0, self.text
        return self

    @property
    def changes(self) -> list[Step]:
        """The steps that change anything."""
        return [step for step in self.steps if step.operation not in ("same", "read", "refresh")]


@dataclass
class Engine:
    """The CLI in a folder of its own; `servers` is what `serve_cloud` yields."""

    folder: Path
    servers: StandInServers
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def project(self) -> Path:
        """The folder that holds Pulumi.yaml."""
        return self.folder / "project"

    def prepare(self) -> None:
        """Lay out state, home and project folders."""
        for name in ("state", "home", "project"):
            (self.folder / name).mkdir(parents=True)

    def variables(self) -> dict[str, str]:
        """The environment of every command: nothing is fetched, nothing of the user's is read."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("PULUMI_", "AWS_"))}
        folders = [str(bin_folder(tool)) for tool in OF_MARKER["engine"]]
        return {
            **inherited,
            "PATH": os.pathsep.join([*folders, str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PULUMI_HOME": str(self.folder / "home"),
            "PULUMI_BACKEND_URL": f"file://{self.folder / 'state'}",
            "PULUMI_CONFIG_PASSPHRASE": "engine tests",
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
            "PULUMI_DEBUG_COMMANDS": "true",
            "PULUMI_DEBUG_PROVIDERS": self.servers.providers,
            "AWS_ENDPOINT_URL_AUTO_SCALING": self.servers.scaling,
            "AWS_ACCESS_KEY_ID": "nobody",
            "AWS_SECRET_ACCESS_KEY": "nothing",
            **self.environment,
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command in a session of its own and leave it running; its output goes to one pipe."""
        return subprocess.Popen(
            ["pulumi", "--non-interactive", *arguments],
            cwd=self.project,
            env=self.variables(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str) -> Outcome:
        """Run a command to its end."""
        process = self.start(*arguments)
        text, _ = process.communicate()
        return Outcome(process.returncode, text)

    def state_is_stable(self, stack: str, seconds: float = 2.0) -> bool:
        """Whether the state was not written for so long; who kills the CLI while it writes is left with half a file."""
        files = list((self.folder / "state").rglob(f"{stack}.json"))
        return bool(files) and time.time() - files[0].stat().st_mtime > seconds

    @staticmethod
    def kill(process: subprocess.Popen[str]) -> None:
        """Kill a command and all that it started, as a machine that dies does."""
        # The language host puts the program into a process group of its own; the session stays the same.
        listed = subprocess.run(["ps", "-A", "-o", "pid="], stdout=subprocess.PIPE, text=True, check=True).stdout
        for pid in map(int, listed.split()):
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(pid) == process.pid:
                    os.kill(pid, signal.SIGKILL)
        process.communicate()

    def init(self, stack: str, config: Mapping[str, Any] | None = None) -> None:
        """Make a stack, and write its configuration where the project has none for it."""
        self.run("stack", "init", stack, "--no-select").require_success()
        if config is not None:
            self.configure(stack, config)

    def configure(self, stack: str, changes: Mapping[str, Any]) -> None:
        """Change keys of a stack's configuration; None takes a key away."""
        path = self._config_file(stack)
        settings = yaml.safe_load(path.read_text()) if path.exists() else {}
        values = {**settings.get("config", {}), **changes}
        settings["config"] = {key: value for key, value in values.items() if value is not None}
        path.write_text(yaml.safe_dump(settings))

    def config(self, stack: str) -> dict[str, Any]:
        """A stack's configuration."""
        return dict(yaml.safe_load(self._config_file(stack).read_text())["config"])

    def _config_file(self, stack: str) -> Path:
        project = yaml.safe_load((self.project / "Pulumi.yaml").read_text())
        return self.project / str(project.get("stackConfigDir", ".")) / f"Pulumi.{stack}.yaml"

    def preview(self, stack: str, *more: str) -> Outcome:
        """What an update would do."""
        return self._operate("preview", stack, more)

    def up(self, stack: str, *more: str) -> Outcome:
        """Bring a stack to what its program asks for."""
        return self._operate("up", stack, ("--yes", "--skip-preview", *more))

    def destroy(self, stack: str, *more: str) -> Outcome:
        """Take everything of a stack away."""
        return self._operate("destroy", stack, ("--yes", "--skip-preview", *more))

    def _operate(self, verb: str, stack: str, more: Sequence[str]) -> Outcome:
        log = self.folder / "events.json"
        log.unlink(missing_ok=True)
        outcome = self.run(verb, "--stack", stack, "--event-log", str(log), *more)
        return Outcome(outcome.status, outcome.text, tuple(_steps(log)))

    def outputs(self, stack: str) -> dict[str, Any]:
        """What a stack exports, secrets left out."""
        outcome = self.run("stack", "output", "--json", "--stack", stack).require_success()
        return dict(json.loads(outcome.text))

    def resources(self, stack: str) -> list[dict[str, Any]]:
        """The resources in a stack's state."""
        outcome = self.run("stack", "export", "--stack", stack).require_success()
        return list(json.loads(outcome.text)["deployment"].get("resources", []))


def _steps(log: Path) -> list[Step]:
    if not log.exists():
        return []
    steps = []
    for line in log.read_text().splitlines():
        metadata = json.loads(line).get("resourcePreEvent", {}).get("metadata")
        if metadata:
            steps.append(Step(metadata["op"], metadata["type"], metadata["urn"].split("::")[-1]))
    return steps


def repository_project(engine: Engine, environment: Path = Path(sys.prefix)) -> None:
    """Make the engine's project a copy of the repository's, which nothing that the CLI writes can reach.

    The program runs in a virtual environment, by default that of the tests.
    """
    engine.prepare()
    (engine.project / "Pulumi.yaml").write_text((REPOSITORY / "Pulumi.yaml").read_text())
    (engine.project / "infra").symlink_to(REPOSITORY / "infra")
    (engine.project / ".venv").symlink_to(environment)
    (engine.project / "stacks").mkdir()
    for stack in (REPOSITORY / "stacks").glob("Pulumi.*.yaml"):
        (engine.project / "stacks" / stack.name).write_text(stack.read_text())


def small_project(engine: Engine, program: str) -> None:
    """Make the engine's project one program of the test's own, with the stack `small` in us-east-1."""
    engine.prepare()
    runtime = {"name": "python", "options": {"virtualenv": sys.prefix}}
    (engine.project / "Pulumi.yaml").write_text(yaml.safe_dump({"name": "small", "runtime": runtime}))
    (engine.project / "__main__.py").write_text(program)
    engine.init("small", {"aws:region": "us-east-1"})
