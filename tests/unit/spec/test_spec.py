"""The job spec: read from TOML, overridden, checked, and written back."""

from __future__ import annotations

import pickle
import re
import tomllib
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, settings
from pydantic import BaseModel

import spotmpi
from spotmpi.agent.launchers import LAUNCHERS
from spotmpi.core import names
from spotmpi.core.errors import InputError
from spotmpi.core.wording import duration
from spotmpi.spec import template
from spotmpi.spec.job import JobSpec, read_duration, seconds
from spotmpi.spec.source import from_values, load_spec, read_spec, write_spec
from tests.unit.spec.values import POSITIVE, tables

DURATIONS = 'such as "90s", "10m", "2h" or "1d"'


def problems(values: dict[str, Any], *overrides: str) -> dict[str, str]:
    with pytest.raises(InputError) as caught:
        from_values(values, overrides)
    return {problem.field: str(problem) for problem in caught.value.problems}


@pytest.mark.parametrize(
    ("text", "value"), [("90s", 90), ("10m", 600), ("2h", 7200), ("1d", 86400), ("0.5s", 0.5), (" 1.5 m ", 90)]
)
def test_a_duration_is_a_number_with_its_unit(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "10", "m", "-5s", "1 week", "1e3s", "10 mins", "ten", "1m30s", "nan s"])
def test_text_that_is_no_duration_is_refused_with_its_field(text: str) -> None:
    with pytest.raises(InputError, match=r"--older = .*write a duration such as"):
        read_duration("--older", text)


@given(POSITIVE)
@example(1e-05)
def test_a_duration_is_written_as_it_is_read(value: float) -> None:
    assert seconds(duration(value)) == value


def test_limits_in_messages_are_durations_as_specs_have_them() -> None:
    """Some were "600s" or "1e+06s", where the spec had "10m"; measured times have a space: "30 s"."""
    formatted = re.compile(r"(%[.\d]*[dfg]|\{[^{}]+:[,.\d]*[fg]\})[smhd]\b")
    package = Path(spotmpi.__file__).parent
    lines = [(path, line) for path in package.rglob("*.py") for line in path.read_text("utf-8").splitlines()]
    found = [(path.name, line) for path, line in lines if formatted.search(line)]
    assert [name for name, _ in found] == ["run_plan.py"], found  # a variable of ranks, always in seconds


@settings(max_examples=80)
@given(tables(JobSpec))
@example({"code": "~nobody-here/x", "checkpoint": {"path": "~nobody-here"}})
@example({"data": "a" * 300, "stream": {"source": "x**.csv"}})
def test_every_spec_survives_being_written_and_read(values: dict[str, Any]) -> None:
    spec = from_values(values)
    with TemporaryDirectory() as folder:
        path = Path(folder, "job.toml")
        path.write_text(spec.to_toml())
        assert load_spec(path) == spec


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"code": "a\0"}, "code"),
        ({"files": ["a\0"]}, "files.0"),
        ({"data": "a\0"}, "data.path"),
        ({"checkpoint": {"path": "a\0"}}, "checkpoint.path"),
        ({"stream": {"source": "a\0*"}}, "stream.source"),
        ({"kubernetes": {"templates": ["a\0"]}}, "kubernetes.templates.0"),
    ],
)
def test_a_path_that_no_file_can_have_is_refused_with_its_key(values: dict[str, Any], field: str) -> None:
    (message,) = problems(values).values()
    assert message.startswith(field) and message.endswith("contains a zero byte, which no path can hold; remove it")


