"""Code counts wherever it stands: in decorators, closures, objects, registries, arguments and lambdas."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from spotmpi.core.errors import InputError
from spotmpi.entries import code as code_module
from tests.unit.entries.conftest import Modules

COUNTS = {
    "a decorator that keeps the name": (
        """
        import functools
        def twice(f):
            @functools.wraps(f)
            def wrapper(x):
                return f(x) * 2
            return wrapper
        def base(x):
            return x
        doubled = twice(base)
        def build(raw):
            return doubled(raw)
        """,
        [("* 2", "* 3"), ("return x\n", "return -x\n")],
    ),
    "a decorator of a class": (
        """
        import functools
        class Twice:
            def __init__(self, f):
                functools.update_wrapper(self, f)
                self.f = f
            def __call__(self, x):
                return self.f(x) * 2
        def base(x):
            return x
        doubled = Twice(base)
        def build(raw):
            return doubled(raw)
        """,
        [("* 2", "* 3"), ("return x\n", "return -x\n")],
    ),
    "the functions of singledispatch": (
        """
        import functools
        @functools.singledispatch
        def convert(x):
            return x
        @convert.register
        def _(x: int):
            return x + 1
        def build(raw):
            return convert(raw)
        """,
        [("x + 1", "x + 2"), ("return x\n", "return -x\n")],
    ),
    "a context manager": (
        """
        import contextlib
        @contextlib.contextmanager
        def limit():
            yield 1
        def build(raw):
            with limit() as most:
                return most
        """,
        [("yield 1", "yield 2")],
    ),
    "what a callable object holds": (
        """
        import operator
        pick = operator.itemgetter("a")
        join = ",".join
        def build(raw):
            return join(pick(raw))
        """,
        [('"a"', '"b"'), ('","', '";"')],
    ),
    "a function in an object of a package": (
        """
        import numpy as np
        def inner(x):
            return x + 1
        steps = [np.vectorize(inner), np.vectorize(lambda x: x * 3)]
        def build(raw):
            return steps[0](raw)
        """,
        [("x + 1", "x + 2"), ("x * 3", "x * 4")],
    ),
    "a function in an object of a shipped class": (
        """
        import dataclasses
        def inner(x):
            return x + 1
        @dataclasses.dataclass
        class Step:
            function: object
            def run(self, x):
                return self.function(x) * 2
        class Chain:
            def __init__(self, *steps):
                self.steps = {"all": steps, "names": {"b", "a"}}
        chain = Chain(Step(inner), Step(lambda x: x - 1))
        def build(raw):
            return [each.run(raw) for each in chain.steps["all"]]
        """,
        [("x + 1", "x + 2"), ("x - 1", "x - 2"), ("* 2", "* 3"), ('"b"', '"c"')],
    ),
    "a closure of a class": (
        """
        def make(cut):
            class Filter:
                def keep(self, x):
                    return x > cut
            return Filter
        Kept = make(0.5)
        def build(raw):
            return Kept().keep(raw)
        """,
        [("make(0.5)", "make(0.6)")],
    ),
    "defaults of functions in functions": (
        """
        scales = [lambda x, k=k: x * k for k in (1, 2)]
        def make(n):
            def inner(x, k=n):
                return x + k
            return inner
        added = make(7)
        def build(raw):
            return [scale(added(raw)) for scale in scales]
        """,
        [("(1, 2)", "(1, 3)"), ("make(7)", "make(8)")],
    ),
    "a method that was assigned later": (
        """
        class Cleaner:
            def run(self, x):
                return x
        def better(self, x):
            return x + 5
        Cleaner.run = better
        def build(raw):
            return Cleaner().run(raw)
        """,
        [("x + 5", "x + 6")],
    ),
    "classes that a call makes": (
        """
        import collections, enum
        Point = collections.namedtuple("Point", "x y")
        Color = enum.Enum("Color", "RED BLUE")
        def build(raw):
            return Point(raw, Color.RED)
        """,
        [("x y", "x z"), ("RED BLUE", "RED GREEN")],
    ),
    "lambdas in a table, and several in a line": (
        """
        table = {
            "a": lambda x: x + 1,
            "b": lambda x: (lambda y: y * 2)(x),
        }
        first, second = (lambda x: x - 3), (lambda x: x / 4)
        none, seven = (lambda: None), (lambda: 7)
        def build(raw):
            return [each(raw) for each in table.values()], first(raw), second(raw), none(), seven()
        """,
        [("x + 1", "x + 2"), ("y * 2", "y * 3"), ("x - 3", "x - 4"), ("x / 4", "x / 5"), ("7", "8")],
    ),
    "a generic class with its parameters": (
        """
        import typing
        T = typing.TypeVar("T")
        class Box(typing.Generic[T]):
            def run(self, x):
                return x + 1
        Boxes = Box[int]
        def build(raw):
            return Boxes().run(raw)
        """,
        [("x + 1", "x + 2")],
    ),
    "what an object says of itself": (
        """
        class Table:
            def __init__(self, name):
                self.name, self.opened = name, object()
            def __dask_tokenize__(self):
                return self.name
        table = Table("a")
        def build(raw):
            return table
        """,
        [('Table("a")', 'Table("b")')],
    ),
    "attributes of classes and functions that are assigned or changed later, and defaults": (
        """
        import functools
        class Settings:
            rate = 1
            steps: dict = {}
            names = {"b", "a"}
        Settings.rate = 2
        Settings.more = [3]
        Settings.steps["first"] = 4
        def change(x):
            return x + 5
        Settings.steps["second"] = change
        def scale(x, by=6, *, of=7):
            return x * by / of / scale.unit
        scale.unit = 8
        def shift(x, by=9, *, of=0):
            return x + by
        shift.__defaults__ = (10,)
        shift.__kwdefaults__ = {"of": 11}
        def build(raw):
            return Settings.rate, Settings.steps, scale(raw), shift(raw)
        """,
        [
            ("rate = 2", "rate = 1"),
            ("[3]", "[0]"),
            ('"] = 4', '"] = 5'),
            ("x + 5", "x + 6"),
            ("by=6", "by=7"),
            ("of=7", "of=8"),
            ("unit = 8", "unit = 9"),
            ("(10,)", "(9,)"),
            ("11}", "0}"),
        ],
    ),
    "the order of a dictionary, as of columns": (
        """
        columns = [{"a": 1, "b": 2}]
        def build(raw):
            return {**columns[0]}
        """,
        [('"a": 1, "b": 2', '"b": 2, "a": 1')],
    ),
    "a mark": (
        """
        MISSING = object()
        def value(x, default=MISSING):
            return 1 if default is MISSING else default
        def build(raw):
            return value(raw)
        """,
        [("return 1 if", "return 2 if")],
    ),
}


def write(modules: Modules, text: str) -> None:
    modules.write(sets=textwrap.dedent(text))


def digest(modules: Modules) -> str:
    return code_module.identify(modules.load().build).digest


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        pytest.param(text, *change, id=f"{name}: {change[0].strip()}")
        for name, (text, changes) in COUNTS.items()
        for change in changes
    ],
)
def test_a_change_changes_the_digest_and_a_comment_does_not(modules: Modules, text: str, old: str, new: str) -> None:
    write(modules, text)
    before = digest(modules)
    modules.replace("sets", "def build(raw):", "def unrelated(x):\n    return x\n\ndef build(raw):  # a comment")
    assert digest(modules) == before
    modules.replace("sets", old, new)
    assert digest(modules) != before


@pytest.mark.parametrize("text", [text for text, _ in COUNTS.values()], ids=COUNTS)
def test_the_digest_is_that_of_another_process_with_another_hash_seed(modules: Modules, text: str) -> None:
    write(modules, text)
    program = "import sets; from spotmpi.entries.code import identify; print(identify(sets.build).digest)"
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": str(modules.folder)}
    found = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert found.stdout.strip() == digest(modules), found.stderr


def test_what_the_source_shows_is_not_taken_again_by_its_value(modules: Modules) -> None:
    """Or each default would be named twice in what differs, and the keys of all such code would have changed."""
    modules.write(
        rates="FAST = 2.0\n",
        sets="""
