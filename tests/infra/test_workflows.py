"""The GitHub workflows: who gets credentials, what is guarded by reviewers, and that actionlint agrees."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.ci_access import WORKFLOWS
from tests.tools import REPOSITORY, bin_folder

FILES = {path.stem: path for path in sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))}
CHANGING = {"environment-up", "environment-destroy", "environment-nightly"}


def text(name: str) -> str:
    return FILES[name].read_text(encoding="utf-8")


def workflow(name: str) -> dict[Any, Any]:
    return dict(yaml.safe_load(text(name)))


def triggers(name: str) -> Any:
    return workflow(name)[True]  # YAML 1.1 reads the key `on` as true.


def jobs(name: str) -> list[dict[str, Any]]:
    return list(workflow(name)["jobs"].values())


def steps(name: str) -> list[dict[str, Any]]:
    return [step for job in jobs(name) for step in job["steps"]]


def roles(name: str) -> list[str]:
    return [step["with"]["role-to-assume"] for step in steps(name) if "aws-actions/" in step.get("uses", "")]


def test_the_workflows_are_these_and_only_the_nightly_ones_are_scheduled() -> None:
    assert set(FILES) == CHANGING | {"tests", "tests-nightly", "environment-preview"}
    assert {name for name in FILES if "schedule" in triggers(name)} == {"environment-nightly", "tests-nightly"}


@pytest.mark.parametrize("name", FILES)
def test_every_workflow_may_only_read_unless_a_job_sets_permissions(name: str) -> None:
    assert workflow(name)["permissions"] == {"contents": "read"}
    assert "pull_request_target" not in triggers(name)


@pytest.mark.parametrize("name", FILES)
def test_every_job_has_a_time_limit_and_excludes_others_of_its_stack(name: str) -> None:
    for job in jobs(name):
        assert job["timeout-minutes"] <= (330 if name == "tests-nightly" else 120)
        group = str((job.get("concurrency") or workflow(name)["concurrency"])["group"])
        # GitHub cancels what waits in a group when something newer arrives: a preview must not cancel a destroy.
        assert group.startswith("environment-") == (name in CHANGING)


@pytest.mark.parametrize("name", FILES)
def test_shell_steps_interpolate_no_untrusted_input_and_run_scripts_that_exist(name: str) -> None:
    for command in (step.get("run", "") for step in steps(name)):
        assert "${{" not in command
        for script in re.findall(r"(?:scripts|\.ci)/[\w-]+", command):
            assert os.access(REPOSITORY / script, os.X_OK), script


@pytest.mark.parametrize("name", FILES)
def test_actions_are_pinned_by_commit_with_their_version_in_a_comment(name: str) -> None:
    lines = [line.strip() for line in text(name).splitlines() if "uses:" in line]
    assert lines
    for line in lines:
        assert re.fullmatch(r"(- )?uses: [\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line


def test_tests_run_without_credentials_and_for_forks() -> None:
    for name in ("tests", "tests-nightly"):
        assert "secrets." not in text(name) and "id-token" not in text(name)
    assert "pull_request" in triggers("tests")
    assert all("if" not in job for job in jobs("tests"))


@pytest.mark.parametrize("name", FILES)
def test_no_checkout_leaves_a_token_for_the_code_that_runs_next(name: str) -> None:
    for step in steps(name):
        if "actions/checkout@" in step.get("uses", ""):
            assert step["with"] == {"persist-credentials": False}


def test_only_a_job_that_runs_no_code_of_the_pull_request_may_write_to_it() -> None:
    comment = workflow("environment-preview")["jobs"]["comment"]
    assert (comment["needs"], comment["permissions"]) == ("preview", {"pull-requests": "write"})
    assert not [step for step in comment["steps"] if "checkout" in step.get("uses", "")]


GH = """\
import json, pathlib, sys

path, words = pathlib.Path("comments.json"), sys.argv[1:]
comments = json.loads(path.read_text()) if path.exists() else []
if "--jq" in words:
    start = words[words.index("--jq") + 1].split('startswith("')[1].split('"')[0]
    print("\\n".join(str(number) for number, each in enumerate(comments) if each.startswith(start)))
    sys.exit()
body = pathlib.Path(words[-1].partition("=@")[2]).read_text()
if "PATCH" in words:
    comments[int(words[3].rpartition("/")[2])] = body
else:
    comments.append(body)
