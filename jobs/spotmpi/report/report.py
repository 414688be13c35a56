"""A report: the rows of recorded runs, under which conditions and how they were measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from spotmpi.core.price import Price
from spotmpi.forecast.series import EFFICIENCY_LIMIT
from spotmpi.metrics import rates as metrics
from spotmpi.report.figures import share
from spotmpi.report.rows import EDGE_LIMIT, SPREAD_LIMIT, Line, Row
from spotmpi.report.section import Section
from spotmpi.report.trial_results import Measured
from spotmpi.spec.job import JobSpec


@dataclass(frozen=True)
class Report:
    """What is shown, whatever it is shown as.

    ``conditions`` are facts (name, value) that hold for all runs, ``method`` says how was measured, ``warnings`` what
    a reader must know first, ``commands`` repeat the measurement and ``spec`` is the TOML that they read. ``place``
    is where the files of the report go unless told otherwise, below the runs folder. ``silent`` holds by (variant,
    nodes) the runs that left out the exchange of gradients, ``probes`` the micro-benchmarks; ``sections`` are what is
    shown beside the main table. A sweep's ``price`` is that of its dearest nodes, and ``specs`` what it varied.
    """

    title: str
    created: float
    rows: list[Row]
    conditions: list[tuple[str, str]]
    method: list[str]
    warnings: list[str]
    commands: list[str]
    spec: str
    place: str
    variants: list[tuple[str, str]] = field(default_factory=list)
    silent: Mapping[tuple[str, int], Sequence[Measured]] = field(default_factory=dict)
    probes: Sequence[Measured] = ()
    sections: list[Section] = field(default_factory=list)
    price: Price | None = None
    specs: Sequence[JobSpec] = ()

    def folder(self, runs_folder: Path) -> Path:
        """Where the files of the report go unless told otherwise."""
        return runs_folder / self.place

    @property
    def lines(self) -> list[Line]:
        """The chart lines, in order."""
        return list(dict.fromkeys(row.line for row in self.rows))

    @property
    def runs(self) -> list[Measured]:
        """All runs behind the rows."""
        return [run for row in self.rows for run in row.runs]

    @property
    def bases(self) -> list[tuple[str, str]]:
        """What the efficiencies of each variant are against."""
        return list({row.line: (label(row.line, self.lines), row.base) for row in self.rows if row.base}.values())

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values for scripts."""
        return {
            "title": self.title,
            "created": self.created,
            "rows": [_row_json(row) for row in self.rows],
            "conditions": dict(self.conditions),
            "method": self.method,
            "warnings": self.warnings,
            "commands": self.commands,
            "spec": self.spec,
            "variants": dict(self.variants),
            "sections": [section.to_json() for section in self.sections],
        }


def label(line: Line, lines: Sequence[Line]) -> str:
    """The shortest name of a chart line that tells it from the others; empty where there is only one."""
    if len(lines) == 1:
        return ""
    alike = [other for other in lines if other.variant == line.variant]
    if len(alike) == 1:
        return line.variant
    return f"{line.variant}, {batch(line)}"


def batch(line: Line) -> str:
    """The batch of a line in words."""
    if line.batch is None:
        return "batch not told"
    return f"global batch {line.batch}" if line.scaling != "weak" else f"batch {line.batch} per worker"


def method(runs: Sequence[Measured]) -> list[str]:
    """How was measured, in sentences."""
    said = [metrics.RULE]
    if any(run.training.rates and run.training.rates.by_arrival for run in runs):
        said.append(metrics.ARRIVAL_RULE)
    said.append(
        "A row's rate is the median over its trials. Up to 4 trials their range is shown, from 5 on the 95 % interval "
        "of that median (whole trials resampled, then blocks of their iterations); with 1 trial the spread is the "
        "distance of the quartiles of its iterations over their median."
    )
    said.append(
        "Efficiency is samples/s per rank, divided by that of the smallest number of ranks of the same variant. "
        f"A spread above {share(SPREAD_LIMIT, 0)} and an efficiency above {share(EFFICIENCY_LIMIT, 0)} are marked: "
        "neither should be taken at its word. So are first and last tenths of the iterations whose rates are more than "
        f"{share(EDGE_LIMIT, 0)} apart: credits for bursts of network, disk or processor may have run out."
    )
    return said


