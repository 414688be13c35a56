"""docs/environments.md: its generated parts are up to date, and the files that it names exist."""

import re

import pytest

from infra.settings import Settings
from scripts import environment_reference as reference
from spotmpi.aws.prices import Design, idle_prices
from tests.tools import REPOSITORY

TEXT = (REPOSITORY / "docs" / "environments.md").read_text(encoding="utf-8")


def test_the_generated_parts_are_up_to_date() -> None:
    assert reference.rewrite(TEXT) == TEXT, "run scripts/environment-reference"


def test_every_setting_has_a_row_with_a_meaning() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| .+ \| (.+) \|$", reference.settings_table(), re.M)
    keys = {key for key, _ in rows}
    assert {"aws:region", "groups[].max", "cluster.system.nodes", "storage.keep", "budget", "budget.email"} <= keys
    assert all(meaning != "None" for _, meaning in rows)
    assert any("(one of `spot`, `on-demand`, `capacity-block`)" in meaning for _, meaning in rows)
    assert {name for name in Settings.model_fields if name not in ("project", "stack", "region")} <= {
        key.split(".")[0].removesuffix("[]") for key in keys
    }


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="no <!-- settings -->"):
        reference.insert("nothing", "settings", "table")


def test_every_script_and_file_on_the_page_exists() -> None:
    scripts = set(re.findall(r"scripts/[\w-]+", TEXT))
    files = set(re.findall(r"`((?:infra|jobs|stacks|docs)/[\w./-]+\.\w+)`", TEXT))
    assert scripts and files
    assert [name for name in scripts | files if not (REPOSITORY / name).is_file()] == []


def test_every_ready_stack_is_on_the_page() -> None:
    stacks = {path.name.split(".")[1] for path in (REPOSITORY / "stacks").glob("Pulumi.*.yaml")}
    assert all(f"`{stack}`" in TEXT for stack in stacks)


def test_a_gpu_hour_includes_its_share_of_idle_costs() -> None:
    group = {"name": "p3", "type": "p3.2xlarge", "max": 8}
    p3 = Settings.model_validate({"stack": "p3", "region": "us-east-1", "zones": ["us-east-1a"], "groups": [group]})
    idle = sum(idle_prices(Design()).values())
    assert reference.ceilings(p3, idle)["p3"] == pytest.approx(
        3.06 + 0.005 + (100 * 0.08 + 375 * 0.04) / 730 + idle / 8
    )
