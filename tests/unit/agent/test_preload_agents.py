"""Fork servers of agents on machines of their own, which outlive attempts as their agents do."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.processes import are_gone, wait_until
from tests.unit.agent.gang import LIMIT, Gang, kinds

LIBRARY = "import os\nPROCESS = os.getpid()\nprint('imported')\n"
PROGRAM = """
import library, os, time
attempt = os.environ["SPOTMPI_ATTEMPT"]
print("rank", os.environ["RANK"], attempt, library.PROCESS, os.getppid(), os.getpid(), flush=True)
time.sleep(300 if attempt == "1" else 0)
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Gang]:
    (tmp_path / "library.py").write_text(LIBRARY)
    (tmp_path / "train.py").write_text(PROGRAM)
    run = Gang(tmp_path, {"command": [sys.executable, "train.py"], "preload": ["library"], "nodes": 2})
    yield run
    for agent in run.agents.values():
        agent.kill()
        agent.wait()


def lines(run: Gang) -> dict[tuple[str, str], list[int]]:
    """The process ids that each rank of each attempt has printed: of imports, parent and its own."""
    words = [text.split() for node in (0, 1) for text in run.texts(node) if text.startswith("rank ")]
    return {(rank, attempt): list(map(int, pids)) for _, rank, attempt, *pids in words}


def test_each_agent_has_a_fork_server_for_all_attempts_that_ends_with_it(run: Gang) -> None:
    for node in (0, 1):
        run.start(node)
    run.until("both ranks", lambda: len(lines(run)) == 2)

    os.kill(lines(run)["1", "1"][2], signal.SIGKILL)

    assert run.codes() == [0, 0]
    found = lines(run)
    assert len(found) == 4 and all(imported == parent for imported, parent, _ in found.values())
    servers = {rank: {found[rank, attempt][1] for attempt in "12"} for rank in "01"}
    assert len(servers["0"]) == len(servers["1"]) == 1 and servers["0"] != servers["1"]
    assert run.texts(0).count("imported") == run.texts(1).count("imported") == 2
    assert "SIGKILL" in run.attempt()["reason"]
    wait_until(lambda: are_gone(pid for pids in servers.values() for pid in pids))


def test_a_node_without_a_fork_server_starts_its_ranks_all_the_same(run: Gang) -> None:
    (run.folder / "train.py").write_text("import os; print('parent', os.getppid())")
    (run.folder / "node-1" / "work" / "fork.sock").mkdir(parents=True)  # no socket can be there
    for node in (0, 1):
        run.start(node)

    assert run.codes() == [0, 0]
    (line,) = [text for text in run.texts(1) if "preload" in text]
    assert line.startswith("spotmpi: ranks start without preload: no fork server: ")
    assert not [text for text in run.texts(0) if "preload" in text]


def test_a_pod_stands_by_once_its_modules_are_imported(run: Gang, tmp_path: Path) -> None:
    waits = "while os.environ.get('SPOTMPI_ROLE') == 'standby' and not os.path.exists('go'): time.sleep(0.01)\n"
    (tmp_path / "library.py").write_text("import os, time\n" + waits + LIBRARY)
    (tmp_path / "train.py").write_text("import os, time\nwhile not os.path.exists('enough'): time.sleep(0.01)")
    run.plan |= {"replaces_nodes": True, "standby": ["127.0.0.1"]}
    for node in (0, 1, 2):
        run.start(node)
    run.until("ranks", lambda: "started" in kinds(run.events()))
    run.until("a fork server in the pod that stands by", (tmp_path / "node-2" / "work" / "fork.sock").exists)
    time.sleep(0.5)
    assert "joined" not in kinds(run.events())
    (tmp_path / "go").touch()
    run.until("the pod stands by", lambda: "joined" in kinds(run.events()))
    (tmp_path / "enough").touch()
    assert run.agents[0].wait(LIMIT) == 0
