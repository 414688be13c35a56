"""README and tour say what is so: their links lead somewhere and their commands do what they are there for."""

from __future__ import annotations

import ast
import importlib
import inspect
import operator
import os
import re
import shlex
import subprocess
import sys
import tomllib
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import typer.main

from spotmpi.cli.main import app

PROJECT = Path(__file__).resolve().parent.parent
TOUR = (PROJECT / "docs" / "tour.md").read_text()
PAGES = (PROJECT / "README.md").read_text() + TOUR
BIN = Path(sys.executable).parent
TOML_PAGES = [
    str(page.relative_to(PROJECT)) for page in sorted(PROJECT.glob("docs/*.md")) if "```toml" in page.read_text()
]
PYTHON_PAGES = [
    str(page.relative_to(PROJECT))
    for page in (PROJECT / "README.md", *sorted(PROJECT.glob("docs/*.md")))
    if "```python" in page.read_text()
]
EVERY_PAGE = [*PROJECT.glob("*.md"), *PROJECT.glob("docs/*.md"), *PROJECT.glob("jobs/*/*.toml")]

# Commands that this file does not run, and the tests that do.
RUN_ELSEWHERE = {
    "uv tool install .": "tests/package/conftest.py",
    # The machine on which .ci/run runs the next two has these packages and no others.
    "sudo apt-get install python3 python3-venv python3-dev git gcc libc6-dev ca-certificates": "scripts/fresh-machine",
    "./scripts/demo": ".ci/run",
    "./scripts/test": ".ci/run",
    "spotmpi bench cpu.toml": "tests/unit/study/test_study_with_mpi.py",
    "spotmpi models keep ID digits": "tests/unit/entries/test_kept_models.py",
    "spotmpi models predict digits:1 --data datasets:ratings --with flow:predict --batch 64": "tests/unit/entries/test_predictions.py",
    "spotmpi why FILE": "tests/unit/entries/test_lineage.py",
    "spotmpi reproduce FILE": "tests/unit/entries/test_lineage.py",
    "helm install jobset oci://registry.k8s.io/jobset/charts/jobset --namespace jobset-system --create-namespace": (
        "tests/testbed/jobset.py"  # the same controller, from its module
    ),
    "spotmpi image push chainermn --to REGISTRY/chainermn": "tests/unit/images/test_build.py",
    "spotmpi run job.toml --on kubernetes --nodes 2 --image REGISTRY/chainermn:TAG --set kubernetes.volume=CLAIM": "tests/cluster",
    "spotmpi drill ID --node 1 --fault evict": "tests/cluster",
    "spotmpi logs -f ID": "tests/cluster",
    "spotmpi pull ID": "tests/cluster/test_runs_volume.py",
    "spotmpi init --environment lab": "tests/package/test_project_in_engine.py",
    "spotmpi zones --types g5.xlarge,g4dn.xlarge --nodes 2 --write lab": "tests/unit/environments/zones/test_zones_command.py",
    "spotmpi doctor lab": "tests/unit/environments/doctor/test_doctor.py",
    "spotmpi up lab --expires 8h": "tests/engine/test_up_and_down_in_engine.py",
    "spotmpi data push my-set voc --on lab": "tests/unit/data/test_datasets.py",
    "spotmpi run job.toml --on lab --nodes 2 --set limits.cost=1": "tests/unit/environments/test_cost_limit.py",
    "spotmpi scale g4dn 2 --for 30m --on lab": "tests/unit/environments/test_nodes_and_scale.py",
    "spotmpi nodes --on lab": "tests/unit/environments/test_nodes_and_scale.py",
    "spotmpi cost lab": "tests/unit/environments/cost/test_environment_cost.py",
    "spotmpi down lab": "tests/engine/test_up_and_down_in_engine.py",
}


def _commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", PAGES, re.DOTALL)
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]


def _build_of_the_data_set() -> str:
    (command,) = (command for command in _commands() if command.startswith('python3 -c "import sets'))
    return command


