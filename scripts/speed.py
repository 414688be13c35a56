"""Measures spotmpi against the same work without it: medians and ratios of interleaved runs.

    scripts/speed [--runs 10] [--only help,start,iterations,following] [--ranks 2] [--json]

Nothing here fails a build: a target that is missed is marked in the table.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

import tomli_w  # noqa: E402

from spotmpi.core import names  # noqa: E402
from spotmpi.images import environment as image_environment  # noqa: E402
from spotmpi.metrics import rates as metrics  # noqa: E402
from spotmpi.runs import reader  # noqa: E402

SPOTMPI = str(Path(sys.executable).with_name("spotmpi"))
IMAGE = "chainermn"
DIGITS = ["--global-batch", "64", "--iterations", "120", "--report-every", "10"]
LINES = 100_000


@dataclass(frozen=True)
class Figure:
    """One measured figure with its target; *met* is None where a target needs what this machine lacks."""

    name: str
    value: float
    unit: str
    target: str
    met: bool | None
    details: dict[str, Any] = field(default_factory=dict)


def main() -> None:
    """Run the selected measurements and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="interleaved runs of each side")
    parser.add_argument("--only", default=",".join(MEASUREMENTS), help="which of: " + ", ".join(MEASUREMENTS))
    parser.add_argument("--ranks", type=int, default=2, help="of the program whose iterations are measured")
    parser.add_argument("--json", action="store_true", help="print JSON on stdout")
    options = parser.parse_args()
    selected = [name for name in options.only.split(",") if name]
    unknown = set(selected) - set(MEASUREMENTS)
    if unknown or options.runs < 1:
        parser.error(f"--only takes {', '.join(MEASUREMENTS)}; --runs at least 1")
    figures = []
    for name in selected:
        print(f"measuring {name}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            more = {"ranks": options.ranks} if name == "iterations" else {}
            figures += MEASUREMENTS[name](Path(folder), options.runs, **more)
    result = {"load": os.getloadavg(), "cores": os.cpu_count(), "figures": [asdict(figure) for figure in figures]}
    print(json.dumps(result, indent=1) if options.json else table(figures))


def measure_help(folder: Path, count: int) -> list[Figure]:
    """``spotmpi --help`` beside ``kubectl version --client``."""
    kubectl = shutil.which("kubectl")
    sides: dict[str, Callable[[], float]] = {"spotmpi": lambda: _wall([SPOTMPI, "--help"])}
    if kubectl:
        sides["kubectl"] = lambda: _wall([kubectl, "version", "--client"])
    samples = _interleaved(sides, max(count, 20))
    own = statistics.median(samples["spotmpi"])
    details = {name: _spread(values) for name, values in samples.items()}
    if not kubectl:
        return [Figure("spotmpi --help", own, "s", "at most 0.12", own <= 0.12, details)]
    ratio = own / statistics.median(samples["kubectl"])
    return [Figure("spotmpi --help / kubectl version --client", ratio, "", "at most 1.4", ratio <= 1.4, details)]


def measure_start(folder: Path, count: int) -> list[Figure]:
    """From Enter to the first line of a program, beside bare mpirun, and where the time goes."""
    command = [_image("python"), "-c", "print('here', flush=True)"]
    spec = _spec(folder, command=["python", *command[1:]])
    phases: list[dict[str, float]] = []

    def own() -> float:
        began = time.time()
        took = _first_line([SPOTMPI, "run", spec, "--runs", str(folder / "runs")])
        phases.append(_phases(reader.every(folder / "runs")[-1], began))
        return took

    samples = _interleaved({"spotmpi": own, "mpirun": lambda: _first_line([*_mpirun(1), *command])}, count)
    beyond = statistics.median(samples["spotmpi"]) - statistics.median(samples["mpirun"])
    details: dict[str, Any] = {name: _spread(values) for name, values in samples.items()}
    details["phases"] = {name: statistics.median(phase[name] for phase in phases) for name in phases[0]}
    name, met = "to the first program line, beyond bare mpirun", beyond <= 0.35
    return [Figure(name, beyond, "s", "at most 0.35", met, details)]


def measure_iterations(folder: Path, count: int, ranks: int = 2) -> list[Figure]:
    """Iterations per second of the digits on some ranks, by the program's own clock, beside bare mpirun."""
    arguments = [_image("python"), "-m", names.program_module(IMAGE, "digits"), *DIGITS]
    spec = _spec(folder, program="digits", args=DIGITS, slots=ranks)

    def own() -> float:
        subprocess.run([SPOTMPI, "run", spec, "--runs", str(folder / "runs")], check=True, capture_output=True)
        return _rate(list(reader.lines(reader.every(folder / "runs")[-1].metrics)))

    def bare() -> float:
        environment = {**os.environ, "PYTHONPATH": str(PROJECT / "jobs"), "PYTHONUNBUFFERED": "1"}
        environment |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        checkpoints = ["--checkpoint-path", tempfile.mkdtemp(dir=folder)]
        done = subprocess.run(
            [*_mpirun(ranks), *arguments, *checkpoints], env=environment, capture_output=True, text=True
        )
        result = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"spotmpi"')]
        return _rate([{**line, "kind": line["spotmpi"], "t": 0.0, "attempt": 1, "node": 0} for line in result])

    samples = _interleaved({"spotmpi": own, "mpirun": bare}, count)
    ratio = statistics.median(samples["spotmpi"]) / statistics.median(samples["mpirun"])
    details = {name: _spread(values) for name, values in samples.items()}
    return [
        Figure(f"iterations/s on {ranks} ranks beside bare mpirun", ratio, "", "at least 0.98", ratio >= 0.98, details)
    ]


def measure_following(folder: Path, count: int) -> list[Figure]:
    """Resident memory of ``spotmpi run`` while it follows 100,000 lines."""
    code = f"for i in range({LINES}): print('a line of output number', i, 'x' * 60)"
    spec = _spec(folder, command=["python", "-c", code], launcher="none")
    process = subprocess.Popen(
        [SPOTMPI, "run", spec, "--runs", str(folder / "runs")], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout
    sizes, received, began = [], 0, time.monotonic()
    for _ in process.stdout:
        received += 1
        if received % (LINES // 10) == 0:
            sizes.append(_resident_mb(process.pid))
    took = time.monotonic() - began
    process.wait()
    assert received > LINES, f"only {received} of {LINES} lines came"
    growth = sizes[-1] - sizes[1]
    details = {"MB after each tenth": sizes, "lines per second": round(LINES / took)}
    return [
        Figure(f"memory of a follower over {LINES} lines", max(sizes), "MB", "under 100", max(sizes) < 100, details),
        Figure("its growth from 20,000 to 100,000 lines", growth, "MB", "flat (under 5)", growth < 5),
    ]


MEASUREMENTS: dict[str, Callable[..., list[Figure]]] = {
    "help": measure_help,
    "start": measure_start,
    "iterations": measure_iterations,
    "following": measure_following,
}


def _interleaved(sides: dict[str, Callable[[], float]], count: int) -> dict[str, list[float]]:
    """What each side gives, *count* times in turn, after one round that is not counted."""
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(count + 1):
        order = list(sides) if turn % 2 else list(reversed(sides))
        for name in order:
            value = sides[name]()
            if turn:
                samples[name].append(value)
    return samples


def _wall(command: Sequence[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def _first_line(command: Sequence[str]) -> float:
    """Seconds from the start of *command* to its first line on stdout."""
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout
        line = process.stdout.readline()
        took = time.perf_counter() - began
        process.stdout.read()
    assert b"here" in line, line
    return took


def _phases(paths: names.RunPaths, began: float) -> dict[str, float]:
    """Seconds spent by the command until its run is recorded, by the agent, and by launcher and program."""
    times = {event["event"]: event["t"] for event in reader.lines(paths.events)}
    first = (paths.logs / "1" / "node-0.log").read_text().split(" ", 1)[0]
    from datetime import datetime

    line = datetime.fromisoformat(first).timestamp()
    return {
        "command": times["submitted"] - began,
        "agent": times["started"] - times["submitted"],
        "launcher and program": line - times["started"],
    }


def _rate(lines: list[dict[str, Any]]) -> float:
    rates = metrics.read(lines).rates
    assert rates is not None, f"no rate in {len(lines)} lines"
    return 1 / rates.median


def _spec(folder: Path, **values: Any) -> str:
    path = folder / "job.toml"
    path.write_text(tomli_w.dumps({"name": "speed", "image": IMAGE, **values}))
    return str(path)


def _image(program: str) -> str:
    return str(image_environment.prepare(IMAGE) / "bin" / program)


def _mpirun(ranks: int) -> list[str]:
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [_image("mpirun"), "-np", str(ranks), "--bind-to", "none", "--oversubscribe", *root]


def _resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


def _spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {"median": statistics.median(ordered), "min": ordered[0], "max": ordered[-1], "runs": len(ordered)}


def table(figures: Sequence[Figure]) -> str:
    """The figures as lines, each with what it is made of below it."""
    lines = []
    for figure in figures:
        verdict = {True: "met", False: "MISSED", None: "not measured"}[figure.met]
        lines.append(f"{figure.name:<46} {figure.value:8.3f} {figure.unit:<3} {figure.target:<16} {verdict}")
        lines += [f"    {name}: {_short(value)}" for name, value in figure.details.items()]
    lines.append(
        f"load of this machine: {', '.join(f'{load:.1f}' for load in os.getloadavg())} on {os.cpu_count()} cores"
    )
    return "\n".join(lines)


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_short(item)}" for name, item in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
