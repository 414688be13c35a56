"""Caveats: reasons not to trust a figure of a report without a second look. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from spotmpi.metrics import intervals
from spotmpi.report.figures import share
from spotmpi.report.rows import Row, iteration_seconds
from spotmpi.report.time_breakdown import slowest
from spotmpi.report.trial_results import AWS, NO_GROUP, Machine, NodePlacement, TrialResult

BASELINE_LIMIT = 0.05
SLOW_RANK_LIMIT = 0.05


def row_caveats(rows: Sequence[Row], without_allreduce: Mapping[tuple[str, int], Sequence[TrialResult]]) -> list[str]:
    """Caveats about how *rows* were measured."""
    runs = [run for row in rows for run in row.runs]
    return [*_repeats(rows), *_context(runs), *_code(runs), *_loss(runs), *_slow_ranks(rows, without_allreduce)]


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


def _code(runs: Iterable[TrialResult]) -> list[str]:
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
            warnings.append(f"{row.line.variant}, {row.ranks} ranks: {delay}, and all others wait for it.")
    return warnings


def _differences(machines: Iterable[Machine]) -> list[str]:
    warnings: dict[str, list[str]] = {}
    for machine in machines:
        for difference in _contradictions(machine.expected, machine.actual) if machine.actual else ():
            warnings.setdefault(difference, []).append(machine.name)
    return [f"According to {AWS}, {_first_and_count(names)} {difference}." for difference, names in warnings.items()]


def _contradictions(expected: NodePlacement, actual: NodePlacement) -> list[str]:
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
