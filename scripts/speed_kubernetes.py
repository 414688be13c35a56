"""Measures runs on a cluster beside the same without spotmpi, on a real Kubernetes of its own on this machine.

    scripts/speed-kubernetes [--runs 5] [--only start,command,pool,refusal,call,stream,following,...] [--json]

start      submit to first program line of an mpirun job on two pods, beside `kubectl apply` of a JobSet whose two pods
           only print, and beside an MPIJob of the MPI Operator that does the same work; the sides take turns
command    `spotmpi run -- echo` to its line, beside `kubectl run --attach` of the same image; the sides take turns
pool       a pool of four to its first result, beside `kubectl apply` of as many pods that print
refusal    from the start of a pool's first container until a driver with another Python reads that it does not fit
call       a small call through the tunnel and inside of the cluster, beside plain Dask with TLS on the same pods
stream     rows a second of a prediction by a stream with 16 workers, beside Dask by hand with TLS on the same pods
following  100,000 lines of 20 pods by `spotmpi logs`, beside `kubectl logs`, with the memory of each
scale      a run of 1,000 nodes that only seem to run (kwok): submitting, showing, following and stopping it, with
           the memory and the requests to the API of each
recovery   ten deleted workers in a row, from the deletion to the next iteration; five times node 0; five workers where
           JobSet replaces all pods for one

A target that is missed is marked, no more. Needs Linux and root, as the cluster tier does.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

import spotmpi  # noqa: E402
from scripts.speed import Figure, _interleaved, _spread, table  # noqa: E402
from scripts.speed_bench import IMAGE, SPOTMPI, Bench  # noqa: E402
from scripts.speed_clients import Counting, Measured, Measuring, first_line  # noqa: E402
from scripts.speed_cluster_pools import measure_call, measure_command, measure_pool, measure_refusal  # noqa: E402
from scripts.speed_cluster_streams import measure_streams  # noqa: E402
from scripts.speed_manifests import LINE, mpi_job, printing_jobset  # noqa: E402
from spotmpi.api.drill import Recovery  # noqa: E402
from tests.testbed.cluster import running_cluster  # noqa: E402
from tests.testbed.kubernetes import RESTRICTED, Object  # noqa: E402
from tests.testbed.kwok import Kwok  # noqa: E402
from tests.testbed.mpi_operator import MpiOperator  # noqa: E402

PODS, LINES = 20, 100_000
STRIKES, MARKS = 10, ("detected", "rescheduled", "resumed")
MANY = 1000


def measure_start(bench: Bench, count: int) -> list[Figure]:
    """From Enter to the first line of a program on two pods, three ways."""
    spec = bench.spec(command=["echo", LINE], image=IMAGE, nodes=2)
    phases: list[dict[str, float]] = []

    def own() -> float:
        began = time.time()
        took = first_line(bench.spotmpi("run", str(spec)), LINE)
        phases.append(_phases(bench, began))
        bench.remove("jobsets")
        return took

    def applied(objects: Object, logs: Sequence[str], kind: str) -> float:
        command = bench.kubectl("logs", *logs)
        took = bench.apply(objects, lambda: LINE in subprocess.run(command, capture_output=True, text=True).stdout)
        bench.remove(kind)
        return took

    jobset, job = printing_jobset(bench.image), mpi_job(bench.image)
    sides: dict[str, Callable[[], float]] = {
        "spotmpi": own,
        "kubectl apply": lambda: applied(jobset, ["job/bare-node-0", "--all-pods"], "jobsets"),
        "MPI Operator": lambda: applied(job, ["-l", "training.kubeflow.org/job-role=launcher"], "mpijobs"),
    }
    with MpiOperator(bench.cluster.plane).running():
        samples = _interleaved(sides, count)
    medians = {side: statistics.median(values) for side, values in samples.items()}
    details: dict[str, Any] = {side: _spread(values) for side, values in samples.items()}
    details["phases"] = {name: statistics.median(phase[name] for phase in phases) for name in phases[0]}
    beyond = medians["spotmpi"] - medians["kubectl apply"]
    ratio = medians["spotmpi"] / medians["MPI Operator"]
    return [
        Figure("to the first program line, beyond kubectl apply", beyond, "s", "at most 1.5", beyond <= 1.5, details),
        Figure("to the first program line / MPI Operator", ratio, "", "at most 1.3", ratio <= 1.3, {}),
    ]


def _phases(bench: Bench, began: float) -> dict[str, float]:
    """When the newest run got how far, in seconds from *began*."""
    run = spotmpi.list_runs(bench.target)[-1].id
    pods = bench.cluster.get("pods", "-n", bench.namespace, "-l", f"spotmpi.dev/run={run}")["items"]
    running = [pod["status"]["containerStatuses"][0]["state"] for pod in pods]
    started = [state.get("running", state.get("terminated"))["startedAt"] for state in running]
    events = {event.kind: event.time - began for event in spotmpi.logs(run, on=bench.target)}
    containers = max(time.mktime(time.strptime(moment, "%Y-%m-%dT%H:%M:%SZ")) - time.timezone for moment in started)
    return {
        "submitted": events["submitted"],
        "containers run (whole seconds)": containers - began,
        "hosts are there": events["started"],
        "first line": events["line"],
    }


def measure_following(bench: Bench, count: int) -> list[Figure]:
    """100,000 lines of 20 pods, read from the start."""
    run = _printed(bench)
    every = bench.kubectl("logs", "-l", f"spotmpi.dev/run={run}", "--tail=-1", f"--max-log-requests={PODS}")
    samples: dict[str, Measured] = {}

    def read(side: str, command: list[str]) -> float:
        samples[side] = Measuring(command).end()
        return samples[side].seconds

    def own() -> float:
        with tempfile.TemporaryDirectory(dir=bench.folder) as fresh:
            return read("spotmpi", [SPOTMPI, "logs", run, "--on", str(bench.target.on), "--runs", fresh])

    took = _interleaved({"spotmpi": own, "kubectl": lambda: read("kubectl", every)}, count)
    bench.remove("jobsets")
    ratio = statistics.median(took["spotmpi"]) / statistics.median(took["kubectl"])
    details: dict[str, Any] = {side: _spread(values) for side, values in took.items()}
    details |= {f"{side} read": f"{each.lines} lines, {each.megabytes:.0f} MB" for side, each in samples.items()}
    lost, memory = LINES + PODS - samples["spotmpi"].lines, samples["spotmpi"].megabytes
    return [
        Figure("100,000 lines of 20 pods / kubectl logs", ratio, "", "at most 1", ratio <= 1, details),
        Figure("lines lost", lost, "", "0", lost == 0, {}),
        Figure("memory of the follower", memory, "MB", "under 100", memory < 100, {}),
    ]


def _printed(bench: Bench) -> str:
    """A run whose pods have printed all their lines and stay."""
    program = f"for i in range({LINES // PODS}): print(f'{{i:06d}} {'x' * 60}')\n"
    program += "import time; print('all', flush=True); time.sleep(3600)"
    more: dict[str, Any] = {"limits": {"no_progress": "1h"}, "kubernetes": {"templates": bench.small_pods()}}
    spec = bench.spec(command=["python3", "-u", "-c", program], launcher="none", nodes=PODS, **more)
    run = spotmpi.run(spec, on=bench.target, detach=True).id
    last = bench.kubectl("logs", "-l", f"spotmpi.dev/run={run}", "--tail=1", f"--max-log-requests={PODS}")
    bench.wait(run, lambda: subprocess.run(last, capture_output=True, text=True).stdout.count('"all"]') == PODS)
    return run


def measure_recovery(bench: Bench, count: int) -> list[Figure]:
    """Ten deleted workers in a row, image present, then node 0, then workers where all pods are replaced for one."""
    alone, node_0 = _recoveries(bench, STRIKES, 1), _recoveries(bench, STRIKES // 2, 0)
    with bench.cluster.jobset.without_restarting_jobs():
        gang = _recoveries(bench, STRIKES // 2, 1)
    took = [recovery.resumed for recovery in alone]
    half = len(took) // 2
    growth = statistics.median(took[half:]) / statistics.median(took[:half])
    middle, before = statistics.median(took), _median(gang)
    title = "from a deleted worker to the next iteration"
    return [
        Figure(title, middle, "s", "under 15", middle < 15, _marks(alone)),
        Figure("last five recoveries / first five", growth, "", "about 1", growth < 1.25, {}),
        Figure("the same of node 0", _median(node_0), "s", "none", None, _marks(node_0)),
        Figure(f"{title} where all pods are replaced", before, "s", "none", None, _marks(gang)),
        Figure("its pod alone / all pods", middle / before, "", "under 1", middle < before, {}),
    ]


def _recoveries(bench: Bench, strikes: int, node: int) -> list[Recovery]:
    """The recoveries of one run from deleted pods of a node, one after another."""
    args = ["--global-batch", "64", "--epochs", "100000", "--report-every", "5"]
    spec = bench.spec(program="digits", image=IMAGE, nodes=2, args=args, checkpoint={"every": "5s"})
    run = spotmpi.run(spec, on=bench.target, detach=True).id
    recoveries = []
    for number in range(strikes):
        recovery = spotmpi.drill(run, node, "delete", bench.target)
        assert isinstance(recovery, Recovery)  # not that of a pool
        recoveries.append(recovery)
        print(f"  {number + 1}: {recovery}", file=sys.stderr, flush=True)
        time.sleep(5)
    spotmpi.stop(run, now=True, on=bench.target)
    bench.remove("jobsets")
    return recoveries


def _median(recoveries: Sequence[Recovery]) -> float:
    return statistics.median(recovery.resumed for recovery in recoveries)


def _marks(recoveries: Sequence[Recovery]) -> dict[str, list[float]]:
    return {name: [round(getattr(each, name), 1) for each in recoveries] for name in MARKS}


def measure_scale(bench: Bench, count: int) -> list[Figure]:
    """A run of 1,000 nodes: its submission, status and stop, with a follower running."""
    kwok = Kwok(bench.cluster.plane, lease=7200)
    kubernetes = {"tolerations": [{"key": "kwok"}], "node_selector": {"type": "kwok"}}
    more: dict[str, Any] = {"resources": {"gpu": 1}, "limits": {"start": "1h"}, "kubernetes": kubernetes}
    spec = bench.spec(command=["true"], nodes=MANY, **more)
    samples: dict[str, Measured] = {}
    with bench.cluster.plane.patient_with_nodes(), kwok.running():
        kwok.add_nodes(MANY, {"nvidia.com/gpu": "1"})
        samples["run --detach"] = Counting(bench.spotmpi("run", str(spec), "--detach")[1:]).end()
        run = spotmpi.list_runs(bench.target)[-1].id
        target = ["--on", str(bench.target.on), "--runs", str(bench.folder / "follower")]
        follower = Counting(["logs", "-f", run, *target])
        bench.wait(run, lambda: sum(_runs(pod) for pod in bench.cluster.pods(bench.namespace)) == MANY)
        samples["status"] = Counting(bench.spotmpi("status", run)[1:]).end()
        samples["stop --now"] = Counting(bench.spotmpi("stop", run, "--now")[1:]).end()
        samples["logs -f"] = follower.end()
        bench.remove("jobsets")
        kwok.remove_nodes()
    return [
        Figure(f"1,000 nodes: {name}", each.seconds, "s", "none", None, {"needs": _needs(each)})
        for name, each in samples.items()
    ]


def _runs(pod: Object) -> bool:
    return bool(pod["status"]["phase"] == "Running")


def _needs(measured: Measured) -> str:
    requests = ", ".join(f"{count} {kind}" for kind, count in measured.requests.items())
    return f"{measured.megabytes:.0f} MB; requests: {requests}"


MEASUREMENTS: dict[str, Callable[[Bench, int], list[Figure]]] = {
    "start": measure_start,
    "command": measure_command,
    "pool": measure_pool,
    "refusal": measure_refusal,
    "call": measure_call,
    "stream": measure_streams,
    "following": measure_following,
    "recovery": measure_recovery,
    "scale": measure_scale,
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="interleaved runs of each side")
    parser.add_argument("--only", default=",".join(MEASUREMENTS), help="which of: " + ", ".join(MEASUREMENTS))
    parser.add_argument("--json", action="store_true", help="print JSON on stdout")
    options = parser.parse_args()
    selected = [name for name in options.only.split(",") if name]
    if set(selected) - set(MEASUREMENTS) or options.runs < 1:
        parser.error(f"--only takes {', '.join(MEASUREMENTS)}; --runs at least 1")
    figures: list[Figure] = []
    with running_cluster({IMAGE}) as cluster, tempfile.TemporaryDirectory() as folder:
        os.environ["KUBECONFIG"] = str(cluster.kubeconfig)
        for name in selected:
            print(f"measuring {name}", file=sys.stderr, flush=True)
            with cluster.namespace(labels=RESTRICTED) as namespace:
                place = Path(folder, name)
                place.mkdir()
                figures += MEASUREMENTS[name](Bench(cluster, namespace, place), options.runs)
    result = {"load": os.getloadavg(), "cores": os.cpu_count(), "figures": [vars(figure) for figure in figures]}
    print(json.dumps(result, indent=1) if options.json else table(figures))


if __name__ == "__main__":
    main()