def test_all_problems_come_at_once_each_with_field_value_and_remedy() -> None:
    message = problems(
        {
            "nodes": 0,
            "slots": -1,
            "launcher": "slurm",
            "limits": {"run": "soon", "failures": -1, "no_progress": 0},
            "checkpoint": {"every": "inf", "keep": 0},
            "resources": {"memory": "lots", "gpu": 1.5},
            "metrics": {"samples_per_iteration": 0},
            "env": {"A": 1},
            "args": "--epochs 3",
            "imgae": "chainermn",
            "a\nb": 1,
        }
    )

    assert set(message) == {
        *("nodes", "slots", "launcher", "limits.run", "limits.failures", "limits.no_progress", "checkpoint.every"),
        *("checkpoint.keep", "resources.memory", "resources.gpu", "metrics.samples_per_iteration", "env.A", "args"),
        *("imgae", "a\nb"),
    }
    assert message["nodes"] == "nodes = 0: input should be greater than or equal to 1"
    assert message["limits.run"] == 'limits.run = \'soon\': write a duration such as "90s", "10m", "2h" or "1d"'
    known = ", ".join(map(repr, LAUNCHERS))
    assert message["launcher"] == f"launcher = 'slurm': input should be {known} or 'pool'"
    assert all("\n" not in text for text in message.values()) and message["a\nb"].startswith("'a\\nb' = 1")


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("args = [1]", 'args.0 = 1: input should be a string: write "1"'),
        ("name = 2020-01-01", 'name = 2020-01-01: input should be a string: write "2020-01-01"'),
        ("env = { DEBUG = true }", 'env.DEBUG = true: input should be a string: write "true"'),
        ('env = ["A=1"]', "env = ['A=1']: input should be a table, such as { NAME = \"value\" }"),
        ('slots = "2"', "slots = '2': input should be a number: write 2, without quotes"),
        ('args = "--epochs 3"', 'args = \'--epochs 3\': input should be a list, such as ["--epochs", "3"]'),
        ('files = "my data.py"', "files = 'my data.py': input should be a list, such as [\"my data.py\"]"),
        ("files = 3", "files = 3: input should be a list"),
        ('limits.run = "0s"', f"limits.run = '0s': write a duration above 0, {DURATIONS}"),
        (f"limits.run = {10**400}", f"limits.run = 1{'0' * 37}...{'0' * 38}: write a duration above 0, {DURATIONS}"),
        ("limits.run.x = 3", f"limits.run = {{ x = 3 }}: write a duration {DURATIONS}"),
        (
            "args = [[true, { a = 1.5, at = 2020-01-01 }, {}]]",
            "args.0 = [true, { a = 1.5, at = 2020-01-01 }, {}]: input should be a valid string",
        ),
        ('kubernetes.exclusive = "yes"', "kubernetes.exclusive = 'yes': input should be true or false"),
        ("pool = 4", "pool = 4: input should be a table, with keys such as count, cpu, memory"),
        ("stream.workers = 4", "stream.workers = 4: input should be a table, with keys such as count, cpu, memory"),
        ("resources.memory = 4", 'resources.memory = 4: write a size such as "512Mi" or "4Gi"'),
        ("resources.memory = '٤Gi'", """resources.memory = '٤Gi': write a size such as "512Mi" or "4Gi\""""),
    ],
)
def test_a_value_of_a_wrong_type_is_written_as_it_should_be(text: str, form: str) -> None:
    with pytest.raises(InputError) as refused:
        from_values(tomllib.loads(text))
    assert str(refused.value) == form


def plan_problems(source: object, *overrides: str, on: str | None = None) -> list[str]:
    with pytest.raises(InputError) as refused:
        spotmpi.plan_run(source, overrides, on)  # type: ignore[arg-type]
    return [str(problem) for problem in refused.value.problems]


