"""Environments of Python with packages that the project itself does not use, each from its own lock."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from spotmpi.core import names
from spotmpi.images.environment import is_installed, mark_installed, run_uv


def python_with(name: str) -> Path:
    """The interpreter of an environment in the cache folder with what `NAME/requirements.lock` locks, made once."""
    lock = Path(__file__).parent / name / "requirements.lock"
    folder = names.cache_folder() / name / hashlib.sha256(lock.read_bytes()).hexdigest()[:12]
    if not is_installed(folder):
        run_uv("venv", "--quiet", "--clear", "--python", sys.executable, str(folder), purpose="make the environment")
        options = ("--quiet", "--python", str(folder / "bin" / "python"))
        run_uv("pip", "sync", *options, str(lock), purpose=f"install {name}")
        mark_installed(folder)
    return folder / "bin" / "python"


def answer_of(module: str, name: str, with_project: bool = False) -> Any:
    """What *module* of the tests prints last, as JSON, in the environment `python_with(name)`.

    *with_project* adds the packages of the project's environment that this one does not have.
    """
    path = os.pathsep.join([str(names.PROJECT / "jobs"), str(names.PROJECT)])
    more = f"sys.path.append({sysconfig.get_path('purelib')!r}); " if with_project else ""
    code = f"import runpy, sys; {more}runpy.run_module({module!r}, run_name='__main__')"
    result = subprocess.run(
        [str(python_with(name)), "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        cwd=names.PROJECT,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])
