"""The forms in which programs print their progress, as well-known programs print it, and output that is none."""

from __future__ import annotations

from typing import Any

import pytest

from spotmpi.agent.progress import FORMS, Recognizer

FAIRSEQ, TRAINER, TQDM, KERAS, RICH, BASELINES, CHAINER, BOOSTING, STEPS, POSITIONS, BRACKETS, EPOCHS = (
    form.name for form in FORMS
)


def recognize(*lines: str) -> tuple[str | None, list[dict[str, Any]]]:
    """The name of the form that was taken, and all metrics."""
    recognizer = Recognizer()
    metrics = [values for now, line in enumerate(lines) for _, values in recognizer.read(line, float(now))]
    return recognizer.form and recognizer.form.name, metrics


def iterations(metrics: list[dict[str, Any]]) -> list[int]:
    return [metric["iteration"] for metric in metrics]


def bar(n: int, total: int = 100, label: str = "Epoch 0", more: str = "") -> str:
    share = f"{n * 100 // total:3}%|{'█' * (n * 10 // total):10}|"
    return f"{label}: {share} {n}/{total} [00:0{n % 10}<00:08, 10.32it/s{more}]"


def ultralytics_bar(percent: int) -> str:
    filled = percent * 12 // 100
    return "━" * filled + "─" * (12 - filled)


