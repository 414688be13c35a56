"""`spotmpi data` lists, shows, compares, verifies and removes data sets of the store."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from spotmpi.api.datasets import DataSet
from spotmpi.core.names import RunPaths, default_runs_folder
from spotmpi.entries.differences import differences
from spotmpi.entries.store import Store
from tests.command_line import invoke
from tests.unit.entries.conftest import Modules
from tests.unit.entries.in_process import InProcess

SETS = """
import spotmpi
import helpers

WEIGHTS = [1.0, 2.0]

@spotmpi.dataset
def ratings(raw: spotmpi.Source, cut: float = 0.5):
    return {"x": helpers.clean(raw["x"]) * WEIGHTS[0]}

@spotmpi.dataset
def child(raw: spotmpi.Source):
    return raw
"""


@pytest.fixture
def versions(tmp_path: Path, modules: Modules, pool: InProcess) -> list[DataSet]:
    """Two versions of a data set, with other code, an argument, a value and files."""
    modules.write(sets=SETS, helpers="def clean(x):\n    return x\n")
    (tmp_path / "raw").mkdir()
    for name in "abc":
        (tmp_path / f"raw/{name}.csv").write_text("x\n1\n")
    first = modules.load().ratings.options(pool=pool)(tmp_path / "raw")
    modules.replace("helpers", "return x", "y = x + 1\n    return y")
    modules.replace("sets", "[1.0, 2.0]", "[3.0, 2.0]")
    (tmp_path / "raw/b.csv").write_text("x\n2\n")
    (tmp_path / "raw/c.csv").rename(tmp_path / "raw/d.csv")
    second = modules.load().ratings.options(pool=pool)(tmp_path / "raw", cut=0.75)
    return [first, second]


def test_diff_has_code_as_a_diff_arguments_values_and_inputs(versions: list[DataSet]) -> None:
    output = invoke("data", "diff", versions[0].key[:8], "ratings")
    lines = output.stdout.splitlines()
    assert (output.returncode, lines[0]) == (0, "code helpers.clean:")
    assert lines[2:6] == ["   def clean(x):", "  -    return x", "  +    y = x + 1", "  +    return y"]
    assert lines[6].startswith("value sets.WEIGHTS: ")
    source = versions[0].manifest.inputs[0].source
    assert lines[7:] == [
        "argument cut: 0.5, 0.75",
        f"input raw: {source}, {source}",
        "  b.csv was changed",
        "  d.csv was added",
        "  c.csv was removed",
    ]
    assert json.loads(invoke("data", "diff", versions[0].key, versions[1].key, "--json").stdout) == lines


def test_diff_shows_arguments_that_are_no_json_by_their_text_and_by_digests_where_that_is_the_same(
    tmp_path: Path, modules: Modules, pool: InProcess
) -> None:
    """It showed digests for a tuple."""
    modules.write(sets="import spotmpi\n\n@spotmpi.dataset\ndef cut(raw, at):\n    return {'x': raw['x']}\n")
    (tmp_path / "raw.csv").write_text("x\n1\n")
    cut = modules.load().cut.options(pool=pool)
    one, two, long, longer = (
        cut(tmp_path / "raw.csv", at=each).manifest for each in ((1, 2), (1, 3), (*range(200), 1), (*range(200), 2))
    )
    assert differences(one, two) == ["argument at: '(1, 2)', '(1, 3)'"]
    (line,) = differences(long, longer)
    assert re.fullmatch("argument at: '[0-9a-f]+', '[0-9a-f]+'", line)


def test_the_same_version_differs_in_nothing(versions: list[DataSet]) -> None:
    assert differences(versions[0].manifest, versions[0].manifest) == []
    assert invoke("data", "diff", "ratings", "ratings").stdout == "nothing that counts differs\n"


def test_a_name_that_the_store_does_not_have_is_no_empty_list(versions: list[DataSet]) -> None:
    code, out, err = invoke("data", "list", "rating")
    assert (code, out) == (2, "") and "data set = 'rating': is not in the store" in err and "it has: ratings" in err
    assert [line.split()[0] for line in invoke("data", "list", "ratings:1").stdout.splitlines()[1:]] == ["ratings:1"]


def test_a_store_whose_path_names_no_user_is_a_folder_of_that_name() -> None:
    code, _, err = invoke("data", "list", "--store", "~nobody-here/store")
    assert code == 0 and f"no data sets in {Path.cwd()}/~nobody-here/store: " in err


def test_list_and_show_print_what_a_script_can_read_too(versions: list[DataSet]) -> None:
    listed = invoke("data", "list").stdout.splitlines()
    assert listed[0].split() == ["NAME", "KEY", "CREATED", "ROWS", "MB", "FILES", "RUN"]
    assert [line.split()[:2] for line in listed[1:]] == [[str(each), each.key[:12]] for each in versions]
    assert [str(each) for each in versions] == ["ratings:1", "ratings:2"]
    assert [each["key"] for each in json.loads(invoke("data", "list", "ratings", "--json").stdout)] == [
        each.key for each in versions
    ]
    shown = invoke("data", "show", "ratings").stdout
    for text in (
        versions[1].key,
        versions[1].path,
        "cut=0.75",
        "3 rows",
        "sets:ratings",
        "a.parquet",
        "pool-1",
        "$0.25",
    ):
        assert text in shown
    assert json.loads(invoke("data", "show", "ratings", "--json").stdout)["path"] == versions[1].path


def test_verify_finds_rot_and_ends_with_1(versions: list[DataSet]) -> None:
    assert invoke("data", "verify").stdout == "2 data sets read, 0 problems\n"
    file = Path(versions[1].path, "b.parquet")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.chmod(0o644)
    file.write_bytes(content)
    output = invoke("data", "verify", "ratings")
    assert output.returncode == 1 and "b.parquet is damaged" in output.stdout
    assert invoke("data", "verify", versions[0].key).returncode == 0
    assert json.loads(invoke("data", "verify", "--json").stdout)["verified"] == 2


def test_verify_names_a_file_that_cannot_be_read_and_reads_all_others(versions: list[DataSet]) -> None:
    """As one of another user: it ended the command. A folder in its place cannot be read by root either."""
    file = Path(versions[0].path, "a.parquet")
    file.unlink()
    file.mkdir()
    output = invoke("data", "verify")
    reason = f"{file} cannot be read: Is a directory; check the storage, then try again"
    assert output.stdout.splitlines() == [f"{versions[0].manifest}: {reason}", "2 data sets read, 1 problem"]
    assert (output.returncode, output.stderr) == (1, "")


def test_verify_names_an_edited_manifest(versions: list[DataSet]) -> None:
    manifest = Path(versions[1].path).with_name("manifest.json")
    manifest.chmod(0o644)
    manifest.write_text(manifest.read_text().replace("0.75", "0.25"))
    output = invoke("data", "verify")
    assert output.returncode == 1
    assert output.stdout.splitlines()[0].startswith(f"the manifest {manifest} was edited or damaged")
    assert len(json.loads(invoke("data", "list", "--json").stdout)) == 1


def test_rm_refuses_what_an_entry_or_a_run_names(versions: list[DataSet], modules: Modules, pool: InProcess) -> None:
    old, new = versions
    child = modules.load().child.options(pool=pool)(new)
    refused = invoke("data", "rm", "ratings")
    assert refused.returncode == 1 and f"is a parent of {child.manifest}" in refused.stderr
    run = RunPaths(default_runs_folder() / "digits-1")
    run.folder.mkdir(parents=True)
    run.spec.write_text(f'data = "{old.path}"\n')
    refused = invoke("data", "rm", old.key)
    assert (
        refused.returncode == 1 and f"{old.manifest} is read by run digits-1: remove its record first" in refused.stderr
    )
    run.spec.unlink()
    assert invoke("data", "rm", old.key).stdout == f"removed {old}\n"
    assert invoke("data", "rm", "child", "ratings").returncode == 0
    assert Store().list() == []


@pytest.mark.parametrize("command", ["show", "verify", "rm"])
def test_an_unknown_name_is_one_line(modules: Modules, command: str) -> None:
    output = invoke("data", command, "absent")
    assert output.returncode == 2
    assert len(output.stderr.splitlines()) == 1 and "is not in the store" in output.stderr
