"""A report: the rows of recorded runs, under which conditions and how they were measured, and its caveats. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from spotmpi.agent.protocol import WEAK
from spotmpi.aws.instances import NO_GROUP
from spotmpi.core.price import Price
from spotmpi.core.wording import counted
from spotmpi.forecast.model import EFFICIENCY_LIMIT
from spotmpi.metrics import intervals
from spotmpi.metrics import rates as metrics
from spotmpi.plan.run_plan import threads
from spotmpi.report.figures import Drawing, share
from spotmpi.report.rows import EDGE_LIMIT, SPREAD_LIMIT, Line, Row, iteration_seconds, slowest
from spotmpi.report.trial_results import AWS, Machine, NodePlacement, TrialResult
from spotmpi.runs import data_fingerprint
from spotmpi.runs.fingerprint import command_of
from spotmpi.spec.job import JobSpec

_LISTED = 4  # values of a condition that are all shown
BASELINE_LIMIT = 0.05  # share by which the baseline may change from before all other trials to after them
SLOW_RANK_LIMIT = 0.05  # share of a rank's time above that of the median rank


@dataclass(frozen=True)
class Section:
    """A part of a report after its main table.

    ``cells`` has one list per row, as long as ``header``; columns from ``numeric`` on align right.

    ``text`` holds sentences above the table, ``bullets`` a list next to the charts. With ``in_picture`` the charts are
    in the picture of the report too.
    """

    title: str
    text: tuple[str, ...]
    header: tuple[str, ...] = ()
    cells: tuple[tuple[str, ...], ...] = ()
    numeric: int = 1
    charts: tuple[Drawing, ...] = ()
    bullets: tuple[str, ...] = ()
    in_picture: bool = False

    @property
    def right(self) -> list[bool]:
        """Whether each column aligns right."""
        return [at >= self.numeric for at in range(len(self.header))]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        rows = [dict(zip(self.header, row, strict=True)) for row in self.cells]
        return {"title": self.title, "text": self.text, "rows": rows, "items": self.bullets}


@dataclass(frozen=True)
class Report:
    """The content of a report, whatever its form.

    ``conditions`` are facts (name, value) of all runs, ``method`` describes the measurement, ``warnings`` are
    caveats, ``commands`` reproduce the measurement with the TOML in ``spec``. ``subfolder`` is the default folder of
    the files, below the runs folder. ``without_allreduce`` holds the runs that skipped the allreduce of gradients by
    (variant, nodes), ``micro_benchmarks`` their results; ``sections`` follow the main table. For a sweep ``prices`` has
    the highest price of a node of each variant, as far as known, and ``specs`` the spec of each. ``kind`` is what its
    page calls it.
    """

    title: str
    created: float
    rows: list[Row]
    conditions: list[tuple[str, str]]
    method: list[str]
    warnings: list[str]
    commands: list[str]
    spec: str
    subfolder: str
    variants: list[tuple[str, str]] = field(default_factory=list)
    without_allreduce: Mapping[tuple[str, int], Sequence[TrialResult]] = field(default_factory=dict)
    micro_benchmarks: Sequence[TrialResult] = ()
    sections: list[Section] = field(default_factory=list)
    prices: Mapping[str, Price] = field(default_factory=dict)
    specs: Mapping[str, JobSpec] = field(default_factory=dict)
    kind: str = ""

    def folder(self, runs_folder: Path) -> Path:
        """The default folder of the files of the report."""
        return runs_folder / self.subfolder

    @property
    def lines(self) -> list[Line]:
        """All lines of the charts, in order."""
        return list(dict.fromkeys(row.line for row in self.rows))

    @property
    def runs(self) -> list[TrialResult]:
        """All runs behind the rows."""
        return [run for row in self.rows for run in row.runs]

    @property
    def bases(self) -> list[tuple[str, str]]:
        """(label, base of the efficiency) of each variant."""
        return list({row.line: (label(row.line, self.lines), row.base) for row in self.rows if row.base}.values())

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
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
    """The shortest unique name of a chart line; empty for the only line."""
    if len(lines) == 1:
        return ""
    same_variant = [other for other in lines if other.variant == line.variant]
    if len(same_variant) == 1:
        return line.variant
    return f"{line.variant}, {batch(line)}"


def batch(line: Line) -> str:
    """The batch of a line as text."""
    if line.batch is None:
        return "unknown batch"
    return f"global batch {line.batch}" if line.scaling != WEAK else f"batch {line.batch} per worker"


def method(runs: Sequence[TrialResult]) -> list[str]:
    """The method of measurement, in sentences."""
    text = [metrics.RULE]
    if any(run.training.rates and run.training.rates.by_arrival for run in runs):
        text.append(metrics.ARRIVAL_RULE)
    text.append(
        "The rate of a row is the median over its trials. With 2 to 4 trials their range is shown, from 5 on the 95 % "
        "interval of that median, of which each trial is one observation; with 1 trial the spread is the interquartile "
        "range of its iterations relative to their median."
    )
    text.append(
        "Efficiency is samples/s per rank relative to the smallest number of ranks of the same variant, and its "
        "interval includes the noise of both. "
        f"A spread above {share(SPREAD_LIMIT, 0)} and an efficiency above {share(EFFICIENCY_LIMIT, 0)} are flagged as "
        "unreliable. So are rates of the first and the last tenth of the iterations that differ by more than "
        f"{share(EDGE_LIMIT, 0)}: burst credits of network, disk or CPU may have run out."
    )
    return text


def conditions(runs: Sequence[TrialResult]) -> list[tuple[str, str]]:
    """The hardware, software and inputs of *runs*, as (name, value); different values with their variants."""
    facts = [(run.variant, dict(_facts(run))) for run in runs]
    values = [(name, _condition([(variant, each[name]) for variant, each in facts])) for name in facts[0][1]]
    return [(name, value) for name, value in values if value]


def _condition(values: Sequence[tuple[str, str]]) -> str:
    """One fact of runs, from pairs of variant and value."""
    variants: dict[str, dict[str, None]] = {}
    for variant, value in values:
        variants.setdefault(value, {})[variant] = None
    if len(variants) == 1:
        return values[0][1]
    shown = {value or "not recorded": ", ".join(own) for value, own in variants.items()}
    apart = sum(map(len, variants.values())) == len({variant for variant, _ in values})
    if apart and len(shown) <= _LISTED:
        return "; ".join(f"{value} ({own})" for value, own in shown.items())
    return _first_and_count(list(shown))


def _facts(run: TrialResult) -> list[tuple[str, str]]:
    """The hardware, software and inputs of one run, as (name, value), which is empty where it is unknown."""
    work, context = run.work, run.training.context
    machine, reported = work["machine"] or {}, context.get("versions") or {}
    # The program reports at run time what it really uses.
    versions = reported if "mpi" in reported else {**work["versions"], **reported}
    resources = work["resources"]
    own_threads = f", {counted(threads(resources['cpu']), 'thread')} per slot" if resources else ""
    image = work["image"]
    seed = run.training.context.get("seed", run.work["seed"])
    return [
        ("Program", command_of(work)),
        (
            "Machine",
            f"{machine['cpu']}, {counted(machine['cores'], 'core')}, {machine['memory_gib']} GiB" if machine else "",
        ),
        ("GPUs", _gpus(machine["gpus"]) if machine else ""),
        ("System", machine.get("system") or ""),
        ("Hosts", ", ".join(context.get("hosts") or [])),
        ("Launcher", work["launcher"] + own_threads),
        ("Image", f"{image['name']} (lock {image['lock'][:12]})" if image else "none (software of this machine)"),
        ("Container", run.container or ""),
        ("Versions", ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))),
        ("Data", _data(run)),
        ("Seed", "default of the program" if seed is None else str(seed)),
        ("Code", _code(work["code"])),
    ]


def _gpus(gpus: Sequence[dict[str, str]]) -> str:
    kinds = [f"{gpu['name']} ({gpu['memory']}, driver {gpu['driver']})" for gpu in gpus]
    return ", ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds)) or "none"


def _data(run: TrialResult) -> str:
    data, context = run.work["data"], run.training.context
    fingerprint = context.get("data_fingerprint")
    parts = [data_fingerprint.text(data)] if data else []
    if context.get("samples"):
        known = "synthetic" if run.synthetic else fingerprint and str(fingerprint)[:12]
        parts.append(counted(context["samples"], "sample") + (f" ({known})" if known else ""))
    return "; ".join(parts)


def _code(code: dict[str, Any]) -> str:
    files = ", ".join(f"{name} {digest[:12]}" for name, digest in (code.get("files") or {}).items())
    if not code.get("commit"):
        return files
    changed = f" with changes {code['diff'][:12]}" if code.get("diff") else ""
    return f"commit {code['commit'][:12]}{changed}" + (f"; {files}" if files else "")


def _row_json(row: Row) -> dict[str, Any]:
    """A row for ``--json``: rates per second, efficiency and spread as shares."""
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


def _run_json(run: TrialResult) -> dict[str, Any]:
    """A run for ``--json``, with times in seconds."""
    rates = run.training.rates
    measured: dict[str, Any] = {}
    if rates:
        measured = {
            "iterations_per_second": rates.per_second,
            "median_iterations_per_second": 1 / rates.median if rates.median else None,
            "iqr": rates.iqr,
            "iterations": rates.iterations,
            "seconds": rates.seconds,
            "excluded": rates.excluded,
        }
    if run.machines:
        measured["nodes"] = [
            {"name": each.name, **asdict(each.placement), "source": each.source} for each in run.machines
        ]
    return {"id": run.run, "state": run.state, "reported_iterations": run.training.reported, **measured}


def row_caveats(rows: Sequence[Row], without_allreduce: Mapping[tuple[str, int], Sequence[TrialResult]]) -> list[str]:
    """Caveats about how *rows* were measured."""
    runs = [run for row in rows for run in row.runs]
    return [
        *_repeats(rows),
        *_context(runs),
        *_differing_code(runs),
        *_loss(runs),
        *_slow_ranks(rows, without_allreduce),
    ]


def baseline_caveats(before: Sequence[TrialResult], after: Sequence[TrialResult]) -> list[str]:
    """A caveat if the trials of the baseline *before* and *after* all others differ."""
    first, last = ([intervals.rate(seconds) for seconds in iteration_seconds(runs)] for runs in (before, after))
    if not first or not last:
        return []
    change = statistics.median(last) / statistics.median(first) - 1
    if abs(change) <= BASELINE_LIMIT:
        return []
    how = "faster" if change > 0 else "slower"
    return [f"The baseline was {share(abs(change))} {how} after all other trials than before them."]


def node_caveats(runs: Sequence[TrialResult], micro_benchmarks: Sequence[TrialResult]) -> list[str]:
    """Caveats about nodes: not as expected, in several zones, or used only by micro-benchmarks."""
    machines = list({machine.name: machine for run in runs for machine in run.machines}.values())
    return [*_differences(machines), *_spread_runs(runs), *_unused_nodes(runs, micro_benchmarks)]


def _repeats(rows: Sequence[Row]) -> list[str]:
    fewest = min((len(iteration_seconds(row.runs)) for row in rows), default=0)
    if not 1 < fewest < intervals.FEWEST_TRIALS:
        return []
    few = intervals.FEWEST_TRIALS
    return [f"Rows with fewer than {few} trials show their range; {few} repeats give a 95 % interval."]


def _context(runs: Iterable[TrialResult]) -> list[str]:
    runs_without = [run.run for run in runs if not run.training.context.get("versions")]
    return (
        [f"No versions reported by {_first_and_count(runs_without)}: the software is known only from the spec."]
        if runs_without
        else []
    )


def _differing_code(runs: Iterable[TrialResult]) -> list[str]:
    changed = [run.run for run in runs if run.work["code"].get("diff")]
    return [f"Uncommitted code in {_first_and_count(changed)}: keep it to reproduce this."] if changed else []


def _loss(runs: Iterable[TrialResult]) -> list[str]:
    runs_without = [run.run for run in runs if run.training.rates and run.loss is None and not run.is_micro_benchmark]
    return (
        [f"No finite loss at the end of {_first_and_count(runs_without)}: it is unknown whether the model learned."]
        if runs_without
        else []
    )


def _slow_ranks(rows: Sequence[Row], without_allreduce: Mapping[tuple[str, int], Sequence[TrialResult]]) -> list[str]:
    warnings = []
    for row in rows:
        slow = slowest(without_allreduce.get((row.line.variant, row.nodes), ()) or row.runs)
        if slow and slow[1] > SLOW_RANK_LIMIT:
            delay = f"rank {slow[0]} takes {share(slow[1])} longer than the median rank"
            warnings.append(f"{row.line.variant}, {counted(row.ranks, 'rank')}: {delay}, and all others wait for it.")
    return warnings


def _differences(machines: Iterable[Machine]) -> list[str]:
    warnings: dict[str, list[str]] = {}
    for machine in machines:
        for difference in _contradictions(machine.expected, machine.actual) if machine.actual else ():
            warnings.setdefault(difference, []).append(machine.name)
    return [f"According to {AWS}, {_first_and_count(names)} {difference}." for difference, names in warnings.items()]


def _contradictions(expected: NodePlacement, actual: NodePlacement) -> list[str]:
    """Where *actual* is not what the environment promises, as predicates of a machine."""
    warnings = []
    for what, expected_value, actual_value in (
        ("of type", expected.type, actual.type),
        ("in zone", expected.zone, actual.zone),
        ("of market", expected.market, actual.market),
    ):
        # With several node groups a value is, for example, "spot or on-demand".
        if expected_value and actual_value and actual_value not in expected_value.split(" or "):
            warnings.append(f"is {what} {actual_value}, but the environment specifies {expected_value}")
    grouped = actual.placement_group not in (None, NO_GROUP)
    if expected.placement_group == NO_GROUP and grouped:
        warnings.append(f"is in placement group {actual.placement_group}, but the environment specifies none")
    if expected.placement_group == "in one" and not grouped:
        warnings.append("is in no placement group, but the environment specifies one")
    return warnings


def _spread_runs(runs: Iterable[TrialResult]) -> list[str]:
    """Nodes of one run in several zones or placement groups; the network between those is slower."""
    warnings = []
    for what, key in (("zones", "zone"), ("placement groups", "placement_group")):
        places = [{getattr(machine.placement, key) for machine in run.machines} - {None} for run in runs]
        spread = sorted(set().union(*(values for values in places if len(values) > 1)))
        if spread:
            listed = ", ".join(spread)
            warnings.append(f"Some runs had nodes in several {what} ({listed}): the network between those is slower.")
    return warnings


def _unused_nodes(runs: Iterable[TrialResult], micro_benchmarks: Iterable[TrialResult]) -> list[str]:
    used = {machine.name for run in runs for machine in run.machines}
    foreign = sorted(
        {machine.name for micro_benchmark in micro_benchmarks for machine in micro_benchmark.machines} - used
    )
    if not foreign or not used:
        return []
    return [f"The micro-benchmarks also ran on {_first_and_count(foreign)}, which no trial used."]


def _first_and_count(runs: Sequence[str]) -> str:
    return runs[0] if len(runs) == 1 else f"{runs[0]} (and {len(runs) - 1} more)"
