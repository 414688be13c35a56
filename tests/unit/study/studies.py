"""Studies of given factors, and the problems of those that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from spotmpi.core.errors import InputError
from spotmpi.study import study_file
from spotmpi.study.study import Study

GPU = {"image": "chainermn", "program": "digits", "args": ["--global-batch", "64"], "resources": {"gpu": 1}}


def study_of(factors: dict[str, Any], spec: dict[str, Any] = GPU, **more: Any) -> Study:
    return study_file.from_values({"spec": spec, "factors": factors, **more})


def problems_of(factors: dict[str, Any], spec: dict[str, Any] = GPU, **more: Any) -> list[str]:
    with pytest.raises(InputError) as refused:
        study_of(factors, spec, **more)
    return [str(problem) for problem in refused.value.problems]
