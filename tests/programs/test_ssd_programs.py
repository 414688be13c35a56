"""The SSD programs under real mpirun on drawn images, with an eighth of the paper's channels to be quick on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from spotmpi.agent import protocol
from spotmpi.programs import shapes
from spotmpi.programs.detection_data import load_data
from spotmpi.programs.sampling import Order, sample_generator
from spotmpi.programs.world import alone
from tests.programs.by_day import in_chainermn
from tests.programs.conftest import newest_state

if TYPE_CHECKING:
    from tests.programs.conftest import Image, RunningProgram

pytestmark = [pytest.mark.images, pytest.mark.timeout(600)]

THIN = ("--width", "0.125")
ONE_ITERATION = (*THIN, "--global-batch", "2", "--iterations", "1", "--report-every", "1")


@pytest.fixture
def voc(tmp_path: Path) -> Path:
    """Six pictures to train on and one to test with."""
    shapes.write_shapes(tmp_path / "voc", images=6, test_images=1)
    return tmp_path / "voc"


def ssd(image: Image, ranks: int, data: Path, *options: str, **environment: str) -> RunningProgram:
    return image.mpirun(ranks, "-W", "ignore", *image.program("ssd"), "--data", str(data), *options, **environment)


@in_chainermn("PyTorch's start costs seconds; what is tested is code of both")
def test_drawn_images_are_trained_on_without_a_folder(image: Image) -> None:
    options = ("--synthetic", *THIN, "--global-batch", "2", "--iterations", "3")
    run = image.mpirun(2, "-W", "ignore", *image.program("ssd"), *options).succeed()
    assert run.one(protocol.CONTEXT)["data_fingerprint"] == "synthetic-detection-0"
    assert run.one(protocol.RESULT)["iteration"] == 3


@pytest.mark.nightly("half a minute of training on all cores")
@pytest.mark.timeout(900)  # half a minute on two idle cores, but all of them are wanted
def test_a_handful_of_images_is_learnt_by_heart(image: Image, tmp_path: Path) -> None:
    shapes.write_shapes(tmp_path, images=2, seed=2)
    few = ("--test-sets", "trainval", "--no-augmentation", "--global-batch", "2", "--learning-rate", "5e-4")
    run = ssd(image, 1, tmp_path, *THIN, *few, "--iterations", "80", "--evaluate-every", "10").succeed()

    losses = [line["loss"] for line in run.all(protocol.METRIC)]
    values = [line["mean_average_precision"] for line in run.all(protocol.EVALUATION)]
    assert losses[-1] < 0.8 * losses[0], losses
    assert values[0] < 0.2 and values[-1] > 0.5, values
    result = run.one(protocol.RESULT)
    classes = [name for name in result if name.startswith("ap_")]
    assert result["mean_average_precision"] == pytest.approx(np.mean([result[name] for name in classes]))
    assert {"ap_car", "ap_bird", "ap_bus", "ap_boat", "ap_aeroplane"} == set(classes), "the difficult one is left out"


@in_chainermn("PyTorch's start costs seconds; what is tested is code of both")
def test_one_update_of_two_ranks_is_that_of_one_rank_though_their_shares_hold_unlike_many_objects(
    image: Image, voc: Path, tmp_path: Path
) -> None:
    training, _ = load_data(voc, ("trainval", "test"), True, alone())
    shares = [training.sample(i, sample_generator(0, epoch, i)) for epoch, i in Order(0, len(training)).slice(0, 2)]
    positives = [int((share.labels > 0).sum()) for share in shares]
    assert max(positives) > 1.3 * min(positives), "a loss divided by a rank's own positives would pass unnoticed"
    updated = {}
    for ranks in (1, 2):
        run = ssd(image, ranks, voc, *ONE_ITERATION, "--checkpoint-path", str(tmp_path / f"{ranks}")).succeed()
        updated[ranks] = newest_state(tmp_path / f"{ranks}"), run.one(protocol.METRIC)

    for name, value in updated[1][0].items():
        np.testing.assert_allclose(updated[2][0][name], value, rtol=0, atol=1e-5, err_msg=name)
    for name in ("loss", "location_loss", "confidence_loss"):
        assert updated[2][1][name] == pytest.approx(updated[1][1][name], rel=1e-5)
    momentum = newest_state(tmp_path / "1", "optimizer/")
    # Chainer's momentum is the step itself, PyTorch's still lacks the rate.
    step = max(float(np.abs(value).max()) for value in momentum.values() if value.ndim)
    assert step * {"chainermn": 1, "pytorch": 1e-3}[image.name] > 1e-3, "the allowed difference must be far smaller"


@pytest.mark.nightly("half a minute; digits are killed and resumed by day")
def test_a_killed_rank_is_resumed_bit_for_bit_with_augmentation_in_loader_processes(
    image: Image, voc: Path, tmp_path: Path
) -> None:
    checkpoints = tmp_path / "checkpoints"
    options = (*THIN, "--global-batch", "2", "--iterations", "8", "--report-every", "1", "--loader-processes", "1")
    saving = (*options, "--checkpoint-path", str(checkpoints), "--checkpoint-every", "0.01")
    killed = ssd(image, 2, voc, *saving)
    killed.until(protocol.CHECKPOINT, times=3)
    killed.kill_rank(1)
    assert killed.end() != 0
    last = max(line["iteration"] for line in killed.all(protocol.CHECKPOINT))
    assert 0 < last < 8, "the kill was to fall in mid-run"

    again = ssd(image, 2, voc, *saving).succeed()
    assert again.one(protocol.RESUMED)["iteration"] >= last
    undisturbed = ssd(image, 2, voc, *options).succeed()
    assert again.one(protocol.RESULT)["parameters"] == undisturbed.one(protocol.RESULT)["parameters"]


@in_chainermn("PyTorch's start costs seconds; what is tested is code of both")
def test_training_starts_from_weights_of_a_file_and_says_which(image: Image, voc: Path, tmp_path: Path) -> None:
    ssd(image, 1, voc, *ONE_ITERATION, "--checkpoint-path", str(tmp_path / "first")).succeed()
    (weights,) = (tmp_path / "first").glob("iteration-*/state.safetensors")
    tiny = ("--learning-rate", "1e-12", "--seed", "7", "--checkpoint-path", str(tmp_path / "second"))
    second = ssd(image, 1, voc, *ONE_ITERATION, *tiny, "--weights", str(weights)).succeed()

    loaded_weights = second.one(protocol.CONTEXT)["weights"]
    assert len(loaded_weights["sha256"]) == 64
    loaded, of_all = loaded_weights["arrays"].split(" of ")
    assert loaded == of_all
    expected = newest_state(tmp_path / "first")
    for name, value in newest_state(tmp_path / "second").items():
        np.testing.assert_allclose(value, expected[name], atol=1e-6, err_msg=name)


def test_bad_data_and_bad_weights_end_the_run_for_good_with_one_line(chainermn: Image, voc: Path) -> None:
    short = (*THIN, "--global-batch", "6", "--iterations", "1")
    refused = ssd(chainermn, 2, voc, *short, "--weights", str(voc / "ImageSets" / "Main" / "test.txt"))
    assert "test.txt: not readable as weights" in refused.refusal()

    absent = ssd(chainermn, 2, voc, *short, "--train-sets", "VOC2012/trainval")
    assert "no image set 'VOC2012/trainval'" in absent.refusal()

    picture = voc / "JPEGImages" / "000003.jpg"
    picture.write_bytes(picture.read_bytes()[:2000])
    cut = ssd(chainermn, 1, voc, *short, "--loader-processes", "1")
    assert "000003.jpg: not a readable image" in cut.refusal()