def test_unknown_key_wrong_type_impossible_value_and_missing_program_come_together(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('colour = "red"\nslots = "two"\ndata = "/nowhere"\n[limits]\nfailures = -1\n')

    assert sorted(plan_problems(path)) == [
        "colour = 'red': unknown key; known keys: " + ", ".join(JobSpec.model_fields),
        "data = '/nowhere': not a readable folder; check the path",
        "limits.failures = -1: input should be greater than or equal to 0",
        "program: give a program or a command",
        "slots = 'two': input should be a valid integer",
    ]


def test_consequences_of_a_wrong_key_are_not_reported_and_nothing_hides_one() -> None:
    def fields(*arguments: Any, **more: Any) -> list[str]:
        return [problem.partition(":")[0] for problem in plan_problems(*arguments, **more)]

    wrong = {"progam": "digits", "nodes": 10**6, "slots": 0, "image": 3}
    assert fields(wrong) == ["image = 3", "slots = 0", "progam = 'digits'"]
    assert fields({"command": [1], "launcher": "none"}) == ["command.0 = 1"]
    assert fields({"slots": 1}, "slots=two", "data=/nowhere") == ["slots = 'two'", "program", "data = '/nowhere'"]
    assert "slots = 'two'" in fields({"command": ["x"], "slots": "two"}, on="no-such-file.json")


@pytest.mark.parametrize("value", [float("inf"), float("nan"), "9" * 400 + "d"])
def test_no_time_is_infinite(value: object) -> None:
    assert list(problems({"limits": {"run": value}})) == ["limits.run"]


@pytest.mark.parametrize("value", [1e300, 1_000_001, 0, -1])
def test_what_no_node_costs_is_no_price(value: float) -> None:
    values = {"price": value, "capacity": {"prices": {"g5": value}}, "stream": {"workers": {"price": value}}}
    assert {"price", "capacity.prices.g5", "stream.workers.price"} <= set(problems(values))
    assert from_values({"command": ["x"], "price": 1_000_000}).price == 1_000_000


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"imgae": "x"}, "imgae = 'x': unknown key; did you mean image?"),
        ({"node": 2}, "node = 2: unknown key; did you mean nodes?"),
        ({"limits": {"failure": 1}}, "limits.failure = 1: unknown key; did you mean failures?"),
        ({"patience": "10m"}, "patience = '10m': unknown key; did you mean capacity.patience?"),
        ({"every": "1h"}, "every = '1h': unknown key; did you mean checkpoint.every?"),
        (
            {"checkpoint": {"dir": "x"}},
            "checkpoint.dir = 'x': unknown key; known keys: every, keep, path, memory, grace, margin",
        ),
    ],
)
def test_an_unknown_key_is_refused_with_the_likeliest_known_one(values: dict[str, Any], message: str) -> None:
    assert list(problems(values).values()) == [message]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"capacity": "g5"}, "capacity = 'g5': input should be a table, with keys such as order, patience, partial"),
        ({"capacity": {"zones": "b"}}, "capacity.zones = 'b': input should be a list, such as [\"b\"]"),
        ({"command": "x y"}, 'command = \'x y\': input should be a list, such as ["x", "y"]'),
        ({"capacity": {"deadline": "soon"}}, "capacity.deadline = 'soon': write a duration such as \"30h\", or a time"),
        ({"capacity": {"deadline": date(2027, 1, 31)}}, "capacity.deadline = 2027-01-31: write a duration such as"),
    ],
)
def test_a_value_of_another_kind_is_refused_with_what_to_write(values: dict[str, Any], message: str) -> None:
    (problem,) = problems(values).values()
    assert problem.startswith(message)


@pytest.mark.parametrize(
    ("values", "overrides"),
    [
        ({"capacity": ["g5", "on-demand"], "patience": "2m"}, []),
        ({"capacity": ["g5", "on-demand"]}, ["capacity.patience=2m"]),
        ({"capacity": {"patience": "2m", "order": ["g5", "on-demand"]}}, []),
        ({}, ['capacity=["g5", "on-demand"]', "capacity.patience=2m"]),
    ],
)
def test_a_list_of_node_groups_for_capacity_is_its_order(values: dict[str, Any], overrides: list[str]) -> None:
    spec = from_values({"command": ["x"], **values}, overrides)

    assert spec.canonical()["capacity"]["order"] == ["g5", "on-demand"]
    assert tomllib.loads(spec.to_toml())["capacity"] == {"order": ["g5", "on-demand"], "patience": "2m"}
    assert list(problems({"capacity": ["g5", 5]})) == ["capacity.order.1"]
    assert list(problems({"patience": "2m"})) == ["patience"], "there is no list that it belongs to"


def test_nodes_are_a_number_or_the_numbers_that_are_allowed() -> None:
    spec = from_values({"command": ["x"], "nodes": [8, 2, 4, 2]})

    assert (spec.nodes, spec.sizes, spec.world_size) == (8, (2, 4, 8), 8)
    assert tomllib.loads(spec.to_toml())["nodes"] == spec.canonical()["nodes"] == [2, 4, 8]
    assert pickle.loads(pickle.dumps(spec)).sizes == (2, 4, 8)
    assert spec.model_copy(update={"nodes": 4}).sizes == (4,), "as a study and a resume with another number do"
    alone = from_values({"command": ["x"], "nodes": [4]})
    assert (alone.sizes, alone.canonical()["nodes"]) == ((4,), 4)
    for wrong in ([], [0, 2], [2, "x"], [1.5, 2]):
        assert list(problems({"command": ["x"], "nodes": wrong})) == ["nodes"]