import rates
SLOW = [1]
class Settings:
    rate = 1
    steps = SLOW
    fast: float = rates.FAST
def scale(x, by=SLOW, fast=rates.FAST, *, of=3, more=(1, -2)):
    return x, Settings
def build(raw):
    return scale(raw)
""",
    )
    assert {*code_module.identify(modules.load().build).values} == {"sets.SLOW", "rates.FAST"}


def test_an_object_that_leads_to_itself_ends(modules: Modules) -> None:
    write(
        modules,
        """
        class Node:
            def __init__(self):
                self.others = [self]
        root = Node()
        def build(raw):
            return root
        """,
    )
    assert digest(modules) == digest(modules)


def test_an_object_that_cannot_be_pickled_is_an_error_that_names_it(modules: Modules) -> None:
    text = (
        "import socket\n\nclass Link(socket.socket):\n    pass\n\nlink = Link()\n\ndef build(raw):\n    return link\n"
    )
    modules.write(sets=text)
    build = modules.load().build
    with pytest.raises(InputError, match=r"sets\.link = .*: cannot be hashed, so that a change of it"):
        code_module.identify(build)
    build.__globals__["link"].close()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("importlib.import_module(raw)", "uses import_module, by which the code that takes part is not known"),
        ("import_module(raw)", "uses import_module, by which the code that takes part is not known"),
        ("sys.modules[raw]", r"uses sys\.modules, by which the code that takes part is not known"),
        ("builtins.eval(raw)", "uses eval, by which the code that takes part is not known"),
        ("os.environ['LIMIT']", "reads variables of the environment, which are not part of the key: give their values"),
        ("getenv('LIMIT')", "reads variables of the environment, which are not part of the key: give their values"),
    ],
)
def test_code_and_values_that_no_key_has_are_an_error(modules: Modules, statement: str, message: str) -> None:
    imports = "import builtins, importlib, os, sys\nfrom importlib import import_module\nfrom os import getenv\n"
    modules.write(sets=f"{imports}\ndef build(raw):\n    return {statement}\n")
    with pytest.raises(InputError, match=rf"code = 'sets\.\w+.*: {message}"):
        code_module.identify(modules.load().build)


def test_code_in_arguments_counts(modules: Modules) -> None:
    text = "class Step:\n    def run(self, x):\n        return x\n\ndef change(x):\n    return x + 1\n"
    modules.write(steps=text, sets="import steps\n\ndef build(raw, with_: object):\n    return raw\n")

    def found() -> list[str]:
        build = modules.load().build
        steps = build.__globals__["steps"]
        values = (steps.change, [steps.Step()], 7)
        return [code_module.identify(build, {"with_": value}).digest for value in values]

    before = found()
    modules.replace("steps", "x + 1", "x + 2")
    changed = found()
    modules.replace("steps", "return x\n", "return -x\n")
    assert [old == new for old, new in zip(before, changed, strict=True)] == [False, True, True]
    assert [old == new for old, new in zip(changed, found(), strict=True)] == [True, False, True]


def test_packages_of_debian_are_installed_ones(
    modules: Modules, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "lib" / "dist-packages"
    place.mkdir(parents=True)
    (place / "packaged_sums.py").write_text("def add(x):\n    return x + 1\n")
    monkeypatch.syspath_prepend(str(place))
    modules.write(sets="from packaged_sums import add\n\ndef build(raw):\n    return add(raw)\n")
    found = code_module.identify(modules.load().build)
    assert set(found.sources) == {"sets.build"} and "packaged_sums" in found.packages
    assert [path.name for path in code_module.files_of(modules.load().build)] == ["sets.py"]


def test_modules_are_shipped_that_a_module_imports_for_others(modules: Modules) -> None:
    modules.write(deeper="X = 1\n", deep="import deeper\n", sets="import deep\n\ndef build(raw):\n    return raw\n")
    assert [path.name for path in code_module.files_of(modules.load().build)] == ["sets.py", "deep.py", "deeper.py"]
