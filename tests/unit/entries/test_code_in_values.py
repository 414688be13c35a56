"""Code counts wherever it stands: in decorators, closures, objects, registries, arguments and lambdas."""

from __future__ import annotations

import builtins
import json
import os
import statistics
import subprocess
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import numpy as np
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
    "what a function of several calls of another one has": (
        """
        class Scale:
            def __init__(self, by):
                self.by = by
        def make(n, scale):
            def inner(x):
                return x + n * scale.by
            return inner
        one, two = make(1, Scale(5)), make(2, Scale(6))
        def build(raw):
            return one(two(raw))
        """,
        [("make(1", "make(3"), ("make(2", "make(3"), ("(5)", "(7)"), ("(6)", "(7)")],
    ),
    "which function of a package a name is": (
        """
        import functools, math as m
        from statistics import mean as average
        import numpy as np
        functions, least = {"x": np.add}, min
        most = functools.partial(functools.partial(max, 1), 2)
        def build(raw):
            return average(raw), m.sqrt(functions["x"](raw, least(raw))), most(raw)
        """,
        [
            ("mean as", "median as"),
            ("math as", "cmath as"),
            ("np.add", "np.subtract"),
            ('least = {"x": np.add}, min', 'least = {"x": np.add}, max'),
            ("(max, 1)", "(min, 1)"),
            ("(max, 1)", "(max, 2)"),
            ("), 2)", "), 1)"),
        ],
    ),
    "a method that was replaced by itself with a decorator": (
        """
        import functools
        def times(n):
            def decorate(f):
                @functools.wraps(f)
                def wrapper(self, x):
                    return f(self, x) * n
                return wrapper
            return decorate
        n = 7
        class Cleaner:
            def run(self, x):
                return x
            def __add__(self, x):
                return -x
            @times(2)
            def scale(self, x):
                return x * n
        Cleaner.run = times(3)(Cleaner.run)
        Cleaner.__add__ = times(4)(Cleaner.__add__)
        def build(raw):
            return Cleaner().run(raw) + raw
        """,
        [("times(3)", "times(5)"), ("times(4)", "times(5)"), ("return x\n", "return +x\n"), ("n = 7", "n = 8")],
    ),
    "what gives the value of an attribute that was assigned later": (
        """
        import functools
        class Field:
            def __init__(self, value):
                self.value = value
            def __get__(self, owner, kind):
                return self.value
        class Settings:
            __slots__ = ("more",)
        def add(self, x):
            return x
        Settings.rate = Field(4)
        Settings.add = functools.partialmethod(add, 9)
        def build(raw):
            return Settings().rate + Settings().add()
        """,
        [("Field(4)", "Field(5)"), ("add, 9", "add, 8"), ("return self.value", "return -self.value")],
    ),
    "sets, whose order in memory differs from process to process": (
        """
        import collections, types
        import numpy as np
        letters = frozenset("abcdefgh")
        nested = [{("t", frozenset("ijklmn")): 1}, collections.defaultdict(list, x=frozenset("opqrst"))]
        others = types.SimpleNamespace(x={"1", 1, *"uvwxyz"}), collections.deque([frozenset("ABCDEF")])
        grouped = {frozenset("GHIJ"), frozenset("KLMN"), frozenset("OPQR")}
        class Point:
            def __init__(self, x):
                self.x = x
        points = {Point(1), Point(2), Point(3), frozenset("STUVWX")}
        def inner(x, **more):
            return x + 5
        called = np.vectorize(inner, excluded=["Y", "Z", "a", "b", "c", "d"])
        functions = {inner, len, max, min}
        def build(raw):
            return letters, nested, others, grouped, points, called(raw), functions
        """,
        [
            ("abcdefgh", "abcdefg"),
            ("ijklmn", "ijklm"),
            ("opqrst", "opqrs"),
            ("uvwxyz", "uvwxy"),
            ("ABCDEF", "ABCDE"),
            ("GHIJ", "GHI"),
            ("STUVWX", "STUVW"),
            ("x + 5", "x + 6"),
            ('"Y", ', ""),
            ("len, ", ""),
        ],
    ),
    "what collections of the standard library hold": (
        """
        import collections, types
        def zero():
            return 0
        class Entry:
            limit = 5
        counts = collections.defaultdict(zero, a=1)
        entries = [collections.defaultdict(Entry)]
        initial = collections.defaultdict(lambda: 7)
        fixed = types.MappingProxyType({"a": lambda: 11})
        def last():
            return 13
        views = {"a": last}.values()
        def build(raw):
            return counts, entries, initial, fixed, views
        """,
        [
            ("return 0", "return 1"),
            ("limit = 5", "limit = 6"),
            ("lambda: 7", "lambda: 8"),
            ("lambda: 11", "lambda: 12"),
            ("return 13", "return 14"),
        ],
    ),
    "how collections with code are nested": (
        """
        import functools
        def f(*x):
            return x
        def g(x):
            return x + 1
        stages = [[f], [g, f]]
        named = {"a": [f, "b", g]}
        ends = [f, []]
        fixed = [g]
        class Steps:
            def __init__(self, *steps):
                self.steps = steps
        steps = Steps([f], 2)
        bound = functools.partial(f, [g], 3)
        def build(raw):
            return stages, named, ends, fixed, steps, bound
        """,
        [
            ("[[f], [g, f]]", "[[f, g], [f]]"),
            ('{"a": [f, "b", g]}', '{"a": f, "b": g}'),
            ("[f, []]", "[f]"),
            ("fixed = [g]", "fixed = (g,)"),
            ("[f], 2", "[f, 2]"),
            ("[g], 3", "[g, 3]"),
        ],
    ),
    "what types are made of": (
        """
        import typing
        class Bound:
            low = 1
        Mode = typing.Literal["a", "b"]
        Limited = typing.Annotated[int, Bound()]
        Number = int | float
        Bounds = list[Bound]
        Later = typing.Optional["Bound"]
        Call = typing.Callable[[int], typing.Any]
        Pair = tuple[int, ...]
        User = typing.NewType("User", int)
        Users = list[User]
        Unused = typing.NewType("Unused", int)
        def build(raw):
            return typing.get_args(Mode), Limited, isinstance(raw, Number), Bounds, Later, Call, Pair, Users
        """,
        [
            ('"a", "b"', '"a", "c"'),
            ("low = 1", "low = 2"),
            ("int | float", "int | str"),
            ('Optional["Bound"]', 'Optional["Mode"]'),
            ("[[int], ", "[[str], "),
            ("int, ...", "str, ..."),
            ('"User", int', '"User", str'),
        ],
    ),
    "a variable of the function around it that a function changes": (
        """
        def make():
            count = 0
            def tick():
                nonlocal count
                count += 1
                return count + more(count)
            tick()
            return tick
        def more(x):
            return x + 5
        tick = make()
        def build(raw):
            return tick()
        """,
        [("count = 0", "count = 2"), ("count += 1", "count -= 1"), ("x + 5", "x + 6")],
    ),
    "which of several classes of a name there is": (
        """
        fast = True
        if fast:
            class Cleaner:
                def run(self, x):
                    return x + 1
        else:
            class Cleaner:
                def run(self, x):
                    return x + 2
        try:
            import not_there
            class Reader:
                @property
                def rate(self):
                    return 3
        except ImportError:
            class Reader:
                @property
                def rate(self):
                    return 4
        def make():
            class Writer:
                def write(self, x):
                    return x + 5
            return Writer
        class Writer:
            def write(self, x):
                return x + 6
        Other = make()
        def build(raw):
            return Cleaner().run(raw), Reader().rate, Writer().write(raw), Other().write(raw)
        """,
        [
            ("fast = True", "fast = False"),
            ("x + 1", "x + 7"),
            ("return 4", "return 7"),
            ("x + 5", "x + 7"),
            ("x + 6", "x + 7"),
        ],
    ),
    "what an object of any attributes holds": (
        """
        class Settings(dict):
            __getattr__ = dict.get
        settings = Settings(rate=1)
        def build(raw):
            return settings.rate
        """,
        [("rate=1", "rate=2")],
    ),
    "classes that were registered for a base class": (
        """
        import abc
        class Base(abc.ABC):
            pass
        class First:
            pass
        class Second:
            pass
        Base.register(First)
        def build(raw):
            return isinstance(raw, Base)
        """,
        [("register(First)", "register(Second)"), ("Base.register(First)\n", "")],
    ),
    "attributes of a partial function, and an object that pickle takes by its name": (
        """
        import functools
        most = functools.partial(max, 1)
        most.unit = 3
        class Step:
            def __reduce__(self):
                return "step"
            def __call__(self, x):
                return x + 5
        step = Step()
        def build(raw):
            return most.unit, step(raw)
        """,
        [("unit = 3", "unit = 4"), ("x + 5", "x + 6")],
    ),
    "a class that an annotation names, also as a text": (
        """
        import dataclasses, typing
        class First:
            low = 1
        class Second:
            low = 2
        class Third:
            low = 3
        @dataclasses.dataclass
        class Row:
            first: First
            second: "Second | None" = None
            mode: typing.Annotated[int, "a b", "(yield)"] = 5
        def check(x: "list['Third']"):
            return x
        def build(raw):
            return typing.get_type_hints(Row), typing.get_type_hints(check)
        """,
        [("low = 1", "low = 4"), ("low = 2", "low = 4"), ("low = 3", "low = 4")],
    ),
    "attributes and defaults that are objects": (
        """
        import datetime, threading, weakref
        import numpy as np
        class Settings:
            rates = np.zeros(2)
            lock = threading.Lock()
        Settings.rates[0] = 1
        Settings.since = datetime.date(2026, 2, 3)
        def scale(x, by=np.ones(2)):
            return x * by
        scale.__defaults__[0][1] = 4
        class Step:
            known = weakref.WeakSet()
            def __init__(self, by):
                self.by = by
                Step.known.add(self)
        first = Step(5)
        def build(raw):
            return Settings.rates, Settings.since, scale(raw), [each.by for each in Step.known]
        """,
        [("[0] = 1", "[1] = 1"), ("2, 3)", "2, 4)"), ("[1] = 4", "[1] = 5"), ("Step(5)", "Step(6)")],
    ),
    "objects of classes of the user that are numbers or texts": (
        """
        import enum
        class Word(str):
            def end(self):
                return self + "!"
        class Level(enum.IntEnum):
            LOW = 1
            def next(self):
                return self + 2
        word, levels = Word("a"), [Level.LOW]
        def build(raw):
            return word.end(), levels[0].next()
        """,
        [('"!"', '"?"'), ('Word("a")', 'Word("b")'), ("self + 2", "self + 3"), ("LOW = 1", "LOW = 4")],
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

if sys.version_info >= (3, 12):
    COUNTS["an alias of a type"] = (
        """
        class Bound:
            low = 1
        type Rows = list[Bound]
        type Nested = dict[str, Nested] | Rows
        type Of[T] = list[T]
        Numbers = Of[int]
        def build(raw):
            return Nested.__value__, Numbers
        """,
        [("low = 1", "low = 2"), ("= list[Bound]", "= set[Bound]"), ("dict[str", "dict[int"), ("Of[int]", "Of[str]")],
    )


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


def test_what_a_type_that_is_not_used_stands_for_makes_no_difference(modules: Modules) -> None:
    write(modules, COUNTS["what types are made of"][0])
    before = digest(modules)
    modules.replace("sets", '"Unused", int', '"Unused", str')
    assert digest(modules) == before


@pytest.mark.extensive("interpreters of other hash seeds; test_values has most kinds of values in them")
def test_digests_are_those_of_another_process_with_another_hash_seed(modules: Modules, tmp_path: Path) -> None:
    here = {}
    for name, (text, _) in COUNTS.items():
        write(modules, text)
        here[name] = digest(modules)
        (tmp_path / name).mkdir()
        (tmp_path / name / "sets.py").write_text(textwrap.dedent(text))
    program = """
import json, sys
from spotmpi.entries.code import identify
found = {}
for name in sys.argv[1:]:
    sys.path.insert(0, name)
    import sets
    found[name] = identify(sets.build).digest
    del sys.modules["sets"], sys.path[0]
print(json.dumps(found))
"""
    environment, words = {**os.environ, "PYTHONHASHSEED": "1"}, [sys.executable, "-c", program, *COUNTS]
    there = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert there.returncode == 0, there.stderr
    assert json.loads(there.stdout) == here


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


def test_which_of_several_classes_is_not_there_makes_no_difference(modules: Modules) -> None:
    write(modules, COUNTS["which of several classes of a name there is"][0])
    before = digest(modules)
    modules.replace("sets", "x + 2", "x + 8")
    modules.replace("sets", "return 3", "return 8")
    assert digest(modules) == before


@pytest.mark.parametrize("old", ["x + 1", "x + 2", "rate = 3", "x + 4"])
def test_what_takes_the_place_of_a_function_of_a_package_or_a_builtin_counts(
    modules: Modules, monkeypatch: pytest.MonkeyPatch, old: str
) -> None:
    for name in ("mean", "median", "NormalDist"):
        monkeypatch.setattr(statistics, name, getattr(statistics, name))
    monkeypatch.setattr(builtins, "more", None, raising=False)
    modules.write(
        sets="""
import builtins, statistics as st
def mean(x):
    return x + 1
class Numbers:
    rate = 3
st.mean, st.median, st.NormalDist = mean, lambda x: x + 2, Numbers
builtins.more = lambda x: x + 4
def build(raw):
    from statistics import median as middle
    return st.mean(raw), middle(raw), st.NormalDist.rate, more(raw)
"""
    )
    before = digest(modules)
    modules.replace("sets", old, f"{old}5")
    assert digest(modules) != before


def test_an_attribute_of_a_class_that_reads_of_it_change_ends(modules: Modules) -> None:
    """As the classes of pydantic have them; the key ended with "dictionary changed size during iteration"."""
    write(
        modules,
        """
        class Late:
            def __getattr__(self, name):
                Row.done = True
                raise AttributeError(name)
        class Row:
            schema = Late()
            def check(self):
                return 1
        def build(raw):
            return Row().check()
        """,
    )
    before = digest(modules)
    modules.replace("sets", "return 1", "return 2")
    assert digest(modules) != before


def test_an_attribute_of_a_class_that_cannot_be_hashed_is_an_error_where_no_source_shows_it(modules: Modules) -> None:
    modules.write(
        sets="import threading\nclass A:\n    pass\nA.lock = threading.Lock()\ndef build(raw):\n    return A\n"
    )
    with pytest.raises(InputError, match=r"sets\.A\.lock = .*: cannot be hashed, so that a change of it"):
        code_module.identify(modules.load().build)


@pytest.mark.parametrize(
    "made",
    [
        "exec('def add(x): return x + 1', made)",
        "made['add'] = types.FunctionType(build.__code__, {})",
        "made['add'] = types.new_class('add')",
    ],
)
def test_a_function_of_no_module_is_an_error_since_its_code_cannot_be_read(modules: Modules, made: str) -> None:
    """It counted as a package without a version, so that a change of it made no difference."""
    modules.write(sets=f"import types\ndef build(raw):\n    return add(raw)\nmade = {{}}\n{made}\nadd = made['add']\n")
    with pytest.raises(InputError, match=r"code = 'sets\.add': has no source that can be read"):
        code_module.identify(modules.load().build)


def test_a_message_on_a_value_of_several_lines_is_one_line(modules: Modules) -> None:
    modules.write(
        sets="import numpy as np\nhidden = np.ma.array([1, 2], mask=[0, 1])\ndef build(raw):\n    return hidden\n"
    )
    with pytest.raises(InputError, match=r"^sets\.hidden = masked_array\([^\n]*: cannot be hashed[^\n]*$"):
        code_module.identify(modules.load().build)


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
        ("[each.run(raw) for each in Step.__subclasses__()]", "uses __subclasses__, by which the code that takes part"),
        ("build.__globals__[raw]", "uses __globals__, by which the code that takes part is not known"),
        ("runpy.run_path(raw)", "uses run_path, by which the code that takes part is not known"),
        ("importlib.util.spec_from_file_location(raw, raw)", "uses spec_from_file_location, by which the code that"),
        ("os.path.expandvars(raw)", "reads variables of the environment, which are not part of the key: give their"),
        ("getattr(sys, 'modules')[raw]", r"uses sys\.modules, by which the code that takes part is not known"),
        ("getattr(os, 'environ')['LIMIT']", "reads variables of the environment, which are not part of the key"),
        ("getattr(build, '__globals__')[raw]", "uses __globals__, by which the code that takes part is not known"),
        ("sys._getframe().f_globals[raw]", "uses f_globals, by which the code that takes part is not known"),
        ("getattr(inspect.getmodule(build), raw)", "uses getmodule, by which the code that takes part is not known"),
        ("open(os.path.expanduser('~/a.csv'))", "reads the home folder, which is not part of the key: give paths as"),
        ("Path('~/a.csv').expanduser()", "reads the home folder, which is not part of the key: give paths as arg"),
        ("(Path.home() / 'a.csv').read_text()", "reads the home folder, which is not part of the key: give paths"),
        ("(pathlib.Path.home() / 'a.csv').read_text()", "reads the home folder, which is not part of the key: give"),
        ("open(f'{os.path.dirname(__file__)}/a')", "finds files beside the code, which are not part of the key: read"),
        (
            "open(helper.__file__)",
            "finds files beside the code, which are not part of the key: read them where the mod",
        ),
        ("pkgutil.get_data('helper', 'a.txt')", "finds files beside the code, which are not part of the key: read"),
        ("importlib.resources.files('helper')", "finds files beside the code, which are not part of the key: read"),
        ("read_text('helper', 'a.txt')", "finds files beside the code, which are not part of the key: read them where"),
        (
            "np.datetime64('today')",
            r"np\.datetime64\('today'\) reads the clock, which is not part of the key: give the day",
        ),
        (
            "datetime64('Now', 'D') - raw",
            r"datetime64\('Now', 'D'\) reads the clock, which is not part of the key: give",
        ),
        ("getenv('LIMIT')", "reads variables of the environment, which are not part of the key: give their values"),
    ],
)
def test_code_and_values_that_no_key_has_are_an_error(modules: Modules, statement: str, message: str) -> None:
    imports = "import builtins, importlib.resources, importlib.util, inspect, os, pathlib, pkgutil, runpy, sys\n"
    imports += "import helper\nfrom importlib import import_module\nfrom importlib.resources import read_text\n"
    imports += "from os import getenv\nfrom pathlib import Path\nimport numpy as np\nfrom numpy import datetime64\n"
    modules.write(helper="")
    modules.write(sets=f"{imports}class Step: pass\ndef build(raw):\n    return {statement}\n")
    with pytest.raises(InputError, match=rf"code = 'sets\.\w+.*: {message}"):
        code_module.identify(modules.load().build)


