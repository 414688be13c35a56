"""Profiles three stories, and prints through how many files and functions of the package each of them runs.

    scripts/stories [run reclaim study] [--json] [--update]

A file counts if a function of it runs. Functions are read in the order of their first calls, process after process, and
a switch is a step to a function in another file. docs/architecture.md has the numbers, which --update writes and a test
holds: no story may run through more files. What is profiled:

- run: `spotmpi run` of a command on 2 nodes of this machine, with the run's agent;
- reclaim: two agents and a training program as processes of this machine, from their start over SIGTERM in the agent of
  node 1 to the next iteration after the restart, and the terminal, which follows their output on a scripted cluster;
- study: `spotmpi bench` of 4 trials on this machine to its page, with their agents.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from scripts.story import tracer

PROJECT = Path(__file__).resolve().parent.parent
GUIDE = PROJECT / "docs" / "architecture.md"
STORY = Path(__file__).with_name("story")
SPOTMPI = str(Path(sys.executable).with_name("spotmpi"))
METRICS = """\
echo '{"spotmpi":"context","world_size":1,"samples_per_iteration":8}'
for i in 5 10 15 20 25 30; do echo '{"spotmpi":"metric","iteration":'$i',"time":1,"seconds":[1,1,1,1,1]}'; done
"""
STUDY = f"""\
repeats = 2
[spec]
name = "story"
command = ["sh", "-c", '''{METRICS}''']
launcher = "none"
[parameters]
nodes = [1, 2]
"""

Call = tuple[str, str]  # a file and a function of it
Logs = Sequence[tuple[str, Sequence[Call]]]  # of each process its name and its calls


@dataclass(frozen=True)
class Count:
    """The files and functions in which code ran, and the steps from one file to another."""

    files: tuple[str, ...]
    functions: int
    switches: int


@dataclass(frozen=True)
class Story:
    """What is profiled, what runs it in a folder, the names of its processes, and the number of files aimed at."""

    about: str
    run: Callable[[Path, Path], None]
    processes: frozenset[str]
    goal: int


def count(calls: Iterable[Call]) -> Count:
    """What these calls, each function at its first, amount to."""
    functions = list(dict.fromkeys(calls))
    switches = sum(before != after for (before, _), (after, _) in pairwise(functions))
    return Count(tuple(sorted({file for file, _ in functions})), len(functions), switches)


def profile(story: Story) -> dict[str, Count]:
    """The count of each kind of process of a story, and of all."""
    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder, "logs")
        logs.mkdir()
        story.run(Path(folder), logs)
        return counts(read(logs))


def read(logs: Path) -> Logs:
    """The calls of each process, in the order in which they were started."""
    processes = []
    for path in sorted(logs.iterdir()):
        calls = [line.split("\t") for line in path.read_text().splitlines()]
        name = path.name.partition("-")[2].rpartition(".")[2]
        processes.append((name, [(file, function) for file, function in calls]))
    return processes


def counts(logs: Logs) -> dict[str, Count]:
    """The count of each kind of process, and of all."""
    kinds = {name: [call for kind, calls in logs if kind == name for call in calls] for name, _ in logs}
    return {
        **{name: count(calls) for name, calls in kinds.items()},
        "all": count(call for _, calls in logs for call in calls),
    }


def run_command(folder: Path, logs: Path) -> None:
    """`spotmpi run` of a command on two nodes, to its result."""
    _spotmpi(folder, logs, "run", "--nodes", "2", "--", "sh", "-c", "echo a line")


def run_study(folder: Path, logs: Path) -> None:
    """`spotmpi bench` of a study of four trials, to its page."""
    (folder / "study.toml").write_text(STUDY)
    _spotmpi(folder, logs, "bench", "study.toml")


def run_reclaim(folder: Path, logs: Path) -> None:
    """The agents of a run, one of which gets a notice, until the iteration after the restart; then its terminal."""
    _python(folder, logs, str(STORY / "reclaim.py"), str(folder), str(logs))
    for driver in logs.glob("*-reclaim"):
        driver.unlink()
    _python(folder, logs, str(STORY / "terminal.py"), str(folder))


_LOCAL = frozenset({"spotmpi", "agent", "rank_wrapper"})
_RECLAIM = frozenset({"agent_process", "rank_wrapper", "training", "terminal"})
STORIES: Mapping[str, Story] = {
    "run": Story("a command on 2 nodes of this machine, to its result", run_command, _LOCAL, 30),
    "reclaim": Story("a reclaim, from notice to the next iteration", run_reclaim, _RECLAIM, 50),
    "study": Story("a study of 4 trials, to its page", run_study, _LOCAL, 45),
}


def _spotmpi(folder: Path, logs: Path, *arguments: str) -> None:
    _python(folder, logs, SPOTMPI, *arguments)


def _python(folder: Path, logs: Path, *arguments: str) -> None:
    """Run a program of the package, traced, to its end."""
    command = [sys.executable, tracer.__file__, str(logs), *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPOTMPI_", "PYTHON"))}
    done = subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
    )
    if done.returncode:
        sys.exit(f"stories: {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def table(results: Mapping[str, Mapping[str, Count]]) -> str:
    """A line for each kind of process of each story, and one for the whole story."""
    lines = [f"{'story':<8} {'processes':<14} {'files':>5} {'functions':>9} {'switches':>8} {'goal':>4}"]
    for name, kinds in results.items():
        for kind, found in kinds.items():
            goal = f"{STORIES[name].goal} files" if kind == "all" else ""
            lines.append(
                f"{name:<8} {kind:<14} {len(found.files):>5} {found.functions:>9} {found.switches:>8} {goal}".rstrip()
            )
    return "\n".join(lines)


def row(story: Story, found: Count) -> str:
    """The line of a story in the table of the guide."""
    return f"| {story.about} | {len(found.files)} | {found.functions} | {found.switches} | {story.goal} |"


def limit(story: Story) -> int:
    """The number of files in the guide, which the story may not exceed."""
    found = re.search(rf"^\| {re.escape(story.about)} \| (\d+) \|", GUIDE.read_text(), re.MULTILINE)
    if found is None:
        sys.exit(f"stories: {GUIDE} has no row for {story.about!r}")
    return int(found[1])


def update(results: Mapping[str, Mapping[str, Count]]) -> None:
    """Write the numbers of these stories into the guide."""
    text = GUIDE.read_text()
    for name, kinds in results.items():
        line = rf"^\| {re.escape(STORIES[name].about)} \|.*$"
        text = re.sub(line, row(STORIES[name], kinds["all"]), text, flags=re.MULTILINE)
    GUIDE.write_text(text)


def main() -> None:
    """Profile the selected stories and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stories", nargs="*", metavar="STORY", help="which of: " + ", ".join(STORIES))
    parser.add_argument("--json", action="store_true", help="print JSON on stdout, with the names of all files")
    parser.add_argument("--update", action="store_true", help="write the numbers into docs/architecture.md")
    options = parser.parse_args()
    if unknown := set(options.stories) - set(STORIES):
        parser.error(f"no such story: {', '.join(sorted(unknown))}; choose from {', '.join(STORIES)}")
    results = {name: profile(STORIES[name]) for name in options.stories or STORIES}
    if options.update:
        update(results)
    shown = {name: {kind: asdict(found) for kind, found in kinds.items()} for name, kinds in results.items()}
    print(json.dumps(shown, indent=1) if options.json else table(results))


if __name__ == "__main__":
    main()
