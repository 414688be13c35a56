"""What differs between two entries: code as a diff, arguments, inputs, image and packages; of models more. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from spotmpi.agent import checkpoint_files
from spotmpi.core.wording import counted, dotted
from spotmpi.entries.manifest import MODEL, SHORT, Code, Input, Manifest

_MAX_FILES = 10  # that are named of each input


def differences(one: Manifest, other: Manifest) -> list[str]:
    """The lines that say why two entries are not the same; empty where nothing that counts differs."""
    return [
        *_code(one.code or Code(""), other.code or Code("")),
        *_values("argument", _arguments(one, other), _arguments(other, one)),
        *_inputs(one, other),
        *_values("image", one.image or {}, other.image or {}),
        *(_model(one, other) if one.kind == MODEL else _values("setting", _settings(one), _settings(other))),
    ]


def _code(one: Code, other: Code) -> Iterator[str]:
    for name in sorted({*one.sources, *other.sources}):
        old, new = (code.sources.get(name, "").splitlines() for code in (one, other))
        if old != new:
            yield f"code {name}:"
            yield from (f"  {line}" for line in [*difflib.unified_diff(old, new, lineterm="", n=2)][2:])
    for name in sorted({*one.values, *other.values}):
        if one.values.get(name) != other.values.get(name):
            yield f"value {name}: {_short(one.values.get(name))}, {_short(other.values.get(name))}"
    yield from _values("package", one.packages, other.packages)


def _arguments(manifest: Manifest, other: Manifest) -> dict[str, Any]:
    """The arguments; for those whose text does not tell how the *other* ones differ, their digests."""
    tokens, others = (each.details.get("tokens", {}) for each in (manifest, other))
    told = [name for name in tokens if tokens[name] != others.get(name)]
    told = [name for name in told if manifest.arguments.get(name) != other.arguments.get(name)]
    return {**manifest.arguments, **{name: tokens[name] for name in tokens if name not in told}}


def _settings(manifest: Manifest) -> dict[str, Any]:
    return {name: manifest.details[name] for name in ("function", "row_group") if name in manifest.details}


def _model(one: Manifest, other: Manifest) -> Iterator[str]:
    """What differs between two models besides: spec, what they were made from, metrics and files."""
    for what, values in (
        ("spec", [dotted(each.details.get("spec", {})) for each in (one, other)]),
        ("commit", [{"of the code": each.code.commit} if each.code else {} for each in (one, other)]),
        (
            "parent",
            [{f"{each.kind}:{each.name}": each.key[:SHORT] for each in model.parents} for model in (one, other)],
        ),
        ("metric", [each.details.get("metrics", {}) for each in (one, other)]),
        ("file", [_file_digests(each) for each in (one, other)]),
    ):
        yield from _values(what, *values)


def _file_digests(model: Manifest) -> dict[str, str]:
    """Those of a model's files; without the manifest of a checkpoint, which has the run and times."""
    is_state = "checkpoint" in model.details
    return {
        file.path: file.sha256[:SHORT]
        for file in model.files
        if not (is_state and file.path == checkpoint_files.MANIFEST)
    }


def _values(what: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({*one, *other}):
        if (name in one, one.get(name)) != (name in other, other.get(name)):
            texts = (repr(each[name]) if name in each else "none" for each in (one, other))
            yield f"{what} {name}: {', '.join(texts)}"


def _inputs(one: Manifest, other: Manifest) -> Iterator[str]:
    inputs = [{each.argument: each for each in manifest.inputs} for manifest in (one, other)]
    for argument in sorted({*inputs[0], *inputs[1]}):
        old, new = (each.get(argument) for each in inputs)
        if old is None or new is None or old.digest != new.digest:
            yield f"input {argument}: {_named(old)}, {_named(new)}"
            yield from _files(old, new) if old and new else ()


def _named(value: Input | None) -> str:
    return value.source if value else "none"


def _files(one: Input, other: Input) -> Iterator[str]:
    old, new = ({file.name: file.digest for file in each.files} for each in (one, other))
    changes = [
        *(f"  {name} was changed" for name in sorted(old.keys() & new.keys()) if old[name] != new[name]),
        *(f"  {name} was added" for name in sorted(new.keys() - old.keys())),
        *(f"  {name} was removed" for name in sorted(old.keys() - new.keys())),
    ]
    yield from changes[:_MAX_FILES]
    if len(changes) > _MAX_FILES:
        yield f"  and {counted(len(changes) - _MAX_FILES, 'more file')}"


def _short(text: str | None) -> str:
    return "none" if text is None else text if len(text) <= 40 else text[:SHORT]