def test_days_and_words_that_are_no_clock_have_a_key(modules: Modules) -> None:
    modules.write(
        sets="import numpy as np\ndef today(x): return x\n"
        "def build(raw):\n    return np.datetime64('2026-01-01'), np.datetime64('NaT'), np.array('now'), today('now')\n"
    )
    assert code_module.identify(modules.load().build).digest


class Lazy(types.ModuleType):
    """A module that imports others when it is asked for any name, as `pulumi._utils.lazy_import` makes them."""

    def __getattribute__(self, name: str) -> Any:
        if name.endswith("(vectorized)"):
            pytest.fail("imported everything")
        return super().__getattribute__(name)


@pytest.mark.parametrize("held", ["add", "[add]", "{1: add}"])
def test_a_function_of_numpy_that_calls_one_of_the_user_is_an_error_since_its_code_cannot_be_read(
    modules: Modules, monkeypatch: pytest.MonkeyPatch, held: str
) -> None:
    monkeypatch.setitem(sys.modules, "lazy", Lazy("lazy"))
    add = f"add = np.frompyfunc(lambda x, y: x + y, 2, 1)\nadd = {held}"
    modules.write(sets=f"import numpy as np\n{add}\ndef build(raw):\n    return add, raw\n")
    with pytest.raises(InputError, match=r"sets\.add(\[\d\])? = .*: cannot be hashed, so that a change of it"):
        code_module.identify(modules.load().build)


