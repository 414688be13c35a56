import io
import json
import struct
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from spotmpi.cli.report import print_report
from spotmpi.core.errors import SpotmpiError
from spotmpi.metrics.rates import Point
from spotmpi.report import chart as drawing
from spotmpi.report import charts, figures, files
from spotmpi.report.figures import MEASURED, Bar, BarChart, Chart, Curve, number, share
from spotmpi.report.files import markdown, page, table
from spotmpi.report.gather import gather
from spotmpi.report.rows import Row
from spotmpi.study.study import StudyOptions
from tests.unit.report.recorded_runs import (
    NOW,
    SPEC,
    Recorded,
    over_nodes,
    record,
    record_sweep,
    study_report,
    sweep_report,
)


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


def _titles(drawn: ElementTree.Element) -> list[str]:
    return [str(title.text) for title in drawn.iter("title")]


def test_every_mark_of_a_chart_names_its_value_and_takes_its_colour_from_the_page(runs: Path) -> None:
    report = sweep_report(runs)
    for chart in [*charts.charts(report), *(chart for section in report.sections for chart in section.charts)]:
        text = drawing.svg(chart)
        root = ElementTree.fromstring(text)
        assert text == drawing.svg(chart)
        assert str(root.get("aria-label")).startswith(chart.title)
        if isinstance(chart, Chart):
            measured = [curve for curve in chart.curves if curve.kind == figures.MEASURED]
            assert len(_titles(root)) == sum(len(curve.points) for curve in measured)
        colours = {str(element.get(key)) for element in root.iter() for key in ("fill", "stroke")}
        assert {colour for colour in colours if not colour.startswith("var(--")} <= {"None", "none", "transparent"}
    rates = drawing.svg(charts.charts(report)[0])
    assert "double, 4 nodes: 44.16" in _titles(ElementTree.fromstring(rates))


BARS = BarChart(
    "Split & more",
    "shares",
    "share",
    (Bar("one zone, no group, fp16 allreduce, no double buffering, 2 nodes", ((5, 0.75), (3, 0.25))),),
    ((5, "compute"), (3, "communication")),
    percent=True,
)


def _rows(chart: BarChart, mark: str) -> list[dict[str, Any]]:
    """What the layers with that mark draw of a chart."""
    layers = drawing.specification(chart, drawing.PAGE)["layer"]
    return [row for layer in layers if layer["mark"]["type"] == mark for row in layer["data"]["values"]]


def test_parts_of_a_bar_lie_end_to_end_below_a_name_in_several_lines() -> None:
    first, second = _rows(BARS, "rect")
    assert (first["x"], first["x2"], second["x"], second["x2"]) == (0.0, 0.75, 0.75, 1.0)
    name, *shares = _rows(BARS, "text")
    assert " ".join(name["text"]) == BARS.bars[0].name
    assert len(name["text"]) == 2
    assert name["top"] + 2 * 16 <= first["top"]
    assert [each["text"] for each in shares] == ["75 %", "25 %"]
    words = set(ElementTree.fromstring(drawing.svg(BARS)).itertext())
    assert {"compute", "communication", "share", "100 %", *name["text"]} <= words


def test_an_interval_lies_around_its_value_and_is_pale_within_noise() -> None:
    sure, unsure = Bar("a", value=1.1, bounds=(1.05, 1.2)), Bar("b", value=0.9, bounds=(0.7, 1.3), muted=True)
    chart = BarChart("Effects", "", "ratio", (sure, unsure), mark=1.0)
    assert [(row["x"], row["opacity"]) for row in _rows(chart, "circle")] == [(1.1, 1.0), (0.9, 0.5)]
    marks, bounds = _rows(chart, "rule")[:2], _rows(chart, "rule")[2:]
    assert [row["x"] for row in marks] == [1.0, 1.0]
    assert [(row["x"], row["x2"]) for row in bounds] == [(1.05, 1.2), (0.7, 1.3)]


def test_lines_have_a_name_and_a_marker_each_and_losses_are_one_for_each_variant(runs: Path) -> None:
    rates, *_, loss = charts.charts(sweep_report(runs))
    scales = drawing.specification(rates, drawing.PAGE)["layer"][0]["encoding"]
    assert scales["shape"]["scale"]["domain"] == ["base", "double", "ideal"]
    assert scales["shape"]["scale"]["range"] == ["circle", "square", "stroke"]
    assert [curve.label for curve in loss.curves] == ["base, 4 ranks", "double, 4 ranks"]
    assert loss.subtitle.startswith("training loss at the most ranks")


