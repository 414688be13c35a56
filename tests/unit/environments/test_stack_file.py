"""Stack files: read with tolerance, changed in place with everything else kept."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from spotmpi.core import names
from spotmpi.core.errors import InputError
from spotmpi.environments.stack_file import Pins, StackGroup, read_stack, with_pins, write_choice
from spotmpi.environments.zones.rows import Row

STACKS = sorted(path.name[7:-5] for path in (names.PROJECT / "stacks").glob("Pulumi.*.yaml"))
CHOICE = {"type": "g6.xlarge", "region": "eu-west-1", "zone": "eu-west-1c", "zone_id": "euw1-az3", "offered": True}
UNKNOWN: dict[str, Any] = {each.name: None for each in fields(Row)}
ROW = Row(**{**UNKNOWN, **CHOICE, "eks": True})
LONG = "v1:" + "x" * 300
FILE = f"""# first line
encryptionsalt: {LONG}
config:
  aws:region: us-east-1   # where we live
  spotmpi:zones: ["us-east-1a"]
  # the groups
  spotmpi:groups:
    - name: one    # with a word
      type: g5.xlarge
      max: 4
    - {{name: two, type: p3.2xlarge, max: 2, market: on-demand, placement_group: false}}
  spotmpi:access: ['1.2.3.4/32']
  spotmpi:unknown:
    secure: {LONG}
  spotmpi:storage: {{keep: true}}
"""


def comments(text: str) -> list[str]:
    return [line.partition("#")[2] for line in text.splitlines() if "#" in line]


@pytest.fixture
def stacks(tmp_path: Path) -> Path:
    (tmp_path / "Pulumi.mine.yaml").write_text(FILE)
    return tmp_path


def test_settings_of_the_account_are_read(stacks: Path) -> None:
    stack = read_stack("mine", stacks)
    assert (stack.region, stack.zone, stack.keep) == ("us-east-1", "us-east-1a", True)
    assert stack.groups == (
        StackGroup("one", "g5.xlarge", 4, "spot", True),
        StackGroup("two", "p3.2xlarge", 2, "on-demand", False),
    )


AS_TEXT = """config:
  aws:region: us-east-1
  spotmpi:zones: '["us-east-1a"]'
  spotmpi:storage: '{"keep": true}'
  spotmpi:cluster: '{"version": "1.35", "encrypt_secrets": true}'
  spotmpi:groups: '[{"name": "one", "type": "g5.xlarge", "max": 4}]'
  spotmpi:namespace: '[no JSON'
