"""What the SSD programs of both frameworks share around their networks: samples, evaluation, options, weights."""

import hashlib
import pickle
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from spotmpi.checkpoint import state
from spotmpi.core.names import EXAMPLES
from spotmpi.programs import reading, shapes
from spotmpi.programs.augment import Pixels
from spotmpi.programs.boxes import Floats, default_boxes, encode
from spotmpi.programs.detection import evaluate
from spotmpi.programs.detection_data import DetectionData, load_data
from spotmpi.programs.exits import Fatal
from spotmpi.programs.options import Parser, training_parser
from spotmpi.programs.sampling import sample_generator
from spotmpi.programs.ssd import learning_rate, ssd_data, ssd_options
from spotmpi.programs.weights import read_arrays, read_weights
from spotmpi.programs.world import World, alone
from spotmpi.spec.source import load_spec

SETS = ("trainval", "test")


@pytest.fixture
def voc(tmp_path: Path) -> Path:
    shapes.write_shapes(tmp_path / "voc", images=5, test_images=3)
    return tmp_path / "voc"


def parsed(*arguments: str, parser: Parser | None = None) -> Any:
    """The options of the SSD programs, by themselves or added to those of *parser*."""
    parser = parser or Parser("")
    ssd_options(parser)
    return parser.parse_args(arguments)


def test_a_batch_holds_pixels_and_the_targets_of_every_default_box(voc: Path) -> None:
    training, test = load_data(voc, SETS, False, alone())
    assert (len(training), len(test)) == (5, 3)
    pixels, offsets, labels = training.batch([training.sample(i, sample_generator(0, 0, i)) for i in range(2)])
    assert (pixels.shape, str(pixels.dtype)) == ((2, 3, 300, 300), "uint8")
    assert (offsets.shape, str(offsets.dtype)) == ((2, 8732, 4), "float32")
    expected = encode(training.images[1].objects.boxes, training.images[1].objects.labels, default_boxes())
    np.testing.assert_array_equal(offsets[1], expected[0])
    np.testing.assert_array_equal(labels[1], expected[1])


def test_drawn_images_look_like_read_ones_and_ask_for_no_folder(voc: Path) -> None:
    short = ("--global-batch", "4", "--iterations", "1")
    training, test = ssd_data(parsed("--synthetic", *short, parser=training_parser("", {})), alone())
    drawn = training.batch([training.sample(i, sample_generator(0, 0, i)) for i in (0, 9)])
    real, _ = load_data(voc, SETS, False, alone())
    read = real.batch([real.sample(i, sample_generator(0, 0, i)) for i in range(2)])
    assert [(part.shape, part.dtype) for part in drawn] == [(part.shape, part.dtype) for part in read]
    assert (drawn[2] > 0).any()  # there are objects to find
    assert len(training) == 16_551  # an epoch as long as VOC's
    assert evaluate(lambda pixels: pytest.fail("there is nothing to test with"), test, alone()) == {}
    with pytest.raises(Fatal, match="not allowed with"):
        parsed("--synthetic", "--data", str(voc), *short, parser=training_parser("", {}))


