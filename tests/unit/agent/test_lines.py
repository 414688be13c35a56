"""Output as lines of its ranks: cut and tagged."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotmpi.agent import protocol
from spotmpi.agent.launcher_output import MAX_LINE, Line, LineSplitter, PieceSplitter
from spotmpi.agent.rank_wrapper import Tagger


def split_lines(
    *pieces: bytes, stream: str = "o", by: Callable[[str], LineSplitter | PieceSplitter] = LineSplitter
) -> list[Line]:
    splitter = by(stream)
    lines = [line for piece in pieces for line in splitter.feed(piece)]
    return lines + splitter.end()


@pytest.mark.parametrize(
    ("pieces", "texts"),
    [
        ([b"0%\r50%\r100%\n"], ["100%"]),
        ([b"dos\r\n"], ["dos"]),
        ([b"\r\r\n"], [""]),
        ([b"zero\0 bytes\0\n"], ["zero bytes"]),
        ([b"bar 99%\r\n", b"next"], ["bar 99%", "next"]),
    ],
)
def test_bytes_become_lines(pieces: list[bytes], texts: list[str]) -> None:
    assert [line.text for line in split_lines(*pieces)] == texts


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


def test_ranks_that_end_without_a_line_end_have_lines_of_their_own() -> None:
    """As Open MPI 5.0.11 prints it."""
    text = b"[1,0]<stdout>: hello from 0[1,1]<stdout>: hello from 1[1,2]<stdout>: hello from 2"
    expected = [Line(rank, "o", f"hello from {rank}") for rank in range(3)]
    assert split_lines(text) == split_lines(text + b"\n") == expected
    others = ("[1,1]<stdout>: of an mpirun in it", "a [0,1]<stdout>: b", "a [1,1]<stderr>: b", "a [1,1] b]<std")
    for other in others:
        assert split_lines(b"[1,0]<stdout>: " + other.encode()) == [Line(0, "o", other)]


@pytest.mark.parametrize(
    ("by", "tag", "end", "rank"),
    [
        (LineSplitter, b"", b"", None),
        (LineSplitter, b"[1,0]<stderr>+: ", b"\n", 0),
        (PieceSplitter, b"[1,0]<stderr>:", b"", 0),
    ],
    ids=["untagged", "parts of torchrun's ranks", "pieces of Open MPI 4"],
)
def test_an_unfinished_progress_bar_shows_its_last_state(
    by: Callable[[str], LineSplitter | PieceSplitter], tag: bytes, end: bytes, rank: int | None
) -> None:
    splitter = by("e")
    assert splitter.feed(tag + b"loading" + end) == splitter.states() == []
    splitter.feed(tag + b"\r" + b"x" * 5000 + b"\r 1%" + end)
    assert splitter.states() == [Line(rank, "e", " 1%")]
    splitter.feed(tag + b"\r 2%" + end)
    assert splitter.states() == [Line(rank, "e", " 2%")]
    splitter.feed(tag.replace(b"+", b"") + b"\r 3%\n")
    assert splitter.states() == []


WRITES = st.tuples(
    st.integers(0, 2), st.sampled_from(["stdout", "stderr"]), st.text("a [1,0]<stdout>:é", max_size=9), st.booleans()
)


@given(st.lists(WRITES), st.integers(1, 60))
def test_parts_of_lines_are_put_together_per_rank_and_stream_wherever_they_are_cut(
    writes: list[tuple[int, str, str, bool]], size: int
) -> None:
    """What a rank of torchrun has not ended yet, its `Tagger` writes as a part of a line."""
    expected, unfinished = [], dict[tuple[int, str], str]()
    with tempfile.TemporaryFile() as pipe:
        taggers = {
            source: Tagger(str(source[0]), source[1], pipe.fileno()) for source in {write[:2] for write in writes}
        }
        for rank, stream, text, ends in writes:
            taggers[rank, stream].feed(text.encode())
            taggers[rank, stream].flush()
            if text:
                unfinished[rank, stream] = unfinished.pop((rank, stream), "") + text
            if ends:
                taggers[rank, stream].feed(b"\n")
                expected.append(Line(rank, stream[3], unfinished.pop((rank, stream), "")))
        pipe.seek(0)
        data = pipe.read()
    expected += [Line(rank, stream[3], text) for (rank, stream), text in unfinished.items()]
    assert split_lines(*(data[at : at + size] for at in range(0, len(data), size))) == expected


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


@pytest.mark.parametrize(
    ("splitter", "prefix", "rank", "pieces"), [(LineSplitter, "", None, 4), (PieceSplitter, "[1,0]<stdout>:", 0, 3)]
)
def test_output_without_line_ends_is_cut_and_nothing_of_it_is_lost(
    splitter: type[LineSplitter | PieceSplitter], prefix: str, rank: int | None, pieces: int
) -> None:
    count = 3 * MAX_LINE // 1000 + 1
    lines = split_lines(*[f"{prefix}{'x' * 1000}".encode()] * count, by=splitter)
    assert "".join(line.text for line in lines) == "x" * 1000 * count
    assert {line.rank for line in lines} == {rank}
    assert len(lines) == pieces and max(len(line.text) for line in lines) < MAX_LINE + 1000


@pytest.mark.parametrize("text", ["loss: [1,", "[1,0]<std", "["])
def test_an_end_that_could_have_begun_a_tag_is_output(text: str) -> None:
    assert split_lines(text.encode(), by=PieceSplitter) == [Line(None, "o", text)]


OUTPUT = st.lists(
    st.sampled_from(
        [b"\n", b"\r", b"\0", b"\xff", "é".encode(), b"a", b"[1,0]<stdout>: ", b"[1,23]<stderr>:", b"[1,0]<stdout>+: "]
    )
    | st.binary(max_size=4)
).map(b"".join)


@given(OUTPUT, st.lists(st.integers(0, 200), max_size=6), st.sampled_from([LineSplitter, PieceSplitter]))
def test_any_output_gives_the_same_lines_however_it_arrives(
    data: bytes, cuts: list[int], by: Callable[[str], LineSplitter | PieceSplitter]
) -> None:
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[start:end] for start, end in pairwise(places)]
    lines = split_lines(*pieces, by=by)
    assert lines == split_lines(data, by=by)
    for line in lines:
        assert not set("\n\r\0") & set(line.text) and line.stream in ("o", "e")
        line.text.encode()


@given(st.lists(st.binary(max_size=9).filter(lambda data: not set(b"\n\r\0[") & set(data))))
def test_a_line_without_a_tag_is_its_text(lines: list[bytes]) -> None:
    texts = [line.decode("utf-8", "replace") for line in lines]
    assert [line.text for line in split_lines(b"".join(line + b"\n" for line in lines))] == texts
    assert [line.text for line in split_lines(b"\n".join(lines))] == (texts if lines and lines[-1] else texts[:-1])


def test_the_report_of_thousands_of_ranks_is_one_line(tmp_path: Path) -> None:
    """By one pipe as it is, with mpirun's tag, in tagged pieces, and in the parts of a `Tagger`."""
    ranks = [[0.25] * 100 for _ in range(5000)]
    report = protocol.encode(protocol.METRIC, iteration=100, seconds=[0.25] * 100, ranks=protocol.pack(ranks))
    data = report.encode() + b"\n"
    assert len(data) > 2 * MAX_LINE
    with (tmp_path / "pipe").open("wb") as pipe:
        Tagger("0", "stdout", pipe.fileno()).feed(data)
    tagged = b"[1,0]<stdout>: " + data
    kinds: list[tuple[bytes, Callable[[str], LineSplitter | PieceSplitter]]]
    kinds = [(data, LineSplitter), (tagged, LineSplitter), ((tmp_path / "pipe").read_bytes(), LineSplitter)]
    kinds.append((b"[1,0]<stdout>:" + data, PieceSplitter))
    for text, by in kinds:
        pieces = [text[at : at + (1 << 16)] for at in range(0, len(text), 1 << 16)]
        (line,) = split_lines(*pieces, by=by)
        assert line.text == report and protocol.decode(line.text)


def test_a_line_that_pretends_to_be_a_report_has_an_end() -> None:
    line = b'{"spotmpi":' + b"x" * (protocol.MAX_REPORT + 5)
    for by in (LineSplitter, PieceSplitter):
        splitter = by("o")
        pieces = [line[at : at + (1 << 20)] for at in range(0, len(line), 1 << 20)]
        assert sum(len(splitter.feed(piece)) for piece in pieces) == 1
