"""Which framework a test runs in by day, where it runs in both only at night."""

from __future__ import annotations

import pytest


def in_chainermn(reason: str) -> pytest.MarkDecorator:
    """The test runs in ChainerMN always, in PyTorch only at night, for that reason."""
    pytorch = pytest.param("pytorch", marks=pytest.mark.nightly(reason))
    return pytest.mark.parametrize("image", ["chainermn", pytorch], indirect=True)
