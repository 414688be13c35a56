"""This machine, as far as it decides how fast a run is (see `spotmpi.agent.hardware`)."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from pathlib import Path
from typing import Any

from spotmpi.core import names
from spotmpi.agent import gpus
from spotmpi.agent import hardware


@functools.cache
def installed_gpus() -> list[dict[str, str]]:
    """The GPUs of this machine, asked for once per boot: that takes seconds where the driver is not kept loaded."""
    boot = _boot()
    aside = names.cache_folder() / "gpus" / f"{boot}.json"
    with contextlib.suppress(OSError, ValueError):
        known: list[dict[str, str]] = json.loads(aside.read_text())
        return known
    found = gpus.found()
    if boot and found:
        with contextlib.suppress(OSError):
            aside.parent.mkdir(parents=True, exist_ok=True)
            part = aside.with_name(f"{aside.name}.{os.getpid()}")
            part.write_text(json.dumps(found))
            part.replace(aside)
    return found


def describe() -> dict[str, Any]:
    """``cpu`` model, usable ``cores``, ``memory_gib``, ``gpus`` (name, memory, driver of each) and ``system``."""
    return hardware.describe(installed_gpus())


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
