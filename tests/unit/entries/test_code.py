"""The identity of code changes with what takes part in a call, and with nothing else."""

from __future__ import annotations

import importlib
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from spotmpi.core.errors import InputError, SpotmpiError
from spotmpi.entries import code as code_module
from spotmpi.entries.manifest import Code

SETS = '''
"""The module."""
import functools
import numpy as np
import helpers
from helpers import clean as tidy, Cleaner
from shapes import area
import shapes.round

CUT = 0.5
STEPS = [helpers.first, {"second": helpers.second}]
double = lambda x: 2 * x
triple = lambda x: 3 * x

def unrelated(x):
    return x - 1

def step(x):
    return helpers.deep(x) + CUT

bound = functools.partial(step, 1)

@functools.lru_cache
def cached(x):
    return x + 10

def make(n):
    def inner(x):
        return x + n
    return inner

plus = make(7)

def ratings(raw, cut):
    """Rate."""
    from lazy import late
    # a comment
    parts = [each(raw) for each in STEPS[:1]]
    return tidy(raw) + step(cut) + np.sqrt(double(1)) + area(2) + shapes.round.ball(1) + late(1) + cached(1) + plus(2)

def with_class(x):
    return Cleaner(3).run(x)

def by_name(x, name):
    return getattr(helpers, name)(x)

def hidden(x):
    return eval("x")

LOCK = __import__("threading").Lock()

def locked(x):
    with LOCK:
        return x
'''
HELPERS = '''
SECRET = 1
WORDS = {"b", "a"}

def clean(x):
    return x

def deep(x):
    return deeper(x)

def deeper(x):
    return x * SECRET

def first(x):
    return x

def second(x):
    return x

def unused(x):
    return x

class Base:
    def base(self, x):
        return x + 100

class Cleaner(Base):
    """Cleans."""

    def __init__(self, n):
        self.n = n

    def run(self, x):
        return self.base(x) + deep(x) + len(WORDS)
'''
FILES = {
    "sets.py": SETS,
    "helpers.py": HELPERS,
    "lazy.py": "def late(x):\n    return x\n",
    "shapes/__init__.py": "def area(x):\n    return x * x\n",
    "shapes/round.py": "from . import area\n\ndef ball(x):\n    return area(x) * 3\n",
}
Change = Callable[[str, str, str], None]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of modules that are imported anew by each `load`."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # else a change within a second is not imported
    yield tmp_path
    _forget()


def _forget() -> None:
    for name in [
        name
        for name in sys.modules
        if name.partition(".")[0] in ("sets", "helpers", "late", "lazy", "shapes", "steps", "stages")
    ]:
        del sys.modules[name]


def load() -> ModuleType:
    _forget()
    importlib.invalidate_caches()
    return importlib.import_module("sets")


def identify(name: str = "ratings") -> Code:
    return code_module.identify(getattr(load(), name))


def replace(folder: Path, file: str, old: str, new: str) -> None:
    path = folder / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("sets.py", '"""Rate."""', '"""Rate all."""'),
        ("sets.py", '"""The module."""', "\n\n"),
        ("sets.py", "# a comment", "# another comment\n\n"),
        ("sets.py", "return x - 1", "return x - 2"),
        ("sets.py", "return eval", "return 1 + eval"),
        ("helpers.py", "def unused(x):\n    return x", "def unused(x):\n    return x + 1"),
        ("helpers.py", "class Base:", "def more():\n    pass\n\n\nclass Base:"),
        ("helpers.py", "return x + 100", "return x + 200"),
        ("helpers.py", "def clean(x):\n    return x", 'def clean(x):\n    """Clean."""\n\n    return   (x)'),
    ],
)
def test_a_change_that_does_not_matter_leaves_the_digest(folder: Path, file: str, old: str, new: str) -> None:
    before = identify()
    replace(folder, file, old, new)
    assert identify() == before


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("sets.py", "tidy(raw) + step", "tidy(raw) - step"),
        ("sets.py", "CUT = 0.5", "CUT = 0.6"),
        ("sets.py", "double = lambda x: 2", "double = lambda x: 4"),
        ("sets.py", "plus = make(7)", "plus = make(8)"),
        ("sets.py", "return x + n", "return x - n"),
        ("sets.py", "return x + 10", "return x + 11"),
        ("sets.py", "STEPS = [helpers.first", "STEPS = [helpers.clean"),
        ("helpers.py", "def clean(x):\n    return x", "def clean(x):\n    return x + 1"),
        ("helpers.py", "return x * SECRET", "return x / SECRET"),
        ("helpers.py", "SECRET = 1", "SECRET = 2"),
        ("helpers.py", "def first(x):\n    return x", "def first(x):\n    return -x"),
        ("helpers.py", "def second(x):\n    return x", "def second(x):\n    return -x"),
        ("lazy.py", "return x", "return -x"),
        ("shapes/__init__.py", "x * x", "x + x"),
        ("shapes/round.py", "* 3", "* 4"),
    ],
)
def test_a_change_of_what_is_used_changes_the_digest(folder: Path, file: str, old: str, new: str) -> None:
    before = identify()
    replace(folder, file, old, new)
    assert identify().digest != before.digest


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return x + 100", "return x + 200"),
        ("self.n = n", "self.n = -n"),
        ('"a"}', '"c"}'),
        ("return x * S", "return S"),
    ],
)
def test_a_class_counts_with_its_methods_and_bases_and_what_they_use(folder: Path, old: str, new: str) -> None:
    before = identify("with_class")
    replace(folder, "helpers.py", '"""Cleans."""', '"""Washes."""')
    assert identify("with_class") == before
    replace(folder, "helpers.py", old, new)
    assert identify("with_class").digest != before.digest


