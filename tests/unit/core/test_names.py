"""Ids and paths made from what people type."""

from __future__ import annotations

import os
import re
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotmpi.backends.targets import Target
from spotmpi.core import names

NOW = datetime(2026, 11, 21, 8, 30, 59)
HOSTILE = ["digits", "", " ", "two words", 'it\'s "quoted"', "../../etc/passwd", "a\nb\0c", "-rf", "$(rm -rf /)", "---"]
UNUSUAL = ["9lives", "1" * 60, "UPPER_case.name", "x" * 300, "a" * 21 + "-b"]
RUN_ID = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
NO_ASCII = ["ünïcode", "日本語", "🚀", "ΑΒΓ", "\uff46\uff55\uff4c\uff4c"]


@pytest.mark.parametrize("name", [*HOSTILE, *UNUSUAL, *NO_ASCII])
@pytest.mark.parametrize("chance", [0, 2**20 - 1])
def test_any_name_becomes_an_id_that_is_a_dns_1035_label_of_at_most_40_characters(name: str, chance: int) -> None:
    run = names.run_id(name, NOW, chance)
    assert RUN_ID.fullmatch(run)
    assert "--" not in run and "-261121083059-" in run


def test_the_name_stays_readable_in_the_id() -> None:
    assert names.run_id("SSD on VOC 2007+2012", NOW, 12345)[:-4] == "ssd-on-voc-2007-2012-261121083059-"


def test_runs_of_the_same_second_have_different_ids() -> None:
    ids = {names.run_id("digits", NOW, chance) for chance in range(20_000)}
    assert len(ids) == 20_000


def test_an_empty_variable_stands_for_the_default_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTMPI_RUNS", "")
    assert names.default_runs_folder().name == "runs"


def test_a_home_folder_that_no_shell_has_expanded_is_no_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("RUNS", "CACHE", "STATE"):
        monkeypatch.setenv(f"SPOTMPI_{variable}", f"~/{variable}")
    assert Target().folder == tmp_path / "RUNS"
    assert (names.cache_folder(), names.state_folder()) == (tmp_path / "CACHE", tmp_path / "STATE")
    assert Target(runs_folder=Path("~/others")).folder == tmp_path / "others"


def test_pod_names_made_from_the_longest_id_fit_a_label() -> None:
    longest = names.run_id("x" * 300, NOW, 2**20 - 1)
    assert len(f"{longest}-node-0-9999-abcde") <= 63


@pytest.mark.parametrize("run", ["", "-a", "a-", "A", "9a", "a" * 41, "a.b", "a\n"])
def test_text_that_is_no_run_id_is_recognised(run: str) -> None:
    assert not RUN_ID.fullmatch(run)


TEXTS = st.text() | st.text("aZ09-_./\x00\n\u00e9 ", max_size=40)


@given(TEXTS, st.integers(0, 2**20 - 1))
def test_every_text_becomes_an_id_that_can_be_a_folder_and_a_label(name: str, chance: int) -> None:
    run = names.run_id(name, NOW, chance)
    assert RUN_ID.fullmatch(run) and names.is_folder_name(run)
    assert len(f"{names.pod_host(run, 9999)}-abcde") <= 63
    assert names.slug(names.slug(name)) == names.slug(name)


@given(TEXTS)
def test_a_name_of_a_folder_stays_in_its_folder(name: str) -> None:
    """Any user of a namespace names JobSets."""
    top = Path("/runs")
    if names.is_folder_name(name):
        assert os.path.normpath(top / name) == f"/runs/{name}" and name != names.SWEEPS


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "-a", ".a", "a.", "A", "sweeps", "a\n", "a\0"])
def test_a_name_that_is_no_folder_of_a_run_is_recognised(name: str) -> None:
    assert not names.is_folder_name(name)
