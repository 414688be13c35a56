"""The commented spec that `spotmpi init` writes, generated from the model, so that it names every key."""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from spotmpi.agent.files import exists
from spotmpi.agent.launchers import LAUNCHERS, imports
from spotmpi.core import names, wording
from spotmpi.core.errors import input_error
from spotmpi.images.environment import launchers_of, packages_of
from spotmpi.spec.job import JobSpec, Metrics
from spotmpi.spec.script_output import pattern_of
from spotmpi.spec.source import read_toml, write_new_file

_HEADER = """\
# A spotmpi job spec. `spotmpi run THIS-FILE` runs it; what is commented out shows its default or a possible value.

"""
_EXAMPLE = """\
image = "chainermn"       # locked requirements: chainermn or pytorch
program = "digits"        # one of our programs; or: command = ["python3", "train.py"]
args = ["--global-batch", "64", "--epochs", "5"]
nodes = 1
slots = 2                 # processes per node
"""
_EXAMPLE_KEYS = frozenset({"image", "program", "command", "args", "nodes", "slots"})
_SCRIPT_KEYS = frozenset({"program", "command", "nodes", "slots"})
_SMALL_FILES, _SMALL_BYTES = 2000, 20 << 20  # of a folder of code
_FIRST_CHOICES = ("train.py", "main.py")
_COMPLETE = re.compile(r"^(program|files) = ", re.MULTILINE)  # an example that needs no other file
_NOT_SCRIPTS = re.compile(r"setup|conftest|__\w+__|test_.*|.*_test")

# What a script imports, and the image that it suggests: launchers that are modules of Python start ranks of PyTorch.
_MODULES = dict.fromkeys(each.module for each in LAUNCHERS.values() if each.module)
_TORCH = re.compile(imports(*_MODULES), re.MULTILINE)
_CHAINER = re.compile(imports("chainer", "chainermn"), re.MULTILINE)
# Modules whose package has another name, or is in the lock for GPUs.
_PACKAGES = {"PIL": "pillow", "chainermn": "chainer", "cupy": "chainer", "functorch": "torch", "google": "protobuf"}
_PACKAGES |= {"pkg_resources": "setuptools", "sklearn": "scikit-learn", "yaml": "pyyaml"}


def scripts(folder: Path) -> list[str]:
    """The Python files of a folder that may be somebody's training script, the likeliest first."""
    files = [path.name for path in folder.glob("*.py") if not _NOT_SCRIPTS.fullmatch(path.stem)]
    return sorted(files, key=lambda name: (name not in _FIRST_CHOICES, name != _FIRST_CHOICES[0], name))


def likeliest(files: list[str]) -> str | None:
    """The one of `scripts` that needs no question: train.py, main.py, or the only one."""
    return files[0] if files and (len(files) == 1 or files[0] in _FIRST_CHOICES) else None


def template(script: str | None = None) -> str:
    """The text of a commented spec, for the example or for *script*: valid as it is, with every key.

    Raises:
        InputError: *script* cannot be read.
    """
    text = None if script is None else _read_script(script)
    start, keys = (_EXAMPLE, _EXAMPLE_KEYS) if script is None or text is None else _for_script(script, text)
    pattern = text and pattern_of(text)
    tops, parts = [], []
    for name, info in JobSpec.model_fields.items():
        table = _table_of(info)
        if name == "metrics" and pattern:
            parts.append(_with_pattern(_table(name, Metrics), pattern))
        elif table is not None:
            parts.append(_table(name, table))
        elif name == "env":
            parts.append('\n# Variables of every rank.\n# [env]\n# NCCL_DEBUG = "INFO"\n')
        elif name not in keys:
            tops.append(_line(name, info, _sample(JobSpec, name)))
    return _HEADER + start + "".join(tops) + "".join(parts)


def examples() -> dict[str, Path]:
    """The ready specs and studies that need no file but themselves and those that they send, by name."""
    files = [*names.EXAMPLES.glob("*.toml"), *names.STUDIES.glob("*.toml")]
    return {path.stem: path for path in sorted(files) if _COMPLETE.search(path.read_text(encoding="utf-8"))}


def write_example(name: str, path: Path) -> list[Path]:
    """Copy a ready spec or study to *path*, and the files that it sends beside it; the files that are new.

    Raises:
        InputError: an unknown name, or a file that exists.
    """
    known = examples()
    if name not in known:
        raise input_error(wording.option("example"), name, f"use one of: {', '.join(sorted(known))}")
    example = known[name]
    files = read_toml(example).get("files", ())
    sources = {**{path.parent / file: example.parent / file for file in files}, path: example}
    for target, source in sources.items():
        # A path from the root of the checkout becomes one from the folder of the copy.
        write_new_file(target, source.read_text(encoding="utf-8").replace('"../../', '"'))
    return list(sources)


def write(path: Path, script: str | None = None) -> None:
    """Write the template to *path*; InputError for a file that exists or a script, or one that cannot be read."""
    if path.suffix == ".py":
        remedy = f"is where the spec is written: name the script with {wording.option('script', path)}"
        raise input_error("path", str(path), remedy)
    write_new_file(path, template(script))


def _read_script(script: str) -> str:
    try:
        return Path(script).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise input_error(
            wording.option("script"), script, f"cannot be read: {error.strerror}; check its path and permissions"
        ) from error


