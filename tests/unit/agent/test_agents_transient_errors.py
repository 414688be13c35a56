"""Agents whose disk, name service or descriptors fail for a moment: the attempt is repeated, the run goes on."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import socket
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spotmpi.agent import node, outcomes, protocol
from spotmpi.agent.clock import CLOCK
from tests.transient_errors import READS_OF_A_COPY, TransientErrors
from tests.unit.agent.agent_process import mounts_below
from tests.unit.agent.gang import LIMIT, Gang, kinds

STALE = errno.ESTALE


@pytest.mark.parametrize(
    "error",
    [
        ["resolve", "127.0.0.1:9", socket.EAI_AGAIN],
        ["open", "*/environment.json", errno.EMFILE],
        ["list", "*/shared", STALE],
        ["read", "*/shared/labels", errno.EIO, READS_OF_A_COPY],
    ],
    ids=["a second without DNS", "no descriptor left", "a stale folder of data", "data that cannot be read"],
)
@pytest.mark.parametrize("at", [0, 1])
def test_an_error_that_passes_interrupts_the_attempt_before_its_launch(
    gang: Callable[..., Gang], tmp_path: Path, at: int, error: list[Any]
) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "labels").write_text("cat dog")
    data = {"path": str(tmp_path / "shared"), "stage": "node"}
    run = gang("true", started=0, data=data, limits={"failures": 0, "interruptions": 1})
    for each in (0, 1):
        run.start(each, errors=[error] if each == at else [])

    assert run.codes() == [0, 0]
    assert kinds(run.events()) == ["interrupted", "restarted", "started", "succeeded"], "it is counted once"
    first = run.attempt()
    assert first["cause"] == "interruption" and first["first_iteration"] is None
    assert first["reason"].startswith("node 1: ") or at == 0
    summary = json.loads(run.paths.summary.read_text())
    assert [each["cause"] for each in summary["attempts"]] == ["interruption", "succeeded"]


@pytest.mark.parametrize(
    ("file", "error", "codes", "text"),
    [
        *[
            (file, STALE, [protocol.INTERRUPTED, 0], "Stale file handle")
            for file in ("*/.reserve", "*/.spec.toml.*.part")
        ],
        ("*/events.jsonl", STALE, [0], "Stale file handle"),
        ("*/.reserve", errno.ENOSPC, [protocol.NOT_RETRYABLE], "No space left on device"),
    ],
)
def test_a_record_that_cannot_be_opened_for_a_moment_is_opened_by_the_next_attempt_unless_the_disk_is_full(
    gang: Callable[..., Gang], tmp_path: Path, file: str, error: int, codes: list[int], text: str
) -> None:
    run = gang("true", nodes=1, started=0)
    errors = [[["open", file, error]], []]
    assert [run.start(0, at, errors[at]).wait(LIMIT) for at in range(len(codes))] == codes
    assert text in (tmp_path / "output-0-0").read_text()


def test_a_record_that_cannot_be_opened_at_all_ends_the_run_by_the_count_of_restarts(gang: Callable[..., Gang]) -> None:
    run = gang("true", nodes=1, started=0, limits={"failures": 1, "interruptions": 2})
    errors = [["open", "*/.reserve", STALE]]
    assert run.start(0, restart_count=3, errors=errors).wait(LIMIT) == protocol.INTERRUPTED
    assert run.start(0, restart_count=4, errors=errors).wait(LIMIT) == protocol.NOT_RETRYABLE


@pytest.mark.parametrize("at", [0, 1])
def test_a_record_that_cannot_be_written_during_the_attempt_interrupts_it(gang: Callable[..., Gang], at: int) -> None:
    run = gang("sh", "-c", "echo $RANK; [ $SPOTMPI_ATTEMPT = 2 ] || sleep 1", started=0, limits={"failures": 0})
    for each in (0, 1):
        run.start(each, errors=[["write", f"*/logs/1/node-{at}.log", STALE]] if each == at else [])
    assert run.codes() == [0, 0]
    assert kinds(run.events()) == ["started", "interrupted", "restarted", "started", "succeeded"]
    assert "Stale file handle" in run.attempt()["reason"]


@pytest.mark.parametrize(("error", "permanent"), [(STALE, False), (None, True)])
def test_only_a_readable_archive_of_code_can_be_called_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int | None, permanent: bool
) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("train.py"))
    whole = packed.getvalue()
    archive = tmp_path / "user.tgz"
    archive.write_bytes(whole if error else whole[:60])
    code = {"archive": str(archive), "bytes": len(whole), "sha256": hashlib.sha256(whole).hexdigest()}
    plan = {"code": code, "roles": [{"restart": "gang"}], "folder": str(tmp_path)}
    context: Any = SimpleNamespace(plan=plan, mounts=mounts_below(str(tmp_path)), clock=CLOCK)
    if error:
        TransientErrors(monkeypatch.setattr).add("read", "*/user.tgz", error)

    with pytest.raises(OSError) as refused:
        node.unpack_code(context)

    assert outcomes.is_permanent(refused.value) is permanent
