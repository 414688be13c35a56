"""What a careful reader would ask of a report, and the answer where it is bad. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from spotmpi.metrics import intervals
from spotmpi.report.figures import share
from spotmpi.report.rows import Row, iteration_seconds
from spotmpi.report.time_breakdown import slowest
from spotmpi.report.trial_results import AWS, NO_GROUP, Machine, NodePlacement, TrialResult

DRIFT_LIMIT = 0.05
SLOW_RANK_LIMIT = 0.05


def row_caveats(rows: Sequence[Row], without_allreduce: Mapping[tuple[str, int], Sequence[TrialResult]]) -> list[str]:
    """Warnings about how *rows* were measured."""
    runs = [run for row in rows for run in row.runs]
    return [*_repeats(rows), *_context(runs), *_code(runs), *_loss(runs), *_slow_ranks(rows, without_allreduce)]


def drift(before: Sequence[TrialResult], after: Sequence[TrialResult]) -> list[str]:
    """Whether the same trial went otherwise at the end than at the start."""
    first, last = ([intervals.rate(seconds) for seconds in iteration_seconds(runs)] for runs in (before, after))
    if not first or not last:
        return []
    change = statistics.median(last) / statistics.median(first) - 1
    if abs(change) <= DRIFT_LIMIT:
        return []
    how = "faster" if change > 0 else "slower"
    return [f"Drift: after all trials the smallest cell was {share(abs(change))} {how} than before them."]


def node_caveats(runs: Sequence[TrialResult], probes: Sequence[TrialResult]) -> list[str]:
    """Machines that are not what the environment says, runs whose machines are apart, and untypical benchmarks."""
    machines = list({machine.name: machine for run in runs for machine in run.machines}.values())
    return [*_differences(machines), *_apart(runs), *_unused_probe_nodes(runs, probes)]


def _repeats(rows: Sequence[Row]) -> list[str]:
    fewest = min((len(iteration_seconds(row.runs)) for row in rows), default=0)
    if not 1 < fewest < intervals.FEWEST_TRIALS:
        return []
    few = intervals.FEWEST_TRIALS
    return [f"Rows with fewer than {few} trials show their range; {few} repeats give a 95 % interval."]


def _context(runs: Iterable[TrialResult]) -> list[str]:
    lacking = [run.run for run in runs if not run.training.context.get("versions")]
    return [f"No versions were told by {_some(lacking)}: what ran is known from the spec only."] if lacking else []


def _code(runs: Iterable[TrialResult]) -> list[str]:
    changed = [run.run for run in runs if run.work["code"].get("diff")]
    return [f"The code of {_some(changed)} is in no commit: keep it to repeat this."] if changed else []


def _loss(runs: Iterable[TrialResult]) -> list[str]:
    lacking = [run.run for run in runs if run.training.rates and run.loss is None]
    return [f"No loss was told by {_some(lacking)}: nothing says that it learned at this speed."] if lacking else []


def _slow_ranks(rows: Sequence[Row], without_allreduce: Mapping[tuple[str, int], Sequence[TrialResult]]) -> list[str]:
    found = []
    for row in rows:
        worst = slowest(without_allreduce.get((row.line.variant, row.nodes), ()) or row.runs)
        if worst and worst[1] > SLOW_RANK_LIMIT:
            late = f"rank {worst[0]} takes {share(worst[1])} longer than the median rank"
            found.append(f"{row.line.variant}, {row.ranks} ranks: {late}, and all others wait for it.")
    return found


def _differences(machines: Iterable[Machine]) -> list[str]:
    found: dict[str, list[str]] = {}
    for machine in machines:
        for difference in _unlike(machine.expected, machine.actual) if machine.actual else ():
            found.setdefault(difference, []).append(machine.name)
    return [f"By {AWS}, {_some(names)} {difference}." for difference, names in found.items()]


def _unlike(claimed: NodePlacement, actual: NodePlacement) -> list[str]:
    found = []
    for what, said, is_so in (
        ("of type", claimed.type, actual.type),
        ("in zone", claimed.zone, actual.zone),
        ("of market", claimed.market, actual.market),
    ):
        # Several node groups are told as "spot or on-demand".
        if said and is_so and is_so not in said.split(" or "):
            found.append(f"is {what} {is_so}, where the environment says {said}")
    grouped = actual.placement_group not in (None, NO_GROUP)
    if claimed.placement_group == NO_GROUP and grouped:
        found.append(f"is in placement group {actual.placement_group}, where the environment says that it is in none")
    if claimed.placement_group == "in one" and not grouped:
        found.append("is in no placement group, where the environment says that it is in one")
    return found


def _apart(runs: Iterable[TrialResult]) -> list[str]:
    """Nodes of one run in several zones or placement groups; the network between those is slower."""
    found = []
    for what, key in (("zones", "zone"), ("placement groups", "placement_group")):
        runs_report = [{getattr(machine.placement, key) for machine in run.machines} - {None} for run in runs]
        spread = sorted(set().union(*(places for places in runs_report if len(places) > 1)))
        if spread:
            listed = ", ".join(spread)
            found.append(f"Some runs had nodes in several {what} ({listed}): the network between them is slower.")
    return found


def _unused_probe_nodes(runs: Iterable[TrialResult], probes: Iterable[TrialResult]) -> list[str]:
    used = {machine.name for run in runs for machine in run.machines}
    foreign = sorted({machine.name for probe in probes for machine in probe.machines} - used)
    if not foreign or not used:
        return []
    return [f"The micro-benchmarks also measured {_some(foreign)}, which no trial ran on."]


def _some(runs: Sequence[str]) -> str:
    return runs[0] if len(runs) == 1 else f"{runs[0]} (and {len(runs) - 1} more)"
