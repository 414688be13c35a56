"""Nothing that a program or another user writes ends a reader, acts on its terminal or becomes markup."""

from __future__ import annotations

import functools
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich import console

from spotmpi.agent import replay
from spotmpi.agent.attempt_history import AttemptHistory
from spotmpi.agent.launcher_output import LineSplitter, PieceSplitter
from spotmpi.agent.plan import COORDINATOR
from spotmpi.agent.pod_record import PodRecord
from spotmpi.agent.progress import Progress
from spotmpi.api import view
from spotmpi.backends.targets import Target
from spotmpi.cli import tables
from spotmpi.cli.logs import FilterOptions, print_events
from spotmpi.cli.report import print_report
from spotmpi.core.events import Event
from spotmpi.core.names import RunPaths
from spotmpi.report.files import markdown, page, write
from spotmpi.report.gather import gather
from spotmpi.runs import pod_output, reader
from spotmpi.runs.folder import folder_events
from tests.unit.report.recorded_runs import NOW, SPEC, Recorded, record
from tests.unit.runs.hostile import LINES, TEXTS

RUN = "run-1"
_ACTS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029\ud800-\udfff]")
_COLOUR = re.compile("\x1b\\[[0-9;]*m")

every_line = pytest.mark.parametrize("line", [pytest.param(line, id=name) for name, line in LINES.items()])
every_text = pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in TEXTS.items()])


def harmless(screen: str, longest: int = 3000) -> None:
    """It has no control sequences but colours, and no endless line."""
    assert not _ACTS.search(_COLOUR.sub("", screen))
    assert max(map(len, screen.splitlines() or [""])) < longest


def record_line(folder: Path, line: bytes, pattern: str | None = None) -> RunPaths:
    """The folder of a run whose program wrote *line*, the last of an ordinary run, as its agent records it."""
    paths = record(folder, RUN, SPEC, Recorded(ranks=(0.1, 0.1), iterations=60))
    pod_record = PodRecord(str(paths.folder))
    progress = Progress(0.0, pattern)
    for splitter in (LineSplitter("o"), PieceSplitter("o")):
        for each in [*splitter.feed(line + b"\n"), *splitter.end()]:
            metric_values = progress.read(COORDINATOR, each, 1.0)
            if metric_values:
                pod_record.metric(1, COORDINATOR, *metric_values)
            else:
                pod_record.line(1, COORDINATOR, each)
    pod_record.close()
    return paths


