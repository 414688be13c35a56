"""Numbers of CPUs as specs write them, whole or not, and what follows from them. Pure."""

from __future__ import annotations

import math
import re

_REMEDY = 'write a number of CPUs such as 2 or 0.5, or in thousandths, such as "500m"; at least "1m"'


def number_of_cpus(value: object) -> int | float:
    """The number of CPUs that *value* says, an integer where it is whole; ValueError for anything else."""
    if isinstance(value, str) and (match := re.fullmatch(r"(\d+(?:\.\d+)?)(m?)", value)):
        value = float(match[1]) / (1000 if match[2] else 1)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(_REMEDY)
    if millicores(value) < 1 or abs(value * 1000 - millicores(value)) > 1e-6:  # no finer than Kubernetes has them
        raise ValueError(_REMEDY)
    return int(value) if value == int(value) else float(value)


def millicores(cpus: float, count: int = 1) -> int:
    """*count* times so many CPUs, in thousandths of one."""
    return round(cpus * 1000) * count


def quantity(cpus: float, count: int = 1) -> str:
    """*count* times so many CPUs, as Kubernetes writes them: ``"2"`` or ``"500m"``."""
    whole, rest = divmod(millicores(cpus, count), 1000)
    return f"{millicores(cpus, count)}m" if rest else str(whole)


def threads(cpus: float) -> int:
    """The threads of a process that has so many CPUs: at least one, and one more for a part of a CPU."""
    return math.ceil(cpus)
