"""What tests of every part may use: a real Kubernetes API, alone or with a cluster behind it."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from _pytest._code.code import ExceptionChainRepr

from tests.forked_workers import fork_workers
from tests.skips import OTHER_TIERS, fail_unlisted
from tests.tier_files import has_selected, unnamed_tiers
from tests.tools import ToolError, bin_folder, needed

if TYPE_CHECKING:
    from execnet.xspec import XSpec

    from tests.testbed.kubernetes import Kubernetes

pytest.register_assert_rewrite("tests.contract")  # tests that several files inherit

gc.disable()  # until tests are collected
WIDTH = 400  # characters of a line of a failure

# The machine's variables for Python, such as PYTHONUNBUFFERED: a user has none of them, so neither have tests and what
# they start. A test that wants one sets it.
for variable in [name for name in os.environ if name.startswith("PYTHON")]:
    del os.environ[variable]

# A shell's background job ignores Ctrl-C and hands that on to every process of a test, some of which are to hear it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


_HANDLED = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """Handle signals after a test as before it: what starts after it would inherit one that is ignored."""
    before = {number: signal.getsignal(number) for number in _HANDLED}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing with them")
    parser.addoption(
        "--kubeconfig", metavar="PATH", help="run cluster tests on this cluster instead of one of their own"
    )
    parser.addoption("--faults", type=int, metavar="N", help="so many faults in tests/cluster/test_endurance.py")
    parser.addoption(
        "--seed",
        type=int,
        metavar="N",
        help="what determines these faults, and the pairs of tests/engine/test_setting_pairs.py",
    )


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two workers a core for plain tests, which wait as much as they compute; none where that only costs its start."""
    marked = not config.option.markexpr.startswith("not ")
    single = any("::" in argument for argument in config.args)
    return 0 if marked or single or config.option.keyword else 2 * (os.cpu_count() or 1)


def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[XSpec]) -> None:
    """Import what tests import once for all workers."""
    fork_workers(config, specs)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file without a test that the marker expression selects, and no conftest file of only such files."""
    files: Iterator[Path]
    if collection_path.is_dir():
        files = collection_path.rglob("test_*.py")
    elif collection_path.name.startswith("test_") and collection_path.suffix == ".py":
        files = iter([collection_path])
    else:
        return None
    return None if any(has_selected(_source(file), config.option.markexpr) for file in files) else True


@functools.cache
def _source(path: Path) -> str:
    return path.read_text()


def pytest_itemcollected(item: pytest.Item) -> None:
    """A test that only runs at night or in CI says why, and the file of a test names its tier."""
    if unnamed := unnamed_tiers(_source(item.path), {mark.name for mark in item.iter_markers()}):
        raise pytest.UsageError(f"{item.nodeid}: write pytest.mark.{unnamed[0]} in its file, which is left out else")
    for mark in item.iter_markers():
        if mark.name in ("nightly", "extensive") and not (len(mark.args) == 1 and isinstance(mark.args[0], str)):
            raise pytest.UsageError(f"{item.nodeid}: give the reason, @pytest.mark.{mark.name}('...')")


def pytest_configure(config: pytest.Config) -> None:
    """In CI, where many failures share one page, each tells its reason in a few lines."""
    if os.environ.get("CI"):
        config.option.tbstyle = "short"


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """No file is skipped as a whole unless that is listed."""
    report = yield
    fail_unlisted(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Only listed plain tests are skipped. In CI, leave out the middle of what is long."""
    report = yield
    if not any(item.get_closest_marker(name) for name in OTHER_TIERS):
        fail_unlisted(report)
    if os.environ.get("CI") and report.failed:
        report.sections = [(name, "\n".join(_ends_of(text.splitlines()))) for name, text in report.sections]
        if isinstance(report.longrepr, ExceptionChainRepr) and report.longrepr.reprcrash:
            report.longrepr.reprcrash.message = "\n".join(_ends_of(report.longrepr.reprcrash.message.splitlines(), 2))
            for traceback, _, _ in report.longrepr.chain:
                for entry in traceback.reprentries:
                    entry.lines = _ends_of(entry.lines)
    return report


def _ends_of(lines: Sequence[str], lasting: int = 12) -> list[str]:
    left_out = len(lines) - 2 * lasting
    ends = [*lines[:lasting], f"... {left_out} lines ...", *lines[-lasting:]] if left_out > 1 else lines
    return [line if len(line) <= WIDTH else f"{line[: WIDTH // 2]} ... {line[-WIDTH // 2 :]}" for line in ends]


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with the golden file of that name, which only ``--update-golden`` writes."""
    folder = request.path.parent / "golden"

    def compare(name: str, text: str) -> None:
        if request.config.getoption("--update-golden"):
            (folder / name).write_text(text)
        assert text == (folder / name).read_text()

    return compare


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Search for no garbage while modules are imported and tests collected, nor in them later: all of that stays."""
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build what the selected tests run before the first of them, so that its time limit need not hold for that."""
    if session.config.option.collectonly or session.testsfailed:  # broken collections are not deselected
        return
    # The fixtures report what can't be built, as the failure of the tests that need it.
    with contextlib.suppress(ToolError):
        for tool in needed(session.items):
            bin_folder(tool)


@pytest.fixture(scope="session")
def api_server() -> Iterator[Kubernetes]:
    """A real API server with nothing behind it; needs the pinned programs, but neither root nor containers."""
    # Plain tests must not pay for what only marked ones use.
    from tests.testbed.control_plane import running_api_server

    with running_api_server() as kubernetes:
        yield kubernetes
