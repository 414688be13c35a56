"""A ready stack that is built once, with nodes, data and a live run, to which changes are made again and again."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from spotmpi.core.errors import SpotmpiError
from spotmpi.environments.up import UpOptions, up
from spotmpi.runs.reader import RunState
from tests.engine.engine import Engine, repository_project
from tests.engine.providers.aws_network import CLUSTER, NODE_GROUP, VPC
from tests.engine.providers.aws_services import FILE_SYSTEM, REPOSITORY
from tests.engine.providers.cloud import Cloud
from tests.engine.providers.records import Record
from tests.engine.providers.scaling import autoscale, sizes
from tests.engine.providers.server import serve_cloud
from tests.engine.remembered_pulumi import RememberingEnvironment
from tests.engine.setting_changes import OTHERS, Change, config_of, file_of
from tests.engine.stack_lifecycle import ACCESS

RUN = RunState("a-1", "", "a", "running")
# An instruction that each refusal has to end with.
_REMEDY = re.compile(
    r"set it back|set aws:region back|undo the change|wait until|EKS can't go back|settings to change|set `|writes one"
    r"|assume a role|make it the first of"
)
_ASKS = {"--replace-nodes": "replace_nodes", "--delete-data": "delete_data", "stop the live runs": "idle"}
REFUSED, INVALID, APPLIED, ASKED = "refused", "not valid", "applied", "asked"


@dataclass
class BuiltStack:
    """A built stack; each change starts from the same state of the engine and of the cloud."""

    stack: str
    config: Mapping[str, Any]
    lab: RememberingEnvironment
    records: dict[str, Record] = field(default_factory=dict)

    def build(self) -> None:
        """Build the stack with one node in each group, whose pods mount the volume."""
        engine, cloud = self.lab.engine, self.lab.cloud
        cloud.existing_arns |= OTHERS
        engine.configure(self.stack, {**self.config, "spotmpi:access": ACCESS})
        up(self.stack, self.lab.dependencies, UpOptions(images=False))
        for group in cloud.records.of(NODE_GROUP):
            if not group.urn.endswith("-system"):
                autoscale(cloud, group.urn.split("::")[-1], 1)
        self.records = {record.key: record for record in cloud.records}
        for name in ("state", "project/stacks"):
            shutil.copytree(engine.folder / name, engine.folder / "built" / name)

    def restore(self) -> None:
        """Go back to what was built."""
        engine, cloud = self.lab.engine, self.lab.cloud
        cloud.records.region = "us-east-1"
        cloud.records.restore(self.records)
        cloud.terminated.clear()
        cloud.script.calls.clear()
        for name in ("state", "project/stacks"):
            shutil.rmtree(engine.folder / name)
            shutil.copytree(engine.folder / "built" / name, engine.folder / name)

    def outcome(self, changes: Sequence[Change]) -> str:
        """How `spotmpi up` ends after the changes; fails where it loses what it did not name.

        Options that it asks for are added one by one, and the live run is stopped where it asks for that.
        """
        self.restore()
        for change in changes:
            stack = f"{self.stack}-data" if change.data else self.stack
            config = deepcopy(self.lab.engine.config(stack))
            change.apply(config)
            self.lab.engine.configure(stack, dict.fromkeys(self.lab.engine.config(stack)) | config)
        asked: list[str] = []
        while (refusal := self._up(asked)) is not None:
            # Persistent storage is a stack of its own, which is updated before the environment is looked at.
            first = any(change.data for change in changes)
            assert first or self._untouched(), f"changed before it was refused: {refusal}"
            need = next((text for text in _ASKS if text in refusal and text not in asked), None)
            if need is None:
                assert _REMEDY.search(refusal), refusal
                return INVALID if "settings to change" in refusal else REFUSED
            asked.append(need)
        question = self._question()
        self._require_named(question)
        for stack in {self.stack, *(f"{self.stack}-data" for change in changes if change.data)}:
            assert not self.lab.pulumi.preview(stack).changes, f"a second `up` has changes: {self.lab.output[-40:]}"
        return ", ".join(asked) or (ASKED if "and lose" in question else APPLIED)

    def _up(self, asked: Sequence[str]) -> str | None:
        """Run `spotmpi up`; why it was refused, if it was."""
        lab, options = self.lab, {_ASKS[each] for each in asked}
        lab.runs = [] if "idle" in options or "delete_data" in options else [RUN]
        lab.cloud.mounted = {"training/runs"} if lab.runs else set()
        name = f"spotmpi-{self.stack}" if "delete_data" in options else None
        lab.actions.clear()
        lab.output.clear()
        try:
            up(
                self.stack,
                lab.dependencies,
                UpOptions(images=False, replace_nodes="replace_nodes" in options, delete_data=name),
            )
        except SpotmpiError as error:
            return str(error)
        return None

    def _untouched(self) -> bool:
        changed = [call for call in self.lab.cloud.script.changes() if not call.preview]
        return not changed and {record.key: record for record in self.lab.cloud.records} == self.records

    def _question(self) -> str:
        return " ".join(action for action in self.lab.actions if action.startswith("Build "))

    def _require_named(self, question: str) -> None:
        """Fail unless everything that is lost stands in the question."""
        cloud = self.lab.cloud
        for ended, _ in cloud.terminated:
            (labels,) = [record.inputs["labels"] for record in self.records.values() if record.id == ended]
            label = labels.get("spotmpi.dev/group")
            shown = f"running nodes? of {re.escape(label)}" if label else "system nodes?"
            assert re.search(shown, question), f"{ended} lost nodes after: {question}"
        now = {record.key for record in cloud.records}
        for record in self.records.values():
            if record.token in (FILE_SYSTEM, REPOSITORY) and record.key not in now:
                assert record.id in question, f"{record.id} is gone after: {question}"
            if record.token in (CLUSTER, VPC) or record.inputs.get("kind") == "Namespace":
                assert record.key in now, f"{record.key} is gone"
        for group in cloud.records.of(NODE_GROUP):
            before = self.records.get(group.key)
            kept = before is None or sizes(group)[1] >= sizes(before)[1]
            assert kept, f"{group.id} has fewer nodes than before"


@contextmanager
def built_stack(stack: str, folder: Path, python: Path) -> Iterator[BuiltStack]:
    """A ready stack, built for as long as the context lasts; its programs run in the environment *python*."""
    cloud = Cloud()
    with serve_cloud(cloud) as servers, pytest.MonkeyPatch.context() as patch:
        engine = Engine(folder, servers)
        repository_project(engine, python)
        patch.setenv("SPOTMPI_STATE", str(folder / "kept"))
        patch.chdir(engine.project)
        built = BuiltStack(file_of(stack), config_of(stack), RememberingEnvironment(engine, cloud))
        built.build()
        yield built
