"""A turn of a side: it trains, gets its faults one after another, and ends at an iteration that it is told."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.faults.records import Injected, Record, Recovery, Turn, frontier, recovered, recoveries
from scripts.faults.sides import Place, Side, Training, place_for
from scripts.faults.watch import NotInTime, Watch
from tests.testbed.cluster import Cluster
from tests.testbed.errors import TestbedError
from tests.testbed.faults import TAKEN, Fault, take_pod
from tests.testbed.kubernetes import Object

_BEYOND = 20  # iterations from the decision to end to the last one: all ranks read it before
_ENDING = 60.0  # seconds for those
_LINES, _LETTERS = 2, 300  # of what each pod printed last, in the reason of a failure


@dataclass(frozen=True)
class Limits:
    """Seconds until the first iterations of a turn, and from a fault to the recovery from it."""

    start: float
    fault: float


def take_turn(
    name: str, side: Side, cluster: Cluster, faults: Sequence[Fault], training: Training, limits: Limits
) -> tuple[Turn, list[Record]]:
    """Give a side its faults; whatever goes wrong ends the turn and is its reason."""
    turn, records, began = Turn(name), list[Record](), time.monotonic()
    try:
        with place_for(side, cluster, training) as place:
            watch = Watch(place.run / "records", lambda: diagnosis(place))
            try:
                _take(turn, side, place, watch, faults, limits)
            finally:
                records = watch.records
    except (NotInTime, TestbedError, OSError) as error:
        turn.failure = str(error)
    except Exception as error:  # one side's trouble must not cost the others their figures
        turn.failure = f"{type(error).__name__}: {error}"
    turn.seconds, turn.load = time.monotonic() - began, os.getloadavg()[0]
    turn.attempts = len({record.attempt for record in records if record.rank == 0})
    return turn, records


def _take(turn: Turn, side: Side, place: Place, watch: Watch, faults: Sequence[Fault], limits: Limits) -> None:
    side.start(place)
    watch.until(lambda: watch.furthest > 0, limits.start, "no iteration")
    injected: list[Injected] = []
    try:
        for fault in faults:
            start = watch.furthest
            watch.until(
                lambda start=start, gap=fault.gap: watch.furthest >= start + gap,  # type: ignore[misc]
                limits.fault,
                f"no {fault.gap} iterations before the fault {fault.kind!r}",
            )
            injected.append(Injected(fault, time.time()))
            inject(place, fault, watch.records)
            watch.until(
                lambda: recovered(watch.records, injected[-1]),
                limits.fault,
                f"no recovery from {fault.kind!r}",
            )
    except NotInTime as error:
        turn.recoveries = recoveries(watch.records, injected)
        if turn.recoveries and turn.recoveries[-1].seconds is None:
            turn.recoveries[-1].reason = str(error)
            return
        raise
    stop = watch.furthest + _BEYOND
    aside = place.run / ".stop"
    aside.write_text(str(stop))
    aside.rename(place.run / "stop")
    result = place.run / "result.json"
    watch.until(result.exists, _ENDING, "no end after the last fault")
    turn.recoveries = recoveries(watch.records, injected)
    values = json.loads(result.read_text())
    turn.iteration, turn.parameters = values["iteration"], values["parameters"]


def undisturbed(side: Side, cluster: Cluster, training: Training, limit: float) -> list[Record]:
    """The records of a training without faults up to its end; SystemExit says why there are none."""
    with place_for(side, cluster, training) as place:
        watch = Watch(place.run / "records", lambda: diagnosis(place))
        try:
            side.start(place)
            watch.until((place.run / "result.json").exists, limit, "no end of the undisturbed run")
        except NotInTime as error:
            raise SystemExit(str(error)) from error
        return watch.records


def inject(place: Place, fault: Fault, records: Sequence[Record]) -> None:
    """Cause a fault at the process, or the pod, that was the rank last."""
    newest = max((each for each in records if each.rank == fault.node), key=lambda each: each.time)
    pod = _pod_of(place, newest)
    if fault.kind == "rank":
        _kill(place, pod, newest.pid)
    else:
        how = fault.kind if fault.kind in TAKEN else "delete"
        take_pod(place.cluster, place.namespace, pod["metadata"]["name"], how=how)


def _pod_of(place: Place, record: Record) -> Object:
    """The pod with the host name of a record."""
    for pod in place.cluster.pods(place.namespace):
        names = (pod["spec"].get("hostname"), pod["metadata"]["name"])
        leaves = "deletionTimestamp" in pod["metadata"] or pod["status"]["phase"] != "Running"
        if record.host in names and not leaves:
            return pod
    raise NotInTime(f"no pod with the host name {record.host}: {diagnosis(place)}")


def _kill(place: Place, pod: Object, pid: int) -> None:
    """Kill the process with this number in the pod's own count."""
    node = place.cluster.node(pod["spec"]["nodeName"])
    for outside in node.pod_processes(pod["metadata"]["uid"]):
        status = Path(f"/proc/{outside}/status").read_text()
        inside = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[-1]
        if int(inside) == pid:
            os.kill(outside, signal.SIGKILL)
            return
    raise NotInTime(f"no process {pid} in pod {pod['metadata']['name']}: {diagnosis(place)}")


def diagnosis(place: Place) -> str:
    """The state of each pod, and what it printed last."""
    texts = []
    for pod in place.cluster.pods(place.namespace):
        name, phase = pod["metadata"]["name"], pod["status"]["phase"]
        leaving = ", terminating" if "deletionTimestamp" in pod["metadata"] else ""
        states = [each["state"] for each in pod["status"].get("containerStatuses", [])]
        reasons = [value["reason"] for state in states for value in state.values() if "reason" in value]
        log = place.cluster.try_kubectl("logs", name, "-n", place.namespace, f"--tail={_LINES}").stdout
        last = " / ".join(line.strip() for line in log.splitlines())[-_LETTERS:]
        texts.append(f"{name} {', '.join([phase, *reasons])}{leaving}: {last or 'printed nothing'}")
    return "; ".join(texts) or "no pods"


__all__ = ["Limits", "Recovery", "frontier", "inject", "take_turn", "undisturbed"]
