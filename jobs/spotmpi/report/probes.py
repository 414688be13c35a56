"""What the micro-benchmarks said of the nodes before the trials."""

from __future__ import annotations

from collections.abc import Sequence

from spotmpi.report.figures import number
from spotmpi.report.section import Section
from spotmpi.report.trial_results import Measured

_HEADER = ("Variant", "Nodes", "What", "Value", "Unit")
_VALUES = (
    ("best_busbw", "allreduce, bus bandwidth", "GB/s"),
    ("cold_mb_per_second", "reading, cold", "MB/s"),
    ("cold_files_per_second", "reading, cold", "files/s"),
    ("warm_mb_per_second", "reading, warm", "MB/s"),
    ("warm_files_per_second", "reading, warm", "files/s"),
)


def section(runs: Sequence[Measured]) -> Section | None:
    """Bandwidth of the allreduce and speed of reading the data, over all ranks."""
    cells = tuple(
        (run.variant, str(run.nodes), what, number(value), unit)
        for run in runs
        for key, what, unit in _VALUES
        if isinstance(value := run.training.result.get(key), int | float)
    )
    said = (
        "Bus bandwidth as nccl-tests define it, the best over message sizes.",
        "Reading is what all ranks do together; cold as far as the system let go of what it had cached.",
    )
    return Section("The nodes beforehand", said, _HEADER, cells, 3) if cells else None
