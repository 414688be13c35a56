"""The GitHub workflows: who gets credentials, what is guarded by reviewers, and that actionlint agrees."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.ci_access import WORKFLOWS
from tests.tools import REPOSITORY, bin_folder

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


def test_the_workflows_are_these() -> None:
    assert {path.stem for path in FILES} == CHANGING | {"tests", "tests-nightly", "environment-preview"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_workflow_may_only_read_unless_a_job_sets_permissions(path: Path) -> None:
    assert workflow(path)["permissions"] == {"contents": "read"}
    assert "pull_request_target" not in triggers(path)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_job_has_a_time_limit_and_excludes_others_of_its_stack(path: Path) -> None:
    for job in jobs(path):
        assert job["timeout-minutes"] <= 120
        assert "concurrency" in job or "concurrency" in workflow(path)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_untrusted_input_is_interpolated_into_a_shell(path: Path) -> None:
    assert [step["run"] for step in steps(path) if "${{" in step.get("run", "")] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_script_of_a_workflow_exists_and_is_executable(path: Path) -> None:
    for step in steps(path):
        for script in re.findall(r"(?:scripts|\.ci)/[\w-]+", step.get("run", "")):
            assert os.access(REPOSITORY / script, os.X_OK), script


@pytest.mark.parametrize("name", ["tests", "tests-nightly"])
def test_tests_run_without_credentials(name: str) -> None:
    text = (REPOSITORY / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8")
    assert "secrets." not in text
    assert "id-token" not in text


def test_the_tests_workflow_runs_for_forks() -> None:
    path = REPOSITORY / ".github" / "workflows" / "tests.yml"
    assert "pull_request" in triggers(path)
    assert all("if" not in job for job in jobs(path))


def test_a_preview_is_for_branches_of_the_repository_and_assumes_the_reading_role() -> None:
    path = REPOSITORY / ".github" / "workflows" / "environment-preview.yml"
    (job,) = jobs(path)
    assert "github.event.pull_request.head.repo.full_name == github.repository" in job["if"]
    assert "environment" not in job
    assert job["permissions"] == {"contents": "read", "id-token": "write", "pull-requests": "write"}
    assert roles(path) == ["${{ vars.SPOTMPI_PREVIEW_ROLE }}"]


def test_a_preview_which_runs_the_code_of_a_pull_request_has_no_secret() -> None:
    text = (REPOSITORY / ".github" / "workflows" / "environment-preview.yml").read_text(encoding="utf-8")
    assert "secrets." not in text and "PASSPHRASE" not in text


@pytest.mark.parametrize("name", sorted(CHANGING))
def test_workflows_with_changes_wait_for_an_environment_that_their_role_trusts(name: str) -> None:
    path = REPOSITORY / ".github" / "workflows" / f"{name}.yml"
    (job,) = jobs(path)
    what = "build" if name == "environment-up" else "destroy"
    assert f"environment:{job['environment']}" in WORKFLOWS[what].subjects
    assert not {"push", "pull_request"} & set(triggers(path))
    assert roles(path) == [f"${{{{ vars.SPOTMPI_{what.upper()}_ROLE }}}}"]


def test_workflows_with_changes_are_for_the_main_branch_only() -> None:
    assert {what: workflow.main_only for what, workflow in WORKFLOWS.items()} == {
        "preview": False,
        "build": True,
        "destroy": True,
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_actions_are_pinned_by_commit_with_their_version_in_a_comment(path: Path) -> None:
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if "uses:" in line]
    assert lines
    for line in lines:
        assert re.fullmatch(r"(- )?uses: [\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line


def test_only_the_nightly_workflows_are_scheduled() -> None:
    assert [path.stem for path in FILES if "schedule" in triggers(path)] == ["environment-nightly", "tests-nightly"]


def test_the_selectable_stacks_are_ready_ones_and_persistent_storage_can_not_be_destroyed() -> None:
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


@pytest.mark.parametrize("name", ["environment-preview", "environment-up"])
def test_preview_and_build_have_the_same_access_list(name: str) -> None:
    (job,) = jobs(REPOSITORY / ".github" / "workflows" / f"{name}.yml")
    assert job["env"]["SPOTMPI_ACCESS"] == "${{ vars.SPOTMPI_ACCESS }}"


def roles(path: Path) -> list[str]:
    return [step["with"]["role-to-assume"] for step in steps(path) if "aws-actions/" in step.get("uses", "")]


@pytest.mark.engine
@pytest.mark.tools("actionlint")
@pytest.mark.timeout(300)
def test_actionlint_finds_nothing() -> None:
    program = bin_folder("actionlint") / "actionlint"
    result = subprocess.run([program, *FILES], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "")
