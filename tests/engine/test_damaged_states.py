"""A state that the real Pulumi can't read or write: one line says why, with the remedy, and that stays as it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from spotmpi.core.errors import SpotmpiError
from spotmpi.environments.pulumi_cli import Pulumi
from tests.engine.engine import Engine, small_project
from tests.engine.providers.server import StandInServers

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.timeout(300)]

NO_JSON = "the state of small is damaged, as it is no JSON: restore an earlier version of it, which a versioned bucket"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """A stack that was made, and not built."""
    engine = Engine(tmp_path_factory.mktemp("small"), StandInServers("", ""))
    small_project(engine, "")
    return engine


def pulumi(engine: Engine, variables: Mapping[str, str] | None = None) -> Pulumi:
    return Pulumi(lambda line: None, engine.project, variables or engine.variables())


def state_file(engine: Engine) -> Path:
    (path,) = (engine.folder / "state").rglob("small.json")
    return path


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", NO_JSON),
        (b'{"version": 3, "checkpoint": {', NO_JSON),
        (b"hello", NO_JSON),
        (b"[]", NO_JSON),
        (b"{}", "the state of small is damaged, as it is empty: restore an earlier version of it"),
        (b'{"version": 99, "checkpoint": {}}', "a newer Pulumi wrote the state of small: update this one, then repeat"),
    ],
)
def test_a_state_that_can_not_be_read_is_named_and_left_as_it_is(small: Engine, content: bytes, message: str) -> None:
    path = state_file(small)
    original = path.read_bytes()
    path.write_bytes(content)
    try:
        with pytest.raises(SpotmpiError) as refused:
            pulumi(small).state("small")
        assert str(refused.value).startswith(message)
        assert path.read_bytes() == content
    finally:
        path.write_bytes(original)


@pytest.mark.parametrize("content", ["", "\0" * 64, "[]", "{}"], ids=["empty", "zeros", "list", "{}"])
def test_a_lock_that_a_full_disk_or_a_crash_damaged_is_cancelled_by_the_remedy(small: Engine, content: str) -> None:
    locks = small.folder / "state" / ".pulumi" / "locks" / "organization" / "small" / "small"
    locks.mkdir(parents=True, exist_ok=True)
    (locks / "damaged.json").write_text(content)
    with pytest.raises(SpotmpiError, match=r"a lock of small is damaged: .*`pulumi cancel --yes --stack small`"):
        pulumi(small).run("small", "destroy", "--preview-only")
    small.run("cancel", "--yes", "--stack", "small").require_success()
    pulumi(small).run("small", "destroy", "--preview-only")


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        (
            "PULUMI_BACKEND_URL",
            "file:///nowhere/state",
            "URL can't be opened: no such file or directory",
        ),
        ("PULUMI_BACKEND_URL", "file:///dev/null", "URL can't be opened: /dev/null is not a directory"),
        (
            "PULUMI_CONFIG_PASSPHRASE_FILE",
            "/nowhere/file",
            "FILE can't be read: /nowhere/file: no such file",
        ),
    ],
)
def test_a_variable_that_leads_nowhere_is_named(small: Engine, variable: str, value: str, message: str) -> None:
    variables = {**small.variables(), variable: value}
    if variable == "PULUMI_CONFIG_PASSPHRASE_FILE":
        del variables["PULUMI_CONFIG_PASSPHRASE"]
    with pytest.raises(SpotmpiError, match=message):
        pulumi(small, variables).run("small", "preview")
