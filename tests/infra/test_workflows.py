"""The GitHub workflows: who gets credentials, what is guarded by reviewers, and that actionlint agrees."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.ci_access import DEPLOY_SUBJECTS

REPOSITORY = Path(__file__).resolve().parents[2]
FILES = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))
CHANGING = {"environment-up", "environment-destroy", "environment-nightly"}


def workflow(path: Path) -> dict[Any, Any]:
    return dict(yaml.safe_load(path.read_text(encoding="utf-8")))


def triggers(path: Path) -> Any:
    # YAML 1.1 reads the key `on` as true.
    return workflow(path)[True]


def jobs(path: Path) -> Iterator[dict[str, Any]]:
    yield from workflow(path)["jobs"].values()


def steps(path: Path) -> Iterator[dict[str, Any]]:
    for job in jobs(path):
        yield from job["steps"]


def test_the_workflows_are_those() -> None:
    assert {path.stem for path in FILES} == CHANGING | {"tests", "environment-preview"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_workflow_may_only_read_unless_a_job_says_more(path: Path) -> None:
    assert workflow(path)["permissions"] == {"contents": "read"}
    assert "pull_request_target" not in triggers(path)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_job_ends_by_itself_and_never_runs_beside_another_of_its_stack(path: Path) -> None:
    for job in jobs(path):
        assert job["timeout-minutes"] <= 120
        assert "concurrency" in job or "concurrency" in workflow(path)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_nothing_from_outside_is_pasted_into_a_shell(path: Path) -> None:
    assert [step["run"] for step in steps(path) if "${{" in step.get("run", "")] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_script_that_a_workflow_runs_is_there_and_may_be_run(path: Path) -> None:
    for step in steps(path):
        for script in re.findall(r"(?:scripts|\.ci)/[\w-]+", step.get("run", "")):
            assert os.access(REPOSITORY / script, os.X_OK), script


def test_the_tests_workflow_has_no_credentials_and_runs_for_forks() -> None:
    path = REPOSITORY / ".github" / "workflows" / "tests.yml"
    text = path.read_text(encoding="utf-8")
    assert "secrets." not in text
    assert "id-token" not in text
    assert "pull_request" in triggers(path)
    assert all("if" not in job for job in jobs(path))


def test_a_preview_is_for_branches_of_the_repository_and_takes_the_reading_role() -> None:
    path = REPOSITORY / ".github" / "workflows" / "environment-preview.yml"
    (job,) = jobs(path)
    assert "github.event.pull_request.head.repo.full_name == github.repository" in job["if"]
    assert "environment" not in job
    assert job["permissions"] == {"contents": "read", "id-token": "write", "pull-requests": "write"}
    assert roles(path) == ["${{ vars.SPOTMPI_PREVIEW_ROLE }}"]


@pytest.mark.parametrize("name", sorted(CHANGING))
def test_what_changes_anything_waits_for_an_environment_that_the_role_trusts(name: str) -> None:
    path = REPOSITORY / ".github" / "workflows" / f"{name}.yml"
    (job,) = jobs(path)
    assert f"environment:{job['environment']}" in DEPLOY_SUBJECTS
    assert not {"push", "pull_request"} & set(triggers(path))
    assert roles(path) == ["${{ vars.SPOTMPI_DEPLOY_ROLE }}"]


def test_only_the_nightly_destroy_starts_by_itself() -> None:
    assert [path.stem for path in FILES if "schedule" in triggers(path)] == ["environment-nightly"]


def test_the_stacks_on_offer_are_ready_ones_and_kept_storage_is_none_of_those_to_destroy() -> None:
    ready = {path.name.split(".")[1] for path in (REPOSITORY / "stacks").glob("Pulumi.*.yaml")}
    offered = {
        name: triggers(REPOSITORY / ".github" / "workflows" / f"{name}.yml")["workflow_dispatch"]["inputs"]["stack"]
        for name in ("environment-up", "environment-destroy")
    }
    assert set(offered["environment-up"]["options"]) == ready
    assert set(offered["environment-destroy"]["options"]) == {name for name in ready if not name.endswith("-data")}


def test_pulumi_is_the_version_that_is_locked() -> None:
    locked = re.search(r"^pulumi==([\d.]+)", (REPOSITORY / "requirements.lock").read_text(encoding="utf-8"), re.M)
    assert locked is not None
    used = {
        step["with"]["pulumi-version"] for path in FILES for step in steps(path) if "pulumi/" in step.get("uses", "")
    }
    assert used == {locked[1]}


def roles(path: Path) -> list[str]:
    return [step["with"]["role-to-assume"] for step in steps(path) if "aws-actions/" in step.get("uses", "")]


@pytest.mark.engine
@pytest.mark.timeout(300)
def test_actionlint_finds_nothing() -> None:
    tools = REPOSITORY / "scripts" / "tools"
    folders = subprocess.run([sys.executable, tools, "actionlint"], check=True, capture_output=True, text=True).stdout
    program = Path(folders.split()[0]) / "actionlint"
    done = subprocess.run([program, *FILES], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
