"""The tiers of tests, and which of them a command line asks for.

The default needs neither root nor Debian packages and ends in minutes. `--all` is a selection of every tier; `--rest`
is what it has beyond the default, with the extensive tests of the unit tier. CI runs the default as a newcomer would,
and then the rest. `--nightly` runs the tests that `--all` omits.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
PYTHON = sys.executable
BIN = Path(PYTHON).parent
ENGINE_TOOLS = ("pulumi", "pulumi-language-python")
CLUSTER_TOOLS = ("etcd", "kubernetes", "coredns", "jobset")

Command = list[str]


def nothing_missing() -> str | None:
    """For tiers that need no more than the set-up brings."""
    return None


def root() -> str | None:
    """Why a tier that needs Linux and root cannot run here, or None."""
    return None if sys.platform == "linux" and os.geteuid() == 0 else "needs Linux and root"


def root_and_packages() -> str | None:
    """Why the cluster tier cannot run here, or None; installs its Debian packages where it may."""
    if (reason := root()) is not None:
        return reason
    if not shutil.which("apt-get"):
        return "needs Debian packages and there is no apt-get"
    done = subprocess.run([str(PROJECT / "scripts" / "cluster-packages")], stdout=sys.stderr)
    return None if done.returncode == 0 else "its Debian packages could not be installed"


def open_mpi_4() -> str | None:
    """Nothing: the tier runs without Debian's Open MPI too, less the tests that need it; installs it where it may."""
    subprocess.run([str(PROJECT / "scripts" / "images-packages")], stdout=sys.stderr)
    return None


def servers() -> str | None:
    """Nothing: the tier runs without Redis and Java too, less tests that need them; installs Debian's where it may."""
    for script in ("redis-packages", "java-packages"):
        subprocess.run([str(PROJECT / "scripts" / script)], stdout=sys.stderr)
    return None


def a_browser() -> str | None:
    """Why the report page cannot be looked at here, or None; installs Chromium where it may."""
    if subprocess.run([str(PROJECT / "scripts" / "browser-packages")], stdout=sys.stderr).returncode == 0:
        return None
    return "needs Chromium, which could not be installed"


def slurm() -> str | None:
    """Why a Slurm cluster cannot run here, or None; installs its Debian packages where it may."""
    if (reason := root()) is not None:
        return reason
    done = subprocess.run([str(PROJECT / "scripts" / "slurm-packages")], stdout=sys.stderr)
    return None if done.returncode == 0 else "its Debian packages could not be installed"


def pulumi() -> str | None:
    """Why the real Pulumi engine is not used here, or None: the default selection does not build it for one test."""
    tools = [str(PROJECT / "scripts" / "tools"), *ENGINE_TOOLS]
    if subprocess.run([PYTHON, *tools, "--no-build"], capture_output=True).returncode == 0:
        return None
    return f"the Pulumi CLI is not built; `{' '.join(tools)}` does it, in some minutes"


@dataclass(frozen=True)
class Tier:
    """A group of tests: what it covers, its commands, and what stands in its way (None: nothing).

    A tier in the `background` runs while the others do: it waits, or uses one core. `minutes` is roughly what a
    tier takes on two quiet cores; the parts of the nightly run are balanced by it.
    """

    name: str
    about: str
    commands: list[Command]
    missing: Callable[[], str | None] = nothing_missing
    background: bool = False
    minutes: float = 0.0


def pytest(expression: str, *options: str) -> Command:
    """The pytest command for the tests that a marker expression selects."""
    return [PYTHON, "-m", "pytest", "-m", expression, "--durations=5", *options]


# Two files at once, but the tests of each after each other: they share the life of a stack, or an undisturbed run.
IN_TWO = ("--numprocesses=2", "--dist=loadscope")

# All programs that `--all` needs, built while other tests run and behind them; nothing where they are there.
BUILD = ["nice", "-n", "19", PYTHON, str(PROJECT / "scripts" / "tools"), *ENGINE_TOOLS, "actionlint", *CLUSTER_TOOLS]

