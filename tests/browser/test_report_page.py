"""The report page as a browser shows it; screenshots of what was seen are kept in test-results/."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spotmpi.api.entry_page import entry_report
from spotmpi.core.names import PROJECT
from spotmpi.entries.manifest import DATASET, MODEL, Code, Input, Manifest, RawFile, Reference
from spotmpi.entries.store import Store
from spotmpi.report import files
from spotmpi.report.files import page
from spotmpi.report.report import Report
from tests.browser.chromium import Page, Tab, running
from tests.unit.report.recorded_runs import Recorded, study_report

pytestmark = pytest.mark.browser

DESK, PHONE = 1280, 390
SCREENSHOTS = PROJECT / "test-results" / "report-page"
_READABLE = 4.5  # contrast that WCAG asks of text

# Titles of the charts that can be seen, at a size that can be read, with all their words inside.
CHARTS = """[...document.querySelectorAll("figure")].filter(figure => {
  const frame = figure.querySelector("svg.chart").getBoundingClientRect();
  const inside = box => box.left >= frame.left - 1 && box.right <= frame.right + 1 && box.bottom <= frame.bottom + 1;
  const words = [...figure.querySelectorAll("svg.chart text")];
  return frame.width > 250 && frame.height > 120 && words.every(word => inside(word.getBoundingClientRect()));
}).map(figure => figure.querySelector("h3").textContent)"""

# [text, its colour, the colour behind it] of everything that holds words of its own.
COLOURS = """(() => {
  const behind = element => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (colour !== "rgba(0, 0, 0, 0)") return colour;
    }
  };
  const own = element => [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
  const shown = element => element.getClientRects().length && !element.closest(".inside_marks");
  return [...document.body.querySelectorAll("*")].filter(element => own(element) && shown(element)).map(element => {
    const style = getComputedStyle(element);
    const front = element.closest("svg") ? style.fill : style.color;
    return [element.textContent.trim().slice(0, 40), front, behind(element)];
  });
})()"""


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with running(tmp_path_factory.mktemp("profile")) as browser_tab:
        yield browser_tab


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A study that has every section with a chart, and names that are longer than a phone or a desk is wide."""
    levels = {"no loader": [], "a_level_" * 30: ["args+=--loader-processes 2"]}
    parameters = {"nodes": [1, 2, 4], "double_buffering": [False, True], "loader": levels}
    name = "a-study-of-everything-with-a-name-that-is-longer-than-a-phone-is-wide"
    spec = {"name": name, "image": "chainermn", "program": "digits", "resources": {"gpu": 1}}
    rate = {1: 10.0, 2: 17.0, 4: 25.0}
    rates = {
        (f"{word}double buffering, {level}", nodes): rate[nodes] * (1.0 if word else 1.2)
        for level in levels
        for word in ("", "no ")
        for nodes in rate
    }
    more: dict[str, Any] = {"price": {"node_hour": 3.6, "source": "spot"}, "compare": "chainercv-ssd300-p3"}
    trials = {("measured", 2): Recorded(interrupted_at=(30,))}
    runs = tmp_path_factory.mktemp("runs")
    return study_report(
        runs, parameters, rates, trials, spec=spec, without_allreduce=True, baseline=True, repeats=5, **more
    )


@pytest.fixture(scope="module")
def file(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page(report))
    return path


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [DESK, PHONE], ids=["desk", "phone"])
def test_the_page_renders_without_console_output_or_requests(
    tab: Tab, report: Report, file: Path, width: int, dark: bool
) -> None:
    require_readable(tab, report, file, width, dark, ["Iterations per second", "Scaling efficiency", "Loss over time"])


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [DESK, PHONE], ids=["desk", "phone"])
def test_the_page_of_a_model_renders_too(tab: Tab, tmp_path: Path, width: int, dark: bool) -> None:
    report = model_report(tmp_path)
    files.write_page(report, tmp_path / "model.html")
    require_readable(tab, report, tmp_path / "model.html", width, dark, [])
    assert tab.show(tmp_path / "model.html", width, dark).evaluate("document.title") == f"{report.title}: Model"


def model_report(folder: Path) -> Report:
    """The page of a model that was fine-tuned from another one and read a data set, with long names."""
    store, parents = Store(str(folder / "store")), list[Reference]()
    command = f"train.py --epochs 5 --{'option-' * 20}"
    values: dict[str, Any] = {"created": 1.7e9, "files": (), "image": {"name": "pytorch", "lock": "c" * 64}}
    for number, (kind, name) in enumerate(
        [(DATASET, "ratings"), (DATASET, "ratings-" * 9), (MODEL, "base"), (MODEL, "m")]
    ):
        details = {"command": command, "metrics": {"loss": 0.25, "accuracy": 0.97, "note": "best " * 30}}
        code = Code("d" * 64, sources={f"{name}.py": "..."}, commit="e" * 40)
        inputs = (Input("data", f"s3://bucket/{name}/*.csv", "f" * 64, (RawFile("1.csv", 9, "1" * 64),)),)
        made = Manifest(
            kind=kind,
            name=name,
            key=f"{number:064d}",
            parents=tuple(parents),
            code=code,
            details=details,
            inputs=inputs,
            **values,
        )
        parents.append(store.add(made, {}).reference)
    return entry_report(store.find("m", MODEL), store, 1.8e9)


def require_readable(tab: Tab, report: Report, file: Path, width: int, dark: bool, charts: list[str]) -> None:
    """Look at a page as its readers do: it has *charts* and those of its sections."""
    opened = tab.show(file, width, dark)
    opened.screenshot(SCREENSHOTS / f"{file.stem}-{'dark' if dark else 'light'}-{width}.png")

    assert opened.console == []
    assert [url for url in opened.requests if not url.startswith("data:")] == [file.as_uri()]
    section_titles = [chart.title for section in report.sections for chart in section.charts]
    assert opened.evaluate(CHARTS) == [*charts, *section_titles]
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    background = _luminance(opened.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert background < 0.05 if dark else background > 0.8
    assert _low_contrast(opened) == []


def test_the_rendered_page_has_all_kinds_of_sections(report: Report) -> None:
    charts = {chart.title for section in report.sections for chart in section.charts}
    assert charts >= {"Cost", "Time breakdown", "Effect of each parameter", "Scaling model"}
    assert charts >= {"Rates, ours and theirs", "Efficiency, ours and theirs", "Attempts over time"}


def test_a_page_with_requests_console_output_or_overflow_is_detected(tab: Tab, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text(
        '<meta name="viewport" content="width=device-width"><body style="background: #fff">'
        '<div style="width: 600px; color: #eee">pale</div><img src="http://127.0.0.1:9/elsewhere.png">'
        "<script>console.error('oh'); nowhere()</script>"
    )
    opened = tab.show(bad, PHONE, dark=False)
    assert "http://127.0.0.1:9/elsewhere.png" in opened.requests
    assert any("oh" in text for text in opened.console)
    assert any("nowhere is not defined" in text for text in opened.console)
    assert opened.evaluate("document.documentElement.scrollWidth") > PHONE
    assert _low_contrast(opened) == ["pale"]


def _low_contrast(opened: Page) -> list[str]:
    return [words for words, front, back in opened.evaluate(COLOURS) if _contrast(front, back) < _READABLE]


def _contrast(front: str, back: str) -> float:
    """The WCAG contrast of two colours, from 1 to 21."""
    low, high = sorted((_luminance(front), _luminance(back)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    """The WCAG luminance of a colour as ``rgb(r, g, b)``, from 0 to 1."""
    parts = [float(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