SAMPLES: dict[str, tuple[list[str], str, list[int], dict[str, Any]]] = {
    "a script": (
        ["step 10 loss 0.5", "step 20 loss 0.4", "step 30 loss 0.3"],
        STEPS,
        [10, 20, 30],
        {"loss": 0.3},
    ),
    "with totals and a time": (
        [f"2026-11-24 00:0{n}:12,123 INFO train.py:{n}: Step {n}/100, loss: {1 / n:.2e}" for n in (1, 2, 3)],
        STEPS,
        [1, 2, 3],
        {"loss": 0.333},
    ),
    "step of total": (
        ["Step 12 of 100: loss=0.5, acc=0.1", "Step 13 of 100: loss=0.4, acc=0.2", "Step 14 of 100: loss=0.3, acc=0.3"],
        STEPS,
        [12, 13, 14],
        {"loss": 0.3, "acc": 0.3},
    ),
    "JSON of one's own": (
        [f'{{"step": {n}, "train_loss": {n / 4}, "lr": 1e-05}}' for n in (1, 2, 3)],
        STEPS,
        [1, 2, 3],
        {"train_loss": 0.75, "lr": 1e-05},
    ),
    "Chainer's PrintReport, with evaluations of every second epoch": (
        # What Chainer 7.8.1 prints, on a terminal or not.
        [
            "epoch       iteration   main/loss   validation/main/loss  main/accuracy  elapsed_time",
            "\x1b[J1           600         0.190484                          0.942083       2.71485       ",
            "\x1b[J2           1200        0.0754      0.0801                0.9769         5.1           ",
            "\x1b[J3           1800        0.0512                            0.98           7.4           ",
        ],
        STEPS,
        [600, 1200, 1800],
        {"main_loss": 0.0512, "main_accuracy": 0.98},
    ),
    "Chainer's PrintReport, without iterations": (
        [
            "epoch       main/loss   validation/main/accuracy",
            *[f"{n:<10g}  {1 / n:<10g}  {n / 4:<24g}  " for n in (1, 2, 3)],
        ],
        EPOCHS,
        [1, 2, 3],
        {"main_loss": 0.333333, "validation_main_accuracy": 0.75},
    ),
    "Chainer's ProgressBar": (
        [
            line
            for n in (100, 200, 300)
            for line in (
                "\x1b[J     total [##................................................]  5.00%",
                "this epoch [##########........................................] 20.00%",
                f"{n:10} iter, {n // 200} epoch / 20 epochs",
                "    150.32 iters/sec. Estimated time to finish: 0:00:32.100000.",
            )
        ],
        CHAINER,
        [100, 200, 300],
        {},
    ),
    "skorch": (
        [
            "  epoch    train_loss    valid_acc    valid_loss     dur",
            "-------  ------------  -----------  ------------  ------",
            "      1        \x1b[36m0.9436\x1b[0m       \x1b[32m0.5750\x1b[0m        \x1b[35m0.7102\x1b[0m  0.1201",
            "      2        0.8210       0.6150        0.6509  0.0811",
            "      3        0.7004       0.6550        0.6302  0.0820",
        ],
        EPOCHS,
        [1, 2, 3],
        {"train_loss": 0.7004, "valid_acc": 0.655, "valid_loss": 0.6302},
    ),
    "nanoGPT, with evaluations": (
        [
            "step 0: train loss 10.9872, val loss 10.9863",
            "iter 0: loss 10.9869, time 62384.38ms, mfu -100.00%",
            "iter 10: loss 9.8471, time 134.05ms, mfu 25.33%",
            "iter 20: loss 9.2142, time 133.97ms, mfu 25.33%",
        ],
        STEPS,
        [0, 10, 20],
        {"loss": 9.2142},
    ),
    "Megatron-LM": (
        [
            f" iteration {n:8}/  500000 | consumed samples: {n * 512} | elapsed time per iteration (ms): 16133.8 | "
            f"learning rate: 1.500E-06 | global batch size: 512 | lm loss: {n / 100:E} | grad norm: 1.5 |"
            for n in (100, 200, 300)
        ],
        STEPS,
        [100, 200, 300],
        {"learning_rate": 1.5e-06, "lm_loss": 3.0, "grad_norm": 1.5},
    ),
    "a tutorial, which counts anew in each epoch": (
        [f"Epoch [{epoch}/2], Step [{step}/600], Loss: 0.25" for epoch in (1, 2) for step in (200, 400, 600)],
        STEPS,
        [200, 400, 600, 800, 1000, 1200],
        {"loss": 0.25},
    ),
    "mmengine": (
        [f"11/24 10:01:0{n} - mmengine - INFO - Iter(train) [  {n}0/1000]  lr: 1e-02  loss: 1.5" for n in (1, 2, 3)],
        STEPS,
        [10, 20, 30],
        {"lr": 0.01, "loss": 1.5},
    ),
    "detectron2": (
        [f"d2.utils.events INFO:  eta: 0:02:51  iter: {n}  total_loss: 1.9  lr: 0.0004" for n in (19, 39, 59)],
        STEPS,
        [19, 39, 59],
        {"total_loss": 1.9, "lr": 0.0004},
    ),
    "PyTorch's ImageNet example, which counts from 0": (
        [
            f"Epoch: [{epoch}][{n:4}/30]\tTime  0.243 ( 2.1)\tLoss 6.9e+00 (7.0e+00)\tAcc@1   0.00 (  0.23)"
            for epoch in (0, 1)
            for n in (0, 10, 20)
        ],
        POSITIONS,
        [0, 10, 20, 30, 40, 50],
        {"loss": 6.9, "acc_1": 0.0},
    ),
    "PyTorch's MNIST example": (
        [f"Train Epoch: 1 [{n}/60000 ({n // 600}%)]\tLoss: 2.300000" for n in (0, 640, 1280)],
        POSITIONS,
        [0, 640, 1280],
        {"loss": 2.3},
    ),
    "fairseq": (
        [f"epoch 001:     {n} / 100 loss=15.1, ppl=35132, lr=1.2e-07" for n in (10, 20, 30)],
        POSITIONS,
        [10, 20, 30],
        {"loss": 15.1, "ppl": 35132, "lr": 1.2e-07},
    ),
    "fairseq with --log-format json": (
        # fairseq/logging/progress_bar.py: JsonProgressBar, and examples/fully_sharded_data_parallel/README.md.
        [
            f'2021-03-08 12:31:36 | INFO | {tag} | {{"epoch": {epoch}, {values}}}'
            for tag, epoch, values in (
                (
                    "train_inner",
                    1,
                    '"update": 0.4, "loss": "16.475", "ppl": "91120.8", "num_updates": "10", "lr": "2e-05"',
                ),
                (
                    "train_inner",
                    1,
                    '"update": 0.8, "loss": "16.446", "ppl": "89281.6", "num_updates": "20", "lr": "4e-05"',
                ),
                ("valid", 1, '"valid_loss": "16.3", "valid_ppl": "88000", "valid_num_updates": "25"'),
                ("train", 1, '"train_loss": "16.4", "train_ppl": "89000", "train_num_updates": "25"'),
                (
                    "train_inner",
                    2,
                    '"update": 1.2, "loss": "16.25", "ppl": "78000", "num_updates": "30", "lr": "6e-05"',
                ),
            )
        ],
        FAIRSEQ,
        [10, 20, 30],
        {"loss": 16.25, "ppl": 78000, "lr": 6e-05},
    ),
    "Stable-Baselines3": (
        # stable_baselines3/common/logger.py: HumanOutputFormat, and docs/common/logger.rst.
        [
            line
            for n in (2048, 4096, 6144)
            for line in (
                "-----------------------------------------",
                "| rollout/                |             |",
                "|    ep_rew_mean          | -227        |",
                "| time/                   |             |",
                f"|    iterations           | {n // 2048:<11} |",
                f"|    total_timesteps      | {n:<11} |",
                "| train/                  |             |",
                "|    learning_rate        | 0.0003      |",
            )
        ],
        BASELINES,
        [2048, 4096, 6144],
        {},
    ),
    "spaCy": (
        # spacy/training/loggers.py: console_logger_v3, and chapter 4 of spaCy's course.
        [
            "Initial learn rate: 0.001",
            "E    #       LOSS TOK2VEC  LOSS NER  ENTS_F  ENTS_P  ENTS_R  SCORE ",
            "---  ------  ------------  --------  ------  ------  ------  ------",
            "  0       0          0.00     26.50    0.73    0.39    5.43    0.01",
            "  0     200         33.58    847.68   10.88   44.44    6.20    0.11",
            "  1     400         70.88    267.65   33.50   45.95   26.36    0.33",
            "243     600         67.56    156.63   45.32   62.16   35.66    0.45",
        ],
        STEPS,
        [0, 200, 400, 600],
        {"tok2vec_loss": 67.56, "ner_loss": 156.63},
    ),
    "Catalyst": (
        # catalyst/loggers/console.py
        [
            line
            for n in (1, 2, 3)
            for line in (
                f"train ({n}/5) accuracy01: 0.25 | loss: 2.3 | loss/std: 0.1",
                f"valid ({n}/5) accuracy01: 0.25 | loss: 2.3 | loss/std: 0.1",
                f"* Epoch ({n}/5) lr: 0.02 | momentum: 0.9",
            )
        ],
        EPOCHS,
        [1, 2, 3],
        {"lr": 0.02},
    ),
    "Catalyst, verbose": (
        # catalyst/callbacks/misc.py: TqdmCallback
        [bar(n, label=f"1/5 * Epoch ({key})", more=", loss=0.5") for key in ("train", "valid") for n in (1, 2, 3)],
        TQDM,
        [1, 2, 3],
        {"loss": 0.5},
    ),
    "DeepSpeed's engine of pipelines": (
        [f"steps: {n} loss: 2.5000 iter time (s): 0.512 samples/sec: 31.250" for n in (10, 20, 30)],
        STEPS,
        [10, 20, 30],
        {"loss": 2.5},
    ),
    "PyTorch's tutorial of CIFAR10": (
        [f"[{epoch}, {n:5d}] loss: {4 / epoch:.3f}" for epoch in (1, 2) for n in (2000, 4000, 6000)],
        BRACKETS,
        [2000, 4000, 6000, 8000, 10000, 12000],
        {"loss": 2.0},
    ),
    "timm": (
        [
            f"Train: {epoch} [{n:>4d}/100 ({n:>3.0f}%)]  Loss: 6.9 (6.9)  Time: 0.5s,  128.3/s  LR: 1.000e-05"
            for epoch in (0, 1)
            for n in (0, 50, 99)
        ],
        BRACKETS,
        [0, 50, 99, 100, 150, 199],
        {"loss": 6.9, "lr": 1e-05},
    ),
    "brackets": (
        [f"[{n}/100] train loss 0.7" for n in (12, 13, 14)],
        BRACKETS,
        [12, 13, 14],
        {"train_loss": 0.7},
    ),
    "epochs": (
        [f"Epoch {n}/20 - training loss 0.7" for n in (1, 2, 3)],
        EPOCHS,
        [1, 2, 3],
        {"training_loss": 0.7},
    ),
    "the Hugging Face Trainer": (
        [f"{{'loss': {3 - n}, 'grad_norm': 4.5, 'learning_rate': 4.9e-05, 'epoch': {n / 4}}}" for n in (1, 2, 3)],
        TRAINER,
        [1, 2, 3],
        {"loss": 0, "grad_norm": 4.5, "learning_rate": 4.9e-05},
    ),
    "a newer Trainer, with text": (
        [f"{{'loss': '0.5', 'learning_rate': '4.9e-05', 'epoch': '{n}'}}" for n in (1, 2, 3)],
        TRAINER,
        [1, 2, 3],
        {"loss": 0.5, "learning_rate": 4.9e-05},
    ),
    "Lightning, with its validation in between": (
        [
            "Sanity Checking DataLoader 0: 100%|██████████| 2/2 [00:00<00:00, 35.31it/s]",
            *(bar(n, more=", v_num=0, train_loss=0.5") for n in (0, 1, 50)),
            *(bar(n, 10, "Validation DataLoader 0") for n in (0, 5, 10)),
            bar(100, more=", v_num=0, train_loss=0.4"),
            bar(1, label="Epoch 1", more=", v_num=0, train_loss=0.3"),
        ],
        TQDM,
        [0, 1, 50, 100, 101],
        {"train_loss": 0.3},
    ),
    "tqdm, slow": (
        [f" {n}%|▏         | {n}/100 [00:10<16:40, 10.10s/it, loss=0.5]" for n in (1, 2, 3)],
        TQDM,
        [1, 2, 3],
        {"loss": 0.5},
    ),
    "tqdm under mpirun, a line for each epoch": (
        [bar(100, label=f"Epoch {epoch}") for epoch in (0, 1, 2)],
        TQDM,
        [100, 200, 300],
        {},
    ),
    "Keras 2": (
        [
            "Epoch 1/5",
            *(f"\b\b\b\b {n}/100 [==>...........] - ETA: 3s - loss: 0.5 - accuracy: 0.25" for n in (1, 12, 24)),
            "100/100 [==============================] - 5s 50ms/step - loss: 0.5 - accuracy: 0.75 - val_loss: 0.5",
            "Epoch 2/5",
            "  1/100 [..............................] - ETA: 3s - loss: 0.25 - accuracy: 0.5",
        ],
        KERAS,
        [1, 12, 24, 100, 101],
        {"loss": 0.25, "accuracy": 0.5},
    ),
    "Keras 3": (
        [
            f"\x1b[1m{n:3}/100\x1b[0m \x1b[32m━━\x1b[0m\x1b[37m━━━━━━━━━━━━━━━━\x1b[0m \x1b[1m1s\x1b[0m 12ms/step - "
            "accuracy: 0.1 - loss: 2.5"
            for n in (1, 2, 3)
        ],
        KERAS,
        [1, 2, 3],
        {"accuracy": 0.1, "loss": 2.5},
    ),
    "Lightning's Rich bar": (
        [f"Epoch 0/9  ━━━━╸━━━━━━━━━━ {n}/100 0:00:01 • 0:00:08 10.32it/s train_loss: 0.5" for n in (1, 2, 3)],
        RICH,
        [1, 2, 3],
        {"train_loss": 0.5},
    ),
    "Ultralytics": (
        # ultralytics/utils/tqdm.py of 8.3; before it comes a bar for labels, after each epoch one for the validation.
        [
            *(f"\x1b[Ktrain: Scanning labels: {n}% {ultralytics_bar(n)} {n}/100 3.4Kit/s 0.1s" for n in (10, 50, 100)),
            *(
                f"\x1b[K  1/3   2.7G   1.2   40   640: {n}% {ultralytics_bar(n)} {n}/100 3.4it/s 1s<3s"
                for n in (0, 9, 50)
            ),
            *(f"\x1b[K  Class  Images  mAP50: {n}% {ultralytics_bar(n)} {n // 10}/10 9.1it/s 1s" for n in (10, 100)),
            f"\x1b[K 2/3 2.7G 1.1 40  640: 9% {ultralytics_bar(9)} 9/100 3.4it/s 1s<3s",
        ],
        RICH,
        [0, 9, 50, 109],
        {},
    ),
    "XGBoost": (
        # As 3.2.0 prints it, also in its cross-validation; it counts from 0.
        [f"[{n}]\ttrain-rmse:{1 / (n + 1):.5f}\teval-rmse:0.65834+0.00605" for n in (0, 1, 2, 0, 1)],
        BOOSTING,
        [0, 1, 2, 3, 4],
        {"train_rmse": 0.5, "eval_rmse": 0.65834},
    ),
    "LightGBM": (
        # As 4.7.0 prints it.
        [
            "[LightGBM] [Info] Total Bins 835",
            *(f"[{n}]\tvalid_0's l2: 0.3\tvalid_0's binary_logloss: {n / 10}" for n in (10, 20, 30)),
            "Early stopping, best iteration is:",
            "[20]\tvalid_0's l2: 0.3\tvalid_0's binary_logloss: 0.2",
        ],
        BOOSTING,
        [10, 20, 30],
        {"binary_logloss": 3.0},
    ),
    "CatBoost": (
        # catboost/libs/loggers/logger.h: TConsoleLoggingBackend.
        [
            "0:\tlearn: 0.6931\ttest: 0.6932\tbest: 0.6932 (0)\ttotal: 46.7ms\tremaining: 46.7s",
            "100:\tlearn: 0.5931\ttest: 0.6032\tbest: 0.6032 (100)\ttotal: 1.2s\tremaining: 1m 3s",
            "200:\tlearn: 0.4931\ttotal: 2.4s\tremaining: 0us",
        ],
        BOOSTING,
        [0, 100, 200],
        {},
    ),
    "NeMo": (
        [
            f"Training epoch 0, iteration {n}/99 | lr: 3e-07 | global_batch_size: 8 | global_step: {n} | "
            "reduced_train_loss: 11.03 | train_step_timing in s: 1.2"
            for n in (0, 1, 2)
        ],
        STEPS,
        [0, 1, 2],
        {"lr": 3e-7, "reduced_train_loss": 11.03},
    ),
    "JAX's clu": (
        # clu/metric_writers/logging_writer.py, by absl.
        [
            f"I1129 12:00:00.123456 140 logging_writer.py:48] [{n}] {what}accuracy=0.25, loss={n / 100}"
            for n, what in ((100, ""), (200, ""), (300, ""), (300, "eval_loss=1, "), (400, ""))
        ],
        BRACKETS,
        [100, 200, 300, 400],
        {"accuracy": 0.25, "loss": 4.0},
    ),
    "torchtune": (
        [f"1|{n}|Loss: 1.5: {n:3}%|█         | {n}/100 [00:01<00:09, 1.10it/s]" for n in (1, 2, 3)],
        TQDM,
        [1, 2, 3],
        {"loss": 1.5},
    ),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_the_output_of_well_known_programs_is_progress(name: str) -> None:
    lines, form, counted, scalars = SAMPLES[name]

    taken, metrics = recognize(*lines)

    assert taken == form
    assert iterations(metrics) == counted
    assert metrics[-1] == {
        "iteration": counted[-1],
        **{key: pytest.approx(value, rel=0.01) for key, value in scalars.items()},
    }


@pytest.mark.parametrize(
    "lines",
    [
        ["step 1: downloading data", "step 2: unpacking it", "step 3: training"],
        ["step 1: downloading data"],
        ["step 3 loss 0.5", "step 2 loss 0.5", "step 1 loss 0.5"],
        ["step 3 loss 0.5"] * 5,
        ["step 3 loss 0.5", "step 4 loss 0.4"],
        [f"Epoch: {n}.5 of the age" for n in (1, 2, 3)],
        [f"took {n} steps, batch size {n}" for n in (1, 2, 3)],
        [f"steps: {n}" for n in (10, 20, 30)],
        [f"step {n}ms" for n in (10, 20, 30)],
        [f"[{n}/100] Building CXX object part{n}.cc.o" for n in (1, 2, 3)],
        [f"[{n}/3] done" for n in (1, 2, 3)],
        [f"[{n}]\tjob: done" for n in (1, 2, 3)],
        [f"[{n}]\t{4 * n}" for n in (1, 2, 3)],
        [f"[{n}] loss of a worker, loss: 0.5" for n in (1, 2, 3)],
        [f"{n}:\tlearn: 0.5" for n in (1, 2, 3)],
        [f"─── {n}/3" for n in (1, 2, 3)],
        [f"Downloading: {n}%|█ | {n}.5M/9.0M [00:01<00:02, 5.6MB/s]" for n in (1, 2, 3)],
        [f"Map: {n}0%|█ | {n}00/1000 [00:01<00:02, 400 examples/s]" for n in (1, 2, 3)],
        [bar(n, 4, "Loading checkpoint shards") for n in (1, 2, 3)],
        # tqdm_loggable/tqdm_logging.py: it rounds counts to three digits, so 1.80kit may be any of ten iterations.
        [
            f"Progress on:train 1.8{n}kit/20.0kit rate:8.4it/s remaining:1:00 elapsed:0:30 postfix:loss=3"
            for n in (1, 2, 3)
        ],
        [f"Validation step {n}/10 loss 0.5" for n in (1, 2, 3)],
        [f"Epoch {n} 2026/11/24 begins" for n in (1, 2, 3)],
        [f"{n}/3 files are valid" for n in (1, 2, 3)],
        [f"10.0.0.{n}/24 [up] loss 0" for n in (1, 2, 3)],
        ["step " * 100_000, "[" * 100_000, "━" * 100_000, "{'loss':" * 100_000, "epoch\n" * 3],
    ],
    ids=lambda lines: lines[0][:30],
)
def test_other_output_is_not(lines: list[str]) -> None:
    assert recognize(*lines) == (None, [])


def test_lines_of_a_form_are_counted_from_the_first_one_with_the_times_of_their_arrival() -> None:
    recognizer = Recognizer()
    assert recognizer.read("step 1 loss 3", 10.0) == recognizer.read("a note", 10.5) == []
    assert recognizer.read("step 2 loss 2", 11.0) == [] and recognizer.line is None
    taken = recognizer.read("step 3 loss 1", 12.0)
    assert taken == [(10.0 + n, {"iteration": n + 1, "loss": 3 - n}) for n in range(3)]
    assert recognizer.line == "step 3 loss 1"
    assert recognizer.read("step 4 loss 0 saved", 13.0) == [(13.0, {"iteration": 4, "loss": 0})]
    assert recognizer.read("step 4 loss 0", 13.5) == []  # of another rank


def test_numbers_that_begin_anew_count_on_where_they_stopped() -> None:
    _, metrics = recognize(*[f"batch {n} loss 1" for n in (0, 1, 2, 0, 1, 2)])
    assert iterations(metrics) == [0, 1, 2, 3, 4, 5]
    _, metrics = recognize(*[f"epoch {epoch} step {n} loss 1" for epoch, n in ((0, 1), (0, 2), (1, 3), (1, 4))])
    assert iterations(metrics) == [1, 2, 3, 4]


def test_a_loss_that_is_no_number_has_no_value() -> None:
    _, metrics = recognize("step 1 loss 0.5", "step 2 loss nan", "step 3 loss -inf")
    assert [metric["loss"] for metric in metrics] == [0.5, None, None]


def test_a_form_that_was_taken_stays() -> None:
    steps = [f"step {n} loss 1" for n in (1, 2, 3)]
    form, metrics = recognize(*steps, *(bar(n) for n in (7, 8, 9)), *(f"step {n}/10 acc 1" for n in (7, 8, 9)))
    assert form == STEPS and iterations(metrics) == [1, 2, 3]
