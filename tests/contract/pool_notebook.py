"""What a notebook does with a worker pool, on this machine and on a cluster: cells, and what they print."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from jupyter_core.utils import run_sync
from nbclient import NotebookClient

from tests.unit.notebooks import outputs_of

# In the first cell OPTIONS is replaced by the arguments of the pool.
BEFORE_RESTART = {
    "open": """
import spotmpi, sys
from pathlib import Path
module = Path("scan.py")
module.write_text("VERSION = 1\\ndef version():\\n    print('hello')\\n    return VERSION\\n")
sys.path.insert(0, "")
import scan
pool = spotmpi.pool(workers=2, files=[module], echo=lambda text: None, OPTIONS).open()
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
async with spotmpi.pool(pool.id) as same:
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
Path("run").write_text(pool.id)
print(repr(pool).startswith(f"<pool {pool.id}: "))
""",
}
AFTER_RESTART = {
    "join": "import spotmpi; pool = spotmpi.pool(open('run').read()).open(); print(len(pool.workers))",
    "collect": "print(pool.collect('late'), pool.submit(abs, -1).result())",
    "stop": "pool.close(); print(spotmpi.stop(pool.id).state)",
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


def cells(options: str, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """All cells by name; *more* come last before the restart."""
    before = {**BEFORE_RESTART, **(more or {})}
    before["leave"] = before.pop("leave")
    before["open"] = before["open"].replace("OPTIONS", options)
    return {**before, **AFTER_RESTART}


def execute(
    client: NotebookClient, cells: Mapping[str, str], beside: Mapping[str, Callable[[], None]] | None = None
) -> dict[str, str]:
    """Execute the cells, and restart the kernel after "leave"; what each cell itself printed, by name.

    A function in *beside* is called while the cell of its name executes.
    """
    with client.setup_kernel(), ThreadPoolExecutor() as threads:
        manager: Any = client.km
        channels: Any = client.kc
        for index, name in enumerate(cells):
            if name == "join":
                run_sync(manager.restart_kernel)(now=True)
                run_sync(channels.wait_for_ready)(timeout=60)
            action = threads.submit((beside or {}).get(name, bool))
            client.execute_cell(client.nb.cells[index], index)
            action.result()
    outputs = outputs_of(client, cells)
    assert any("[worker 1] hello\n" in text for text in outputs.values())
    return {name: _own_lines(text) for name, text in outputs.items()}


def _own_lines(text: str) -> str:
    """What the cell itself printed: lines of workers come to the cell that executes when they arrive."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("[worker"))