def test_a_partial_function_counts_with_its_arguments(folder: Path) -> None:
    before = identify("bound")
    replace(folder, "sets.py", "partial(step, 1)", "partial(step, 2)")
    changed = identify("bound")
    assert changed.digest != before.digest
    assert set(changed.sources) == {"sets.step", "helpers.deep", "helpers.deeper"}


def test_globals_of_the_same_name_in_modules_of_one_package_count_each(folder: Path) -> None:
    """They had one name, so that a change of the first one made no difference."""
    for name in ("flat", "round"):
        (folder / "shapes" / f"{name}.py").write_text(f"RATE = 1\n\ndef {name}(x):\n    return x * RATE\n")
    (folder / "sets.py").write_text(
        "from shapes.flat import flat\nfrom shapes.round import round\n\n"
        "def ratings(raw):\n    return flat(raw) + round(raw)\n"
    )
    digests = [identify()]
    for name in ("flat", "round"):
        replace(folder, f"shapes/{name}.py", "RATE = 1", "RATE = 2")
        digests.append(identify())
    assert len({each.digest for each in digests}) == 3
    assert digests[0].values == {"shapes.flat.RATE": "int:1", "shapes.round.RATE": "int:1"}


@pytest.mark.parametrize("old", ["return x + 1", "UNIT = 3", "return x * 3"])
def test_a_module_that_is_used_as_a_value_counts_with_what_it_imports(folder: Path, old: str) -> None:
    (folder / "lazy.py").write_text("from shapes.flat import *\nimport shapes\n")
    (folder / "shapes" / "flat.py").write_text("UNIT = 3\n\ndef flat(x):\n    return x + 1\n")
    (folder / "sets.py").write_text(
        "import lazy, shapes.round\n\ndef ratings(raw, name):\n    return getattr(lazy, name)(raw)\n"
    )
    replace(folder, "shapes/round.py", "return area(x) * 3", "return x * 3")
    before = identify()
    file = "shapes/round.py" if "*" in old else "shapes/flat.py"
    replace(folder, file, old, old[:-1] + "4")
    assert identify().digest != before.digest


def test_a_module_that_is_used_as_a_value_counts_with_functions_in_functions(folder: Path) -> None:
    (folder / "lazy.py").write_text(
        "from helpers import *\n\ndef late(x):\n    def more():\n        nonlocal x\n        x += 1\n"
        "    more()\n    return deep(x)\n"
    )
    (folder / "sets.py").write_text("import lazy\n\ndef ratings(raw, name):\n    return getattr(lazy, name)(raw)\n")
    before = identify()
    replace(folder, "helpers.py", "x * SECRET", "x / SECRET")
    assert identify().digest != before.digest


def test_a_module_that_is_used_as_a_value_counts_as_a_whole(folder: Path) -> None:
    before = identify("by_name")
    replace(folder, "helpers.py", "def unused(x):\n    return x", "def unused(x):\n    return -x")
    assert identify("by_name").digest != before.digest


def test_a_module_that_answers_any_name_counts_by_what_it_answers(folder: Path) -> None:
    """Its answer to `__path__` ended in a TypeError."""
    (folder / "lazy.py").write_text("def __getattr__(name):\n    return 3\n")
    (folder / "sets.py").write_text("import lazy\n\ndef ratings(raw):\n    return lazy.factor * raw\n")
    before = identify()
    replace(folder, "lazy.py", "return 3", "return 4")
    assert identify().digest != before.digest


