"""Where ranks import the agent and the programs from."""

from __future__ import annotations

import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from spotmpi.backends.kubernetes.client import kubeconfig
from spotmpi.core import archives, names
from spotmpi.core.errors import SpotmpiError


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package, with a cache folder of its own."""
    monkeypatch.setattr(names, "INSTALLED", True)
    monkeypatch.setenv("SPOTMPI_CACHE", str(tmp_path))


def test_in_a_checkout_the_rank_source_is_the_checkout() -> None:
    assert names.rank_source() == names.SOURCE


@pytest.mark.usefixtures("installed")
def test_an_installed_package_is_copied_once_and_works_alone(tmp_path: Path) -> None:
    folder = names.rank_source()

    assert names.rank_source() == folder and list((tmp_path / "source").iterdir()) == [folder]
    files = {str(path.relative_to(folder)) for path in folder.rglob("*.py")}
    assert files == {member.name for member in archives.agent_files()}
    code = "import spotmpi.agent.children; print(spotmpi.__file__)"
    result = subprocess.run([sys.executable, "-S", "-E", "-c", code], cwd=folder, capture_output=True, text=True)
    assert result.stdout.strip() == str(folder / "spotmpi" / "__init__.py"), result.stderr


@pytest.mark.usefixtures("installed")
def test_two_processes_that_copy_at_once_get_the_whole_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = names.rank_source()
    answers = [False]  # the other process was not done when this one looked
    monkeypatch.setattr(archives, "is_folder", lambda path: answers.pop() if answers else path.is_dir())
    assert names.rank_source() == first and not answers
    assert [path.name for path in (tmp_path / "source").iterdir()] == [first.name]


def test_a_user_without_a_home_folder_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container with a number of no account, without HOME."""

    def no_account(number: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.setattr(pwd, "getpwuid", no_account)
    for variable in ("HOME", "SPOTMPI_CACHE", "XDG_CACHE_HOME", "SPOTMPI_STATE", "XDG_STATE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(SpotmpiError, match="has no home folder: set HOME, or SPOTMPI_CACHE to a folder"):
        names.cache_folder()
    with pytest.raises(SpotmpiError, match="set HOME, or SPOTMPI_STATE"):
        names.state_folder()
    assert kubeconfig.paths() == [Path.cwd() / "~/.kube/config"], "which is not there"
    monkeypatch.setenv("SPOTMPI_CACHE", "/cache")
    assert names.cache_folder() == Path("/cache")


@pytest.mark.usefixtures("installed")
def test_a_cache_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTMPI_CACHE", str(tmp_path / "file" / "below"))
    (tmp_path / "file").touch()
    with pytest.raises(SpotmpiError, match="set SPOTMPI_CACHE"):
        names.rank_source()
