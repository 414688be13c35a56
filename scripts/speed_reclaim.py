"""Measures the pause when a node gets notice and a pod that stands by takes its place, with real agents and mpirun.

    scripts/speed-reclaim [--runs 20] [--json]

As root, in namespaces of its own. Each of three agents has a network, a host name and mounts of its own, as in a pod:
two nodes train `digits` with one rank each, and the third stands by. The agent of node 1 gets SIGTERM, and is started
again once it has ended, as JobSet does; then it stands by.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

from spotmpi.core.names import PROJECT
from spotmpi.images import environment as image_environment
from tests.forked_python import ForkedPython
from tests.unit.agent.gang import Gang

IMAGE = "chainermn"
AGENTS = 3  # of two nodes, and of the pod that stands by
POD = "/mnt"  # where each agent sees its mounts
SETTLE = 3.0  # seconds between two switches
LIMIT = 120.0  # seconds for anything
HOST = f'hostname host$0; mount -t tmpfs t /tmp; mount -t tmpfs t /dev/shm; mount --bind "$MOUNTS" {POD}; exec "$@"'


class Switch(NamedTuple):
    """Seconds of one switch, and the iterations that were repeated."""

    end: float  # from the last iteration to the end of the attempt
    launch: float  # from there to the start of mpirun
    start: float  # from there to the first iteration
    pause: float  # all of it
    repeated: float


class Pods(Gang):
    """The agents of a run, each in namespaces of its own."""

    def __init__(self, folder: Path, image: Path) -> None:
        values = {"launcher": "mpirun", "image": IMAGE, "program": "digits", "mpi": {"args": ["--allow-run-as-root"]}}
        values["args"] = ["--iterations=1000000", "--report-every=1", "--global-batch=32"]
        values |= {"checkpoint": {"memory": "1", "every": "1h"}, "limits": {"interruptions": 1000}}
        super().__init__(folder, values)
        self._python = str(image / "python3")
        hosts = [f"10.199.0.{agent + 1}" for agent in range(AGENTS)]
        self.plan |= {"replaces_nodes": True, "hosts": hosts[:2], "standby": hosts[2:], "python": self._python}
        self.plan["environment"] |= {"PATH": f"{image}:{os.environ['PATH']}", "PYTHONPATH": f"{PROJECT}/jobs"}
        for agent, host in enumerate(hosts):
            _add_network(agent, host)

    def process(
        self, node: int, arguments: list[str], files: tuple[int, int, int], environment: dict[str, str]
    ) -> ForkedPython:
        """The process of an agent in its namespaces."""
        *module, mounts, port = arguments
        own = ["env", f"MOUNTS={mounts}", f"PYTHONPATH={PROJECT}:{PROJECT}/jobs"]
        own += ["ip", "netns", "exec", f"pod{node}", "unshare", "--uts", "sh", "-c", HOST, str(node)]
        command = [*own, self._python, *module, POD, port]
        source, out, error = files
        process = subprocess.Popen(command, stdin=source, stdout=out, stderr=error, env=environment)
        return cast(ForkedPython, process)  # of which it has what is used

    def recorded(self, name: str) -> list[dict[str, Any]]:
        """The lines of a file of the run folder."""
        path = self.paths.folder / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def iterations(self, attempt: int) -> list[dict[str, Any]]:
        """Those that an attempt has reported."""
        return [
            each for each in self.recorded("metrics.jsonl") if (each["kind"], each["attempt"]) == ("metric", attempt)
        ]

    def wait_for(self, what: str, condition: Callable[[], object]) -> None:
        """Wait until something is so."""
        deadline = time.monotonic() + LIMIT
        while not condition():
            if time.monotonic() > deadline or "failed" in [each["event"] for each in self.recorded("events.jsonl")]:
                raise SystemExit(f"{what}: waited in vain; the agent of node 0 printed:\n" + "\n".join(self.texts(0)))
            time.sleep(0.02)

    def time_of(self, kind: str) -> float:
        """When the newest event of a kind happened."""
        return max(float(each["t"]) for each in self.recorded("events.jsonl") if each["event"] == kind)


def main() -> None:
    """Measure all switches, and print medians and extremes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="print JSON on stdout")
    options = parser.parse_args()
    image = image_environment.location(IMAGE) / "bin"
    if not image.exists():
        raise SystemExit(f"{image} is missing; `spotmpi run --image {IMAGE} -- true` installs it")
    _share_nothing()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:  # agents have a /tmp of their own
        switches = measure(Pods(Path(folder), image), options.runs)
    load = [round(each, 1) for each in os.getloadavg()]
    columns = {name: [getattr(each, name) for each in switches] for name in Switch._fields}
    if options.json:
        print(json.dumps({"load": load, "seconds": columns}, indent=1))
        return
    for name, values in columns.items():
        print(f"{name:10} {statistics.median(values):8.3f} ({min(values):.3f} to {max(values):.3f})")
    print("load", *load)


def measure(pods: Pods, runs: int) -> list[Switch]:
    """So many switches of one run, one after the other."""
    restarts = [0] * AGENTS
    try:
        for agent in range(AGENTS):
            pods.start(agent)
        pods.wait_for("the first attempt", lambda: len(pods.iterations(1)) > 5)
        switches = []
        for attempt in range(1, runs + 1):
            at_work = 2 - attempt % 2  # the two take turns
            switches.append(_switch(pods, attempt, at_work))
            restarts[at_work] += 1
            pods.start(at_work, restart_count=restarts[at_work])
        return switches
    finally:
        for process in pods.agents.values():
            process.kill()


def _switch(pods: Pods, attempt: int, at_work: int) -> Switch:
    """Give notice to the agent *at_work* in an attempt, and wait until it has ended and the next one trains."""
    pods.wait_for("a pod that stands by", lambda: _joined(pods) == attempt)
    time.sleep(SETTLE)
    pods.wait_for("iterations", lambda: len(pods.iterations(attempt)) > 20)
    pods.agents[at_work].send_signal(signal.SIGTERM)
    pods.wait_for("the next attempt", lambda: pods.iterations(attempt + 1))
    pods.agents[at_work].wait(LIMIT)
    last, first = pods.iterations(attempt)[-1], pods.iterations(attempt + 1)[0]
    ended, started = pods.time_of("interrupted"), pods.time_of("started")
    repeated = last["iteration"] + 1 - first["iteration"]
    return Switch(ended - last["t"], started - ended, first["t"] - started, first["t"] - last["t"], repeated)


def _joined(pods: Pods) -> int:
    return sum(each["event"] == "joined" for each in pods.recorded("events.jsonl"))


def _share_nothing() -> None:
    """A bridge in this network namespace, and room for the names of others."""
    _run("mount", "-t", "tmpfs", "tmpfs", "/run")
    _run("ip", "link", "add", "pods", "type", "bridge")
    _run("ip", "link", "set", "pods", "up")


def _add_network(agent: int, address: str) -> None:
    space = f"pod{agent}"
    _run("ip", "netns", "add", space)
    _run("ip", "link", "add", space, "type", "veth", "peer", "name", "eth0", "netns", space)
    _run("ip", "link", "set", space, "master", "pods", "up")
    _run("ip", "-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
    for device in ("eth0", "lo"):
        _run("ip", "-n", space, "link", "set", device, "up")


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