def conditions(run: Measured) -> list[tuple[str, str]]:
    """What *run* ran on and with, as facts to show."""
    work, context = run.work, run.training.context
    machine, told = work["machine"] or {}, context.get("versions") or {}
    # What the program found at run time says more than what was planned.
    versions = told if "mpi" in told else {**work["versions"], **told}
    threads = work["resources"]["cpu"]
    image = work["image"]
    found = [
        ("Program", " ".join([work["program"], *work["args"]])),
        ("Machine", f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB" if machine else ""),
        ("GPUs", _gpus(machine["gpus"]) if machine else ""),
        ("System", machine.get("system", "")),
        ("Hosts", ", ".join(context.get("hosts") or [])),
        ("Launcher", f"{work['launcher']}, {threads} thread{'s' * (threads > 1)} per slot"),
        ("Image", f"{image['name']} (lock {image['lock'][:12]})" if image else "none: this machine's own software"),
        ("Container", run.container or ""),
        ("Versions", ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))),
        ("Data", _data(run)),
        ("Seed", _seed(run)),
        ("Code", _code(work["code"])),
    ]
    return [(name, value) for name, value in found if value]


def _gpus(gpus: Sequence[dict[str, str]]) -> str:
    kinds = [f"{gpu['name']} ({gpu['memory']}, driver {gpu['driver']})" for gpu in gpus]
    return ", ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds)) or "none"


def _data(run: Measured) -> str:
    data, context = run.work["data"], run.training.context
    told = context.get("data_fingerprint")
    parts = []
    if data and data["state"] is None:
        parts.append(data["path"])
    elif data:
        size = f"{data['files']} files, {data['bytes'] / 1e6:.1f} MB"
        parts.append(f"{data['path']} ({size}, {(data['content'] or data['state'])[:12]})")
    if context.get("samples"):
        known = "synthetic" if run.synthetic else told and str(told)[:12]
        parts.append(f"{context['samples']} samples" + (f" ({known})" if known else ""))
    return "; ".join(parts)


def _seed(run: Measured) -> str:
    seed = run.training.context.get("seed", run.work["seed"])
    return "the program's own" if seed is None else str(seed)


def _code(code: dict[str, Any]) -> str:
    files = ", ".join(f"{name} {digest[:12]}" for name, digest in code["files"].items())
    if not code["commit"]:
        return files
    changed = f" with changes {code['diff'][:12]}" if code["diff"] else ""
    return f"commit {code['commit'][:12]}{changed}" + (f"; {files}" if files else "")


def _row_json(row: Row) -> dict[str, Any]:
    return {
        "variant": row.line.variant,
        "scaling": row.line.scaling,
        "batch": row.line.batch,
        "nodes": row.nodes,
        "slots": row.slots,
        "ranks": row.ranks,
        "trials": len(row.runs),
        "iterations_per_second": row.iterations_per_second,
        "low": row.low,
        "high": row.high,
        "bounds": row.bounds,
        "spread": row.spread,
        "samples_per_second": row.samples_per_second,
        "efficiency": row.efficiency,
        "efficiency_low": row.efficiency_bounds and row.efficiency_bounds.low,
        "efficiency_high": row.efficiency_bounds and row.efficiency_bounds.high,
        "efficiency_base": row.base,
        "loss": row.loss,
        "quality": dict([row.quality]) if row.quality else {},
        "interruptions": row.interruptions,
        "failures": row.failures,
        "flags": list(row.flags),
        "runs": [_run_json(run) for run in row.runs],
    }


def _run_json(run: Measured) -> dict[str, Any]:
    rates = run.training.rates
    measured: dict[str, Any] = {}
    if rates:
        measured = {
            "iterations_per_second": rates.per_second,
            "median_iterations_per_second": 1 / rates.median if rates.median else None,
            "iqr": rates.iqr,
            "iterations": rates.iterations,
            "seconds": rates.seconds,
            "left_out": rates.left_out,
        }
    if run.machines:
        measured["nodes"] = [{"name": each.name, **asdict(each.place), "told_by": each.told} for each in run.machines]
    return {"id": run.run, "state": run.state, "reported_iterations": run.training.reported, **measured}
