"""What the wheel and the source distribution hold and say of themselves."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from importlib.metadata import packages_distributions
from pathlib import Path, PurePosixPath

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import spotmpi
from scripts import wheel_files
from tests.tools import REPOSITORY

IN_IMAGES = {"PIL", "chainer", "chainermn", "cupy", "mpi4py", "sklearn", "tensorboardX", "torch", "torchvision"}
IN_STORAGE = {"aiohttp"}  # what fsspec needs for an address: it says so before our code imports it


def tracked_files(*paths: str) -> set[str]:
    listed = subprocess.run(["git", "ls-files", "-z", *paths], cwd=REPOSITORY, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return {name for name in listed.stdout.split("\0") if (REPOSITORY / name).is_file()}


@pytest.fixture(scope="module")
def contents(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def test_the_wheel_has_the_package_and_the_project_and_nothing_else(contents: list[str]) -> None:
    package = {name.removeprefix("jobs/") for name in tracked_files("jobs/spotmpi")}
    workflows = [str(path.relative_to(REPOSITORY)) for path in REPOSITORY.glob(wheel_files.WORKFLOWS)]
    project = tracked_files(*wheel_files.FOLDERS, *wheel_files.FILES, *workflows)
    files = {name for name in contents if ".dist-info/" not in name}

    missing = (package | {f"spotmpi/_project/{name}" for name in project}) - files
    assert not missing
    assert {PurePosixPath(name).parts[0] for name in files} == {"spotmpi"}
    assert not [name for name in files if re.search(r"__pycache__|\.pyc$|/tests/|\.orig$", name)]
    assert len(workflows) == 4


def test_the_metadata_names_version_license_and_readme(metadata: Message, contents: list[str]) -> None:
    assert (metadata["Name"], metadata["Version"]) == ("spotmpi", spotmpi.__version__)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in contents)
    assert metadata["Requires-Python"] == ">=3.11"
    assert str(metadata.get_payload()).startswith("# spotmpi")
    assert set(metadata.get_all("Provides-Extra", [])) == {"environments", "kafka", "streams", "dev"}


def imported_packages(folder: Path) -> set[str]:
    """The packages outside the standard library that the files of a folder import, lazily too."""
    modules: set[str] = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules.add(node.module)
    return {name.partition(".")[0] for name in modules} - {*sys.stdlib_module_names, "spotmpi", "infra"}


@pytest.mark.extensive("looks through all sources, for those who change them")
def test_what_the_code_imports_is_required(metadata: Message) -> None:
    requirements = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]
    distributions = packages_distributions()

    def required(marker: str) -> set[str]:
        return {canonicalize_name(each.name) for each in requirements if re.search(marker, str(each.marker))}

    base, program, streams = map(required, ("^None$", 'extra == "environments"', 'extra == "(streams|kafka)"'))

    def undeclared_packages(folder: str, declared: set[str], others: set[str] = frozenset()) -> set[str]:  # type: ignore[assignment]
        names = imported_packages(REPOSITORY / folder) - others
        return {name for name in names if not {canonicalize_name(each) for each in distributions[name]} & declared}

    assert undeclared_packages("jobs/spotmpi", base | streams, IN_IMAGES | IN_STORAGE) == set()
    assert undeclared_packages("infra", program, {"pydantic_core", "botocore"}) == set()  # parts of pydantic and boto3


@pytest.mark.extensive("builds two packages for one that nobody installs from")
def test_the_source_distribution_builds_the_same_wheel(sdist: Path, contents: list[str], tmp_path: Path) -> None:
    from spotmpi.images.environment import find_uv

    shutil.unpack_archive(sdist, tmp_path)
    (source,) = tmp_path.iterdir()
    command = [find_uv(), "build", "--quiet", "--no-build-isolation", "--python", sys.executable, "--wheel"]
    subprocess.run([*command, "--out-dir", str(tmp_path / "wheel"), str(source)], check=True)

    (wheel,) = (tmp_path / "wheel").glob("*.whl")
    with zipfile.ZipFile(wheel) as rebuilt:
        assert set(rebuilt.namelist()) == set(contents)
