"""The client on a laptop with macOS, which is not here: its commands, under a double of what macOS lacks."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import spotmpi
from spotmpi.backends.targets import Target
from tests.unit.macos.double import MODULES, PROJECT, absent_names

UNIT = Path("tests/unit")
ON_ENVIRONMENTS = (  # up, down, doctor, zones, nodes and scale, with doubles of AWS, Pulumi and the cluster
    "test_up.py::test_up_builds_after_a_confirmation_and_ends_with_a_smoke_run",
    "test_down.py::test_the_commands_print_the_next_command_and_the_leftovers",
    "doctor/test_doctor.py::test_the_command_prints_lines_or_json_and_fails_on_errors_only",
    "zones/test_zones_command.py::test_write_changes_only_region_zone_and_type_and_prints_the_reason",
    "test_nodes_and_scale.py::test_the_commands_print_nodes_and_warm_nodes",
)
PACKAGE = PROJECT / "jobs" / "spotmpi"
IN_PODS = ("agent", "checkpoint", "programs")  # which run on Linux; what the client uses of them its commands show


def run_under_the_double(*tests: Path, **variables: str) -> None:
    """Run *tests* in a Python on macOS; all of them pass."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    words = [sys.executable, "-m", "tests.unit.macos.double", "-n0", "-p", "no:cacheprovider", *map(str, tests)]
    process = subprocess.run(words, cwd=PROJECT, env={**inherited, **variables}, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout[-8000:] + process.stderr[-2000:]


@pytest.fixture
def linux_pool(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The variables that name a pool whose scheduler and worker run on Linux, as those of a cluster do."""
    with spotmpi.pool(workers=1, on=Target("local", tmp_path / "runs"), echo=lambda text: None) as pool:
        yield {"POOL_RUN": pool.id, "POOL_RUNS": str(tmp_path / "runs")}


@pytest.mark.extensive("runs two folders of tests again; the sources are looked through by a test below")
@pytest.mark.timeout(600)  # a set of tests in a process of its own: beyond 120 s at a load of 40
def test_the_commands_of_a_client_need_nothing_that_macos_lacks(linux_pool: dict[str, str]) -> None:
    environments = (UNIT / "environments" / name for name in ON_ENVIRONMENTS)
    run_under_the_double(UNIT / "macos" / "client.py", *environments, **linux_pool)


@pytest.mark.nightly("the test above runs each command under the double; this one all tests of the rooms behind them")
@pytest.mark.timeout(600)
def test_the_rooms_of_a_client_need_nothing_that_macos_lacks() -> None:
    rooms = "aws backends/kubernetes core data environments forecast metrics plan report runs"
    run_under_the_double(*(UNIT / room for room in rooms.split()))


def uses(source: str) -> Iterator[tuple[str, str]]:
    """Every (module, name) that Python source takes from the modules of which macOS has a part only."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in MODULES:
            yield node.value.id, node.attr
        if isinstance(node, ast.ImportFrom) and node.module in MODULES:
            yield from ((node.module, alias.name) for alias in node.names)


@pytest.mark.extensive("looks through all sources, for those who change them")
def test_no_source_of_the_client_names_what_macos_lacks() -> None:
    """Also where no test comes by."""
    absent = {module: set(absent_names(module)) for module in MODULES}
    found = {
        f"{path.relative_to(PROJECT)}: {module}.{name}"
        for folder in (PACKAGE, PROJECT / "infra")
        for path in folder.rglob("*.py")
        if path.relative_to(folder).parts[0] not in IN_PODS
        for module, name in uses(path.read_text())
        if name in absent[module]
    }
    assert found == set()


def test_the_double_knows_names_that_this_python_has() -> None:
    """The stubs are those of the standard library that runs here, so that something is really removed."""
    for module, names in {
        "os": {"sched_getaffinity", "pidfd_open", "memfd_create", "pipe2", "posix_fadvise", "O_TMPFILE"},
        "signal": {"SIGRTMIN", "SIGPWR", "pidfd_send_signal"},
        "socket": {"SO_PEERCRED", "TCP_USER_TIMEOUT", "AF_NETLINK"},
        "select": {"epoll"},
        "time": {"CLOCK_BOOTTIME"},
        "resource": {"prlimit"},
    }.items():
        assert names <= set(absent_names(module)) & set(dir(importlib.import_module(module)))


def test_a_use_of_what_macos_lacks_is_found_in_any_form() -> None:
    source = "import os\nfrom signal import SIGRTMIN\nif os.name:\n    os.sched_getaffinity(0)\n"
    assert {*uses(source)} == {("os", "name"), ("os", "sched_getaffinity"), ("signal", "SIGRTMIN")}