@pytest.mark.parametrize(
    ("points", "log"),
    [
        (((0.0, 1.0), (0.0, 0.5)), False),
        (((0.0, 1.0), (-3600.0, 0.5)), False),
        (((0.0, 0.0), (1.0, 0.0)), False),
        (((0.0, -1.0), (1.0, 1.0)), False),
        (((0.0, 0.0), (1.0, 3e-14)), False),
        (((0.0, 1e-9), (1.0, 1.0)), True),
        (((0.0, 0.3), (1.0, 7.0)), True),
        (((0.0, 2e-5), (1.0, 42e-5)), True),
    ],
    ids=["clock too coarse", "clock set back", "all 0", "negative", "tiny", "nine decades", "one decade", "small"],
)
def test_axes_take_in_all_values_and_name_some(points: tuple[tuple[float, float], ...], log: bool) -> None:
    curve = figures.Curve("loss", figures.TRACE, 0, points)
    root = ElementTree.fromstring(drawing.svg(figures.Chart("Loss", "", "seconds", "loss", (curve,), log=log)))
    assert "NaN" not in ElementTree.tostring(root, encoding="unicode")
    labels = [str(text.text) for text in root.iterfind(".//*[@class='mark-text role-axis-label']//text")]
    assert 4 <= len(labels) <= 17
    assert all(len(label) <= 10 for label in labels)


def test_an_efficiency_and_its_bounds_are_within_the_axes() -> None:
    curve = figures.Curve("base", figures.MEASURED, 0, ((1, 1.0), (2, 0.9)), error_bars=((2, 0.4, 1.7),))
    chart = figures.Chart("Efficiency", "", "nodes", "efficiency", (curve,), (1, 2), percent=True)
    assert drawing.specification(chart, drawing.PAGE)["encoding"]["y"]["scale"]["domainMax"] >= 1.7


def test_attempts_that_ended_before_they_began_by_a_clock_that_was_set_are_drawn() -> None:
    """With a point to the left of its axis, Vega gave the whole chart a width of 0."""
    curve = figures.Curve("failed", figures.TRACE, 0, ((10.0, 1.0), (-500.0, 1.0)))
    root = ElementTree.fromstring(drawing.svg(figures.Chart("Attempts", "", "seconds", "trial", (curve,))))
    assert float(root.attrib["width"]) == drawing._WIDTH
    assert "-500" in "".join(root.itertext()).replace("\N{MINUS SIGN}", "-")


def test_the_marks_of_several_lines_stay_at_their_count_of_nodes(runs: Path) -> None:
    """They were shifted by shares of the whole width, so that those of 1 node were beyond 2."""
    rates = {(variant, nodes): 10.0 * nodes for variant in ("a", "b", "c") for nodes in (1, 2, 64)}
    parameters = {"nodes": [1, 2, 64], "chunk": {name: [f"env.CHUNK={name}"] for name in ("a", "b", "c")}}
    for chart in charts.charts(study_report(runs, parameters, rates, repeats=1))[:2]:
        for curve in (each for each in chart.curves if each.kind == MEASURED):
            moved = [abs(x - at) for (x, _), (at, _) in zip(curve.shifted.points, curve.points, strict=True)]
            assert len(moved) == 3 and max(moved) < 0.2


def test_each_of_many_lines_is_in_the_legend() -> None:
    curves = tuple(Curve(f"line-{at}", MEASURED, at, ((1.0, 1.0), (2.0, 2.0))) for at in range(33))
    drawn = drawing.svg(Chart("Rates", "", "nodes", "iterations/s", curves, (1.0, 2.0)))
    assert all(f">{curve.label}<" in drawn for curve in curves)


def test_a_deep_lineage_stays_within_its_chart() -> None:
    items = tuple(figures.Item(f"model digits:{at} 0123456789ab", "", at) for at in range(40))
    layers = drawing.specification(figures.Tree("Lineage", "", items), drawing.PAGE)["layer"]
    for row in next(layer for layer in layers if layer["mark"]["type"] == "text")["data"]["values"]:
        longest = max(map(len, row["text"]))
        assert row["left"] + longest * 8 <= drawing._WIDTH, row  # a bold letter has 8 pixels on average


