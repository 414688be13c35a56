import io
import json
import re
import struct
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from spotmpi.cli.report import print_report
from spotmpi.core.errors import SpotmpiError
from spotmpi.report import chart as chart_data
from spotmpi.report import charts, files, svg
from spotmpi.report.chart import Bar, BarChart
from spotmpi.report.figures import number, share
from spotmpi.report.files import markdown, page
from spotmpi.report.table import table
from tests.unit.report.recorded_runs import SPEC, Recorded, over_nodes, study_report, sweep_report


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_asks_for_nothing_from_anywhere(runs: Path) -> None:
    text = page(sweep_report(runs))
    parsed = _Page(text)
    fetched = [values for _, values in parsed.tags if {"src", "href", "srcset", "data"} & set(values)]
    assert fetched == [{"rel": "icon", "href": "data:,"}]
    assert "url(" not in text
    assert "@import" not in text
    assert not [tag for tag, _ in parsed.tags if tag in ("script", "iframe", "object", "embed", "img")]


def test_the_page_holds_table_charts_conditions_method_and_command(runs: Path) -> None:
    report = sweep_report(runs)
    parsed = _Page(page(report))
    assert len([1 for tag, values in parsed.tags if tag == "svg" and values.get("class") == "chart"]) == 6
    for cells in table(report).cells:
        assert all(cell in parsed.text for cell in cells)
    for messages in (*report.method, *report.commands, *(value for _, value in report.conditions)):
        assert messages in parsed.text
    assert "prefers-color-scheme: dark" in page(report)


def test_nothing_that_a_run_says_becomes_markup(runs: Path) -> None:
    evil = "<script>alert(1)</script>"
    spec = SPEC.model_copy(update={"name": f'{evil} & "quotes" it\'s'})
    hostile = Recorded(work={"program": evil}, context={"hosts": [evil], "versions": {evil: evil}})
    other = replace(hostile, rate=11.0)
    report = over_nodes(runs, (1, hostile), (2, other), spec=spec)
    text = page(report)
    assert evil not in text
    assert "&lt;script&gt;" in text
    assert evil not in markdown(report).split("```")[0]  # in a fenced block it is only text


def test_every_chart_is_well_formed_and_stays_inside_its_frame(runs: Path) -> None:
    for chart in charts.charts(sweep_report(runs)):
        root = ElementTree.fromstring(svg.svg(chart))
        _, _, width, height = (float(part) for part in root.attrib["viewBox"].split())
        for element in root.iter("polyline"):
            for point in element.attrib["points"].split():
                x, y = (float(part) for part in point.split(","))
                assert 0 <= x <= width
                assert 0 <= y <= height


BARS = BarChart(
    "Split & more",
    "shares",
    "share",
    (Bar("one zone, no group, fp16 allreduce, no double buffering, 2 nodes", ((5, 0.75), (3, 0.25))),),
    ((5, "compute"), (3, "communication")),
    percent=True,
)


def test_parts_of_a_strip_lie_end_to_end_under_a_name_that_is_folded() -> None:
    root = ElementTree.fromstring(svg.bar_chart_svg(BARS))
    _, _, width, height = (float(part) for part in root.attrib["viewBox"].split())
    first, second = (element.attrib for element in root.iter("rect"))
    assert float(first["x"]) + float(first["width"]) == pytest.approx(float(second["x"]), abs=0.2)
    assert float(first["width"]) == pytest.approx(3 * float(second["width"]), abs=0.5)
    named = [element for element in root.iter("text") if element.attrib["class"] == "name"]
    assert [element.text for element in named] == BARS.names[0]
    assert len(named) == 2
    assert all(float(element.attrib["y"]) < float(first["y"]) < height for element in named)
    assert [name for _, name in svg.bar_chart_legend(BARS)] == ["compute", "communication"]
    assert float(second["x"]) + float(second["width"]) < width


def test_an_interval_lies_around_its_value_and_what_is_within_noise_is_faint() -> None:
    sure, unsure = Bar("a", value=1.1, bounds=(1.05, 1.2)), Bar("b", value=0.9, bounds=(0.7, 1.3), muted=True)
    root = ElementTree.fromstring(svg.bar_chart_svg(BarChart("Effects", "", "ratio", (sure, unsure), mark=1.0)))
    for path, mark in zip(root.iter("path"), root.iter("circle"), strict=True):
        low, high = re.findall(r"M([\d.]+) [\d.]+v10", path.attrib["d"])
        assert float(low) < float(mark.attrib["cx"]) < float(high)
    assert len([1 for group in root.iter("g") if group.attrib.get("class") == "muted"]) == 1
    assert len([1 for line in root.iter("line") if "stroke-dasharray" in line.attrib]) == 1


def test_lines_have_a_name_and_a_marker_each_and_losses_are_one_for_each_variant(runs: Path) -> None:
    rates, *_, loss = charts.charts(sweep_report(runs))
    assert [name for _, name in svg.legend(rates.curves)] == ["base", "double", "ideal"]
    measured = [curve for curve in rates.curves if curve.kind == chart_data.MEASURED]
    marks = {re.sub(r"[\d.]+|t\d", "", svg.swatch(curve).split("/>")[1]) for curve in measured}
    assert len(marks) == 2
    assert [curve.label for curve in loss.curves] == ["base, 4 ranks", "double, 4 ranks"]
    assert loss.subtitle.startswith("training loss at the most ranks")


