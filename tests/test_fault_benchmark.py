"""`./scripts/fault-benchmark`: its faults, what it reads from records of iterations, its tables, and its options."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from scripts import fault_benchmark
from scripts.faults import records, report
from scripts.faults.records import Injected, Reader, Record, Recovery, Turn
from scripts.faults.schedule import KINDS, schedule, turns
from tests.testbed.faults import Fault

START = 1000.0


def iterations(
    numbers: Sequence[int], begin: float, attempt: str, rank: int = 0, samples: int = 2, pace: float = 0.1
) -> list[Record]:
    """Records of consecutive iterations, of which the first is done at *begin*."""
    return [
        Record(begin + at * pace, number, f"sha {number}", attempt, rank, "pod", 7, _samples(number, samples))
        for at, number in enumerate(numbers)
    ]


def _samples(iteration: int, count: int) -> tuple[int, ...]:
    return tuple(2 * iteration + at for at in range(count))


def both(numbers: Sequence[int], begin: float, attempt: str) -> list[Record]:
    """Two ranks in step; the second records a little later."""
    return iterations(numbers, begin, attempt) + iterations(numbers, begin + 0.01, attempt, rank=1)


KILL = Fault("rank", 1, 20)


def test_a_seed_gives_the_same_faults_and_no_kind_comes_again_before_all_have_come() -> None:
    faults = schedule(3, 11)

    assert faults == schedule(3, 11) != schedule(4, 11)
    assert schedule(3, 7) == faults[:7]
    assert {fault.kind for fault in faults[:5]} == {fault.kind for fault in faults[5:10]} == set(KINDS)
    assert [len(turn) for turn in turns(faults)] == [3, 3, 3, 2]
    assert [fault for turn in turns(faults) for fault in turn] == faults
    assert all(fault.node == 0 for fault in faults if fault.kind == "node 0")
    assert all(fault.node == 1 for fault in faults if fault.kind not in ("node 0", "rank"))


def test_recovery_is_from_the_last_iteration_to_the_first_new_one_with_what_was_repeated() -> None:
    # Iteration 37 is done at 3.6 s, the fault comes at 3.65, and the next attempt is back at iteration 31 at 8 s.
    done = both(range(1, 38), START, "a") + both(range(31, 60), START + 8.0, "b")
    injected = Injected(KILL, START + 3.65)

    assert records.recovered(done, injected)
    [recovery] = records.recoveries(done, [injected])

    assert recovery.seconds == pytest.approx(8.0 + 0.7 - 3.6)
    assert (recovery.repeated, recovery.kind, recovery.rank) == (7, "rank", 1)


def test_iterations_that_are_only_repeated_are_no_recovery() -> None:
    done = both(range(1, 38), START, "a") + both(range(31, 38), START + 8.0, "b")
    injected = Injected(KILL, START + 3.65)

    assert not records.recovered(done, injected)
    [recovery] = records.recoveries(done, [injected])
    assert (recovery.seconds, recovery.repeated) == (None, 7)


def test_training_that_goes_on_after_a_fault_until_its_pod_is_gone_counts_up_to_the_pause() -> None:
    # The pod is deleted at 1 s, trains until 4 s, and the next attempt goes on where it ended.
    done = both(range(1, 41), START, "a") + both(range(41, 60), START + 5.0, "b")

    [recovery] = records.recoveries(done, [Injected(Fault("evict", 1, 20), START + 1.0)])

    assert recovery.seconds == pytest.approx(5.0 - 3.9)
    assert recovery.repeated == 0


def test_a_turn_that_ends_before_its_first_fault_has_no_recoveries() -> None:
    assert records.recoveries(both(range(1, 11), START, "a"), []) == []


def test_each_of_several_faults_has_its_own_pause() -> None:
    done = (
        both(range(1, 11), START, "a") + both(range(11, 31), START + 3.0, "b") + both(range(31, 50), START + 9.0, "c")
    )
    found = records.recoveries(done, [Injected(KILL, START + 0.95), Injected(KILL, START + 4.95)])
    assert [round(each.seconds or 0, 2) for each in found] == [2.1, 4.1]


def test_a_replica_that_goes_on_alone_repeats_nothing_and_recovers_once_the_other_is_back() -> None:
    alone = iterations(range(11, 40), START + 2.0, "a", samples=1)
    done = both(range(1, 11), START, "a") + alone
    injected = Injected(KILL, START + 0.95)
    assert not records.recovered(done, injected)

    done += iterations(range(40, 45), START + 5.0, "a") + iterations(range(40, 45), START + 5.01, "b", rank=1)

    assert records.recovered(done, injected)
    [recovery] = records.recoveries(done, [injected])
    assert recovery.seconds == pytest.approx(1.1)
    assert recovery.repeated == 0
    turn = Turn("torchft", iteration=44, parameters="another")
    records.check(turn, done, records.effective(both(range(1, 60), START, "u")))
    assert (turn.lost, turn.doubled, turn.equal) == (29, 0, False)


def test_samples_of_iterations_that_were_rolled_back_are_neither_lost_nor_doubled() -> None:
    undisturbed = records.effective(both(range(1, 60), START, "u"))
    done = both(range(1, 38), START, "a") + both(range(31, 60), START + 8.0, "b")
    turn = Turn("x", iteration=50, parameters="sha 50")

    records.check(turn, done, undisturbed)

    assert (turn.lost, turn.doubled, turn.equal) == (0, 0, True)


def test_samples_that_no_update_has_are_lost_and_those_of_two_are_doubled() -> None:
    undisturbed = records.effective(both(range(1, 11), START, "u"))
    done = iterations(range(1, 10), START, "a")
    wrong = Record(START + 9, 10, "sha 10", "a", 0, "pod", 7, undisturbed[9].samples)
    turn = Turn("x", iteration=10, parameters="other")

    records.check(turn, [*done, wrong], undisturbed)

    assert (turn.lost, turn.doubled, turn.equal) == (2, 2, False)


def test_a_turn_that_did_not_end_is_not_compared() -> None:
    turn = Turn("x")
    records.check(turn, both(range(1, 5), START, "a"), records.effective(both(range(1, 11), START, "u")))
    assert (turn.lost, turn.doubled, turn.equal) == (None, None, None)


def test_a_line_of_records_counts_once_it_is_complete(tmp_path: Path) -> None:
    [record] = iterations([1], START, "a")
    line = json.dumps({**vars(record), "samples": list(record.samples)}) + "\n"
    reader, path = Reader(tmp_path), tmp_path / "0-a-7.jsonl"
    path.write_text(line + line[:20])
    reader.update()
    assert reader.records == [record]
    with path.open("a") as file:
        file.write(line[20:])
    reader.update()
    assert reader.records == [record, record]


def test_a_summary_has_the_figures_of_all_turns_and_why_a_fault_has_none() -> None:
    done = Turn("x", [Recovery("rank", 1, 1.0, 4), Recovery("evict", 1, 3.0, 6)], 0, 0, 50, "sha", True, 3, 60.0, 2.0)
    ended = Turn("x", [Recovery("rank", 1, 2.0, 2), Recovery("evict", 1, None, reason="no recovery")], load=5.0)

    found = records.summary("x", [done, ended])

    assert (found.injected, found.recovered, found.median, found.shortest, found.repeated) == (4, 3, 2.0, 1.0, 4.0)
    assert found.p95 == pytest.approx(2.9)
    assert found.medians == {"rank": 1.5, "evict": 3.0}
    assert (found.ended, found.equal, found.turns, found.load) == (1, 1, 2, (2.0, 5.0))
    assert found.failures == ("no recovery",)


def test_the_table_has_every_side_in_units_of_the_first_and_each_failure() -> None:
    own = records.summary("a", [Turn("a", [Recovery("rank", 1, 2.0, 3)], 0, 0, 9, "sha", True)])
    slow = records.summary("b", [Turn("b", [Recovery("rank", 1, 9.0, 5)], 4, 0, 9, "sha", False)])
    none = records.summary("c", [Turn("c", failure="no iteration within 120 s:\nbench | Pending")])

    text = report.tables([own, slow, none], {"a": "Own", "b": "Slow", "c": "None"}, "Measured.")

    assert "| Own | 2.00 s | 2.00 s | 1.0 | 3.0 | 0; 0 | 1 of 1 | 1 of 1 |" in text
    assert "| Slow | 9.00 s | 9.00 s | 4.5 | 5.0 | 4; 0 | 0 of 1 | 1 of 1 |" in text
    assert "| None |  |  |  |  | not known | not known | 0 of 0 |" in text
    assert text.startswith("Measured. The shortest median is that of Own, 2.00 s.\n")
    assert "- None: no iteration within 120 s: bench / Pending" in text
    assert [bar.name for bar in report.charts([own, slow, none], {"a": "Own", "b": "Slow"}, "")[0].bars] == [
        "Own: 2.0 s",
        "Slow: 9.0 s",
    ]


def test_the_tables_replace_what_stands_between_their_marks(tmp_path: Path) -> None:
    path = tmp_path / "speed.md"
    path.write_text("before\n<!-- faults -->\nold\n<!-- end of faults -->\nafter\n")
    report.update(path, "new")
    report.update(path, "newer")
    assert path.read_text() == "before\n<!-- faults -->\nnewer\n<!-- end of faults -->\nafter\n"
    path.write_text("no marks")
    with pytest.raises(ValueError, match="has no <!-- faults -->"):
        report.update(path, "new")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--sides", "jobset"], "--sides takes some of spotmpi-mpirun"),
        (["--sides", "elastic,elastic"], "each once"),
        (["--faults", "0"], "at least 1"),
        (["--limit", "0"], "more than 0 seconds"),
    ],
)
def test_wrong_options_are_refused_before_a_cluster_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["fault-benchmark", *words])
    with pytest.raises(SystemExit) as ended:
        fault_benchmark.main()
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_the_versions_are_those_that_the_locks_have() -> None:
    assert set(fault_benchmark._versions()) == {
        "Kubernetes",
        "JobSet",
        "MPI Operator",
        "PyTorch",
        "Open MPI",
        "torchft",
    }
