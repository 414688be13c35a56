"""The machine that a pod is on, as far as a pod can tell; bills are made out to machines."""

from __future__ import annotations

import os
import re
from typing import Any

ENV_NAME = "SPOTMPI_MACHINE"  # the Kubernetes node's name
_DMI = "sys/devices/virtual/dmi/id"
_TYPE = re.compile(r"[a-z][a-z0-9-]*\.[a-z0-9-]+")  # of EC2; older virtual machines tell none
_INSTANCE = re.compile(r"i-[0-9a-f]{8,17}")


def describe(node: int, since: float, root: str = "/") -> dict[str, Any]:
    """Node index, ``since`` when it is in use (Unix seconds), and ``name``, ``type`` and ``instance`` where known."""
    return {
        "node": node,
        "since": since,
        "name": os.environ.get(ENV_NAME),
        "type": kind(root),
        "instance": _said(root, "board_asset_tag", _INSTANCE),
    }


def kind(root: str = "/") -> str | None:
    """The EC2 type, such as ``g5.xlarge``, where the machine tells it."""
    return _said(root, "product_name", _TYPE)


def _said(root: str, name: str, expected: re.Pattern[str]) -> str | None:
    try:
        with open(os.path.join(root, _DMI, name)) as file:
            text = file.read().strip()
    except (OSError, UnicodeError):
        return None
    return text if expected.fullmatch(text) else None
