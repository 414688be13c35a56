"""Specs of all kinds, drawn by the types of their keys: a new key is drawn like the others."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel
from pydantic.fields import FieldInfo

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
POSITIVE = st.floats(0, exclude_min=True, allow_infinity=False) | st.integers(1, 10**7) | st.sampled_from([0.25, 90])
CPUS = st.integers(1, 10**6).map(lambda millicores: f"{millicores}m") | st.integers(1, 1000)
SIZES = st.tuples(st.integers(0, 10**6), st.sampled_from(["Mi", "Gi"])).map(lambda size: f"{size[0]}{size[1]}")
ODD_PATHS = ["~", "~nobody-here/x", "**", "x**.csv", "[", "a" * 300, "/", "..", ""]
WITHOUT_ZERO = TEXTS.filter(lambda text: "\0" not in text)
PATHS = st.lists(WITHOUT_ZERO, max_size=3).map("/".join) | st.sampled_from(ODD_PATHS)
MOUNTS = st.builds(
    lambda path, kind, name: {"path": path, kind: name}, PATHS, st.sampled_from(["claim", "empty"]), SIZES
)
# What types do not say: paths, sizes, and what only fits together.
DRAWN = {
    "JobSpec.code": PATHS,
    "JobSpec.files": st.lists(PATHS, max_size=3),
    "JobSpec.data": PATHS | st.builds(lambda path, stage: {"path": path, "stage": stage}, PATHS, st.just("node")),
    "Checkpoint.path": PATHS,
    "Checkpoint.memory": st.integers(1, 10**6) | st.sampled_from(["1", "250", "10s", "0.5s", "2m"]),
    "Capacity.deadline": POSITIVE | st.sampled_from(["30h", "2027-01-31T18:00+01:00"]),
    "Limits.driver": POSITIVE | st.sampled_from(["none", "1h", 0]),
    "Limits.silence": st.floats(0.5, 60),
    "Kubernetes.templates": st.lists(PATHS | WITHOUT_ZERO.map("configmap:{}".format), max_size=3),
    "Kubernetes.mounts": st.lists(MOUNTS, max_size=2),
    "Stream.source": PATHS | st.sampled_from(["s3://set/*.csv", "flow:rows"]),
    "Stream.debug": st.floats(0, 1),
}


def tables(model: type[BaseModel]) -> st.SearchStrategy[dict[str, Any]]:
    """Some of the keys of a table, each with a value of its type."""
    keys = {name: _field(f"{model.__name__}.{name}", field) for name, field in model.model_fields.items()}
    required = {name for name, field in model.model_fields.items() if field.is_required()}
    return st.fixed_dictionaries(
        {name: drawn for name, drawn in keys.items() if name in required},
        optional={name: drawn for name, drawn in keys.items() if name not in required},
    )


def _field(path: str, field: FieldInfo) -> st.SearchStrategy[Any]:
    return DRAWN[path] if path in DRAWN else _values(field.annotation, field.metadata)


def _values(kind: Any, metadata: Sequence[Any] = ()) -> st.SearchStrategy[Any]:
    """Values of a type with the metadata of its annotation."""
    arguments, origin = get_args(kind), get_origin(kind)
    if origin is Annotated:  # a Field, as pydantic keeps it, or its own metadata
        more = [each for part in kind.__metadata__ for each in getattr(part, "metadata", [part])]
        return _values(arguments[0], [*metadata, *more])
    if origin in (Union, types.UnionType) and type(None) in arguments:
        (inner,) = (each for each in arguments if each is not type(None))
        return _values(inner, metadata)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is list:
        return st.lists(_values(arguments[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(TEXTS, TEXTS if arguments[1] in (str, Any) else _values(arguments[1]), max_size=3)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return tables(kind)
    return _scalars(kind, metadata)


def _scalars(kind: Any, metadata: Sequence[Any]) -> st.SearchStrategy[Any]:
    if kind == (int | float):
        return CPUS
    if kind is str and any(isinstance(each, AfterValidator) for each in metadata):
        return PATHS  # FilePath, the only text with a validator
    if kind is str:
        return SIZES if any(getattr(each, "pattern", None) for each in metadata) else TEXTS
    limits = {name: [getattr(each, name) for each in metadata if hasattr(each, name)] for name in ("ge", "le")}
    if kind is int:
        return st.integers(max(limits["ge"], default=0), min(limits["le"], default=10**6))
    return {
        bool: st.booleans(),
        float: st.floats(0, min(limits["le"]), exclude_min=True) if limits["le"] else POSITIVE,
    }[kind]