def test_a_required_key_that_is_missing_is_named_without_the_value_of_its_table() -> None:
    with pytest.raises(InputError, match=r"^pool\.count: is required; add it$"):
        from_values({"launcher": "pool", "pool": {}})


def test_a_table_in_place_of_a_value_and_the_reverse_are_refused() -> None:
    values = {"limits": 3, "name": {"a": 1}, "nodes": {"a": 1}, "env": "A=1"}
    assert set(problems(values)) == set(values)


@pytest.mark.parametrize(
    ("mount", "field", "message"),
    [
        ({"path": "/a"}, "kubernetes.mounts.0", "give exactly one of claim, secret, config_map and empty"),
        ({"path": "/a", "claim": "a", "secret": "b"}, "kubernetes.mounts.0", "give exactly one of claim, secret"),
        ({"path": "/a", "empty": "10GB"}, "kubernetes.mounts.0.empty", "write a size such as"),
        ({"path": "/a", "clam": "a"}, "kubernetes.mounts.0.clam", "unknown key; did you mean claim?"),
    ],
)
def test_a_mount_has_exactly_one_kind(mount: dict[str, Any], field: str, message: str) -> None:
    messages = problems({"kubernetes": {"mounts": [mount]}})
    assert list(messages) == [field] and message in messages[field]


def test_a_command_is_a_spec_with_launcher_none_that_is_not_started_again_after_a_failure() -> None:
    spec = read_spec(["echo", "hi"], ["nodes=2"])

    values = {"command": ["echo", "hi"], "launcher": "none", "nodes": 2, "limits": {"failures": 0}}
    assert spec == from_values(values)
    assert read_spec(["a.out"], ["limits.failures=1"]).limits.failures == 1
    assert read_spec(["a.out"], ["launcher=mpirun"]).launcher == "mpirun"


