"""The commands by which spotmpi runs Python in pods: nobody else's code is in them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from spotmpi.plan import pods

SOURCE = Path(pods.__file__).parents[1]


def test_a_program_in_a_pod_takes_no_code_from_its_home_nor_from_variables(tmp_path: Path) -> None:
    site = tmp_path / ".local" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    package = tmp_path / "code" / "package"
    for folder in (site, package):
        folder.mkdir(parents=True)
    (site / "usercustomize.py").write_text("print('theirs')")
    (tmp_path / "sitecustomize.py").write_text("print('theirs')")
    (package / "__init__.py").touch()
    (package / "shown.py").write_text("import sys\nif __name__ == '__main__':\n    print('ours', sys.argv[1:])")
    variables = {"HOME": str(tmp_path), "PYTHONPATH": str(tmp_path), "PYTHONSTARTUP": str(site / "usercustomize.py")}

    for command in (pods.python("print('ours', ['a'])"), pods.module(str(package.parent), "package.shown", "a")):
        words = [sys.executable, *command[1:]]
        process = subprocess.run(words, env=variables, cwd=tmp_path, capture_output=True, text=True)
        assert (process.stdout, process.stderr) == ("ours ['a']\n", "")


def test_no_other_command_runs_python_in_a_pod() -> None:
    """The program's own launcher and what runs on this machine are not spotmpi's programs in a pod."""
    own = re.compile(r"""["']python3["'],|python3 -""")
    rooms = ("backends/kubernetes", "data", "environments", "plan")
    lines = [
        f"{path.name}: {line.strip()}"
        for room in rooms
        for path in (SOURCE / room).rglob("*.py")
        for line in path.read_text().splitlines()
        if own.search(line)
    ]
    assert lines == [
        "project.py: [ -x .venv/bin/python ] || python3 -m venv .venv",
        'agent_plan.py: "python": "python3",',
        'pods.py: PYTHON = ("python3", "-I", "-S")',
    ]
