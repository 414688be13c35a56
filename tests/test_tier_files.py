"""Only files with selected tests are imported."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.tier_files import has_selected, unnamed_tiers

PLAIN = "not images and not engine and not browser and not cluster and not slurm and not nightly"
WHOLE = "pytestmark = [\n    pytest.mark.engine,\n    pytest.mark.timeout(300),\n]\n"
ONE = "@pytest.mark.engine\ndef test_it() -> None: ...\n"
LONG = 'pytestmark = pytest.mark.extensive("for those who change it")\n'
NONE = "pytestmark = pytest.mark.timeout(300)\nengine = 1\n"


@pytest.mark.parametrize(
    ("expression", "selected"),
    [
        (PLAIN, {"one", "none", "long"}),
        (f"{PLAIN} and not extensive", {"one", "none"}),
        (f"{PLAIN} and extensive", {"long"}),
        ("engine and smoke", {"whole", "one"}),
        ("(engine) and nightly", {"whole", "one"}),
        ("engine or browser", {"whole", "one"}),
        ("not engine and nightly", {"one", "none", "long"}),
        ("browser", set()),
        ("", {"whole", "one", "none", "long"}),
        ("nightly", {"whole", "one", "none", "long"}),
    ],
)
def test_a_file_is_left_out_only_if_the_expression_selects_none_of_its_tests(
    expression: str, selected: set[str]
) -> None:
    files = {"whole": WHOLE, "one": ONE, "none": NONE, "long": LONG}
    assert {name for name, source in files.items() if has_selected(source, expression)} == selected


def test_a_tier_that_a_test_has_from_another_file_has_to_be_named_in_its_own() -> None:
    assert unnamed_tiers(ONE, {"engine", "timeout"}) == []
    assert unnamed_tiers(NONE, {"engine", "timeout"}) == ["engine"]


def test_a_folder_of_such_files_is_left_out_with_what_they_share(request: pytest.FixtureRequest) -> None:
    tests = Path(__file__).parent
    conftest = request.config.pluginmanager.get_plugin(str(tests / "conftest.py"))
    assert conftest
    config = SimpleNamespace(option=SimpleNamespace(markexpr="browser"))
    folders = "browser", "cluster", "infra"
    assert [name for name in folders if conftest.pytest_ignore_collect(tests / name, config)] == ["cluster", "infra"]