def test_which_function_of_a_package_an_argument_is_counts(modules: Modules) -> None:
    modules.write(sets="def build(raw, by):\n    return by(raw)\n")
    build = modules.load().build
    functions = (min, max, statistics.mean, statistics.median, np.mean, np.median, [min], [max], str.lower, str.upper)
    assert len({code_module.identify(build, {"by": each}).digest for each in functions}) == len(functions)


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


def test_packages_beside_own_modules_are_installed_ones(
    modules: Modules, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pip install --target FOLDER` writes the packages, and a record of each, into that folder."""
    place = tmp_path / "target"
    record = place / "packaged_means-3.1.dist-info"
    record.mkdir(parents=True)
    (place / "packaged_means.py").write_text("def mean(x):\n    return x / 2\n")
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: packaged-means\nVersion: 3.1\n")
    (record / "RECORD").write_text("packaged_means.py,,\npackaged_means-3.1.dist-info/METADATA,,\n")
    (place / "own_means.py").write_text("def half(x):\n    return x / 2\n")
    monkeypatch.syspath_prepend(str(place))
    imports = "from own_means import half\nfrom packaged_means import mean\n"
    modules.write(sets=f"{imports}\ndef build(raw):\n    return mean(half(raw))\n")
    found = code_module.identify(modules.load().build)
    assert set(found.sources) == {"sets.build", "own_means.half"} and found.packages["packaged_means"] == "3.1"
    assert {path.name for path in code_module.files_of(modules.load().build)} == {"sets.py", "own_means.py"}


def test_modules_are_shipped_that_a_module_imports_for_others(modules: Modules) -> None:
    modules.write(deeper="X = 1\n", deep="import deeper\n", sets="import deep\n\ndef build(raw):\n    return raw\n")
    assert [path.name for path in code_module.files_of(modules.load().build)] == ["sets.py", "deep.py", "deeper.py"]