@pytest.mark.parametrize(("package", "has_init"), [("steps", True), ("stages", False)])
def test_a_package_without_code_counts_with_its_modules(folder: Path, package: str, has_init: bool) -> None:
    (folder / package).mkdir()
    (folder / package / "first.py").write_text("def run(x):\n    return x + 1\n")
    if has_init:
        (folder / package / "__init__.py").touch()
    (folder / "sets.py").write_text(
        f"import {package}.first\n\ndef ratings(raw, name):\n    return getattr({package}, name).run(raw)\n"
    )
    before = identify()
    replace(folder, f"{package}/first.py", "x + 1", "x + 2")
    assert identify().digest != before.digest


@pytest.mark.parametrize("path", ["Path(__file__).parent / 'words.txt'", "os.path.dirname(__file__)"])
def test_a_path_in_a_package_is_an_error_since_workers_get_its_files_and_no_key_has_them(
    folder: Path, path: str
) -> None:
    """A change of `words.txt` gave the data set that was made of the old one."""
    (folder / "shapes" / "flat.py").write_text(
        f"import os\nfrom pathlib import Path\n\nWORDS = {path}\n\ndef words():\n    return os.listdir(WORDS)\n"
    )
    (folder / "sets.py").write_text("from shapes.flat import words\n\ndef ratings(raw):\n    return words()\n")
    with pytest.raises(InputError, match=r"shapes\.flat\.WORDS'.* beside the code.*read them where the module is"):
        identify()
    replace(folder, "shapes/flat.py", path, f"[*{path.join(('os.fspath(', ')'))}][:1]")
    assert identify().values == {"shapes.flat.WORDS": identify().values["shapes.flat.WORDS"]}


def test_a_module_that_was_compiled_counts_by_its_file(folder: Path, tmp_path: Path) -> None:
    import subprocess
    import sysconfig

    code = """#include <Python.h>
static PyObject *add(PyObject *self, PyObject *x) { return PyLong_FromLong(PyLong_AsLong(x) + 1); }
static PyMethodDef methods[] = {{"add", add, METH_O, ""}, {0}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "late", "", -1, methods};
PyMODINIT_FUNC PyInit_late(void) { return PyModule_Create(&definition); }
"""
    (tmp_path / "late.c").write_text(code)
    (folder / "sets.py").write_text(
        "import late\n\ndef ratings(raw):\n    return late.add(raw)\n\n"
        "def by_name(raw, name):\n    return getattr(late, name)(raw)\n"
    )
    library = folder / f"late{sysconfig.get_config_var('EXT_SUFFIX')}"
    include = sysconfig.get_path("include")
    subprocess.run(["cc", "-shared", "-fPIC", f"-I{include}", "-o", library, tmp_path / "late.c"], check=True)
    before = [identify(name) for name in ("ratings", "by_name")]
    with library.open("ab") as file:
        file.write(b"changed")
    _forget()
    assert [
        identify(name).digest == each.digest for name, each in zip(("ratings", "by_name"), before, strict=True)
    ] == [
        False,
        False,
    ]
    assert {path.name for path in code_module.files_of(load().ratings)} == {"sets.py", library.name}


@pytest.mark.extensive("interpreters of other hash seeds; test_values has most kinds of values in them")
def test_the_digest_is_the_same_in_another_process_with_another_hash_seed(folder: Path) -> None:
    import subprocess

    program = "import sets; from spotmpi.entries.code import identify; print(identify(sets.ratings).digest)"
    digests = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(folder)},
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert digests[0] == digests[1] != ""
    assert digests[0].strip() == identify().digest


def test_sources_are_kept_for_people_and_packages_by_version(folder: Path) -> None:
    import numpy as np
    import pyarrow as pa

    found = identify()
    assert found.sources["helpers.deeper"] == "def deeper(x):\n    return x * SECRET"
    assert found.packages == {
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "numpy": np.__version__,
        "pyarrow": pa.__version__,
    }
    assert "Rate" not in found.sources["sets.ratings"]
    assert not any("unused" in text or "unrelated" in text for text in found.sources.values())


def test_a_global_that_cannot_be_hashed_is_an_error_that_names_it(folder: Path) -> None:
    with pytest.raises(InputError, match=r"sets\.LOCK = .*: cannot be hashed, so that a change of it"):
        identify("locked")


