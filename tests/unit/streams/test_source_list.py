"""The list of a source: made once for all ranks and attempts of a run."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from spotmpi.streams.errors import StreamError
from spotmpi.streams.order import FunctionSource, Part, Settings, digest
from spotmpi.streams.source_list import compare_lists, share_list

PARTS = [Part("a", 1, 2, "3"), Part("b", 1, 2, "3")]


class Texts(dict[str, str]):
    """A broadcast among ranks, as by a Variable of Dask: it stays until the scheduler ends, and the last one counts."""

    def publish(self, name: str, text: str) -> None:
        self[name] = text

    def receive(self, name: str) -> str:
        return self[name]


def refuse(record: Sequence[Part]) -> list[Part]:
    raise AssertionError("listed again")


def test_rank_0_lists_and_records_and_the_others_need_no_folder(tmp_path: Path) -> None:
    texts, path = Texts(), tmp_path / "stream" / "source.json"
    assert share_list(path, "set", 0, texts, lambda record: PARTS) == PARTS
    assert json.loads(path.read_text()) == {
        "source": "set",
        "digest": digest(PARTS),
        "parts": [list(part) for part in PARTS],
    }
    for rank in (1, 2):
        assert share_list(tmp_path / "elsewhere" / "source.json", "set", rank, texts, refuse) == PARTS
    assert not (tmp_path / "elsewhere").exists()


def test_a_later_attempt_gets_the_record_and_accepts_the_same_list_only(tmp_path: Path) -> None:
    path, records = tmp_path / "source.json", []

    def listed(record: Sequence[Part]) -> list[Part]:
        records.append(list(record))
        return PARTS

    for _ in range(2):
        share_list(path, "set", 0, Texts(), listed)
    assert records == [[], PARTS]
    message = "the source set is not what it was when the run began: b; restore it"
    with pytest.raises(StreamError, match=message):
        share_list(path, "set", 0, Texts(), lambda record: [PARTS[0], PARTS[1]._replace(version="4")])


def test_a_record_that_a_machine_has_lost_with_its_power_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "source.json"
    path.write_text("")
    assert share_list(path, "set", 0, Texts(), lambda record: [*record, *PARTS]) == PARTS
    assert json.loads(path.read_text())["digest"] == digest(PARTS)


def test_ranks_with_other_data_than_rank_0_are_named(tmp_path: Path) -> None:
    texts = Texts()
    for rank in (0, 1):
        compare_lists(tmp_path / "source.json", "digits", rank, texts, PARTS)
    with pytest.raises(StreamError, match="rank 1 has other data than rank 0: b; give all nodes the same data"):
        compare_lists(tmp_path / "source.json", "digits", 1, texts, [PARTS[0], PARTS[1]._replace(rows=5)])


def test_a_program_that_knows_its_data_gives_function_arguments_and_identity() -> None:
    source = FunctionSource("flow:rows", {"seed": 3}, 10, ("digits", 1438, "2f37"))
    order = source.order(Settings("", prefetch=3, on_error="skip"))
    assert source.parts == [Part("digits", 1438, 0, "2f37")]
    assert (order.total, order.settings.prefetch, order.settings.on_error) == (10, 3, "skip")
    assert (order.settings.source, json.loads(order.settings.arguments)) == ("flow:rows", {"seed": 3})
    assert [re.sub(" rows", "", str(each)) for each in order.slices(7)] == ["flow:rows 7 to 7"]
