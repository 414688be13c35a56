"""Paths in a spec's values: absolute while it is used, relative to its file in TOML. Pure but for looking for data."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spotmpi.core import file_status
from spotmpi.spec.kubernetes import CONFIG_MAP
from spotmpi.spec.overrides import data_table
from spotmpi.streams.order import FUNCTION

Convert = Callable[[str], str]


def resolve_paths(values: dict[str, Any], base: Path) -> dict[str, Any]:
    """*values* with absolute paths; relative ones are relative to *base*.

    A relative path of data or init without a folder on this machine stays as it is: on a cluster it is relative to the
    run volume.
    So does the source of a stream without a file on this machine, and a relative checkpoint path, which is always
    relative to the run folder.
    """
    data = data_table(values.get("data"))
    if isinstance(data, dict) and isinstance(data.get("path"), str):
        path = _resolve(base, data["path"])
        values = {**values, "data": {**data, "path": path if _exists(path) else data["path"]}}
    if isinstance(values.get("init"), str) and _exists(path := _resolve(base, values["init"])):
        values = {**values, "init": path}
    checkpoint = values.get("checkpoint")
    if isinstance(checkpoint, dict) and isinstance(checkpoint.get("path"), str):
        values = {**values, "checkpoint": {**checkpoint, "path": str(_expand(checkpoint["path"]))}}

    def resolve(path: str) -> str:
        return _resolve(base, path)

    def absolute(path: str) -> str:  # a link is shipped under its own name
        return os.path.normpath(base.absolute() / _expand(path))

    def source(path: str) -> str:
        pattern = absolute(path)
        return pattern if path.startswith("~") or _has_files(pattern) else path

    return _convert(values, resolve, absolute, source)


def _expand(path: str) -> Path:
    """The path below the home folder that it names; as it is where no user has that name."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def _resolve(base: Path, path: str) -> str:
    """The absolute path; as it is where no file can have it, which validation reports."""
    try:
        return str((base / _expand(path)).resolve())
    except (OSError, RuntimeError, ValueError):  # too long, a loop of links, a NUL character
        return path


def _exists(path: str) -> bool:
    try:
        return file_status.exists(Path(path))
    except (OSError, ValueError):  # too long, not permitted, or with a NUL character: validation says so
        return False


def _has_files(pattern: str) -> bool:
    try:
        return os.path.lexists(pattern) or any(Path("/").glob(pattern[1:]))
    except (OSError, ValueError):  # too long, a NUL character, or no pattern
        return False


def relative_paths(values: dict[str, Any], base: Path) -> dict[str, Any]:
    """*values* in which the paths of code, files and templates below *base* are relative to it."""

    def relative(path: str) -> str:
        return str(Path(path).relative_to(base)) if Path(path).is_relative_to(base) else path

    return _convert(values, relative, relative, relative)


def _convert(values: dict[str, Any], resolve: Convert, absolute: Convert, source: Convert) -> dict[str, Any]:
    """*values* with `code` and templates converted by *resolve*, `files` by *absolute*, sources by *source*."""
    if isinstance(values.get("code"), str):
        values = {**values, "code": resolve(values["code"])}
    if isinstance(values.get("files"), list):
        values = {**values, "files": [absolute(path) if isinstance(path, str) else path for path in values["files"]]}
    stream = values.get("stream")
    if isinstance(stream, dict) and isinstance(stream.get("source"), str) and is_path(stream["source"]):
        values = {**values, "stream": {**stream, "source": source(stream["source"])}}
    dataset = values.get("dataset")
    if isinstance(dataset, dict) and isinstance(dataset.get("arguments"), dict):
        arguments = {
            name: source(value) if isinstance(value, str) and is_path(value) else value
            for name, value in dataset["arguments"].items()
        }
        values = {**values, "dataset": {**dataset, "arguments": arguments}}
    kubernetes = values.get("kubernetes")
    if isinstance(kubernetes, dict) and isinstance(kubernetes.get("templates"), list):
        templates = [resolve(name) if _is_file(name) else name for name in kubernetes["templates"]]
        values = {**values, "kubernetes": {**kubernetes, "templates": templates}}
    return values


def is_path(source: str) -> bool:
    """Whether the source of a stream is a path, neither a URL nor a function."""
    return "://" not in source and not FUNCTION.fullmatch(source)


def _is_file(template: object) -> bool:
    return isinstance(template, str) and not template.startswith(CONFIG_MAP)
