"""A disk that fails for a moment: what cannot be read is not what is missing, and no output is lost or repeated."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from spotmpi.agent.launcher_output import Line
from spotmpi.agent.plan import COORDINATOR
from spotmpi.agent.record import Record
from spotmpi.core.names import RunPaths
from spotmpi.plan.cluster_plan import cached_plan
from spotmpi.runs import folder as run_folder
from spotmpi.runs import reader, recorded_plan
from spotmpi.runs.folder import folder_events
from spotmpi.runs.pod_output import RunCache, parse
from tests.transient_errors import TransientErrors

ERRORS = pytest.mark.parametrize("error", [errno.ESTALE, errno.EIO])
LINE = parse('{"n":1,"l":[1,"node/0",1,5.0,0,"o","hello"]}')


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    """A terminal's copy of a run, with a line of output."""
    paths = RunPaths(tmp_path / "runs" / "digits-1")
    run_folder.create(paths, 'command = ["x"]\n', cached_plan("digits", paths.id, "this", "here"), 1.0)
    assert LINE
    with RunCache(paths) as cache:
        cache.write([LINE])
    return paths


@ERRORS
@pytest.mark.parametrize("call", ["stat", "open", "read"])
def test_a_run_whose_record_cannot_be_read_is_not_left_out_of_the_list(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, call: str, error: int
) -> None:
    """Else the beginning of an id could mean another run."""
    TransientErrors(monkeypatch.setattr).add(call, str(paths.events), error)
    with pytest.raises(OSError) as raised:
        reader.find("digits", paths.folder.parent)
    assert raised.value.errno == error
    assert reader.find("digits", paths.folder.parent) == paths, "the next time it is read"


@ERRORS
def test_a_copy_whose_plan_cannot_be_read_is_no_run_of_this_machine(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    TransientErrors(monkeypatch.setattr).add("open", str(paths.plan), error)
    with pytest.raises(OSError):
        recorded_plan.cluster_of(paths)
    assert recorded_plan.cluster_of(paths) == ("this", "here")


@ERRORS
@pytest.mark.parametrize("call", ["list", "stat", "open"])
def test_output_that_cannot_be_read_is_an_error_and_not_less_output(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, call: str, error: int
) -> None:
    where = paths.logs if call == "list" else paths.logs / "1" / "node-0.log"
    TransientErrors(monkeypatch.setattr).add(call, str(where), error)
    with pytest.raises(OSError):
        list(folder_events(paths, follow=False, alive=lambda: False))
    lines = [event for event in folder_events(paths, follow=False, alive=lambda: False) if event.kind == "line"]
    assert [event.values["text"] for event in lines] == ["hello"]


@ERRORS
def test_who_follows_a_run_reads_on_after_an_error(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    record = Record(str(paths.folder))
    record.line(1, COORDINATOR, Line(0, "o", "again"))
    record.event("succeeded")
    record.close()
    errors = TransientErrors(monkeypatch.setattr)
    errors.add("list", str(paths.logs), error)
    errors.add("open", str(paths.logs / "1" / "node-0.log"), error)
    texts = [each.values.get("text") for each in folder_events(paths, True, lambda: True, sleep=lambda seconds: None)]
    assert [text for text in texts if text] == ["hello", "again"]


def test_a_disk_that_fails_for_good_ends_who_follows_a_run(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    TransientErrors(monkeypatch.setattr).add("open", str(paths.logs / "1" / "node-0.log"), errno.EIO, 10_000)
    waits: list[float] = []
    reasons: list[tuple[str | None, float]] = []
    with pytest.raises(OSError, match="Input/output error"):
        for event in folder_events(paths, True, lambda: True, waits.append):
            reasons += [(event.reason, sum(waits))] if event.kind == "waiting" else []
    assert 59 < sum(waits) < 61
    reason = f"{paths.folder} cannot be read: Input/output error (gives up after 60 s)"
    assert [text for text, _ in reasons] == [reason] and 2 < reasons[0][1] < 4


@ERRORS
@pytest.mark.parametrize("folder", [".", "1"])
def test_a_follower_that_cannot_read_its_logs_does_not_write_them_again(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, folder: str, error: int
) -> None:
    TransientErrors(monkeypatch.setattr).add("list", str(paths.logs / folder), error)
    assert LINE
    with pytest.raises(OSError), RunCache(paths) as cache:
        cache.write([LINE])
    with RunCache(paths) as cache:
        cache.write([LINE])
    assert (paths.logs / "1" / "node-0.log").read_text().count("hello") == 1