@pytest.mark.parametrize("page", [*PROJECT.glob("*.md"), *PROJECT.glob("docs/**/*.md")], ids=lambda page: page.name)
def test_every_link_leads_to_a_file_of_this_project_and_to_a_heading_in_it(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if not target.startswith("https://"):
            name, _, anchor = target.partition("#")
            path = page.parent / name if name else page
            assert path.exists(), target
            headings = re.findall(r"^#+ (.*)", path.read_text(), re.M) if anchor else []
            assert anchor in ("", *(re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings)), (
                target
            )


def test_every_command_is_run_here_or_named_with_the_tests_that_run_it() -> None:
    commands = {command for command in _commands() if command.startswith("spotmpi ") and command not in RUN_ELSEWHERE}
    assert set(_commands()) == commands | set(RUN_ELSEWHERE) | {_build_of_the_data_set()}
    for place in RUN_ELSEWHERE.values():
        assert (PROJECT / place).exists(), place


def test_each_step_of_the_first_environment_says_what_it_costs_by_the_price_table() -> None:
    reference = (PROJECT / "docs" / "environments.md").read_text()  # made from the table that the code uses
    row = re.search(r"^\| `lab` \| (?P<idle>[\d.]+) \|.*\| g4dn (?P<node>[\d.]+) \|$", reference, re.MULTILINE)
    assert row
    idle, node = float(row["idle"]), float(row["node"])
    month, write = re.findall(
        r"EFS costs \$([\d.]+) per GB-month\s+in one\s+zone.*?and \$([\d.]+) per GB written", reference, re.S
    )[0]
    chapter = TOUR.partition("## Your first environment")[2].partition("\n## ")[0]
    block = re.findall(r"```sh\n(.*?)```", chapter, re.DOTALL)[0]
    prices = {line.split("  #")[0].split()[1]: line.split("  #")[1] for line in block.splitlines()}

    assert "list prices of 2025, us-east-1" in chapter and "as published in 2025" in reference
    # The table's price is per GPU at the group's full size, which is two nodes; the small run takes both.
    assert prices["up"].startswith(f" ${idle:.2f}/h until `down`, at most ${2 * node:.2f}/h")
    assert prices["data"].startswith(f" ${write} a GB, and ${month} a GB-month")
    assert prices["run"].startswith(f" at most ${2 * node:.2f}/h")
    assert prices["scale"].startswith(f" at most ${2 * node * 0.5:.2f};")
    assert [step for step in prices if prices[step].startswith(" free")] == ["init", "zones", "doctor", "nodes"]
    assert prices["cost"].startswith(" $0.01;") and prices["down"].startswith(" $0 from here on")


@pytest.mark.parametrize("page", PYTHON_PAGES)
def test_the_python_of_every_page_names_functions_and_arguments_that_there_are(page: str) -> None:
    import spotmpi

    blocks = re.findall(r"```python\n(.*?)```", (PROJECT / page).read_text(), re.DOTALL)
    nodes = [node for block in blocks for node in ast.walk(ast.parse(block))]
    public = {name: operator.attrgetter(name.partition(".")[2])(spotmpi) for name in map(_dotted, nodes) if name}
    for call in (node for node in nodes if isinstance(node, ast.Call) and _dotted(node.func)):
        arguments = inspect.signature(public[_dotted(call.func)])
        arguments.bind_partial(*call.args, **{each.arg: each for each in call.keywords if each.arg})
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            assert all(hasattr(importlib.import_module(str(node.module)), each.name) for each in node.names)


def _dotted(node: ast.AST) -> str:
    """The name ``spotmpi.a.b`` that *node* is, or nothing."""
    name = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
    return name if re.fullmatch(r"spotmpi(\.\w+)+", name) else ""


@pytest.mark.images
def test_the_notebook_cell_executes_functions_in_a_pool(tmp_path: Path) -> None:
    (cell,) = (block for block in re.findall(r"```python\n(.*?)```", PAGES, re.DOTALL) if "spotmpi.pool(" in block)
    (tmp_path / "scan.py").write_text("def count(shard): return 10 * shard\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "SPOTMPI_RUNS": str(tmp_path / "runs")}

    done = subprocess.run(
        [sys.executable, "-c", cell], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100
    )

    assert (done.returncode, done.stdout) == (0, "1200\n"), done.stderr


@pytest.mark.images
def test_the_data_set_is_built_by_its_command_and_found_again(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    (module,) = (block for block in re.findall(r"```python\n(.*?)```", PAGES, re.DOTALL) if "@spotmpi.dataset" in block)
    (tmp_path / "sets.py").write_text(module)
    (tmp_path / "raw").mkdir()
    for name, stars in {"a": [0.1, 0.9], "b": [0.7, 0.6]}.items():
        table = pyarrow.table({"user": [1, 2], "stars": stars, "text": ["good", "bad"]})
        pyarrow.parquet.write_table(table, tmp_path / "raw" / f"{name}.parquet")
    own = {name: str(tmp_path / name.lower()) for name in ("SPOTMPI_RUNS", "SPOTMPI_STORE")}
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", **own}

    def build() -> subprocess.CompletedProcess[str]:
        command = _build_of_the_data_set()
        return subprocess.run(
            command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100
        )

    first, second = build(), build()

    assert (first.returncode, first.stdout) == (0, second.stdout), first.stderr
    assert first.stdout == "ratings:1\n" and "built" in first.stderr and "built" not in second.stderr
    (folder,) = (path.parent for path in tmp_path.rglob("b.parquet") if path.parent.name != "raw")
    assert pyarrow.parquet.read_table(folder / "b.parquet").to_pydict() == {"user": [1, 2], "stars": [0.7, 0.6]}


@pytest.mark.parametrize("page", ["README.md", *TOML_PAGES])
def test_every_toml_block_is_a_valid_part_of_a_spec_or_study(page: str) -> None:
    from spotmpi.core import names
    from spotmpi.spec.source import from_values, is_study, read_toml
    from spotmpi.study import study_file

    for block in re.findall(r"```toml\n(.*?)```", (PROJECT / page).read_text(), re.DOTALL):
        values = tomllib.loads(block)
        if is_study(values):
            spec = read_toml(names.EXAMPLES / values.get("spec", "ssd.toml"))
            study_file.from_values({**values, "spec": spec})
        else:
            from_values(values)


@pytest.mark.parametrize("page", EVERY_PAGE, ids=lambda page: page.name)
def test_every_command_of_every_page_exists_with_the_options_that_it_has_there(page: Path) -> None:
    text = page.read_text().replace("\\\n", " ")
    blocks = [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    if page.suffix == ".md":
        text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    inline = [" ".join(each.split()) for each in re.findall(r"`(spotmpi [^`]+)`", text)]

    wrong = [line for line in [*blocks, *inline] if line.startswith("spotmpi ") and not _is_known(line)]

    assert not wrong


def _is_known(line: str) -> bool:
    """Whether there are the command of *line* and each option that it has before ``--``."""
    words, command = shlex.split(line, comments=True)[1:], typer.main.get_command(app)
    context: Any = None
    while words and hasattr(command, "get_command") and not words[0].startswith("-"):
        command = command.get_command(context, words.pop(0))
        if command is None:
            return False
    own = list(takewhile(lambda word: word != "--", words))
    options = {option for each in command.params for option in each.opts} | {"-h", "--help", "--debug", "--version"}
    return {word.partition("=")[0] for word in own if re.match("--?[a-z]", word)} <= options


@pytest.mark.images
@pytest.mark.timeout(1800)
def test_the_local_commands_work_in_their_order(tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "SPOTMPI_RUNS": str(tmp_path / "runs")}
    commands = [command for command in _commands() if command.startswith("spotmpi ") and command not in RUN_ELSEWHERE]
    assert len(commands) >= 7
    for command in commands:
        result = subprocess.run(
            command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=1200
        )
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    listed = subprocess.run(["spotmpi", "list"], cwd=tmp_path, env=environment, capture_output=True, text=True).stdout
    assert listed.count("succeeded") >= 1 + 6, listed
    assert list((tmp_path / "runs" / "sweeps").glob("*/report/report.html"))