def _with_pattern(table: str, pattern: str) -> str:
    """The table [metrics] that reads what a script prints."""
    quoted = _inline(pattern) if "'" in pattern else f"'{pattern}'"
    lines = table.replace("# [metrics]", "[metrics]").splitlines(keepends=True)
    line = f"pattern = {quoted}  # the progress that the script prints\n"
    return "".join(line if each.startswith("# pattern = ") else each for each in lines)


def _for_script(script: str, text: str) -> tuple[str, frozenset[str]]:
    """The first lines of a spec for a script with this *text*, and the keys that they set."""
    image = "pytorch" if _TORCH.search(text) else "chainermn" if _CHAINER.search(text) else None
    matches = [name for name, each in LAUNCHERS.items() if each.script and re.search(each.script, text, re.MULTILINE)]
    launcher = matches[-1] if matches else "none"
    if image and launcher not in launchers_of(image):
        image = None
    missing = next(_missing_modules(image, script, text), None) if image else None
    about = "locked requirements; leave out for this machine's own software"
    preload, is_shipped = list(LAUNCHERS[launcher].preload), _is_in_small_folder(Path(script))
    settings = [
        (f'image = "{image}"', about) if image and not missing else None,
        (f'# image = "{image}"', f"has no {missing}: this machine's own software is used") if missing else None,
        (f"command = {_inline([_interpreter(script, text), script])}", "with its arguments"),
        ('code = "."', "this folder, less what git ignores: pods get it too") if is_shipped else None,
        (f'launcher = "{launcher}"', f"or {', '.join(name for name in LAUNCHERS if name != launcher)}"),
        ("nodes = 1", ""),
        (f"slots = {2 if LAUNCHERS[launcher].parallel else 1}", "processes per node"),
        (f"preload = {_inline(preload)}", "imported once per node: attempts start within a second")
        if preload
        else None,
    ]
    lines = [f"{line:<25} # {about}\n" if about else f"{line}\n" for line, about in filter(None, settings)]
    more = {"launcher"} | ({"image"} if image else set()) | ({"preload"} if preload else set())
    more |= {"code"} if is_shipped else set()
    return "".join(lines), _SCRIPT_KEYS | more


def _is_in_small_folder(script: Path) -> bool:
    """Whether a script is in the current folder or below it, whose files take no time to read before each run."""
    if script.is_absolute() or ".." in script.parts:
        return False
    files = size = 0
    for folder, folders, found in os.walk("."):
        folders[:] = [each for each in folders if not each.startswith(".") and each != names.default_runs_folder().name]
        files += len(found)
        try:
            size += sum(Path(folder, each).lstat().st_size for each in found)
        except OSError:  # a file that is gone meanwhile, or a disk that does not tell
            return False
        if files > _SMALL_FILES or size > _SMALL_BYTES:
            return False
    return True


def _interpreter(script: str, text: str) -> str:
    """The command that runs a script, by its first line; python3 where that names no other."""
    shebang = re.match(r"#! *(?:\S*/env +(?:-S +)?)?(\S+)", text)
    name = PurePath(shebang[1]).name if shebang else "bash" if script.endswith(".sh") else "python"
    return "python3" if script.endswith(".py") or name.startswith("python") else name


def _missing_modules(image: str, script: str, text: str) -> Iterator[str]:
    """The modules that a script imports in any case and that neither an image nor a file beside the script has."""
    try:
        statements = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError):
        return
    imported = [alias.name for each in statements if isinstance(each, ast.Import) for alias in each.names]
    imported += [each.module or "" for each in statements if isinstance(each, ast.ImportFrom) and not each.level]
    packages = packages_of(image) | {"spotmpi"}
    for name in (each.partition(".")[0] for each in imported):
        is_beside = any(exists(Path(script).parent / each) for each in (name, f"{name}.py"))
        package = _PACKAGES.get(name, name.lower().replace("_", "-"))
        if name not in sys.stdlib_module_names and package not in packages and not is_beside:
            yield name


def _table(name: str, model: type[BaseModel]) -> str:
    lines = [_line(key, info, _sample(model, key)) for key, info in model.model_fields.items()]
    about = (model.__doc__ or "").strip().splitlines()[0]
    return f"\n# {about}\n# [{name}]\n" + "".join(lines)


def _line(name: str, info: FieldInfo, sample: object) -> str:
    text = f"# {name} = {_inline(sample)}"
    about = info.description or ""
    return f"{text:<36}  # {about}\n" if about else f"{text}\n"


def _table_of(info: FieldInfo) -> type[BaseModel] | None:
    """The model of a key that is a table; None for any other, and for one with an example, which is on one line."""
    optional = get_args(info.annotation) if get_origin(info.annotation) is not list else ()
    kinds = (info.annotation, *optional)
    tables = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return tables[0] if tables and not info.examples else None


def _sample(model: type[BaseModel], key: str) -> object:
    """A value of a key as JSON: its example, else its default, and of a table those of its keys."""
    info = model.model_fields[key]
    if info.examples:
        return info.examples[0]
    if table := _table_of(info):
        return {each: _sample(table, each) for each in table.model_fields}
    return model.model_construct().model_dump(mode="json")[key]


def _inline(value: object) -> str:
    """*value* as TOML on one line."""
    if isinstance(value, dict):
        inside = ", ".join(f"{key} = {_inline(item)}" for key, item in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(_inline, value))}]"
    return json.dumps(value)
