"""AWS's descriptions of its services and endpoints, which boto3 parses again for each session: EC2's takes 0.1 s."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from botocore.loaders import JSONFileLoader


@contextmanager
def shared_models() -> Iterator[None]:
    """Parse each description once in this process."""
    load = functools.cache(JSONFileLoader().load_file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JSONFileLoader, "load_file", lambda _, path: load(path))
        yield
