"""A pipeline: functions as a run."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import spotmpi
from spotmpi.api.pipelines import Pipeline
from tests.unit.streams import flow


def train(batches: Any) -> None:
    """Train."""


def test_functions_become_names_and_their_files_are_shipped() -> None:
    spec = spotmpi.pipeline("/set", flow.double, train, batch=5, epochs=3, workers={"count": 4}).spec()
    assert spec.stream and spec.stream.model_dump(exclude_defaults=True) == {
        "source": "/set",
        "batch": 5,
        "epochs": 3,
        "prepare": "tests.unit.streams.flow:double",
        "workers": {"count": 4},
    }
    assert spec.command == [sys.executable, "-m", "spotmpi.streams.rank", "train", f"{__name__}:train"]
    assert spec.title == "train"


def test_modules_that_a_module_imports_are_shipped_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "led_flow.py").write_text("import led_steps, json, numpy\ndef train(batches): ...\n")
    (tmp_path / "led_steps").mkdir()
    (tmp_path / "led_steps" / "__init__.py").write_text(
        "def late():\n    from led_scale import SCALE\n    return SCALE\n"
    )
    (tmp_path / "led_scale.py").write_text("SCALE = 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    import led_flow  # type: ignore[import-not-found]

    paths = [str(tmp_path / name) for name in ("led_flow.py", "led_steps", "led_scale.py")]
    assert spotmpi.pipeline(Path("/set"), None, led_flow.train, batch=5).spec().files == paths
    assert spotmpi.pipeline(Path("/set"), None, predict="led_flow:train", batch=5).spec().files == paths


def test_a_module_is_shipped_as_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_flow.py").write_text("def prepare(rows, seed): ...\ndef train(batches): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    import own_flow  # type: ignore[import-not-found]

    spec = spotmpi.pipeline(Path("/set"), own_flow.prepare, own_flow.train, batch=5).spec()
    assert spec.files == [str(tmp_path / "own_flow.py")]
    assert spec.stream and (spec.stream.source, spec.stream.prepare) == ("/set", "own_flow:prepare")
    del sys.modules["own_flow"]


def test_the_spec_has_resources_limits_and_image(tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    path.write_text('image = "pytorch"\nslots = 2\n[stream]\nsource = "other"\nprefetch = 3\nbatch = 1\n')
    spec = spotmpi.pipeline("/set", flow.double, train, batch=5).spec(path, ["slots=4"])
    assert (spec.image, spec.slots, spec.command and spec.command[0]) == ("pytorch", 4, "python")
    path.write_text('[kubernetes]\nimage = "registry/mine:1"\n')
    assert (spotmpi.pipeline("/set", flow.double, train, batch=5).spec(path).command or [])[0] == "python"
    assert spec.stream and (spec.stream.source, spec.stream.prefetch, spec.stream.batch) == ("/set", 3, 5)


def test_a_prediction_keeps_every_row_once() -> None:
    stages = spotmpi.pipeline(
        flow.numbers, predict=flow.predict, postprocess=flow.root, write="kafka://b:9092/t", length=4
    )
    spec = stages.spec()
    assert spec.stream and (spec.stream.last_batch, spec.stream.write) == ("keep", "kafka://b:9092/t")
    assert spec.stream.postprocess == "tests.unit.streams.flow:root"
    assert spec.command and spec.command[-2:] == ["predict", "tests.unit.streams.flow:predict"]


def test_each_stage_may_have_its_own_workers(tmp_path: Path) -> None:
    path = tmp_path / "predict.toml"
    path.write_text("[stream]\nworkers = { count = 4 }\npostprocess_workers = { count = 9, memory = '1Gi' }\n")
    own = {"count": 2, "cpu": 4, "image": "registry/video:1"}
    stages = spotmpi.pipeline("/set", predict=flow.predict, postprocess=flow.root, batch=4, postprocess_workers=own)
    prepare, postprocess = stages.spec(path, ["stream.postprocess_workers.count=3"]).workers
    assert (prepare.count, postprocess.count, postprocess.cpu, postprocess.memory) == (4, 3, 4, None)
    with pytest.raises(spotmpi.InputError, match=r"stream\.postprocess_workers\.gpu"):
        spotmpi.pipeline("/set", predict=flow.predict, batch=4, postprocess_workers={"gpu": 1}).spec()


def test_functions_that_workers_cannot_import_are_refused() -> None:
    def local(batches: Any) -> None: ...

    main = FunctionType(local.__code__, {"__name__": "__main__"}, "train")
    for function in (local, main, lambda batches: None):
        with pytest.raises(spotmpi.InputError, match="define it at the top level of a module"):
            spotmpi.pipeline("/set", None, function, batch=1)


@pytest.mark.parametrize("values", [{}, {"train": flow.predict, "predict": flow.predict}])
def test_exactly_one_consumer_is_needed(values: dict[str, Any]) -> None:
    with pytest.raises(spotmpi.InputError, match="give exactly one of train and predict"):
        spotmpi.pipeline("/set", batch=1, **values)


def test_unknown_options_and_a_command_in_the_spec_are_refused() -> None:
    with pytest.raises(spotmpi.InputError, match="pipeline = 'bach': unknown options"):
        spotmpi.pipeline("/set", None, train, bach=1)
    pipeline: Pipeline = spotmpi.pipeline("/set", None, train, batch=1)
    with pytest.raises(spotmpi.InputError, match="a pipeline starts its own function; remove it"):
        pipeline.spec({"command": ["other"]})


async def yield_later(batches: Any) -> AsyncIterator[Any]:
    yield batches


@pytest.mark.parametrize("train", [flow.predict, yield_later])
def test_a_generator_function_in_the_place_of_train_is_refused_with_the_remedy(train: Any) -> None:
    with pytest.raises(spotmpi.InputError) as caught:
        spotmpi.pipeline("/set", flow.double, train, batch=1)
    assert str(caught.value) == (
        f"train = '{train.__module__}:{train.__name__}': yields results, so training would compute nothing: "
        f"give it as predict={train.__name__}"
    )


@pytest.mark.parametrize("field", ["prepare", "postprocess"])
def test_a_generator_function_of_workers_is_refused_before_the_run(field: str) -> None:
    """The run started, and ended with "cannot pickle 'generator' object"."""
    functions: dict[str, Any] = {"prepare": flow.double, field: yield_later}
    with pytest.raises(spotmpi.InputError, match=rf"{field} = .*: yields: workers need one value .*, so return it"):
        spotmpi.pipeline("/set", predict=flow.predict, batch=1, **functions)


@pytest.mark.parametrize(("key", "value"), [("write", "jsonl"), ("write", sum), ("postprocess", flow.root)])
def test_what_is_for_results_is_refused_without_predict(key: str, value: Any) -> None:
    with pytest.raises(spotmpi.InputError, match=rf"{key} = .*: is for predictions: give .* as predict=, or remove it"):
        spotmpi.pipeline("/set", flow.double, train, batch=1, **{key: value})