def test_code_that_is_not_known_before_it_runs_is_an_error(folder: Path) -> None:
    with pytest.raises(InputError, match=r"sets\.hidden.: uses eval, by which the code that takes part is not known"):
        identify("hidden")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import no_such_package\ndef late(x):\n    return x\n", "No module named 'no_such_package'; install it here"),
        ("def late(x:\n", r"the module lazy raises SyntaxError: .*\(lazy.py, line 1\); correct it"),
        ("def late(x):\n    return x\n1 / 0\n", r"lazy raises ZeroDivisionError: .* \(lazy.py, line 3\); correct it"),
        ("raise SystemExit(3)\n", r"the module lazy raises SystemExit: 3 \(lazy.py, line 1\); correct it"),
    ],
)
@pytest.mark.parametrize("statement", ["from lazy import late", "import lazy"])
def test_a_module_that_cannot_be_imported_here_is_an_error_since_its_changes_would_not_be_noticed(
    folder: Path, text: str, reason: str, statement: str
) -> None:
    """Where a package was missing that only workers have, the module that imports it was left out of the key."""
    (folder / "lazy.py").write_text(text)
    replace(folder, "sets.py", "from lazy import late", statement)
    with pytest.raises(InputError, match=f"code = 'lazy': takes part in the key, and cannot be .* machine: .*{reason}"):
        identify()
    (folder / "shapes" / "lazy.py").write_text(text)
    replace(folder, "sets.py", statement, "from shapes import lazy")
    with pytest.raises(InputError, match=r"code = 'shapes\.lazy': takes part in the key"):
        identify()
    for name in ("lazy.py", "shapes/lazy.py"):  # which is an error of the function, if it is ever reached
        (folder / name).unlink()
    assert "shapes.lazy" not in identify().sources


@pytest.mark.parametrize("changed", ["lazy.py", "late.py", "helpers.py"])
def test_each_import_of_one_name_counts(folder: Path, changed: str) -> None:
    """Of the branches of a function the last one counted, and in a class no global that a method had imported, too."""
    for name in ("lazy.py", "late.py", "helpers.py"):
        (folder / name).write_text("def late(x):\n    return x\n")
    (folder / "sets.py").write_text(
        textwrap.dedent("""
            from helpers import late

            class Step:
                def one(self, x):
                    if x:
                        from lazy import late
                    else:
                        from late import late
                    return late(x)

                def other(self, x):
                    return late(x)

            def ratings(raw):
                return Step().one(raw), Step().other(raw)
        """)
    )
    before = identify()
    replace(folder, changed, "return x", "return -x")
    assert identify().digest != before.digest


def test_a_module_that_cannot_be_imported_here_may_have_another_one_in_its_place(folder: Path) -> None:
    (folder / "lazy.py").write_text("import no_such_package\n")
    both = "try:\n        from lazy import late\n    except ImportError:\n        from helpers import first as late"
    replace(folder, "sets.py", "from lazy import late", both)
    assert "helpers.first" in identify().sources


def test_a_function_without_source_is_an_error_with_a_remedy() -> None:
    scope: dict[str, Callable[[int], int]] = {}
    exec("def ghost(x):\n    return x", {"__name__": "__main__"}, scope)
    with pytest.raises(InputError, match=r"ghost.: has no source that can be read: define it by `def`"):
        code_module.identify(scope["ghost"])


@pytest.mark.parametrize("file", ["sets.py", "helpers.py"])
def test_a_file_that_is_changed_after_its_import_is_an_error_until_it_is_imported_again(
    folder: Path, file: str
) -> None:
    module = load()
    before = code_module.identify(module.ratings)
    replace(folder, file, "return x", "return  x + 1")
    with pytest.raises(SpotmpiError, match=f"{file} was changed after it was imported: start Python again, or call"):
        code_module.identify(module.ratings)
    importlib.reload(sys.modules[file.removesuffix(".py")])
    module = importlib.reload(module)
    assert code_module.identify(module.ratings).digest != before.digest or file == "sets.py"


def test_files_to_ship_are_those_of_the_modules_that_take_part(folder: Path) -> None:
    paths = [path.relative_to(folder).as_posix() for path in code_module.files_of(load().ratings)]
    assert paths == ["helpers.py", "lazy.py", "sets.py", "shapes"]


def test_recursion_and_cycles_end(folder: Path) -> None:
    (folder / "sets.py").write_text(
        textwrap.dedent("""
            def even(n):
                return n == 0 or odd(n - 1)

            def odd(n):
                return n != 0 and even(n - 1)
        """)
    )
    assert set(identify("even").sources) == {"sets.even", "sets.odd"}
