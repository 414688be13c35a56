"""What the check inside the images' build refuses."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

IMAGES = Path(__file__).resolve().parents[2] / "images"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_image", IMAGES / "check_image.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


check_image = _load()

LOGIN = {"user": [1000, 1000], "shell": "/bin/sh", "password": "*", "sshd_capabilities": False}
GPU = {
    **LOGIN,
    "cuda_of_base": "12.2.2",
    "cuda_of_framework": "12.2",
    "needs_cuda_of_base": True,
    "nccl_wanted": "2.16.2",
    "nccl_loaded": "2.19.3",
    "architectures": ["sm_70", "sm_90"],
}
PLAIN = {**GPU, "cuda_of_base": None, **check_image.NO_CUDA}


@pytest.mark.parametrize("facts", [GPU, PLAIN, {**GPU, "cuda_of_base": None, "needs_cuda_of_base": False}])
def test_an_image_whose_parts_fit_has_no_problem(facts: dict[str, Any]) -> None:
    assert check_image.problems(facts) == []


@pytest.mark.parametrize(
    ("facts", "named"),
    [
        ({**GPU, "cuda_of_base": None}, "the base has none"),
        ({**PLAIN, "cuda_of_base": "12.2.2"}, "set REQUIREMENTS to a lock for GPUs"),
        ({**GPU, "cuda_of_base": "13.0.1"}, "set BASE_IMAGE to CUDA 12.2"),
        ({**GPU, "nccl_loaded": None}, "can't be loaded"),
        ({**GPU, "nccl_loaded": "3.0.0"}, "change the base"),
        ({**GPU, "architectures": []}, "no GPU kernels"),
        ({**GPU, "cudnn": None}, "cudnn8"),
        ({**PLAIN, "sshd_capabilities": True}, "setcap -r"),
        ({**PLAIN, "user": [1001, 1000]}, "1000:1000"),
        ({**PLAIN, "shell": "/usr/sbin/no-such-shell"}, "no working shell"),
        ({**PLAIN, "password": "!"}, "is locked"),
    ],
)
def test_each_misfit_is_named_with_its_remedy(facts: dict[str, Any], named: str) -> None:
    (line,) = check_image.problems(facts)
    assert named in line


def test_several_misfits_are_all_named_at_once() -> None:
    assert len(check_image.problems({**GPU, "cuda_of_base": "13.0.1", "nccl_loaded": None, "password": "!x"})) == 3


def test_nccl_versions_read_as_people_write_them() -> None:
    assert check_image.dotted(21903) == "2.19.3"


def test_images_and_set_up_install_the_same_uv() -> None:
    ours, theirs = IMAGES / "builder.lock", IMAGES.parent / "scripts" / "uv" / "requirements.lock"
    assert ours.read_text() == theirs.read_text()


@pytest.mark.parametrize(("plain", "gpu"), [("chainermn/requirements.lock", "chainermn/requirements-gpu.lock")])
def test_a_lock_for_gpus_only_adds_to_the_plain_one(plain: str, gpu: str) -> None:
    def pinned(path: str) -> set[str]:
        return set(re.findall(r"^([\w.-]+==[^ ;\\]+)", (IMAGES / path).read_text(), re.MULTILINE))

    assert pinned(plain) < pinned(gpu)