@every_line
def test_no_line_of_a_program_ends_the_agent_or_who_reads_its_pod_or_its_folder(
    tmp_path: Path, line: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = record_line(tmp_path, line, r"(?P<iteration>\d+) (?P<loss>\S+)")
    printed = capsys.readouterr().out
    together = pod_output.parse_all(printed.rstrip("\n"))
    assert together and all(isinstance(entry, pod_output.PodEntry) for entry in together)
    assert sum(entry.last - entry.number + 1 for entry in together if not isinstance(entry, str)) == printed.count("\n")

    events = list(folder_events(paths, follow=False, alive=lambda: False))
    assert json.loads(json.dumps([event.to_json() for event in events]))
    assert {"submitted", "started", "succeeded"} <= {event.kind for event in events}
    assert replay.entries(str(paths.folder), COORDINATOR, 0.0, 1e12, 0.0)
    run_record: Any = SimpleNamespace(folder=str(paths.folder))
    plan: Any = {}
    assert AttemptHistory(run_record, plan, 0.0).attempts == []


@every_line
def test_no_line_of_a_program_ends_logs_list_status_or_a_view_or_acts_on_its_terminal(
    tmp_path: Path, line: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = record_line(tmp_path, line)
    capsys.readouterr()
    screen = _show_everywhere(paths, monkeypatch)
    captured = capsys.readouterr()
    harmless(captured.out, 1_100_000)  # a program's own line is shown whole
    harmless(captured.err)
    harmless(screen, 1_100_000)
    tables.show_runs([reader.state(paths)], as_json=True)
    assert json.loads(capsys.readouterr().out, parse_constant=_no_json)


def _show_everywhere(paths: RunPaths, monkeypatch: pytest.MonkeyPatch, text: str = "") -> str:
    """Print logs, list and status, and follow a run with *text* below it: what the live view shows on a terminal."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    state = reader.state(paths)
    tables.show_runs([state], as_json=False)
    tables.show_status(state, as_json=False)
    events = list(folder_events(paths, follow=False, alive=lambda: False))
    chosen = FilterOptions().filter(paths.id, Target(runs_folder=paths.folder.parent))
    print_events(events, chosen, as_json=False, live=False)
    screen = io.StringIO()
    terminal = functools.partial(console.Console, file=screen, force_terminal=True, width=200)
    monkeypatch.setattr(console, "Console", lambda **more: terminal())
    for watching in (view.PlainView(), view.AttemptView(), view.LiveView()):
        with watching:
            for event in events:
                watching.show(event)
            if isinstance(watching, view.LiveView):
                watching._bar.refresh()
                watching.echo(text)
    return re.sub("\x1b\\[(\\?25[lh]|2K|1A)|\r", "", screen.getvalue())  # without movements of the cursor


def _no_json(constant: str) -> Any:
    raise AssertionError(constant)


@every_line
def test_no_line_of_a_program_ends_a_report_or_becomes_markup_in_it(tmp_path: Path, line: bytes) -> None:
    record_line(tmp_path, line)
    report = gather([RUN], tmp_path, NOW)
    screen = io.StringIO()
    print_report(report, screen)
    harmless(screen.getvalue(), 30_000)
    shown_as = {"page": page(report), "markdown": markdown(report)}
    assert not _ACTS.search("".join(shown_as.values()))
    assert not re.search(r"<script>|<img", shown_as["page"])
    assert not re.search(r"(?<!\\)(<script>|<img|\]\(http)", shown_as["markdown"])
    assert json.loads(json.dumps(report.to_json()), parse_constant=_no_json)


@every_text
@pytest.mark.parametrize("kind", ["failed", "waiting", "interrupted", "restarted", "gap"])
def test_no_reason_of_another_user_acts_on_a_terminal_or_becomes_markup(
    tmp_path: Path, text: str, kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = Recorded(state=kind, interrupted_at=(30,))
    paths = record(tmp_path, RUN, SPEC, outcome)
    values = {"reason": text, "name": text, "owner": text, "container": text}
    with paths.events.open("a") as events:
        for each in ("submitted", "started", kind):
            events.write(json.dumps({"t": 1_789_000_100, "event": each, **values}) + "\n")
    screen = _show_everywhere(paths, monkeypatch, text[:1000])
    captured = capsys.readouterr()
    harmless(captured.out, 12_000)
    harmless(captured.err, 12_000)
    harmless(screen)


def test_a_picture_and_all_files_of_a_report_are_written_whatever_variants_are_called(tmp_path: Path) -> None:
    variants = [text[:300] for text in TEXTS.values()]
    for nodes in range(1, len(variants) + 1):
        record(tmp_path, f"run-{nodes}", SPEC.model_copy(update={"nodes": nodes}), Recorded())
    report = gather([f"run-{nodes}" for nodes in range(1, len(variants) + 1)], tmp_path, NOW)
    rows = [replace(row, line=replace(row.line, variant=name)) for row, name in zip(report.rows, variants, strict=True)]
    paths = write(replace(report, title="".join(variants), rows=rows), tmp_path / "out")
    assert paths.picture and paths.picture.stat().st_size > 10_000
    assert not _ACTS.search(paths.page.read_text())


def test_a_file_gets_every_line_of_output_as_it_was_written(capsys: pytest.CaptureFixture[str]) -> None:
    view.PlainView().show(_line("colour \x1b[31mred\x1b[0m\x07"))
    assert capsys.readouterr().out == "colour \x1b[31mred\x1b[0m\x07\n"


def _line(text: str) -> Event:
    return Event(1.0, "line", 1, COORDINATOR, 1, {"rank": None, "stream": "o", "text": text})


def test_a_terminal_gets_the_colours_of_a_line_and_no_other_control_character(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    view.PlainView().show(_line("a\t\x1b[1;31mred\x1b]0;title\x07\x1b[2J\x1b[H"))
    assert capsys.readouterr().out == "a\t\x1b[1;31mred\\x1b]0;title\\x07\\x1b[H\x1b[0m\n"


def test_a_rate_is_neither_lost_nor_negative_where_a_line_repeats_its_iteration_or_a_counter_begins_anew() -> None:
    """A bar that is drawn twice showed no rate, and the first line of an epoch "-9 it/s"."""
    throughput = view.Throughput()
    for time, iteration in ((0.0, 9), (1.0, 10), (1.9, 10)):
        throughput.update(Event(time, "metric", values={"kind": "metric", "iteration": iteration, "loss": 0.5}))
    assert throughput.status() == "1 it/s  loss 0.5"
    for time, iteration in ((3.0, 1), (4.0, 2)):
        throughput.update(Event(time, "metric", values={"kind": "metric", "iteration": iteration}))
        assert throughput.status() == "1 it/s"


def test_a_rate_by_arrival_is_that_of_the_last_second_or_of_a_longer_iteration() -> None:
    """Two lines that arrived together after a pause showed 3799 it/s between 6 and 28."""
    throughput, rates = view.Throughput(), []
    for iteration, time in enumerate((0.0, 0.25, 0.5, 0.99, 0.9901, 1.25, 1.5, 4.5)):
        throughput.update(Event(time, "metric", values={"kind": "metric", "iteration": iteration}))
        rates.append(throughput.rate)
    assert [rate and round(rate, 2) for rate in rates] == [None, 4, 4, 3.03, 4.04, 4, 4, 0.33]


def test_time_to_go_may_be_more_than_a_day() -> None:
    throughput = view.Throughput()
    throughput.update(Event(1.0, "metric", values={"kind": "context", "total_iterations": 100_001}))
    throughput.update(Event(2.0, "metric", values={"kind": "metric", "iteration": 1, "seconds": [1.0]}))
    assert throughput.status() == "1 it/s  ETA 27:46:40"
