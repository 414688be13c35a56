"""Designs of studies as a file of these factors would give them, and the problems of those that give none."""

from __future__ import annotations

from typing import Any

import pytest

from spotmpi.core.errors import InputError
from spotmpi.study import study_file
from spotmpi.study.design import Design

GPU = {"image": "chainermn", "program": "digits", "args": ["--global-batch", "64"], "resources": {"gpu": 1}}


def design_of(factors: dict[str, Any], spec: dict[str, Any] = GPU, **more: Any) -> Design:
    return study_file.design_of({"spec": spec, "factors": factors, **more})


def problems_of(factors: dict[str, Any], spec: dict[str, Any] = GPU, **more: Any) -> list[str]:
    with pytest.raises(InputError) as refused:
        design_of(factors, spec, **more)
    return [str(problem) for problem in refused.value.problems]