@pytest.mark.parametrize(
    ("text", "lines", "expected"),
    [
        ("two words", None, ["two words"]),
        ("w" * 50, 2, ["w" * 20, f"{'w' * 16} ..."]),
        ("word " * 12, 2, ["word word word word", "word word word ..."]),
        ("\N{KATAKANA LETTER A}" * 25, None, ["\N{KATAKANA LETTER A}" * count for count in (10, 10, 5)]),
    ],
)
def test_a_text_is_broken_where_its_line_is_full(text: str, lines: int | None, expected: list[str]) -> None:
    assert drawing._wrapped(text, 20, lines) == expected


def test_a_long_name_of_a_metric_is_cut_beside_its_axis_and_broken_in_its_title() -> None:
    name = "validation/main/accuracy_of_the_top_5_classes_per_group_of_images"
    chart = charts.time_chart(name, [(name, [Point(1, 1.0, 1.0), Point(2, 2.0, 2.0)])])
    drawn = drawing.specification(chart, drawing.PICTURE)
    assert [len(line) <= drawing._TITLE for line in drawn["title"]["text"]] == [True, True]
    assert drawn["encoding"]["y"]["axis"]["title"] == [
        "validation/main/accuracy_of_th",
        "e_top_5_classes_per_group_ ...",
    ]


def test_the_loss_of_a_variant_has_the_colour_of_its_rates_and_left_out_ones_are_counted(runs: Path) -> None:
    named = [f"v{at}:env.V={at}" for at in range(8)]
    recorded = {(name.partition(":")[0], nodes): [Recorded()] for name in ["base", *named] for nodes in (1, 2)}
    record_sweep(runs, SPEC, StudyOptions([1, 2], named, repeats=1), recorded)
    report = gather(["sweep-1"], runs, NOW)
    quiet = replace(report, rows=[row if row.line.variant != "v0" else _without_loss(row) for row in report.rows])
    *_, loss = charts.charts(quiet)
    assert loss.subtitle.startswith("training loss at the most ranks, 6 of 9 variants")
    assert {curve.label.partition(",")[0]: curve.colour for curve in loss.curves} == {
        line.variant: at for at, line in enumerate(quiet.lines[:6]) if line.variant != "v0"
    }


def _without_loss(row: Row) -> Row:
    return replace(row, runs=tuple(replace(run, training=replace(run.training, series={})) for run in row.runs))


def test_each_quality_metric_has_a_column_of_its_own(runs: Path) -> None:
    """The mean average precision of one program stood in the column of another's test accuracy."""
    record(runs, "one", SPEC, Recorded(accuracy=0.5))
    record(runs, "two", SPEC.model_copy(update={"nodes": 2}), Recorded(accuracy=None, rate=20.0, result={"map": 0.7}))
    report = gather(["one", "two"], runs, NOW)
    main = table(report)
    columns = dict(zip(main.header, zip(*main.cells, strict=True), strict=True))
    assert (columns["Test accuracy"], columns["mAP"]) == (("0.5000", "-"), ("-", "0.7000"))
    assert ("mAP", "0.7000") in [(card.name, card.value) for card in files.cards(report)]


def test_a_long_loss_is_thinned_to_means_of_stretches() -> None:
    from spotmpi.metrics.rates import Point

    points = [Point(index, float(index), float(index % 2)) for index in range(10_000)]
    thin = charts.average(points)
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
        (0.0000123456, "1.235e-05"),
    ],
)
def test_numbers_have_four_significant_digits(value: float | None, text: str) -> None:
    assert number(value) == text


def test_shares_are_written_with_their_sign() -> None:
    assert (share(0.1794), share(None), share(1.05, 0), share(-0.0001)) == ("17.9 %", "-", "105 %", "0.0 %")


def test_all_files_are_written_and_the_picture_is_a_png(runs: Path, tmp_path: Path) -> None:
    names = [f"placement group, double buffering, allreduce in chunks of {size} MB \N{PARTY POPPER}" for size in (1, 4)]
    rates = {(name, nodes): 10.0 * nodes for name in names for nodes in (1, 2)}
    parameters = {"nodes": [1, 2], "chunk": {name: [f"env.CHUNK={at}"] for at, name in enumerate(names)}}
    paths = files.write(study_report(runs, parameters, rates), tmp_path / "out")
    assert paths.picture is not None
    head = paths.picture.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:])
    assert width == 1744
    assert 1200 < height < 1700
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
    page = paths.page.read_text()
    assert "no rate from 10 iterations: 10 warm-up" in page
    assert page.count("10 warm-up") == 2, "in the table of runs too, which said that nothing was left out"


def test_a_folder_that_cannot_be_written_is_reported_with_the_remedy(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpotmpiError, match=r"out = .*file': is a file: name a folder"):
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