STATIC = Tier(
    "static",
    "lint, format, the order of rooms, and Python 3.8 for the pod side",
    [
        [str(BIN / "ruff"), "check"],
        [str(BIN / "ruff"), "format", "--check"],
        [str(BIN / "lint-imports")],
        [
            str(BIN / "vermin"),
            "--target=3.8-",
            "--no-eval-annotations",
            "--no-tips",
            "--violations",
            "jobs/spotmpi/__init__.py",
            "jobs/spotmpi/agent",
            "jobs/spotmpi/checkpoint",
            "jobs/spotmpi/capacity",
        ],
    ],
    background=True,
)
TYPES = Tier("types", "mypy, which takes over a minute on a new machine", [[str(BIN / "mypy")]], background=True)
PLAIN = "not images and not engine and not browser and not slurm and not cluster"
UNIT = Tier("unit", "no cloud, no root, no cluster", [[PYTHON, "-m", "pytest"]])
EXTENSIVE = Tier(
    "unit", "long searches, many faults, and this project itself", [pytest(f"{PLAIN} and not nightly and extensive")]
)

DEFAULT = [
    STATIC,
    Tier(UNIT.name, UNIT.about, [pytest(f"{PLAIN} and not nightly and not extensive")]),
    Tier("images", "a real mpirun with each framework, and a study", [pytest("images and smoke", *IN_TWO)]),
    Tier("engine", "the real Pulumi CLI over one stack", [pytest("engine and smoke")], pulumi, background=True),
]


def remaining_tiers(which: str = "not nightly") -> list[Tier]:
    """The tiers of `--all` that need Debian packages or take long, of each the tests that *which* selects."""
    return [
        Tier("images", "real mpirun and both frameworks", [pytest(f"images and {which}", *IN_TWO)], open_mpi_4),
        Tier("engine", "the real Pulumi CLI over stand-in providers", [pytest(f"engine and {which}", *IN_TWO)]),
        Tier("browser", "the report page in a real Chromium", [pytest("browser")], a_browser),
        Tier("slurm", "a real Slurm on this machine", [pytest(f"slurm and {which}")], slurm),
        Tier(
            "cluster",
            "a real Kubernetes on this machine",
            [BUILD, pytest("cluster and not nightly")],
            root_and_packages,
            background=True,
        ),
    ]


ALL = [STATIC, TYPES, UNIT, *remaining_tiers()]
REST = [TYPES, EXTENSIVE, *remaining_tiers("not nightly and not smoke")]
if PROJECT.is_relative_to("/tmp"):  # the nodes of the test's Slurm have a /tmp of their own, without such a checkout
    ALL, REST = ([tier for tier in tiers if tier.name != "slurm"] for tiers in (ALL, REST))


def at_night(name: str, about: str, minutes: float, marker: str, files: Sequence[str] = ("tests",)) -> Tier:
    """One tier of the nightly run: the tests of a marker, in these files and folders, that `--all` leaves out."""
    needs = {"cluster": root_and_packages, "images": open_mpi_4, "slurm": slurm, PLAIN: servers}
    options = () if marker in ("cluster", "slurm") else IN_TWO
    return Tier(
        name,
        about,
        [[*pytest(f"({marker}) and nightly", *options), *files]],
        needs.get(marker, nothing_missing),
        minutes=minutes,
    )


def cluster_files(*patterns: str) -> list[str]:
    """The cluster's test files of these patterns, relative to the project."""
    folder = PROJECT / "tests" / "cluster"
    return [str(path.relative_to(PROJECT)) for pattern in patterns for path in sorted(folder.glob(pattern))]


RECLAIMS = cluster_files("test_runs_reclaims.py")
ENDURANCE = cluster_files("test_endurance.py")
CONTRACT = cluster_files("test_runs_contract.py")
TESTBED = cluster_files("test_testbed_*.py")
SETTINGS = ["tests/engine/test_setting_changes.py", "tests/engine/test_setting_pairs.py"]
RUNS = cluster_files("test_runs_*.py", "test_pools.py", "test_streams.py", "test_doctor_on_cluster.py")
LONG = cluster_files("test_up_and_down.py", "test_study_on_cluster.py", "test_runs_queue_and_scale.py")


def on_kubernetes(version: str, about: str) -> Tier:
    """What --all runs on the test cluster of runs, pools and streams, on another Kubernetes."""
    command = ["env", f"SPOTMPI_TEST_KUBERNETES={version}", *pytest("cluster and not nightly"), *RUNS]
    return Tier(version, about, [command], root_and_packages, minutes=20)


def all_but(files: Sequence[str]) -> list[str]:
    """The arguments of pytest for every test file but these."""
    return ["tests", *(f"--ignore={file}" for file in files)]


def fresh_machine(suite: str, python: str) -> Tier:
    """What the README tells a newcomer to run, on another release of Debian or Ubuntu."""
    commands = "./scripts/demo && ./scripts/test && ./scripts/test types"
    run = [str(PROJECT / "scripts" / "fresh-machine"), "--suite", suite, commands]
    return Tier(suite, f"both commands of the README, and types, with Python {python}", [run], root, minutes=9)


