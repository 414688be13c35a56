"""A worker pool in the cells of a notebook, in a real kernel that is restarted on its way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jupyter_core.utils import run_sync

from tests.unit.notebooks import open_notebook, outputs_of

BEFORE_RESTART = {
    "open": """
import spotmpi, sys
from pathlib import Path
module = Path("scan.py")
module.write_text("VERSION = 1\\ndef version():\\n    print('hello')\\n    return VERSION\\n")
sys.path.insert(0, "")
import scan
pool = spotmpi.pool(workers=2, files=[module], overrides=["limits.driver='10m'"], say=lambda text: None).open()
""",
    "functions of the notebook": """
def square(value):
    return value * value
async def double(value):
    return 2 * value
print(pool.submit(square, 3).result(), pool.submit(double, 3).result())
""",
    "map": "print(sum(pool.map(square, range(10))), list(pool.map(pow, [2, 3], [4, 2])))",
    "run": "print(pool.run(square, 4), pool.run(square, each=[5, 6]))",
    "one worker": "print(pool.workers[1].submit(square, 7).result(), len(pool.workers))",
    "module": "print(pool.run(scan.version))",
    "upload": """
module.write_text("def version():\\n    return 22\\n")
pool.upload(module)
print(pool.run(scan.version))
""",
    "scale": "pool.scale(3); print(pool.workers[2].submit(square, 8).result())",
    "Dask's client": "print(pool.client.submit(square, 9).result())",
    "asynchronous": """
async with spotmpi.pool(pool.run_id) as same:
    print(await same.submit(double, 4), [result async for result in same.map(square, [1, 2])])
""",
    "error": """
try:
    pool.submit(square, "a").result()
except TypeError as error:
    print(error)
""",
    "leave": """
def late(value):
    import time
    time.sleep(value)  # some results arrive before the restart, some after it
    return value * value
left = [pool.submit(late, value) for value in range(3)]
left[1].result()
Path("run").write_text(pool.run_id)
print(repr(pool).startswith(f"<pool {pool.run_id}: "))
""",
}
AFTER_RESTART = {
    "join": "import spotmpi; pool = spotmpi.pool(open('run').read()).open(); print(len(pool.workers))",
    "collect": "print(pool.collect('late'), pool.submit(abs, -1).result())",
    "stop": "pool.close(); print(spotmpi.stop(pool.run_id).state)",
}
OUTPUT = {
    "open": "",
    "functions of the notebook": "9 6",
    "map": "285 [16, 9]",
    "run": "{0: 16, 1: 16} {0: 25, 1: 36}",
    "one worker": "49 2",
    "module": "{0: 1, 1: 1}",
    "upload": "{0: 22, 1: 22}",
    "scale": "64",
    "Dask's client": "81",
    "asynchronous": "8 [1, 4]",
    "error": "can't multiply sequence by non-int of type 'str'",
    "leave": "True",
    "join": "3",
    "collect": "[0, 1, 4] 1",
    "stop": "stopped",
}


def test_a_notebook_uses_every_verb_and_collects_its_results_after_a_restart_of_its_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTMPI_RUNS", str(tmp_path / "runs"))
    cells = {**BEFORE_RESTART, **AFTER_RESTART}
    client = open_notebook(cells.values(), tmp_path, monkeypatch)

    with client.setup_kernel():
        manager: Any = client.km
        channels: Any = client.kc
        for index, name in enumerate(cells):
            if name == "join":
                run_sync(manager.restart_kernel)(now=True)
                run_sync(channels.wait_for_ready)(timeout=60)
            client.execute_cell(client.nb.cells[index], index)

    outputs = outputs_of(client, cells)
    assert any("[worker 1] hello\n" in text for text in outputs.values())
    assert {name: _own_lines(text) for name, text in outputs.items()} == OUTPUT


def _own_lines(text: str) -> str:
    """What the cell itself printed: lines of workers come to the cell that executes when they arrive."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("[worker"))
