"""What `spotmpi init` writes for a script of the user's own, and for the ready examples."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from spotmpi.core import names
from spotmpi.core.errors import InputError
from spotmpi.spec import template
from spotmpi.spec.source import from_values, load_spec, write_new_file

TORCH = "import torch\nimport torch.distributed as dist\n"


@pytest.mark.parametrize(
    ("text", "image", "launcher", "slots"),
    [
        ("print(1)\n", None, "none", 1),
        ("import torch\n", "pytorch", "none", 1),
        (TORCH, "pytorch", "torchrun", 2),
        ("from torch import nn\nnn.parallel.DistributedDataParallel\n", "pytorch", "torchrun", 2),
        ("from accelerate import Accelerator\nimport torch.distributed\n", "pytorch", "accelerate", 2),
        ("import torch\nimport deepspeed\n", None, "deepspeed", 2),
        ("import chainermn\n", "chainermn", "mpirun", 2),
        ("from mpi4py import MPI\n", None, "mpirun", 2),
        ("import os, torch as t\nimport time\n", "pytorch", "none", 1),
        ("import numpy as np,mpi4py.MPI\n", None, "mpirun", 2),
        ("# import torch is not needed\n", None, "none", 1),
        ("import os  # , torch\n", None, "none", 1),
        (b"\xff\xfe not UTF-8\n", None, "none", 1),
        ("import lightning as L\nimport torch\n", None, "none", 1),
        ("import torch\nfrom transformers import Trainer\n", None, "none", 1),
        ("import torch, numpy as np\nfrom PIL import Image\nimport sklearn.datasets\n", "pytorch", "none", 1),
        ("import torch\nfrom . import model\nimport beside\nimport spotmpi\n", "pytorch", "none", 1),
        ("import torch\ntry:\n    import wandb\nexcept ImportError:\n    wandb = None\n", "pytorch", "none", 1),
        ("import torch\nthis is not Python\n", "pytorch", "none", 1),
    ],
)
def test_a_spec_for_a_script_fits_what_the_script_imports(
    text: str | bytes, image: str | None, launcher: str, slots: int, tmp_path: Path
) -> None:
    script = tmp_path / 'my "train".py'
    script.write_bytes(text if isinstance(text, bytes) else text.encode())
    (tmp_path / "beside.py").touch()

    spec = from_values(tomllib.loads(written := template.template(str(script))))

    assert all((names.IMAGES / name).is_dir() for name in re.findall(r'image = "(\w+)" ', written))
    assert "registry.example" not in written.partition("[kubernetes]")[0]
    assert spec.command == ["python3", str(script)] and spec.program is None
    assert (spec.image, spec.launcher, spec.slots, spec.nodes) == (image, launcher, slots, 1)
    of_ddp = {"torchrun": ["torch", "torch._dynamo"], "accelerate": ["torch", "torch._dynamo", "accelerate"]}
    assert spec.preload == of_ddp.get(launcher)


def test_a_spec_names_what_the_image_lacks_that_a_script_imports(tmp_path: Path) -> None:
    """All attempts of such a script failed in the image, where this machine had what it imports."""
    script = tmp_path / "train.py"
    script.write_text("import torch\nimport lightning\n")
    assert '# image = "pytorch"       # has no lightning: this machine\'s own' in template.template(str(script))


@pytest.mark.parametrize(
    ("name", "text", "interpreter"),
    [
        ("run.sh", "#!/bin/bash\necho\n", "bash"),
        ("run.sh", "echo\n", "bash"),
        ("run.sh", "#!/usr/bin/env zsh\n", "zsh"),
        ("run", "#! /bin/sh -e\n", "sh"),
        ("run", "#!/usr/bin/env -S python3.11 -u\n", "python3"),
        ("run", "import os\n", "python3"),
        ("train.py", "#!/opt/python/bin/python2\n", "python3"),
    ],
)
def test_a_script_that_is_not_in_python_is_run_by_its_own_interpreter(
    name: str, text: str, interpreter: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    spec = from_values(tomllib.loads(template.template(str(tmp_path / name))))
    assert spec.command == [interpreter, str(tmp_path / name)]


def test_a_file_that_cannot_be_written_whole_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(UnicodeEncodeError):
        write_new_file(tmp_path / "job.toml", "a" * 100_000 + "\udcff")

    assert not (tmp_path / "job.toml").exists()


def test_a_script_that_cannot_be_read_is_named() -> None:
    with pytest.raises(InputError, match=r"script = 'no\.py': cannot be read: No such file .*; check its path"):
        template.template("no.py")


@pytest.mark.parametrize(
    ("files", "scripts", "likeliest"),
    [
        ([], [], None),
        (["b.py", "notes.txt"], ["b.py"], "b.py"),
        (["b.py", "a.py"], ["a.py", "b.py"], None),
        (["a.py", "main.py", "train.py"], ["train.py", "main.py", "a.py"], "train.py"),
        (["a.py", "main.py"], ["main.py", "a.py"], "main.py"),
        (["setup.py", "conftest.py", "test_a.py", "a_test.py", "__init__.py", "run.py"], ["run.py"], "run.py"),
    ],
)
def test_scripts_of_a_folder_are_found(
    files: list[str], scripts: list[str], likeliest: str | None, tmp_path: Path
) -> None:
    for name in files:
        (tmp_path / name).touch()

    assert template.scripts(tmp_path) == scripts
    assert template.likeliest(scripts) == likeliest


def test_every_example_that_is_complete_can_be_copied_with_the_files_that_it_sends(tmp_path: Path) -> None:
    examples = template.examples()

    assert {"digits", "ssd", "cpu", "stream"} <= set(examples) and not any(
        name.startswith("foreign") for name in examples
    )
    for name in examples:
        template.write_example(name, tmp_path / f"{name}.toml")
        assert "../" not in (tmp_path / f"{name}.toml").read_text()  # data lies in the folder of the copy
        if examples[name].parent == names.EXAMPLES:
            load_spec(tmp_path / f"{name}.toml")
    assert (tmp_path / "factorization_machine.py").is_file()
    with pytest.raises(InputError, match="exists already"):
        template.write_example("digits", tmp_path / "digits.toml")
    with pytest.raises(InputError, match="its folder does not exist"):
        template.write(tmp_path / "no" / "folder.toml")
    with pytest.raises(InputError, match="use one of: allreduce, cpu, digits"):
        template.write_example("nothing", tmp_path / "nothing.toml")


PRINTS = {
    "print(f'step {step} loss {loss:.4f}')": r"step (?P<iteration>\d+) loss (?P<loss>[-+\w.]+)",
    "print('step', i, 'loss', loss.item(), flush=True)": r"step (?P<iteration>\d+) loss (?P<loss>[-+\w.]+)",
    "print('Iter %5d/%d: loss=%.3f' % (i, n, l))": r"Iter  *(?P<iteration>\d+)/[-+\w.]+: loss=(?P<loss>[-+\w.]+)",
    "log.info('step %d val_loss %f', i, l)": r"step (?P<iteration>\d+) val_loss (?P<val_loss>[-+\w.]+)",
    "print('Epoch {}/{} - loss: {:.3f} ok'.format(e, n, l))": (
        r"Epoch (?P<iteration>\d+)/[-+\w.]+ - loss: (?P<loss>[-+\w.]+)"
    ),
    "print('[step {:>4}] a.b = {}'.format(1, 2))": r"step  *(?P<iteration>\d+)",
    "print('loss %f at ' % loss + f'\\rstep {i}\\n{i}', end='')": r"step (?P<iteration>\d+)",
    'print(f"it\'s iteration {i}")': r"iteration (?P<iteration>\d+)",
    "print(f'resumed from step {s}')\nfor i in range(9):\n  print(f'step {i} l {l}')": r"step (?P<iteration>\d+)",
    "print(f'from step {s}')\ndef log(i):\n  print(f'step {i} loss {l}')": (
        r"step (?P<iteration>\d+) loss (?P<loss>[-+\w.]+)"
    ),
    "for i in range(9):\n  print(f'iter {i}:')\nprint(f'done: iter {i} loss {l}')": r"iter (?P<iteration>\d+)",
    "for e in range(9):\n  print(f'epoch {e} acc {a}')": r"epoch (?P<iteration>\d+) acc (?P<acc>[-+\w.]+)",
}


@pytest.mark.parametrize("text", PRINTS)
def test_a_spec_reads_what_the_script_prints(text: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(text)
    spec = from_values(tomllib.loads(template.template(str(tmp_path / "train.py"))))
    assert spec.metrics.pattern == PRINTS[text]


@pytest.mark.parametrize(
    "text",
    [
        "for e in range(9):\n  for i in range(9):\n    print(f'step {i}')\n  print(f'epoch {e}')",
        "print(f'Epoch [{e}/{n}], Step [{i}/{m}]')",
        "print('steps', n, 'epoch size {}'.format(1))",
        "print(json.dumps({'step': i}))",
        "print()\nprint(",
        "x = 'step %d' % 3",
    ],
    ids=[
        "steps begin anew in each epoch",
        "steps of an epoch",
        "no number of a step",
        "not seen",
        "no Python",
        "not printed",
    ],
)
def test_what_only_recognition_understands_gets_no_pattern(text: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(text)
    spec = from_values(tomllib.loads(template.template(str(tmp_path / "train.py"))))
    assert spec.metrics.pattern is None
