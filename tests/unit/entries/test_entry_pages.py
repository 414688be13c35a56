"""`spotmpi models show --html`: one page with metrics, curves of the run, lineage and files, as reports have them."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

import spotmpi
from spotmpi.agent import protocol
from spotmpi.agent.plan import COORDINATOR
from spotmpi.agent.record import Record
from spotmpi.api import entry_page
from spotmpi.core.names import RunPaths
from spotmpi.entries.manifest import DATASET, Manifest
from spotmpi.entries.store import Store
from spotmpi.metrics.rates import Point
from tests.command_line import invoke
from tests.unit.entries.test_models import run
from tests.unit.entries.test_store import entry

pytest.importorskip("numpy")


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs and a store in folders of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPOTMPI_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("SPOTMPI_STORE", str(tmp_path / "store"))


def ratings() -> Manifest:
    """A data set in the store."""
    return Store().add(*entry(Path.cwd(), key="5" * 64))


def trained(name: str = "digits-1") -> RunPaths:
    """A run that has read a data set and reported its loss over time, and a test accuracy twice."""
    paths = run(name, data=ratings().reference)
    report(paths, [(protocol.METRIC, {"iteration": 5 + step, "loss": 9.0 / step}) for step in range(1, 40)])
    report(paths, [(protocol.EVALUATION, {"iteration": step, "accuracy": step / 50}) for step in (20, 40)])
    return paths


def report(paths: RunPaths, lines: list[tuple[str, dict[str, float]]]) -> None:
    """Report values in a run, one every two seconds."""
    times = itertools.count(1_700_000_000.0, 2.0)
    written = Record(str(paths.folder), lambda: next(times))
    for kind, values in lines:
        written.metric(1, COORDINATOR, kind, values)
    written.close()


def shown(*words: str) -> str:
    """The page that a command writes, which says where."""
    output = invoke(*words, "--html", "page.html")
    assert output.returncode == 0 and output.stdout.endswith(" -> page.html\n"), output.stderr
    return Path("page.html").read_text()


def titles(page: str) -> list[str]:
    return re.findall(r"<h[23]>(.*?)</h[23]>", page)


def lineage(page: str) -> list[str]:
    """The items of the picture of the lineage, from top to bottom."""
    drawn = next(each for each in re.findall(r"<svg.*?</svg>", page, re.DOTALL) if 'aria-label="Lineage: ' in each)
    return [mark.text or "" for mark in ElementTree.fromstring(drawn).iterfind(".//title")]


def test_the_page_of_a_model_has_metrics_curves_lineage_and_files() -> None:
    trained()
    spotmpi.models.keep("digits-1", "digits")
    invoke("models", "promote", "digits:1", "prod")
    page = shown("models", "show", "digits:prod")
    assert titles(page) == [
        "Metrics",
        "Curves",
        "Loss over time",
        "Accuracy over time",
        "Lineage",
        "Lineage",
        "Files",
        "Conditions",
        "Commands",
    ]
    assert '<p class="kind">Model</p>' in page and "<h1>digits:1</h1>" in page
    assert "<td>loss</td><td" in page and ">0.5000</td>" in page and "<dd>prod</dd>" in page
    assert (
        "iteration-000000005" in page
        and "state.safetensors" in page
        and "hidden" not in page.replace("aria-hidden", "")
    )
    items = lineage(page)
    assert items[0].startswith("model models:digits@") and "version 1" in items[0]
    assert items[1].startswith("run digits-1") and any(each.startswith("code train.py, commit ddddd") for each in items)
    assert any(each.startswith("data set datasets:ratings@555555555555") for each in items)
    assert "image pytorch, lock eeeeeeeeeeee" in items


def test_without_the_record_of_the_run_the_page_says_so_and_has_the_rest() -> None:
    paths = trained()
    spotmpi.models.keep(paths.id, "digits")
    shutil.rmtree(paths.folder)
    page = shown("models", "show", "digits")
    assert "the curves of run digits-1 are not on this machine" in page
    assert "Curves" not in titles(page) and titles(page)[:2] == ["Metrics", "Lineage"]
    assert any(each.startswith("data set datasets:ratings@") for each in lineage(page))


def test_what_was_made_of_one_data_set_twice_is_explained_once() -> None:
    trained("digits-1")
    spotmpi.models.keep("digits-1", "digits")
    run("digits-2", data=Store().find("ratings", DATASET).reference)
    spotmpi.models.keep("digits-2", "digits", parents=["digits:1"])
    items = [each for each in lineage(shown("models", "show", "digits:2")) if each.startswith("data set")]
    assert len(items) == 2


def test_a_data_set_has_a_page_too_and_hostile_names_are_text() -> None:
    ratings()
    page = shown("data", "show", "ratings")
    assert '<p class="kind">Data set</p>' in page and titles(page)[0] == "Lineage"
    paths = run("digits-1")
    report(paths, [(protocol.METRIC, {"iteration": 5 + step, "<script>alert(1)</script>": 1.0}) for step in (1, 2)])
    spotmpi.models.keep("digits-1", "digits")
    page = shown("models", "show", "digits")
    assert "&lt;script&gt;alert(1)&lt;/script&gt; over time" in page and "<script>" not in page


def test_a_page_and_json_are_both_given() -> None:
    """A script that asked for both got no JSON."""
    ratings()
    output = invoke("data", "show", "ratings", "--html", "page.html", "--json")
    assert Path("page.html").read_text().startswith("<!doctype html>")
    alone = json.loads(invoke("data", "show", "ratings", "--json").stdout)
    assert json.loads(output.stdout) == {**alone, "page": "page.html"}


def test_a_page_that_cannot_be_written_is_one_line() -> None:
    ratings()
    output = invoke("data", "show", "ratings", "--html", "absent/page.html")
    assert output.returncode == 1
    assert "cannot write the page absent/page.html: No such file or directory; name another file" in output.stderr


def test_curves_that_a_page_does_not_draw_are_named() -> None:
    curves = {f"metric_{at}": [Point(1, 1.0, 1.0), Point(2, 2.0, 0.5)] for at in range(14)}
    section = entry_page._curves({**curves, "single": curves["metric_0"][:1]})
    assert len(section.charts) == 12
    assert section.text == ("The first 12 of 14 metrics; not drawn: metric_12, metric_13.",)


def test_a_spec_of_others_that_is_no_toml_is_shown_as_json() -> None:
    """A registry or a shared store may have a null in it: the page ended with a TypeError."""
    assert entry_page._spec({"nodes": 2}) == "nodes = 2\n"
    assert json.loads(entry_page._spec({"nodes": 2, "limits": {"cost": None}})) == {
        "nodes": 2,
        "limits": {"cost": None},
    }
    assert entry_page._spec(None) == ""
