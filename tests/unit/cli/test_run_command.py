"""`spotmpi run -- COMMAND`: a run without a spec file, and the options that stand for keys of a spec."""

from __future__ import annotations

import json
import os
import re
import threading
import tomllib
from pathlib import Path

import pytest

from spotmpi.runs import reader
from spotmpi.spec.source import load_spec
from tests.command_line import invoke
from tests.unit.cli.terminal import job, only_run

pytestmark = pytest.mark.usefixtures("own_folder")


def lines(*arguments: str) -> list[str]:
    """The output of a successful run, sorted, without the line of its end."""
    process = invoke("run", *arguments)
    assert process.returncode == 0, process.stderr
    return sorted(process.stdout.splitlines()[:-1])


def write_module(path: Path, value: str) -> str:
    """The path of a Python file that defines VALUE."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"VALUE = {value!r}\n")
    return str(path)


def test_a_command_runs_in_the_current_folder() -> None:
    process = invoke("run", "--", "sh", "-c", "echo in $(pwd)")

    assert process.returncode == 0
    assert process.stdout.splitlines() == [f"in {Path.cwd()}", f"{only_run().id} succeeded"]


def test_everything_after_the_dashes_belongs_to_the_command() -> None:
    script = 'printf "%s;" "$@"; echo'

    assert lines("--nodes", "1", "--", "sh", "-c", script, "sh", "--nodes", "--", "-v", "") == ["--nodes;--;-v;;"]


def test_a_virtual_environment_stays_active(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "python3").write_text('#!/bin/sh\necho "$VIRTUAL_ENV: $*"\n')
    (programs / "python3").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("VIRTUAL_ENV", str(programs.parent))

    assert lines("--", "python3", "train.py") == [f"{programs.parent}: train.py"]


def test_an_mpirun_of_another_mpi_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mpirun").write_text("#!/bin/sh\necho HYDRA build details:\n")
    (tmp_path / "mpirun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    code, _, errors = invoke("run", "--launcher", "mpirun", "--", "true")

    assert code == 2 and "launcher = 'mpirun': no mpirun of Open MPI on PATH: install it" in errors
    assert 'or start one process per node by launcher = "none"' in errors
    assert "by launcher" not in invoke("run", "--launcher", "mpirun", "--slots", "2", "--", "true")[2]


def test_files_are_importable_and_in_the_working_folder_of_the_command(tmp_path: Path) -> None:
    helper = write_module(tmp_path / "here" / "helper.py", "a file")
    write_module(tmp_path / "there" / "package" / "inner.py", "a folder")
    (tmp_path / "main").mkdir()
    # A script in another folder: that folder, not the current one, is first on its sys.path.
    script = tmp_path / "main" / "script.py"
    script.write_text(
        "import os; names = sorted(os.listdir())\n"
        "import helper, package.inner; print(helper.VALUE, package.inner.VALUE, names)\n"
    )

    output = lines("--file", helper, "--file", str(tmp_path / "there" / "package"), "--", "python3", str(script))

    assert output == ["a file a folder ['helper.py', 'package']"]


def test_a_file_keeps_its_permission_to_be_executed(tmp_path: Path) -> None:
    script = tmp_path / "tools" / "hello.sh"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\necho hello\n")
    script.chmod(0o755)

    assert lines("--file", "tools/hello.sh", "--", "./hello.sh") == ["hello"]
    assert lines("--file", "tools", "--", "tools/hello.sh") == ["hello"]


def test_files_are_added_to_a_code_folder_whose_modules_are_importable(tmp_path: Path) -> None:
    write_module(tmp_path / "src" / "model.py", "code")
    write_module(tmp_path / "src" / "settings.py", "of the code folder")
    settings = write_module(tmp_path / "settings.py", "of the file")
    # A script in another folder: that folder, not the current one, is first on its sys.path.
    script = tmp_path / "main" / "script.py"
    script.parent.mkdir()
    script.write_text("import model, settings; print(model.VALUE, settings.VALUE)")

    assert lines("--code", "src", "--file", settings, "--", "python3", str(script)) == ["code of the file"]


def test_a_resumed_run_has_its_files(tmp_path: Path) -> None:
    write_module(tmp_path / "helper.py", "a file")
    script = "import helper, os; print(helper.VALUE, os.environ['SPOTMPI_ATTEMPT']); exit(helper.VALUE == 'a file')"
    invoke("run", "--file", "helper.py", "--", "python3", "-c", script)
    write_module(tmp_path / "helper.py", "changed")

    process = invoke("run", "--resume", only_run().id)

    assert process.stdout.splitlines()[0] == "changed 2" and process.returncode == 0


def test_the_options_stand_for_keys_of_the_spec() -> None:
    options = ["--nodes", "2", "--cpu", "2", "--memory", "1Gi", "--gpu", "0", "--code", "src", "--launcher", "none"]
    options += ["--limit-start", "5m", "--limit-run", "1h", "--template", "pod.yaml", "--env", "A=1"]
    Path("src").mkdir()

    plan = json.loads(invoke("run", *options, "--dry-run", "--", "sh", "-c", "true").stdout)

    spec = plan["spec"]
    assert (spec["command"], spec["launcher"], spec["nodes"]) == (["sh", "-c", "true"], "none", 2)
    assert spec["resources"] == {"cpu": 2, "memory": "1Gi", "gpu": 0}
    assert (spec["limits"]["start"], spec["limits"]["run"]) == ("5m", "1h")
    assert (spec["code"], spec["env"]) == (str(Path("src").absolute()), {"A": "1"})
    assert spec["kubernetes"]["templates"] == [str(Path("pod.yaml").absolute())]


def test_options_override_a_spec_and_set_overrides_options() -> None:
    spec = job("true", nodes=3, files=["b.txt"], resources={"cpu": 4, "memory": "2Gi"})
    Path("a.txt").touch()
    Path("b.txt").touch()

    process = invoke("run", spec, "--nodes", "2", "--cpu", "1", "--file", "a.txt", "--set", "nodes=1", "--dry-run")

    plan = json.loads(process.stdout)["spec"]
    assert plan["nodes"] == 1 and plan["resources"] == {"cpu": 1, "memory": "2Gi", "gpu": 0}
    assert [Path(path).name for path in plan["files"]] == ["b.txt", "a.txt"]


@pytest.mark.parametrize(("text", "nodes"), [("3", 3), ("4,2", [2, 4]), ("2,2", 2)])
def test_nodes_is_a_number_or_all_that_the_run_may_have(text: str, nodes: object) -> None:
    process = invoke("run", job("true"), "--nodes", text, "--dry-run")
    assert json.loads(process.stdout)["spec"].get("nodes", 1) == nodes


def test_nodes_that_are_no_numbers_are_refused_with_how_the_command_line_has_them() -> None:
    """It advised a list of TOML: [2, 4]."""
    process = invoke("run", job("true"), "--nodes", "1,x", "--dry-run")
    remedy = "write a number of nodes such as 2, or all that the run may have, such as 2,4"
    assert (process.returncode, process.stderr) == (2, f"spotmpi: --nodes = '1,x': {remedy}\n")


def test_save_writes_the_spec_that_a_command_stands_for_and_runs_it(tmp_path: Path) -> None:
    write_module(tmp_path / "project" / "helper.py", "a file")
    arguments = ["--file", "project/helper.py", "--nodes", "2", "--env", "A=1", "--env", "HOME"]
    arguments += ["--save", "project/job.toml"]

    assert lines(*arguments, "--", "sh", "-c", "cat helper.py") == ["VALUE = 'a file'"] * 2

    assert tomllib.loads(Path("project/job.toml").read_text()) == {
        "command": ["sh", "-c", "cat helper.py"],
        "files": ["helper.py"],
        "nodes": 2,
        "launcher": "none",
        "env_passthrough": ["HOME"],
        "env": {"A": "1"},
        "limits": {"failures": 0},
    }
    assert lines("project/job.toml") == ["VALUE = 'a file'"] * 2


def test_save_stores_the_overridden_spec_and_with_a_dry_run_nothing_is_started() -> None:
    process = invoke("run", job("true", nodes=3), "--nodes", "2", "--save", "two.toml", "--dry-run")

    assert json.loads(process.stdout)["spec"]["nodes"] == 2 and not Path("runs").exists()
    assert load_spec(Path("two.toml")).nodes == 2 and load_spec(Path("job.toml")).nodes == 3


@pytest.mark.usefixtures("kubeconfig")
def test_a_reference_is_the_image_to_pull_on_a_cluster() -> None:
    Path("helper.py").write_text("VALUE = 1\n")
    where = ["--on", "kubernetes", "--image", "docker.io/library/python:3.12", "--file", "helper.py"]

    code, output, errors = invoke("run", *where, "--dry-run", "--", "python3", "-c", "import helper")

    assert code == 0 and "; this plan assumes that you may create Secrets, and that egress is not denied" in errors
    plan = json.loads(output)
    assert "could not look up what the cluster permits: cannot reach the cluster" in plan["unchecked"]
    jobset, config_map, *_ = plan["objects"]
    pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "docker.io/library/python:3.12"
    plan = json.loads(config_map["data"]["plan.json"])
    assert plan["folder"] == "/spotmpi/work/user" and plan["roles"][0]["command"] == ["python3", "-c", "import helper"]
    assert plan["environment"]["PYTHONPATH"] == "/spotmpi/work/user:/spotmpi/work/code"
    assert plan["code"]["archive"] == "/spotmpi/config/user.tgz" and "user.tgz" in config_map["binaryData"]


def test_processes_that_would_each_be_alone_with_their_mpi_are_named() -> None:
    Path("train.py").write_text("from mpi4py import MPI\n")
    alone = "spotmpi: train.py uses MPI, and without mpirun each of its 2 processes is rank 0 of 1; --launcher mpirun "
    for options, noted in [(["-n", "2"], True), ([], False), (["-n", "2", "--set", "run_on=first"], False)]:
        code, _, errors = invoke("run", "--dry-run", *options, "--", "python3", "-u", "train.py")
        assert code == 0 and (alone in errors) == noted
    own = Path("mpirun")
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    command = [f"./{own}", "-n", "2", "python3", "train.py"]
    assert "uses MPI" not in invoke("run", "--dry-run", "-n", "2", "--", *command)[2]
    Path("train.py").write_text("import torch.distributed\n")
    assert "uses MPI" not in invoke("run", "--dry-run", "-n", "2", "--", "python3", "train.py")[2]


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["--"], [r"command = \[\]: write the command as a list, such as .*, or after -- on the command line"]),
        (["job.toml", "--"], [r"command = \[\]: job.toml names .*: omit the spec or the command; .* args\+=--lr=0.1$"]),
        (
            ["job.toml", "--", "--n", "5"],
            [r"command = \['--n', '5'\]: job.toml names .*; arguments go to --set 'args\+=\[\"--n\", \"5\"\]'$"],
        ),
        (["--resume", "x", "--", "true"], ["--resume = 'x': takes the run's own spec: omit the command"]),
        (["job.toml", "--resume", "x"], ["--resume = 'x': takes the run's own spec: omit the spec file"]),
        (["--resume", "x", "--save", "a.toml"], ["--save = 'a.toml': the spec of x is spec.toml in its run folder"]),
        (["--save", "job.toml", "--", "true"], ["--save = 'job.toml': exists already; remove it or name another file"]),
        (["--save", "no/a.toml", "--", "true"], ["--save = 'no/a.toml': its folder does not exist; create it first"]),
        (["--file", "no.py", "--", "true"], ["files = .*/no.py': not a readable file or folder; check the path"]),
        (["--file", "/dev/zero", "--", "true"], ["files = '/dev/zero': not a readable file or folder; check the path"]),
        (["--image", "python:3.12", "--", "true"], ["--image = 'python:3.12': only pods pull an image: add --on"]),
        (
            ["--", "no-such --fast"],
            [r"""command = 'no-such --fast': .*; check it, or write its words apart, as \["no-such", "--fast"\]$"""],
        ),
        (["--", "no-such"], ["command = 'no-such': command not found; check the name, PATH, `code` and `files`"]),
        (["--", "./", "train.py"], [r"command = './': command not found, or not an executable file \(chmod \+x\)"]),
        (
            ["--", "run.sh"],
            [r"command = 'run.sh': command not found; check the name \(`./run.sh` for a file where the command"],
        ),
        (
            ["--file", "a/x.py", "--", "./y.py"],
            [r"command = './y.py': command not found, or not an executable file \(chmod \+x\)"],
        ),
        (["true"], ["spec = 'true': no such file; .* writes one, and `spotmpi run` takes a command after --"]),
        (["echo", "a b"], ["spec = 'echo a b': .*; a command goes after --: spotmpi run -- echo 'a b'"]),
        (
            ["--image", "python:3.12", "--file", "no.py", "--nodes", "0", "--save", "no/a.toml", "--"],
            ["--save = .*create it first", "--image = .*add --on", "nodes = 0", r"command = \[\]", "files = .*/no.py'"],
        ),
        (
            ["job.toml", "--file", "no.py", "--file", "no too.py", "--", "true"],
            [r"command = \['true'\]: job.toml names", "files = .*/no.py'", "files = .*/no too.py'"],
        ),
    ],
    ids=lambda value: " ".join(value).partition(":")[0],
)
def test_wrong_input_names_every_problem_and_its_remedy(arguments: list[str], messages: list[str]) -> None:
    job("true")
    write_module(Path("a", "x.py"), "a")
    Path("run.sh").touch(mode=0o755)

    code, output, errors = invoke("run", *arguments)

    assert (code, output) == (2, "")
    problems = errors.splitlines()
    assert len(problems) == len(messages), errors
    for problem, message in zip(problems, messages, strict=True):
        assert re.match(f"spotmpi: {message}", problem)
    assert reader.every(Path("runs")) == [] and not Path("a.toml").exists()


def test_the_name_of_an_image_is_in_the_example_of_the_reference_that_a_cluster_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = {"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "c"}}
    lists = {"clusters": [cluster], "contexts": [context], "users": [{"name": "c", "user": {}}]}
    Path("config").write_text(json.dumps({"current-context": "c", **lists}))
    monkeypatch.setenv("KUBECONFIG", "config")

    problem = "kubernetes.image: name the image to pull, such as --image REGISTRY/pytorch:TAG"
    result = invoke("run", "--on", "kubernetes", "--image", "pytorch", "--dry-run", "--", "true")
    assert result == (2, "", f"spotmpi: {problem}\n")


@pytest.mark.parametrize("command", [("list",), ("run", "--", "true"), ("status", "x"), ("clean", "--older", "30d")])
def test_a_runs_folder_that_is_none_is_one_line(command: tuple[str, ...], tmp_path: Path) -> None:
    """An empty list looked as if all records were gone; a disk that is not mounted gave "File exists"."""
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("")
    link.symlink_to(tmp_path / "disk")
    name, *more = command
    for place, problem in ((file, "is not a folder:"), (link, "is a link to nothing: mount its disk, or")):
        shown = invoke(name, "--runs", str(place), *more)
        assert (shown.returncode, shown.stdout) == (2, "")
        assert shown.stderr.startswith("spotmpi: --runs = '/") and shown.stderr.count("\n") == 1
        assert shown.stderr.endswith(f"/{place.name}': {problem} name another folder\n")


@pytest.mark.parametrize("words", [("run", "--save", "saved.toml"), ("bench", "--dry-run")])
def test_a_spec_may_come_from_a_pipe_whose_paths_are_relative_to_the_current_folder(words: tuple[str, ...]) -> None:
    """It was read twice, the second time without a line, and its paths were looked for in /dev/fd."""
    Path("hello.py").write_text("print('hello')")
    reader_end, writer_end = os.pipe()
    os.write(writer_end, b'command = ["python3", "hello.py"]\nlauncher = "none"\nfiles = ["hello.py"]\n')
    os.close(writer_end)
    result = invoke(words[0], f"/dev/fd/{reader_end}", *words[1:])
    os.close(reader_end)
    assert result.returncode == 0, result
    if words[0] == "run":
        assert (
            result.stdout.splitlines()[0] == "hello"
            and 'files = [\n    "hello.py",\n]' in Path("saved.toml").read_text()
        )


def test_a_wait_for_the_writer_of_a_spec_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo("spec")
    messages: list[str] = []

    def write(text: str) -> None:
        messages.append(text)
        if len(messages) == 1:
            threading.Thread(target=Path("spec").write_text, args=('command = ["true"]',)).start()

    monkeypatch.setattr("spotmpi.core.reminders.INTERVAL", 0.01)
    monkeypatch.setattr("spotmpi.core.wording.print_message", write)
    assert load_spec(Path("spec")).command == ["true"]
    assert messages[0] == "spec is a pipe that nobody has written a whole spec to, for 0 s"