def with_packages(which: str) -> Tier:
    """The unit tests with other packages than those of the lock file."""
    run = [str(PROJECT / "scripts" / "other-packages"), which]
    return Tier(f"{which}-packages", f"the unit tests with the {which} packages that are allowed", [run], minutes=6)


NIGHTLY = [
    fresh_machine("noble", "3.12"),
    fresh_machine("trixie", "3.13"),
    fresh_machine("forky", "3.14"),
    with_packages("oldest"),
    with_packages("newest"),
    at_night("unit", "long statistics, worker pools under stress, a real registry and cosign", 35, PLAIN),
    at_night("programs", "training programs under real mpirun", 10, "images", ["tests/programs"]),
    at_night("launchers", "every launcher and fault on this machine", 10, "images", all_but(["tests/programs"])),
    at_night("engine", "every stack, option and refusal in the real Pulumi CLI", 5, "engine", all_but(SETTINGS)),
    at_night("settings", "every change of every setting of the ready stacks, and pairs", 30, "engine", SETTINGS),
    at_night("slurm", "the whole contract of backends on Slurm, a lost node, launchers of each node", 4, "slurm"),
    at_night("reclaims", "the whole reclaim matrix", 10, "cluster", RECLAIMS),
    at_night(
        "endurance",
        "2,000 random faults, in runs alone, with a stream, with a standby pod, by torchrun",
        270,
        "cluster",
        ENDURANCE,
    ),
    at_night("contract", "the whole contract of backends over pods", 5, "cluster", CONTRACT),
    at_night("long", "an environment from up to down, a study, 1,000 nodes", 10, "cluster", LONG),
    at_night("testbed", "the test cluster itself", 10, "cluster", TESTBED),
    on_kubernetes("oldest", "runs on the oldest Kubernetes and JobSet that are supported"),
    on_kubernetes("newest", "runs on the newest Kubernetes, with containerd 2"),
    at_night(
        "runs",
        "everything else on the test cluster",
        10,
        "cluster",
        all_but([*RECLAIMS, *ENDURANCE, *CONTRACT, *TESTBED, *LONG]),
    ),
]


def part_of(tiers: Sequence[Tier], part: int, parts: int) -> list[Tier]:
    """The tiers of one of several parts that take about equally long."""
    spent = [0.0] * parts
    chosen: list[Tier] = []
    for tier in sorted(tiers, key=lambda tier: -tier.minutes):
        shortest = spent.index(min(spent))
        spent[shortest] += tier.minutes
        if shortest == part - 1:
            chosen.append(tier)
    return chosen


def chosen(words: argparse.Namespace) -> list[Tier]:
    """The tiers that the command line asks for; ValueError names a word that is none."""
    if words.part and not words.nightly:
        raise ValueError("--part goes with --nightly")
    tiers = NIGHTLY if words.nightly else REST if words.rest else ALL if words.all or words.tiers else DEFAULT
    unknown = set(words.tiers) - {tier.name for tier in tiers}
    if unknown:
        raise ValueError(f"no such tier: {', '.join(sorted(unknown))}; choose from {', '.join(t.name for t in tiers)}")
    if words.part:
        tiers = part_of(tiers, *words.part)
    return [tier for tier in tiers if not words.tiers or tier.name in words.tiers]


def fraction(text: str) -> tuple[int, int]:
    """The two numbers of 2/4."""
    part, _, parts = text.partition("/")
    if not (part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a part: write 1/4, 2/4, ...")
    return int(part), int(parts)


def read_command_line() -> argparse.Namespace:
    """The command line's options; `--all` if CI=true and nothing else is given."""
    parser = argparse.ArgumentParser(prog="scripts/test", description=__doc__)
    parser.add_argument("tiers", nargs="*", metavar="TIER", help=f"one of {', '.join(tier.name for tier in ALL)}")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--all", action="store_true", help="a selection of every tier; CI=true implies it")
    size.add_argument("--rest", action="store_true", help="what --all has beyond the default")
    size.add_argument("--nightly", action="store_true", help="the tests that --all omits")
    parser.add_argument("--part", type=fraction, metavar="K/N", help="with --nightly: the K-th of N parts")
    words = parser.parse_args()
    words.all = words.all or (os.environ.get("CI") == "true" and not (words.nightly or words.rest))
    try:
        words.chosen = chosen(words)
    except ValueError as error:
        parser.error(str(error))
    return words