path.write_text(json.dumps(comments))
"""


class GitHub:
    """The step that comments, with a `gh` on PATH that lists, adds and changes comments in a file."""

    def __init__(self, folder: Path):
        self._folder = folder
        program = folder / "bin" / "gh"
        program.parent.mkdir()
        program.write_text(f"#!{sys.executable}\n{GH}", encoding="utf-8")
        program.chmod(0o755)

    def preview(self, stack: str, text: str) -> None:
        path = self._folder / "previews" / f"preview-{stack}" / "preview.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def comments(self) -> list[str]:
        """All comments, once the step has run."""
        job = workflow("environment-preview")["jobs"]["comment"]
        (script,) = (step["run"] for step in job["steps"] if "run" in step)
        path = f"{self._folder / 'bin'}:{os.environ['PATH']}"
        variables = {"PATH": path, "COMMENTS": "repos/a/b/issues/1/comments", "COMMENT": "repos/a/b/issues/comments"}
        subprocess.run(["bash", "-e", "-c", script], cwd=self._folder, env=variables, check=True)
        return list(json.loads((self._folder / "comments.json").read_text()))


def test_a_comment_of_each_stack_is_edited_and_no_output_ends_its_block_of_code(tmp_path: Path) -> None:
    github = GitHub(tmp_path)
    github.preview("lab", "+ create\n```\n@team <!-- spotmpi preview of cpu -->\n")
    github.preview("cpu", "1 unchanged\n")
    cpu, lab = github.comments()
    assert cpu.splitlines() == ["<!-- spotmpi preview of cpu -->", "Preview of `cpu`", "```", "1 unchanged", "```"]
    assert lab.count("```") == 2
    github.preview("lab", "a" + "ü" * 40000)  # GitHub takes 65,536 characters
    cpu, lab = github.comments()
    assert lab.count("```") == 2 and 29000 < len(lab) < 65536
    github.preview("lab", "a\n````\nb\n")
    assert github.comments()[1].splitlines()[2:] == ["```", "a", "'" * 4, "b", "```"]
    github.preview('x") | $ENV.GH_TOKEN, ("', "the name of an artifact is the choice of the code that ran before")
    assert len(github.comments()) == 2


RESULTS = ("success", "failure", "cancelled", "skipped")  # of a job that others need


def runs_after(condition: str, job: str, result: str) -> bool:
    """Whether a job with this condition runs after another that has ended so; by default that has to have succeeded.

    https://docs.github.com/en/actions/reference/workflows-and-actions/expressions#status-check-functions
    """
    functions = {"always()": True, "failure()": result == "failure", "success()": result == "success"}
    text = condition if re.search("|".join(map(re.escape, [*functions, "cancelled()"])), condition) else "success()"
    for name, value in {**functions, f"needs.{job}.result": repr(result), "&&": "and", "||": "or"}.items():
        text = text.replace(name, f" {value} ")
    return bool(eval(text, {}))


def test_a_night_that_leaves_something_opens_an_issue_and_old_locks_do_not_stop_it() -> None:
    nightly = workflow("environment-nightly")["jobs"]
    assert nightly["notify"]["needs"] == "destroy"
    # GitHub cancels a job at its time limit, and one that waits when a newer one of its stack arrives.
    assert [each for each in RESULTS if runs_after(nightly["notify"]["if"], "destroy", each)] == [
        "failure",
        "cancelled",
    ]
    assert nightly["notify"]["permissions"] == {"issues": "write"}
    longest = max(job["timeout-minutes"] for name in CHANGING for job in jobs(name))
    command = nightly["destroy"]["steps"][-1]["run"]
    assert int(command.partition("--cancel-locks-after ")[2]) >= longest


def test_tests_run_as_root_so_that_no_tier_is_left_out() -> None:
    assert [step["run"] for step in steps("tests") if "run" in step] == ["sudo --preserve-env=PATH ./.ci/run"]


def test_a_preview_is_for_branches_of_the_repository_and_assumes_the_reading_role_without_secrets() -> None:
    job = workflow("environment-preview")["jobs"]["preview"]
    assert "github.event.pull_request.head.repo.full_name == github.repository" in job["if"]
    # Dependabot's pull requests get no identity, so their previews would always fail.
    assert "github.event.pull_request.user.login != 'dependabot[bot]'" in job["if"]
    assert "environment" not in job
    assert job["permissions"] == {"contents": "read", "id-token": "write"}
    assert roles("environment-preview") == ["${{ vars.SPOTMPI_PREVIEW_ROLE }}"]
    # It runs the code of a pull request.
    assert "secrets." not in text("environment-preview") and "PASSPHRASE" not in text("environment-preview")


@pytest.mark.parametrize("name", sorted(CHANGING))
def test_workflows_with_changes_wait_for_an_environment_that_their_role_trusts(name: str) -> None:
    job = jobs(name)[0]
    what = "build" if name == "environment-up" else "destroy"
    assert f"environment:{job['environment']}" in WORKFLOWS[what].subjects
    assert not {"push", "pull_request"} & set(triggers(name))
    assert roles(name) == [f"${{{{ vars.SPOTMPI_{what.upper()}_ROLE }}}}"]


def test_workflows_with_changes_are_for_the_main_branch_only() -> None:
    main_only = {what: workflow.main_only for what, workflow in WORKFLOWS.items()}
    assert main_only == {"preview": False, "build": True, "destroy": True}


def test_the_selectable_stacks_are_ready_ones_and_persistent_storage_can_not_be_destroyed() -> None:
    def options(name: str) -> set[str]:
        return set(triggers(name)["workflow_dispatch"]["inputs"]["stack"]["options"])

    stacks = {path.name.split(".")[1] for path in (REPOSITORY / "stacks").glob("Pulumi.*.yaml")}
    # Whose machines EC2 no longer lists: built by hand, where a zone still has them.
    ready = stacks - {"p3", "p3-data"}
    assert options("environment-up") == ready
    assert options("environment-destroy") == {name for name in ready if not name.endswith("-data")}


def test_pulumi_is_the_version_that_is_locked() -> None:
    locked = re.search(r"^pulumi==([\d.]+)", (REPOSITORY / "requirements.lock").read_text(encoding="utf-8"), re.M)
    assert locked is not None
    pulumi_steps = [step for name in FILES for step in steps(name) if "pulumi/" in step.get("uses", "")]
    assert {step["with"]["pulumi-version"] for step in pulumi_steps} == {locked[1]}


@pytest.mark.parametrize("name", ["environment-preview", "environment-up"])
def test_preview_and_build_have_the_same_access_list(name: str) -> None:
    job = jobs(name)[0]
    assert job["env"]["SPOTMPI_ACCESS"] == "${{ vars.SPOTMPI_ACCESS }}"


@pytest.mark.engine
@pytest.mark.tools("actionlint")
@pytest.mark.timeout(300)
def test_actionlint_finds_nothing() -> None:
    program = bin_folder("actionlint") / "actionlint"
    result = subprocess.run([program, *FILES.values()], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "")