"""


def test_lists_and_maps_that_pulumi_wrote_as_text_are_read_as_the_program_reads_them(stacks: Path) -> None:
    """`pulumi config set groups '[...]'` writes such a text; storage that is kept was taken for one that goes."""
    (stacks / "Pulumi.mine.yaml").write_text(AS_TEXT)
    stack = read_stack("mine", stacks)
    assert (stack.zones, stack.keep, stack.kubernetes) == (("us-east-1a",), True, "1.35")
    assert [group.name for group in stack.groups] == ["one"]
    config = yaml.safe_load(with_pins("mine", Pins("1.36", {}, {"one": "1.36.1-20261110"}), stacks))["config"]
    assert config["spotmpi:cluster"] == {"version": "1.36", "encrypt_secrets": True}
    assert config["spotmpi:groups"][0]["ami_release"] == "1.36.1-20261110"
    assert config["spotmpi:namespace"] == "[no JSON"


def test_only_the_chosen_values_change_and_comments_stay(stacks: Path) -> None:
    path = write_choice("mine", ROW, "one", stacks)
    expected = FILE.replace("aws:region: us-east-1 ", "aws:region: eu-west-1 ").replace("us-east-1a", "eu-west-1c")
    assert path.read_text() == expected.replace("type: g5.xlarge", "type: g6.xlarge")
    assert list(stacks.iterdir()) == [path]


@pytest.mark.parametrize("stack", STACKS)
def test_every_ready_stack_is_written_in_place_or_refused_where_it_has_no_groups(stack: str, tmp_path: Path) -> None:
    path = tmp_path / f"Pulumi.{stack}.yaml"
    before = (names.PROJECT / "stacks" / path.name).read_text()
    path.write_text(before)
    groups = read_stack(stack, tmp_path).groups
    if stack.endswith("-data"):
        with pytest.raises(InputError, match="groups: none"):
            write_choice(stack, ROW, None, tmp_path)
        assert groups == () and path.read_text() == before
        return
    row = replace(ROW, region="us-east-1", zone="us-east-1f", type=groups[0].type or "")

    write_choice(stack, row, groups[0].name, tmp_path)

    assert path.read_text() == before.replace("spotmpi:zones: [us-east-1a]", "spotmpi:zones: [us-east-1f]")
    assert path.read_text() != before


def test_further_zones_stay_if_they_are_others_of_the_region(stacks: Path) -> None:
    zones = FILE.replace('["us-east-1a"]', "[us-east-1a, us-east-1c, us-east-1b]  # near")
    (stacks / "Pulumi.mine.yaml").write_text(zones)
    path = write_choice("mine", replace(ROW, region="us-east-1", zone="us-east-1b"), "one", stacks)
    assert read_stack("mine", stacks).zones == ("us-east-1b", "us-east-1c")
    assert comments(path.read_text()) == comments(zones)
    write_choice("mine", ROW, "one", stacks)
    assert read_stack("mine", stacks).zones == ("eu-west-1c",)


def test_of_the_zones_of_a_group_those_stay_that_the_stack_still_has(stacks: Path) -> None:
    zones = FILE.replace('["us-east-1a"]', "[us-east-1a, us-east-1c]")
    zones = zones.replace("      max: 4", "      zones: [us-east-1a]  # near")
    zones = zones.replace("name: two,", "name: two, zones: [us-east-1a, us-east-1c],")
    path = stacks / "Pulumi.mine.yaml"
    path.write_text(zones)
    write_choice("mine", replace(ROW, region="us-east-1", zone="us-east-1b"), "one", stacks)
    assert comments(path.read_text()) == comments(zones)
    assert "zones: [us-east-1b]  # near" in path.read_text() and "zones: [us-east-1c]," in path.read_text()

    write_choice("mine", ROW, "one", stacks)

    assert "zones: [eu-west-1c]  # near" in path.read_text() and "name: two, type" in path.read_text()


def test_zones_share_the_release_of_their_group_of_which_the_newest_is_pinned(stacks: Path) -> None:
    zones = FILE.replace('["us-east-1a"]', "[us-east-1a, us-east-1c]").replace(
        "      max: 4", "      zones: [us-east-1c]"
    )
    (stacks / "Pulumi.mine.yaml").write_text(zones)
    releases = {"one-c": "1.36.1-20261110", "one": "1.36.9-20270101"}
    releases |= {"two": "1.36.1-20261110", "two-c": "1.36.2-20261110"}
    (stacks / "Pulumi.mine.yaml").write_text(with_pins("mine", Pins("1.36", {}, releases), stacks))
    pinned = read_stack("mine", stacks).ami_releases
    assert pinned == {"one-c": "1.36.1-20261110", "two": "1.36.2-20261110", "two-c": "1.36.2-20261110"}


def test_the_only_group_with_the_type_is_changed(stacks: Path) -> None:
    write_choice("mine", replace(ROW, type="p3.2xlarge"), None, stacks)
    assert [group.type for group in read_stack("mine", stacks).groups] == ["g5.xlarge", "p3.2xlarge"]


@pytest.mark.parametrize(
    ("row", "group", "second", "message"),
    [
        (ROW, None, "", r"name the group of .* gets g6\.xlarge; groups: one, two"),
        (replace(ROW, offered=False), "one", "", r"g6\.xlarge is not offered in eu-west-1c"),
        (replace(ROW, eks=False), "one", "", "EKS does not support euw1-az3; choose another row"),
        (replace(ROW, second_zones=()), "one", "", "EKS needs a second zone and supports no other in eu-west-1"),
        (ROW, "one", "eu-west-1c", "must be another zone of eu-west-1"),
        (ROW, "one", "us-east-1b", "must be another zone of eu-west-1"),
    ],
    ids=["no group", "type not offered", "zone without EKS", "no second zone", "one zone twice", "another region"],
)
def test_an_unusable_choice_is_refused_and_leaves_the_file(
    stacks: Path, row: Row, group: str | None, second: str, message: str
) -> None:
    text = f"{FILE}  spotmpi:second_zone: {second}\n" if second else FILE
    (stacks / "Pulumi.mine.yaml").write_text(text)
    with pytest.raises(InputError, match=message):
        write_choice("mine", row, group, stacks)
    assert (stacks / "Pulumi.mine.yaml").read_text() == text


@pytest.mark.parametrize(
    ("setting", "taken", "written"),
    [
        (None, ("eu-west-1b", "eu-west-1a"), None),  # a is the default, and one of them
        (None, ("eu-west-1d", "eu-west-1b"), "eu-west-1d"),
        ("eu-west-1b", ("eu-west-1d", "eu-west-1b"), "eu-west-1b"),
        ("eu-west-1c", ("eu-west-1d", "eu-west-1b"), "eu-west-1d"),
        ("us-east-1b", ("eu-west-1d", "eu-west-1a"), "eu-west-1d"),
    ],
)
def test_a_second_zone_is_written_if_the_current_one_is_not_supported(
    stacks: Path, setting: str | None, taken: tuple[str, ...], written: str | None
) -> None:
    text = FILE if setting is None else FILE + f"  spotmpi:second_zone: {setting}\n"
    (stacks / "Pulumi.mine.yaml").write_text(text)
    path = write_choice("mine", replace(ROW, second_zones=taken), "one", stacks)
    after = read_stack("mine", stacks)
    assert (after.zone, after.second_zone) == ("eu-west-1c", written)
    assert comments(path.read_text()) == comments(FILE)


@pytest.mark.parametrize("text", ["config: [", "", "- a\n- b\n", "config: 3\n", "a: 1\na: 2\n", "\x00"])
def test_an_invalid_stack_file_is_one_line(stacks: Path, text: str) -> None:
    (stacks / "Pulumi.mine.yaml").write_text(text)
    with pytest.raises(InputError) as caught:
        read_stack("mine", stacks)
    assert "Pulumi.mine.yaml" in str(caught.value) and "\n" not in str(caught.value)
    if text.startswith("a: 1"):
        assert ': cannot be read as YAML: found duplicate key "a" with' in str(caught.value)
        assert str(caught.value).endswith(" (line 2, column 1)")


@pytest.mark.parametrize("groups", ["3", "[1, two]", "{a: 1}", "[{max: many, type: 5}]"])
def test_invalid_groups_are_read_as_far_as_possible(stacks: Path, groups: str) -> None:
    (stacks / "Pulumi.mine.yaml").write_text(f"config:\n  spotmpi:groups: {groups}\n")
    stack = read_stack("mine", stacks)
    assert stack.region is None and all(each.type is None and each.max is None for each in stack.groups)


@pytest.mark.parametrize("stack", ["", "..", "a/b", "mine\n", "ghost"])
def test_an_unknown_stack_is_an_error_that_lists_the_stacks(stacks: Path, stack: str) -> None:
    with pytest.raises(InputError, match="stacks: mine"):
        read_stack(stack, stacks)
