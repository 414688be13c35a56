"""Values as an API server keeps and sends them."""

from __future__ import annotations

import json
import marshal
from typing import Any, TypeVar

T = TypeVar("T")


def copied(value: T) -> T:
    """A copy of JSON values, ten times as fast as by `copy.deepcopy`."""
    values: Any = value
    try:
        copy: T = marshal.loads(marshal.dumps(values))
    except ValueError:  # a subclass of a JSON type, such as the number of nodes that may be several
        copy = json.loads(json.dumps(values))
    return copy