@pytest.mark.parametrize("time", [0.0, -3600.0], ids=["too coarse", "set back"])
def test_times_of_a_poor_clock_have_an_axis(time: float) -> None:
    curve = chart_data.Curve("loss", chart_data.TRACE, 0, ((0.0, 1.0), (time, 0.5)))
    axis = chart_data.x_axis(chart_data.Chart("Loss over time", "", "seconds", "loss", (curve,)))
    assert axis.at(0.0) == 0.0 and axis.low < axis.high


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.0, 10.0, (0.0, 2.0, 4.0, 6.0, 8.0, 10.0)),
        (0.0, 103.0, (0.0, 25.0, 50.0, 75.0, 100.0, 125.0)),
        (0.0, 0.0, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)),
        (-1.0, 1.0, (-1.0, -0.5, 0.0, 0.5, 1.0)),
        (0.0, 3e-14, (0.0, 1e-14, 2e-14, 3e-14)),
    ],
)
def test_ticks_are_round_numbers_around_the_values(low: float, high: float, ticks: tuple[float, ...]) -> None:
    assert chart_data.round_ticks(low, high) == ticks


@pytest.mark.parametrize("values", [(1e-9, 1.0), (0.3, 7.0), (5.0, 120.0), (2e-5, 2e-5 * 21)])
def test_a_logarithmic_axis_takes_in_all_values_and_names_some(values: tuple[float, float]) -> None:
    axis = chart_data._log_axis(*values)
    assert 0 <= axis.at(values[0]) < axis.at(values[1]) <= 1
    assert 2 <= len(axis.ticks) <= 11


def test_a_long_loss_is_thinned_to_means_of_stretches() -> None:
    from spotmpi.metrics.rates import Point

    points = [Point(index, float(index), float(index % 2)) for index in range(10_000)]
    thin = charts.averaged(points)
    assert len(thin) <= 160
    assert all(abs(value - 0.5) < 0.02 for _, value in thin)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0"),
        (0.0159834, "0.01598"),
        (1.0, "1.000"),
        (64.291, "64.29"),
        (9999.6, "10,000"),
        (1234567.0, "1,234,567"),
        (0.0000123, "1.23e-05"),
    ],
)
def test_numbers_have_four_significant_digits(value: float | None, text: str) -> None:
    assert number(value) == text


def test_shares_are_written_with_their_sign() -> None:
    assert (share(0.1794), share(None), share(1.05, 0), share(-0.0001)) == ("17.9 %", "-", "105 %", "0.0 %")


@pytest.mark.filterwarnings("error")  # of matplotlib: no space for a chart beside long names, no glyph for a letter
def test_all_files_are_written_and_the_picture_is_a_png(runs: Path, tmp_path: Path) -> None:
    names = [f"placement group, double buffering, allreduce in chunks of {size} MB \N{PARTY POPPER}" for size in (1, 4)]
    rates = {(name, nodes): 10.0 * nodes for name in names for nodes in (1, 2)}
    parameters = {"nodes": [1, 2], "chunk": {name: [f"env.CHUNK={at}"] for at, name in enumerate(names)}}
    paths = files.write(study_report(runs, parameters, rates), tmp_path / "out")
    assert paths.picture is not None
    head = paths.picture.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:])
    assert (width, height) == (1568, 1120)
    assert json.loads(paths.data.read_text())["rows"]
    kinds = {path.suffix for path in (tmp_path / "out").glob("report.*")}
    assert kinds == {".csv", ".html", ".json", ".md", ".png"}


def test_the_rate_of_the_most_samples_is_not_called_the_fastest_under_weak_scaling(runs: Path) -> None:
    weak = Recorded(scaling="weak")
    report = over_nodes(runs, (1, weak), (2, replace(weak, samples=128, rate=9.5)))
    assert [card.name for card in files.cards(report)[:2]] == ["At the highest throughput", "Throughput"]


def test_a_run_without_anything_to_draw_has_no_picture_and_still_a_page(runs: Path, tmp_path: Path) -> None:
    paths = files.write(over_nodes(runs, (1, Recorded(iterations=10))), tmp_path / "out")
    assert paths.picture is None
    assert "no rate after the warm-up" in paths.page.read_text()


def test_a_folder_that_cannot_be_written_is_reported_with_the_remedy(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpotmpiError, match=r"cannot write the report into .*file.*out=\"FOLDER\""):
        files.write(over_nodes(runs, (1, Recorded())), tmp_path / "file")


def test_the_terminal_table_is_not_folded_in_a_file(runs: Path, tmp_path: Path) -> None:
    with (tmp_path / "table.txt").open("w+") as file:
        print_report(sweep_report(runs), file)
        file.seek(0)
        text = file.read()
    head = next(line for line in text.splitlines() if "Variant" in line)
    assert head.split("  ")[0].strip() == "Variant"
    assert head.rstrip().endswith("Notes")
    assert "base" in text


def test_the_table_of_a_bench_fits_a_terminal_of_80_columns(runs: Path) -> None:
    file = io.StringIO()
    print_report(over_nodes(runs, *((n, Recorded(150.0 * n)) for n in (1, 1, 2, 2, 4, 4))), file, 80)
    lines = file.getvalue().splitlines()
    head = next(at for at, line in enumerate(lines) if "It/s" in line)
    rows = lines[head + 2 : head + 5]
    assert all(len(line.rstrip()) <= 80 for line in lines[: head + 5])
    assert [row.split()[0] for row in rows] == ["1", "2", "4"]
    assert all(len(row.replace(" %", "%").split()) == len(lines[head].split()) for row in rows)
