"""The pod that tries storage and names, as a program that runs here."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from spotmpi.core.errors import SpotmpiError
from spotmpi.environments import doctor, probe
from spotmpi.environments.checks.check import Finding
from tests.cloud.cluster.fake_cluster import FakeCluster
from tests.command_line import invoke
from tests.unit.backends.kubernetes.run_volume import FakeVolume


def probe_findings(pod: Any, trouble: SpotmpiError | None = None) -> dict[str, Finding]:
    @asynccontextmanager
    async def access() -> AsyncIterator[Any]:
        if trouble:
            raise trouble
        yield pod

    return {finding.check: finding for finding in probe.probe(access)}


@pytest.fixture
def volume(tmp_path: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> FakeVolume:
    monkeypatch.setattr(probe, "NAME", "localhost")
    (tmp_path / "volume").mkdir()
    return FakeVolume(cluster, tmp_path / "volume" / "runs")


def test_a_pod_that_works_says_so_and_leaves_nothing(volume: FakeVolume, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "SLOW", 60.0)
    findings = probe_findings(volume.access())
    assert [finding.level for finding in findings.values()] == ["ok", "ok"]
    assert re.match(r"mounted; wrote and read a small file in \d+\.", findings["probe of storage"].message)
    assert findings["probe of names"].message == "localhost resolves to 127.0.0.1"
    assert list(volume.folder.iterdir()) == []


def test_a_name_that_does_not_resolve_is_an_error(volume: FakeVolume, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "NAME", "kubernetes.default.invalid")
    monkeypatch.setattr(probe, "SLOW", 60.0)

    findings = probe_findings(volume.access())

    assert findings["probe of storage"].level == "ok"
    names = findings["probe of names"]
    assert names.level == "error" and "does not resolve in a pod" in names.message


def test_storage_that_cannot_be_written_or_is_slow_is_reported(
    volume: FakeVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "SLOW", 0.0)
    assert probe_findings(volume.access())["probe of storage"].level == "warning"
    volume.folder.rmdir()
    assert "No such file or directory" in probe_findings(volume.access())["probe"].message


def test_a_mount_that_hangs_and_a_pod_that_never_comes_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging:
        async def output(self, command: Sequence[str]) -> bytes:
            return await asyncio.sleep(60, b"")

    monkeypatch.setattr(probe, "TIMEOUT", 0.05)
    assert probe_findings(Hanging())["probe"].message == "writing a small file took more than 0.05 s"
    never = SpotmpiError("no pod could read the run volume within 300 s: insufficient cpu")
    assert probe_findings(None, never)["probe"].message == str(never)


def test_the_command_probes_after_the_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "doctor", lambda stack: (Finding("API", "ok", "answers"),))
    monkeypatch.setattr(
        probe, "probe_stack", lambda stack, echo: (Finding("probe", "error", f"{stack} hangs", "look"),)
    )
    code, output, _ = invoke("doctor", "lab", "--probe")
    assert code == 1 and [line.split()[1] for line in output.splitlines()[:2]] == ["API", "probe"]
    assert invoke("doctor", "--probe")[0] == 2


def test_what_a_pod_answers_does_nothing_to_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its image, and whoever may open a shell in it, decide what that is."""
    answer = b'{"whole": true, "seconds": 0.1, "address": "\\u001b]0;mine\\u0007", "why": ""}'

    class Pod:
        async def output(self, command: Sequence[str]) -> bytes:
            return answer

    findings = tuple(probe_findings(Pod()).values())
    monkeypatch.setattr(doctor, "doctor", lambda stack: (Finding("API", "ok", "answers"),))
    monkeypatch.setattr(probe, "probe_stack", lambda stack, echo: findings)
    output = invoke("doctor", "lab", "--probe").stdout
    assert "\x1b" not in output and r"resolves to \x1b]0;mine\x07" in output
