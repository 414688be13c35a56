"""The Pulumi project that `spotmpi init --environment` writes."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml

from spotmpi.core import names
from spotmpi.core.errors import InputError, SpotmpiError
from spotmpi.environments import project
from spotmpi.environments.stack_file import read_stack

WORKFLOWS = Path(".github") / "workflows"


def options(folder: Path, name: str) -> list[str]:
    match = re.search(r"options: (\[.*\])", (folder / WORKFLOWS / f"environment-{name}.yml").read_text())
    return list(yaml.safe_load(match[1])) if match else []


def test_a_project_has_all_that_pulumi_and_ci_run(tmp_path: Path) -> None:
    files = project.write("lab", tmp_path)
    assert set(files) == {path for path in tmp_path.rglob("*") if path.is_file()}
    program = {path.name for path in (names.PROJECT / "infra").glob("*.py")}
    assert {path.name for path in (tmp_path / "infra").glob("*.py")} == program
    assert (tmp_path / "Pulumi.yaml").read_text() == (names.PROJECT / "Pulumi.yaml").read_text()
    assert "pulumi==" in (tmp_path / "requirements.txt").read_text()
    # The remedy for an instance type that the program does not know.
    assert "boto3==" in (tmp_path / "requirements.txt").read_text()
    assert (tmp_path / "scripts" / "instance-types").is_file()
    assert read_stack("lab", tmp_path / "stacks").groups[0].name == "g4dn"
    assert all(os.access(path, os.X_OK) for path in (tmp_path / "scripts").iterdir())
    assert options(tmp_path, "up") == options(tmp_path, "destroy") == ["lab"]
    for path in (tmp_path / WORKFLOWS).iterdir():
        for command in re.findall(r"\./?(scripts/[\w-]+)|python (scripts/[\w-]+)", path.read_text()):
            assert (tmp_path / "".join(command)).is_file(), path
        assert "requirements.lock" not in path.read_text()


def test_kept_storage_comes_with_the_stack_that_needs_it(tmp_path: Path) -> None:
    project.write("g5", tmp_path)
    assert {path.name for path in (tmp_path / "stacks").iterdir()} == {"Pulumi.g5.yaml", "Pulumi.g5-data.yaml"}
    assert options(tmp_path, "up") == ["g5-data", "g5"] and options(tmp_path, "destroy") == ["g5"]


@pytest.mark.parametrize("name", ["team", "spotmpi-team"])
def test_a_new_name_starts_as_a_copy_of_lab_and_is_added_to_a_project(name: str, tmp_path: Path) -> None:
    project.write("lab", tmp_path)
    (tmp_path / "infra" / "__main__.py").write_text("# mine\n")
    assert project.write(name, tmp_path) == [tmp_path / "stacks" / "Pulumi.team.yaml"]
    assert (tmp_path / "infra" / "__main__.py").read_text() == "# mine\n"
    lab = (tmp_path / "stacks" / "Pulumi.lab.yaml").read_text()
    assert (tmp_path / "stacks" / "Pulumi.team.yaml").read_text() == lab


def test_nothing_that_exists_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "infra").mkdir()
    (tmp_path / "infra" / "names.py").write_text("mine")
    (tmp_path / ".gitignore").write_text("mine")
    with pytest.raises(InputError, match=r"infra/names\.py exists already"):
        project.write("lab", tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == [".gitignore", "infra", "names.py"]


def test_a_name_that_is_of_the_storage_of_another_stack_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="use another ending: a stack NAME-data is the storage of NAME"):
        project.write("team-data", tmp_path)


@pytest.mark.parametrize("name", ["", "Lab", "../lab", "a" * 17, "lab.yaml", "my--lab", "lab-"])
def test_a_name_that_no_stack_can_have_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at most 16 lower-case letters"):
        project.write(name, tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SpotmpiError, match=r"cannot write .*; name another folder"):
        project.write("lab", tmp_path / "file")
