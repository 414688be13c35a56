"""Output as lines of its ranks: cut, tagged, counted as progress."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from spotmpi.agent import protocol
from spotmpi.agent.lines import MAX_LINE, Line, LineSplitter, PieceSplitter
from spotmpi.agent.progress import Progress
from spotmpi.core import names


def split_lines(
    *pieces: bytes, stream: str = "o", by: Callable[[str], LineSplitter | PieceSplitter] = LineSplitter
) -> list[Line]:
    splitter = by(stream)
    lines = [line for piece in pieces for line in splitter.feed(piece)]
    return lines + splitter.end()


@pytest.mark.parametrize(
    ("pieces", "texts"),
    [
        ([b"a\nb\n"], ["a", "b"]),
        ([b"a", b"b\nc"], ["ab", "c"]),
        ([b"\n\n"], ["", ""]),
        ([], []),
        (["é\n".encode()[:1], "é\n".encode()[1:]], ["é"]),
        ([b"\xff\n"], ["\ufffd"]),
        ([b"0%\r50%\r100%\n"], ["100%"]),
        ([b"dos\r\n"], ["dos"]),
        ([b"\r\r\n"], [""]),
        ([b"zero\0 bytes\0\n"], ["zero bytes"]),
        ([b"bar 99%\r\n", b"next"], ["bar 99%", "next"]),
    ],
)
def test_bytes_become_lines_wherever_they_are_cut(pieces: list[bytes], texts: list[str]) -> None:
    assert [line.text for line in split_lines(*pieces)] == texts
    together = b"".join(pieces)
    assert [line.text for line in split_lines(*(together[i : i + 1] for i in range(len(together))))] == texts


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"[1,3]<stdout>: hello", Line(3, "o", "hello")),
        (b"[4711,0]<stderr>: hello", Line(0, "e", "hello")),
        (b"[1,0]<stdout>:hello", Line(0, "o", "hello")),
        (b"[1,0]<stdout>: ", Line(0, "o", "")),
        (b"plain [1,0]<stdout>: no", Line(None, "o", "plain [1,0]<stdout>: no")),
    ],
)
def test_mpirun_s_tag_becomes_rank_and_stream(text: bytes, line: Line) -> None:
    assert split_lines(text + b"\n") == [line]


def test_a_line_in_parts_is_put_together_per_rank_and_stream() -> None:
    parts = b"[0,0]<stdout>+: he\n[0,1]<stdout>+: wo\n[0,0]<stderr>: no\n[0,0]<stdout>: llo\n[0,1]<stdout>+: r\n"

    assert split_lines(parts) == [Line(0, "e", "no"), Line(0, "o", "hello"), Line(1, "o", "wor")]


# As Open MPI 4.1.4 wrote it for two ranks that printed "rank 0 line", "  indented" and so on, unbuffered.
PIECES = b"""[1,0]<stdout>:rank[1,0]<stdout>: [1,0]<stdout>:0[1,1]<stdout>:rank 1 [1,0]<stdout>: line[1,1]<stdout>:line
[1,0]<stdout>:
[1,1]<stdout>:  indented[1,0]<stderr>:no
[1,1]<stdout>:
[1,0]<stdout>:[not a tag[1,1]<stdout>:
[1,0]<stdout>:]
mpirun has exited
[1,1]<stdout>:half[1,0]<stdout>:other"""


def test_pieces_of_lines_are_put_together_per_rank_and_stream_wherever_they_are_cut() -> None:
    expected = [
        Line(1, "o", "rank 1 line"),
        Line(0, "o", "rank 0 line"),
        Line(0, "e", "no"),
        Line(1, "o", "  indented"),
        Line(1, "o", ""),
        Line(0, "o", "[not a tag]"),
        Line(None, "o", "mpirun has exited"),
        Line(1, "o", "half"),
        Line(0, "o", "other"),
    ]

    for size in range(1, len(PIECES) + 1):
        pieces = (PIECES[i : i + size] for i in range(0, len(PIECES), size))
        assert split_lines(*pieces, by=PieceSplitter) == expected, f"cut every {size} bytes"


def test_a_rank_without_line_ends_is_cut_and_nothing_of_it_is_lost() -> None:
    data = b"[1,0]<stdout>:" + b"x" * 1000
    lines = split_lines(*[data] * (3 * MAX_LINE // 1000), by=PieceSplitter)

    assert "".join(line.text for line in lines) == "x" * (3 * MAX_LINE // 1000 * 1000)
    assert {line.rank for line in lines} == {0} and max(len(line.text) for line in lines) < MAX_LINE + 1000


@pytest.mark.parametrize("text", ["loss: [1,", "[1,0]<std", "["])
def test_an_end_that_could_have_begun_a_tag_is_output(text: str) -> None:
    assert split_lines(text.encode(), by=PieceSplitter) == [Line(None, "o", text)]


def test_tagged_ranks_may_share_a_pipe_and_no_line_of_theirs_mixes() -> None:
    reading, writing = os.pipe()
    path = names.SOURCE / "spotmpi" / "agent" / "starter.py"
    code = "import os\nfor i in range(300): print(os.environ['RANK'], i, 'x' * (i * 40), 'end')\nprint('half', end='')"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-I", "-S", str(path), "--tag", "python3", "-u", "-c", code],
            stdout=writing,
            env={**os.environ, "RANK": str(rank)},
        )
        for rank in range(3)
    ]
    os.close(writing)
    splitter = LineSplitter("o")
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        lines = [line for data in iter(lambda: pipe.read(65536), b"") for line in splitter.feed(data)] + splitter.end()

    assert [rank.wait() for rank in ranks] == [0, 0, 0]
    for rank in range(3):
        texts = [line.text for line in lines if line.rank == rank]
        assert texts == [*(f"{rank} {i} {'x' * (i * 40)} end" for i in range(300)), "half"]


def test_a_line_without_end_is_cut_and_nothing_of_it_is_lost() -> None:
    data = b"x" * (3 * MAX_LINE + 5)
    lines = split_lines(*(data[i : i + 65536] for i in range(0, len(data), 65536)))

    assert "".join(line.text for line in lines) == data.decode() and len(lines) == 4


def test_progress_counts_iterations_and_signs_of_life() -> None:
    progress = Progress(100.0)
    assert not progress.alive

    progress.output_received(101.0)
    assert progress.alive and progress.last_progress == 101.0
    progress.read(0, Line(0, "o", protocol.encode(protocol.METRIC, iteration=10, seconds=[0.1] * 10)), 110.0)
    assert (progress.first_iteration, progress.iteration, progress.last_progress) == (1, 10, 110.0)
    progress.output_received(120.0)
    progress.read(0, Line(0, "o", protocol.encode(protocol.METRIC, iteration=10, seconds=[0.1])), 121.0)
    assert progress.last_progress == 110.0, "neither talk nor a repeated iteration is progress"


def test_a_pattern_reads_rank_zero_of_node_zero_and_each_iteration_once() -> None:
    progress = Progress(0.0, r"step (?P<iteration>\S+) loss (?P<loss>\S+)(?: lr (?P<lr>\S+))?")

    def take(node: int, rank: int | None, text: str) -> Any:
        return progress.read(node, Line(rank, "o", text), 1.0)

    assert take(0, None, "step 1 loss 0.5") == ("metric", {"iteration": 1, "loss": 0.5})
    assert take(0, None, "step 1 loss 0.6") is None, "another rank's"
    assert take(0, 1, "step 2 loss 0.6") is None
    assert take(1, 0, "step 2 loss 0.6") is None
    assert take(0, 0, "step 2 loss nan lr 1e-3") == ("metric", {"iteration": 2, "loss": None, "lr": 0.001})
    assert take(0, 0, "step three loss 1") is None
    assert take(0, 0, "step nan loss 1") is None
    assert take(0, 0, "step 4.0 loss x") == ("metric", {"iteration": 4, "loss": "x"})


@pytest.mark.parametrize(
    "text",
    ["", "{", "{}", '{"spotmpi": 1}', '{"spotmpi": "new kind"}', '{"spotmpi": "metric"', ' {"spotmpi": "metric"}'],
)
def test_what_is_no_protocol_line_is_plain_output(text: str) -> None:
    assert protocol.decode(text) is None


@pytest.mark.parametrize(
    "values",
    [
        '"iteration": true',
        '"iteration": null',
        '"iteration": 1.0',
        '"iteration": 1, "seconds": 0.5',
        '"iteration": 1, "seconds": ["a"]',
        '"iteration": 1, "seconds": [0.5, NaN]',
        '"iteration": 1, "seconds": [-0.5]',
        '"total_iterations": "30"',
        '"samples_per_iteration": "64"',
        '"samples_per_iteration": 0',
        '"hosts": [1]',
        '"versions": ["1"]',
    ],
)
def test_a_protocol_line_with_unusable_values_is_plain_output(values: str) -> None:
    progress = Progress(0.0)

    assert progress.read(0, Line(0, "o", f'{{"spotmpi": "metric", {values}}}'), 1.0) is None
    assert progress.iteration is None


def test_a_protocol_line_has_no_number_that_json_lacks_whoever_wrote_it() -> None:
    values = {"iteration": 1, "loss": float("nan"), "parts": [float("inf"), 1.0]}
    ours, another = protocol.encode(protocol.METRIC, **values), json.dumps({"spotmpi": "metric", **values})

    assert "null" in ours and "NaN" in another
    for text in (ours, another):
        assert protocol.decode(text) == ("metric", {"iteration": 1, "loss": None, "parts": [None, 1.0]})


def test_a_pattern_is_tried_on_the_beginning_of_a_line_only() -> None:
    progress = Progress(0.0, r"(?P<iteration>\d+)")
    assert progress.read(0, Line(None, "o", " " * 4000 + "7"), 1.0) == ("metric", {"iteration": 7})
    assert progress.read(0, Line(None, "o", " " * 5000 + "8"), 1.0) is None


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('{"a": 1e400, "b": -1e400, "c": NaN}', {"a": None, "b": None, "c": None}),
        ('{"a": 18446744073709551615, "b": 1' + "0" * 25 + "}", {"a": float(2**64), "b": 1e25}),
        ('{"a": -9223372036854775808}', {"a": float(-(2**63))}),
        ('{"a": ' + "9" * 5000 + "}", {"a": None}),
        ('{"\\ud800": ["\\udfff", "\\ud83d\\ude00"]}', {"?": ["?", "\U0001f600"]}),
        ("[" * 16 + "]" * 16, None),
    ],
)
def test_json_of_anybody_has_no_value_that_a_reader_stumbles_over(text: str, values: Any) -> None:
    value = protocol.read_json(text)
    assert values is None or value == values
    assert json.loads(json.dumps(value).encode())


@pytest.mark.parametrize("text", ["[" * 17 + "]" * 17, "[" * 100_000, "[" * 100_000 + "]" * 100_000, "{", ""])
def test_json_that_is_torn_or_nested_deeply_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        protocol.read_json(text)