def test_a_written_spec_has_paths_below_its_folder_relative_to_it(tmp_path: Path) -> None:
    outside = str(tmp_path / "outside.py")
    templates = [str(tmp_path / "project" / "pod.yaml"), "configmap:pods"]
    values = {"code": str(tmp_path / "project" / "src"), "files": [outside, str(tmp_path / "project" / "lib")]}
    spec = from_values({"command": ["x"], "kubernetes": {"templates": templates}, **values})
    (tmp_path / "project").mkdir()

    write_spec(spec, tmp_path / "project" / "job.toml")

    written = tomllib.loads((tmp_path / "project" / "job.toml").read_text())
    assert (written["code"], written["files"]) == ("src", [outside, "lib"])
    assert written["kubernetes"]["templates"] == ["pod.yaml", "configmap:pods"]
    assert load_spec(tmp_path / "project" / "job.toml") == spec


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"nodes = ", "is not TOML"),
        (b"nodes = 1\nnodes = 2", "is not TOML"),
        (b"nodes = " + b"9" * 5000, "is not TOML"),
        (b"nodes = " + b"[" * 5000, "is not TOML"),
        (b"\xff\xfe", "cannot be read as a text file: the byte 0xff is not UTF-8; save it as UTF-8"),
        (b"nodes = 1 # \xe9", "cannot be read as a text file: the byte 0xe9 is not UTF-8; save it as UTF-8"),
        (b"#" * (2**22 + 1), "is longer than 4,194,304 characters; name a spec file"),  # /dev/zero never ends
    ],
)
def test_a_malformed_file_is_refused_with_its_path(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / 'a job\'s "spec".toml'
    path.write_bytes(content)

    with pytest.raises(InputError, match=message) as caught:
        load_spec(path)
    assert repr(str(path))[1:20] in str(caught.value) and "\n" not in str(caught.value)


def test_an_override_of_thousands_of_parts_is_refused() -> None:
    key = ".".join(["a"] * 5000)
    with pytest.raises(InputError, match=r"no key has 5000 parts; write it as key=value or table\.key=value"):
        from_values({"command": ["true"]}, [f"{key}=1"])
    values: dict[str, object] = {"a": 1}
    for _ in range(4999):  # newer versions of Python read no such key from TOML
        values = {"a": values}
    with pytest.raises(InputError, match=r"^a = \{'a': .*: unknown key; known keys:"):
        from_values(values)


def test_a_file_may_begin_with_a_byte_order_mark_and_a_command_is_a_list(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_bytes(b'\xef\xbb\xbfcommand = "python train.py"')
    with pytest.raises(InputError, match=r"^command = 'python train.py': input should be a list, such as \["):
        load_spec(tmp_path / "job.toml")


def test_a_missing_file_names_the_command_that_writes_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such file; `spotmpi init` writes one"):
        load_spec(tmp_path / "job.toml")
    with pytest.raises(InputError, match="is a folder; name a spec file in it"):
        load_spec(tmp_path)


@pytest.mark.parametrize(
    ("values", "title"),
    [
        ({"name": "mine"}, "mine"),
        ({"program": "digits"}, "digits"),
        ({"command": ["python", "-u", "deep/train_it.py", "x"]}, "train_it"),
        ({"command": ["python3", "-u", "-m", "own.train", "--epochs", "2"]}, "train"),
        ({"command": ["python3", "-m", "spotmpi.streams.rank", "predict", "flow:score"]}, "score"),
        ({"command": ["python3", "-m", "spotmpi.streams.rank"]}, "rank"),
        ({"command": ["/usr/bin/true"]}, "true"),
        ({"command": ["tool", "-m", "fast"]}, "tool"),
        ({"command": ["python3", "-c", "print('a b.py')"]}, "python3"),
        ({}, "run"),
    ],
)
def test_a_run_without_a_name_is_named_after_its_program(values: dict[str, Any], title: str) -> None:
    assert from_values(values).title == title


def test_the_template_names_every_key_and_is_valid_with_and_without_them() -> None:
    text = template.template()
    assert not re.findall(r"^# \w+ = null", text, re.MULTILINE), "a key without a default needs an example"
    spec = from_values(tomllib.loads(text))
    assert (spec.image, spec.program, spec.world_size) == ("chainermn", "digits", 2)
    lines = []
    for line in text.splitlines():
        key = re.match(r"# (\[\w+\]|\w+ = .*)", line)
        lines.append(line[2:] if key and not line.startswith("# A spotmpi") else line)
    values = tomllib.loads("\n".join(lines))

    def keys(model: type[BaseModel], schema: dict[str, Any], path: str = "") -> list[str]:
        missing = []
        for name, info in model.model_fields.items():
            kind = info.annotation
            if name not in schema:
                missing.append(path + name)
            elif isinstance(kind, type) and issubclass(kind, BaseModel):
                missing += keys(kind, schema[name], f"{path}{name}.")
        return missing

    assert keys(JobSpec, values) == ["command"]  # named beside the program that it would replace
    assert 'command = ["python3"' in text
    JobSpec.model_validate(values)


@pytest.mark.parametrize("path", sorted(names.EXAMPLES.glob("*.toml")), ids=lambda path: path.name)
def test_every_example_is_a_valid_spec(path: Path) -> None:
    assert load_spec(path).title


@pytest.mark.parametrize(
    ("value", "text"),
    [(1, "1"), ("1", "1"), ("250", "250"), ("10s", "10s"), ("0.5s", "0.5s"), ("120s", "2m"), ("1h", "1h")],
)
def test_checkpoints_in_memory_come_after_iterations_or_a_time(value: object, text: str) -> None:
    assert from_values({"checkpoint": {"memory": value}}).checkpoint.memory == text


@pytest.mark.parametrize("value", [0, -1, "0", "0s", "", "1.5", "often", "1e3", True, 1.5, "1 iteration"])
def test_what_is_neither_iterations_nor_a_time_is_refused(value: object) -> None:
    with pytest.raises(InputError, match=r"checkpoint\.memory = "):
        from_values({"checkpoint": {"memory": value}})