@pytest.mark.parametrize("state", ["cold", "warm"])
def test_one_rank_of_each_node_makes_the_data_cold_or_warm(
    voc: Path, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    result: dict[str, list[Path]] = {}
    monkeypatch.setattr(reading, "drop_pages", lambda files: result.setdefault("cold", list(files)))
    monkeypatch.setattr(reading, "read_files", lambda files: result.setdefault("warm", list(files)))
    waited: list[object] = []

    def gather(value: Any) -> list[Any]:
        waited.append(value)
        return [value]

    for local_rank in (0, 1):
        world = World(local_rank, 2, local_rank, ("a",), lambda value: value, gather)
        reading.prepare_cache(voc, state, world)
    assert list(result) == [state]
    assert len([path for path in result[state] if path.suffix == ".jpg"]) == 8
    assert len(waited) == 2  # no rank begins before all are ready


def test_a_sample_depends_on_seed_epoch_and_index_only_also_in_another_process(voc: Path) -> None:
    training, test = load_data(voc, SETS, True, alone())
    travelled = pickle.loads(pickle.dumps(training))
    first = training.sample(2, sample_generator(7, 1, 2))
    training.sample(0, sample_generator(7, 1, 0))
    for again in (training.sample(2, sample_generator(7, 1, 2)), travelled.sample(2, sample_generator(7, 1, 2))):
        for part in ("pixels", "offsets", "labels"):
            np.testing.assert_array_equal(getattr(first, part), getattr(again, part))
    assert (training.sample(2, sample_generator(7, 2, 2)).pixels != first.pixels).any()
    one, other = (test.sample(0, sample_generator(0, epoch, 0)).pixels for epoch in (0, 1))
    assert np.array_equal(one, other), "test images are never augmented"


def test_only_rank_zero_reads_the_folder(voc: Path) -> None:
    broadcasts: list[Any] = []

    def tell(value: Any) -> Any:
        broadcasts.append(value)
        return value

    ours = load_data(voc, SETS, True, World(0, 2, 0, ("a",), tell, lambda value: [value]))
    received = iter(broadcasts)
    theirs = load_data(voc / "absent", SETS, True, World(1, 2, 0, ("a",), lambda _: next(received), lambda v: [v]))
    assert [part.fingerprint() for part in ours] == [part.fingerprint() for part in theirs]
    assert ours[0].fingerprint() != ours[1].fingerprint()


@pytest.mark.parametrize("content", [b"", b"not an image", "half"])
def test_a_broken_image_is_one_line_with_its_file(voc: Path, content: bytes | str) -> None:
    training, _ = load_data(voc, SETS, True, alone())
    path = training.images[3].path
    path.write_bytes(content if isinstance(content, bytes) else path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(Fatal, match=r"000004\.jpg: not a readable image .*; replace the file"):
        training.sample(3, sample_generator(0, 0, 3))


def test_evaluation_of_perfect_output_gives_one_however_many_ranks_share_it(voc: Path) -> None:
    _, test = load_data(voc, SETS, True, alone())
    right = _answers(test)
    alone_result = evaluate(right, test, alone())
    assert alone_result["mean_average_precision"] == 1
    assert {value for name, value in alone_result.items() if name.startswith("ap_")} == {1.0}
    results, looked_at = _on_two_ranks(test)
    assert results == [alone_result, alone_result]
    assert looked_at == [2, 1]


class _Enough(Exception):
    pass


def _on_two_ranks(test: DetectionData) -> tuple[list[dict[str, float]], list[int]]:
    shares: list[Any] = []

    def collect(mine: Any) -> NoReturn:
        shares.append(mine)
        raise _Enough

    for rank in range(2):
        with pytest.raises(_Enough):
            evaluate(_answers(test), test, World(rank, 2, rank, ("a",), lambda value: value, collect))
    worlds = [World(rank, 2, rank, ("a",), lambda value: value, lambda _: shares) for rank in range(2)]
    return [evaluate(_answers(test), test, world) for world in worlds], [len(share) for share in shares]


def _answers(test: DetectionData) -> Any:
    """A network that knows the right output of each test image by its pixels."""
    answers = {}
    for index in range(len(test)):
        sample = test.sample(index, np.random.default_rng(0))
        confidences = np.zeros((8732, 21), np.float32)
        confidences[np.arange(8732), sample.labels] = 20
        answers[hashlib.sha256(sample.pixels.tobytes()).digest()] = (sample.offsets, confidences)

    def predict(pixels: Pixels) -> tuple[Floats, Floats]:
        pairs = [answers[hashlib.sha256(image.tobytes()).digest()] for image in pixels]
        return np.stack([offsets for offsets, _ in pairs]), np.stack([confidences for _, confidences in pairs])

    return predict


def test_the_learning_rate_falls_to_a_tenth_as_in_the_paper() -> None:
    rate = learning_rate(parsed("--data", "x"))
    at = {0: 1e-3, 79_999: 1e-3, 80_000: 1e-4, 99_999: 1e-4, 100_000: 1e-5, 119_999: 1e-5}
    assert {iteration: rate(iteration) for iteration in at} == pytest.approx(at)
    constant = learning_rate(parsed("--data", "x", "--rate-drops", "", "--learning-rate", "0.5"))
    assert constant(10**6) == 0.5


@pytest.mark.parametrize("name", ["ssd", "ssd-pytorch", "ssd-shapes"])
def test_the_ready_specs_hold_arguments_that_the_programs_take(name: str) -> None:
    spec = load_spec(EXAMPLES / f"{name}.toml")
    assert spec.program == "ssd"
    options = parsed("--data", str(spec.data), *spec.args, parser=training_parser(""))
    if name != "ssd-shapes":
        assert (options.global_batch, options.iterations, options.width) == (32, 120_000, 1)
        assert options.rate_drops == (80_000, 100_000)


@pytest.mark.parametrize("text", ["100,50", "0,10", "ten", "5,5"])
def test_drops_of_the_rate_that_do_not_rise_are_refused(text: str) -> None:
    with pytest.raises(Fatal, match="--rate-drops"):
        parsed("--data", "x", "--rate-drops", text)


MODEL = {"trunk/W": (2, 3), "trunk/b": (2,), "head/W": (5,)}


def _weights(path: Path, **shapes: tuple[int, ...]) -> Path:
    with path.open("wb") as file:
        arrays: dict[str, Any] = {name.replace("__", "/"): np.full(shape, 7.0) for name, shape in shapes.items()}
        np.savez(file, **arrays)
    return path


def test_weights_of_a_trunk_are_loaded_and_unknown_ones_are_ignored(tmp_path: Path) -> None:
    path = _weights(tmp_path / "w.npz", trunk__W=(2, 3), trunk__b=(2,), classifier__W=(9,))
    weights = read_weights(path, read_arrays, MODEL, ["trunk/W", "trunk/b"])
    assert sorted(weights.arrays) == ["trunk/W", "trunk/b"]
    assert weights.describe(3) == {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "arrays": "2 of 3"}


def test_a_checkpoints_state_serves_as_weights(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    arrays = {f"parameters/{name}": np.zeros(shape) for name, shape in MODEL.items()}
    path.write_bytes(b"".join(map(state.bytes_of, state.encode(arrays))))
    assert sorted(read_weights(path, read_arrays, MODEL, ["trunk/W"]).arrays) == sorted(MODEL)


def test_wrong_weights_are_refused_in_one_line(tmp_path: Path) -> None:
    text = tmp_path / "text.npz"
    text.write_text("hello")
    other = _weights(tmp_path / "other.npz", conv1=(1,), conv2=(1,))
    wider = _weights(tmp_path / "wider.npz", trunk__W=(2, 4), trunk__b=(2,))
    cut = tmp_path / "cut.npz"
    cut.write_bytes(wider.read_bytes()[:-100])
    for path, message in (
        (tmp_path / "absent.npz", "file not found"),
        (tmp_path, "file not found"),
        (text, r"not readable as weights \(not a NumPy archive\)"),
        (cut, "not readable as weights"),
        (other, r"it has no trunk/W, but conv1, conv2"),
        (wider, r"trunk/W has shape \(2, 4\), the model \(2, 3\)"),
    ):
        with pytest.raises(Fatal, match=message) as caught:
            read_weights(path, read_arrays, MODEL, ["trunk/W", "trunk/b"])
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)
