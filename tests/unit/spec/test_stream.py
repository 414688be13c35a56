"""The table [stream] of a job spec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spotmpi.spec.job import JobSpec
from spotmpi.spec.source import from_values, resolve_paths
from spotmpi.spec.validate import TargetCapabilities, validate
from spotmpi.streams.order import Settings

FILES = {"source": "s3://set/*.parquet", "batch": 4096, "prepare": "flow:prepare"}
TRAIN = ["python", "-m", "spotmpi.streams.rank", "train", "flow:train"]
PREDICT = ["python", "-m", "spotmpi.streams.rank", "predict", "flow:predict"]


def spec(stream: dict[str, Any], **values: Any) -> JobSpec:
    return from_values({"command": ["train"], "stream": stream, **values})


def problems(spec: JobSpec, **values: Any) -> dict[str, str]:
    """The problems of a spec by field."""
    capabilities = TargetCapabilities(tools=frozenset({"mpirun", "torchrun", "none"}), processes=8, **values)
    return {problem.field: problem.remedy for problem in validate(spec, capabilities)}


@pytest.mark.parametrize(
    "stream",
    [
        FILES,
        {**FILES, "last_batch": "keep", "workers": {"count": 8}},
        {**FILES, "debug": 0.01, "workers": {"count": 2}},
        {**FILES, "source": "hf://datasets/ann/set", "split": "train"},
        {"source": "flow:rows", "length": 5},
    ],
)
def test_a_stream_of_files_or_of_a_function_is_valid(stream: dict[str, Any]) -> None:
    assert problems(spec(stream)) == {}


@pytest.mark.parametrize("source", [{"source": "flow:rows", "length": 5}, {"source": "kafka://b/t", "batch": 5}])
def test_only_folders_have_splits(source: dict[str, Any]) -> None:
    assert problems(spec({**source, "split": "train"})) == {
        "stream.split": "is for a folder of files as the source; remove it"
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("write", "jsonl"),
        ("write", "flow:write"),
        ("write", "kafka://broker:9092/scores?acks=all"),
        ("postprocess", "flow:post"),
    ],
)
def test_only_a_prediction_has_results(key: str, value: str) -> None:
    stream = {**FILES, key: value}
    for command in (PREDICT, ["python", "-u", *PREDICT[1:]]):
        assert problems(spec(stream, command=command)) == {}
    for command in (["train"], TRAIN):
        assert problems(spec(stream, command=command)) == {
            f"stream.{key}": "only a prediction has results: start it as spotmpi.pipeline(..., predict=...), "
            "or remove it"
        }


def test_the_postprocess_of_a_prediction_may_have_workers_of_its_own() -> None:
    stages = {**FILES, "postprocess": "flow:post", "workers": {"count": 4}}
    own = spec({**stages, "postprocess_workers": {"count": 2, "cpu": 3, "memory": "8Gi"}}, command=PREDICT)
    assert problems(own) == {}
    assert own.stream and own.stream.settings.roles == ("worker", "postprocess")
    assert [(each.table, each.count, each.cpu) for each in own.workers] == [
        ("stream.workers", 4, 1),
        ("stream.postprocess_workers", 2, 3),
    ]
    assert problems(spec({**stages, "postprocess_workers": {"count": 9}}, command=PREDICT)) == {
        "stream.postprocess_workers.count": "exceeds the 8 processes possible here"
    }
    assert problems(spec({**FILES, "postprocess_workers": {"count": 2}}, command=PREDICT)) == {
        "stream.postprocess_workers.count": 'have nothing to do: add postprocess = "flow:postprocess" to [stream], or '
        "remove the table"
    }
    program = {"launcher": "mpirun", "image": "pytorch", "command": None, "program": "digits"}
    capabilities = {"programs": {"pytorch": frozenset({"digits"})}}
    stream = {"workers": {"count": 2}, "postprocess_workers": {"count": 2}}
    args = {"args": ["--batches", "stream"]}
    assert problems(spec(stream, **program, **args), **capabilities) == {
        "stream.postprocess_workers": "a program streams its own data in its own order; remove it"
    }


def test_all_that_does_not_fit_together_is_said_at_once() -> None:
    stream = {"source": "flow:rows", "batch": 5, "prepare": "prepare", "workers": {"count": 9}}
    stream |= {"postprocess": "post", "write": "csv"}
    assert problems(spec(stream, command=PREDICT)) == {
        "stream.length": "a function as the source needs its number of batches in an epoch",
        "stream.batch": "a function as the source decides itself how many rows it gives",
        "stream.prepare": "use a function, such as flow:prepare",
        "stream.postprocess": "use a function, such as flow:postprocess",
        "stream.write": 'use "parquet", "jsonl", "files", a function, such as flow:write, or a topic, such as '
        "kafka://broker:9092/scores",
        "stream.workers.count": "exceeds the 8 processes possible here",
    }
    assert problems(spec({"source": "set", "length": 3, "debug": 0.01})) == {
        "stream.length": "is for a function as the source; remove it",
        "stream.batch": "give the number of rows of a batch, such as batch=256",
        "stream.debug": "compares batches of two workers: set stream.workers.count to 2 or more, or remove it",
    }


@pytest.mark.parametrize(
    ("values", "field", "remedy"),
    [
        ({"launcher": "torchrun", "nodes": 2}, "nodes", "needs one launcher process: use slots"),
        ({"launcher": "pool", "pool": {"count": 1}}, "stream", "a pool has no ranks"),
    ],
)
def test_launchers_that_a_stream_cannot_feed_are_refused(values: dict[str, Any], field: str, remedy: str) -> None:
    assert remedy in problems(spec(FILES, **values))[field]


VOLUME = ("/spotmpi/volume",)
MOUNT = {"mounts": [{"path": "/sets", "claim": "sets", "read_only": True}]}


@pytest.mark.parametrize(
    ("persistent", "source", "values"),
    [
        ((), "s3://set/*.parquet", {"nodes": 4, "launcher": "torchrun"}),
        (VOLUME, "sets/movielens/*.parquet", {}),
        (VOLUME, "/spotmpi/volume/set", {"command": PREDICT}),
        ((), "/sets/*.csv", {"kubernetes": MOUNT}),
    ],
)
def test_a_stream_on_a_cluster_reads_what_its_pods_can_reach(
    persistent: tuple[str, ...], source: str, values: dict[str, Any]
) -> None:
    assert problems(spec({**FILES, "source": source}, **values), persistent=persistent) == {}


@pytest.mark.parametrize(
    ("persistent", "source", "remedy"),
    [
        (VOLUME, "/home/ann/set.csv", "pods do not have this path: use a URL, a mount"),
        ((), "set.csv", "no such file on this machine, and no run volume: set kubernetes.volume"),
    ],
)
def test_a_source_that_pods_do_not_have_is_refused(persistent: tuple[str, ...], source: str, remedy: str) -> None:
    assert remedy in problems(spec({**FILES, "source": source}), persistent=persistent)["stream.source"]


@pytest.mark.parametrize("write", ["parquet", "jsonl", "files", None])
def test_results_that_would_be_lost_with_the_pods_are_refused(write: str | None) -> None:
    stream = FILES | ({"write": write} if write else {})
    assert "are lost with the pods" in problems(spec(stream, command=PREDICT), persistent=())["stream.write"]
    for elsewhere in ("flow:write", "kafka://broker:9092/scores"):
        assert problems(spec({**FILES, "write": elsewhere}, command=PREDICT), persistent=()) == {}


def test_an_output_without_a_topic_is_refused() -> None:
    stream = {**FILES, "write": "kafka://broker:9092?sasl.password=secret"}
    assert problems(spec(stream, command=PREDICT)) == {
        "stream.write": "names no topic: write kafka://BROKER:9092/TOPIC"
    }


@pytest.mark.parametrize(
    ("stream", "remedies"),
    [
        ({**FILES, "shuffle": True, "shuffle_block": 100}, {}),
        (
            {"source": "flow:rows", "length": 5, "shuffle": True},
            {"stream.shuffle": "a function as the source gives whole batches: use shuffle_batches"},
        ),
        (
            {"source": "kafka://broker:9092/ratings", "batch": 5, "shuffle": True},
            {"stream.shuffle": "messages of a topic are read in sequence: use shuffle_batches"},
        ),
        (
            {**FILES, "shuffle": True, "shuffle_batches": True},
            {"stream.shuffle_batches": "shuffle mixes the rows of all batches; remove it"},
        ),
        (
            {**FILES, "shuffle_block": 100},
            {"stream.shuffle_block": "is for shuffle = true; add that, or remove it"},
        ),
    ],
)
def test_keys_of_a_shuffle_belong_together(stream: dict[str, Any], remedies: dict[str, str]) -> None:
    assert problems(spec(stream)) == remedies


@pytest.mark.parametrize(
    "args", [["--batches", "stream"], ["--batches=stream"], ["--batches", "loader", "--batches=stream"]]
)
def test_a_program_streams_its_own_data(args: list[str]) -> None:
    program = {"program": "digits", "image": "pytorch", "command": None, "args": args}
    known = {"programs": {"pytorch": ("digits",)}}
    assert problems(spec({"prefetch": 3, "on_error": "skip", "workers": {"count": 2}}, **program), **known) == {}
    assert problems(spec({"source": "s3://set", "batch": 5, "shuffle": True}, **program), **known) == dict.fromkeys(
        ["stream.source", "stream.batch", "stream.shuffle"],
        "a program streams its own data in its own order; remove it",
    )


def test_a_stream_and_the_batches_of_a_program_belong_together() -> None:
    program = {"program": "digits", "image": "pytorch", "command": None}
    known = {"programs": {"pytorch": ("digits",)}}
    assert problems(spec({}, **program), **known) == {
        "stream": 'add "--batches", "stream" to args, or remove it: digits loads its data in the ranks'
    }
    without = from_values({**program, "args": ["--batches", "stream"]})
    assert problems(without, **known) == {"args": "needs CPU workers: add the table [stream], or [stream.workers]"}
    assert problems(spec({})) == {"stream.source": "name the files of which batches consist, or a function"}


@pytest.mark.parametrize(
    ("source", "resolved"),
    [
        ("set/*.csv", "{}/set/*.csv"),
        ("set", "{}/set"),
        ("volume/*.csv", "volume/*.csv"),
        ("/data", "/data"),
        ("//data/*.csv", "//data/*.csv"),
        ("s3://a/b", "s3://a/b"),
        ("flow:rows", "flow:rows"),
    ],
)
def test_a_relative_source_is_relative_to_the_file_of_the_spec_where_it_has_files(
    source: str, resolved: str, tmp_path: Path
) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.csv").touch()
    values = resolve_paths({"stream": {"source": source}}, tmp_path)
    assert values["stream"]["source"] == resolved.format(tmp_path)


def test_ranks_get_the_table_without_its_workers() -> None:
    stream = spec(FILES).stream
    assert stream and stream.settings == Settings("s3://set/*.parquet", 4096, prepare="flow:prepare")
