"""Mutation testing with mutmut, of the modules and with the tests below, on a copy of the checkout.

The copy has the package in `src`, where mutmut expects it, and `jobs` is a link to it. Tests that start agents or
supervisors are left out: they take seconds, and a supervisor starts without the site packages that mutants need.
Results are kept until the function changes: a second run tests what was not tested and, with the tests of today, what
survived.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
MODULES = (
    "agent/attempt_history",
    "agent/launch",
    "agent/launcher_output",
    "agent/launchers",
    "agent/network",
    "agent/outcomes",
    "agent/plan",
    "agent/pod_record",
    "agent/progress",
    "agent/readiness",
    "agent/replicas",
    "agent/schema",
    "agent/stop_requests",
    "plan/agent_plan",
    "plan/cluster",
    "plan/local",
    "plan/cluster_plan",
    "plan/manifests",
    "plan/pods",
    "plan/run_plan",
    "plan/templates",
    "plan/volume_pod",
    "metrics/intervals",
    "metrics/rates",
    "forecast/forecast",
    "forecast/model",
    "forecast/published",
    "spec/node_groups",
    "spec/validate",
    "spec/validate_cluster",
)
TESTS = tuple(f"tests/unit/{room}" for room in ("agent", "plan", "metrics", "forecast", "spec"))
# Start agents; the last imports mutmut where it may not, once it is mutated.
LEFT_OUT = re.compile(r"\bGang\b|\bspotmpi\.run\(|sys\.stdlib_module_names")
MUTMUT = (sys.executable, "-m", "mutmut")
COLUMNS = ("mutants", "tested", "killed", "timeout", "survived", "no tests")


def copy_checkout(folder: Path) -> None:
    """Bring the copy up to date; files that did not change keep their times, from which mutmut sees that."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=CHECKOUT, check=True, capture_output=True, text=True).stdout.split("\0")
    sources = {name: CHECKOUT / name for name in names if (CHECKOUT / name).is_file()}
    targets = {folder / re.sub(r"^jobs/", "src/", name): source for name, source in sources.items()}
    for tree in (folder / "src", folder / "tests"):
        for path in tree.rglob("*.py"):
            if path not in targets:
                path.unlink()
                (folder / "mutants" / path.relative_to(folder)).unlink(missing_ok=True)
    for target, source in targets.items():
        if target.is_file() and target.stat().st_mtime == source.stat().st_mtime:
            continue
        if (folder / "tests") in target.parents:  # may call other functions than before
            (folder / "mutants" / "mutmut-stats.json").unlink(missing_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
        if target.suffix != ".py":  # of these, mutmut copies none that it has copied before
            (folder / "mutants" / target.relative_to(folder)).unlink(missing_ok=True)
    for link in (folder / "jobs", folder / "mutants" / "jobs"):
        link.parent.mkdir(exist_ok=True)
        if not link.is_symlink():
            link.symlink_to("src")


def tests_left_out() -> list[Path]:
    """The files of tests that cannot run with mutants."""
    files = (path for tests in TESTS for path in (CHECKOUT / tests).glob("test_*.py"))
    return sorted(path.relative_to(CHECKOUT) for path in files if LEFT_OUT.search(path.read_text()))


def write_settings(folder: Path) -> None:
    """Write mutmut's settings into the copy."""
    others = sorted(path.name for path in CHECKOUT.iterdir() if not path.name.startswith(".") and path.name != "jobs")
    settings = {
        "source_paths": ["src"],
        "only_mutate": [f"src/spotmpi/{module}.py" for module in MODULES],
        "also_copy": [name for name in others if (folder / name).exists()],
        "pytest_add_cli_args": ["--numprocesses=0", *(f"--ignore={path}" for path in tests_left_out())],
        "pytest_add_cli_args_test_selection": list(TESTS),
    }
    lines = ["[mutmut]"]
    for name, values in settings.items():
        lines += [f"{name} =", *(f"    {value}" for value in values)]
    (folder / "setup.cfg").write_text("\n".join(lines) + "\n")


def results(module: str) -> dict[str, str]:
    """The state of each tested mutant of a module in the current folder, such as "killed" or "survived"."""
    # mutmut reads its settings from the current folder when it is imported.
    from mutmut.stats import status_by_exit_code

    path = Path(f"mutants/src/spotmpi/{module}.py.meta")
    codes = json.loads(path.read_text())["exit_code_by_key"] if path.is_file() else {}
    return {name: status_by_exit_code[code] for name, code in codes.items() if code is not None}


def mutant_names(module: str) -> list[str]:
    """All mutants of a module in the current folder, tested or not."""
    from mutmut.mutation.file_mutation import mutate_file_contents
    from mutmut.utils.format_utils import get_mutant_name

    path = Path(f"src/spotmpi/{module}.py")
    return [get_mutant_name(path, name) for name in mutate_file_contents(str(path), path.read_text()).mutant_names]


def selected(patterns: Sequence[str], sample: int | None, survivors: bool) -> list[str]:
    """The mutants that match one of *patterns*, or a *sample* of each module's, without those that were killed."""
    chosen = []
    for module in MODULES:
        states = results(module)
        names = [name for name in mutant_names(module) if any(fnmatch.fnmatch(name, each) for each in patterns)]
        if sample is not None:
            names = random.Random(module).sample(names, min(sample, len(names)))
        chosen += [name for name in names if states.get(name) != "killed" and (name in states or not survivors)]
    return chosen


def print_table() -> None:
    """Print the results of all modules as a Markdown table."""
    print(f"| module | {' | '.join(COLUMNS)} |")
    print("| --- |" + " ---: |" * len(COLUMNS))
    total: Counter[str] = Counter()
    for module in MODULES:
        states = Counter(results(module).values())
        counts = Counter({"mutants": len(mutant_names(module)), "tested": states.total(), **states})
        total += counts
        print(f"| {module} | {' | '.join(str(counts[column]) for column in COLUMNS)} |")
    print(f"| all | {' | '.join(str(total[column]) for column in COLUMNS)} |")


def print_survivors() -> None:
    """Print the change of each mutant that survived."""
    from mutmut.mutation.diff_apply import get_diff_for_mutant

    for module in MODULES:
        for name, state in results(module).items():
            if state != "killed":
                lines = get_diff_for_mutant(name, path=f"src/spotmpi/{module}.py").splitlines()
                print(f"{name} ({state})")
                print(*(line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")), sep="\n")


def main(arguments: Sequence[str]) -> int:
    """Test mutants, then print the table and what survived; the exit code is 0 whatever survived."""
    parser = argparse.ArgumentParser(prog="scripts/mutants", description="Mutation testing of rules and arithmetic.")
    parser.add_argument("folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("mutants", nargs="*", default=["*"], help="patterns, such as 'spotmpi.agent.outcomes.*'")
    parser.add_argument("--survivors", action="store_true", help="only those that survived, with the tests of today")
    parser.add_argument("--sample", type=int, metavar="N", help="N of each module, chosen at random, always the same")
    parser.add_argument("--report", action="store_true", help="test nothing, print the results so far")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="mutants that are tested at a time")
    options = parser.parse_args(arguments)
    if not options.report:
        copy_checkout(options.folder)
        write_settings(options.folder)
    os.chdir(options.folder)
    if not options.report:
        names = selected(options.mutants, options.sample, options.survivors)
        if names and subprocess.run([*MUTMUT, "run", f"--max-children={options.workers}", *names]).returncode:
            return 1
    print_survivors()
    print_table()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
