"""The first code that runs in a pod: it unpacks the agent and replaces itself by it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import boot
from spotmpi.core import archives
from spotmpi.core.archives import Member
from spotmpi.plan import pods


@pytest.fixture(autouse=True)
def unblocked() -> Iterator[None]:
    """Lets this process have its signals again after the test."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


EARLY = """
import os, signal, sys
from spotmpi.agent import boot

boot.CONFIG, boot.CODE, boot.RESOLVER = sys.argv[1], sys.argv[1], os.devnull
unpacked, execv = os.listdir, os.execv
# As the first process of a pod, for which the kernel drops what has no handler and is not blocked.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.listdir = lambda folder: os.kill(os.getpid(), signal.SIGTERM) or unpacked(folder)
agent = "from spotmpi.agent.stop_requests import PreemptionNotice; print(PreemptionNotice('this node').reason)"
os.execv = lambda *arguments: execv(sys.executable, [sys.executable, "-c", agent])
main_path = os.pathsep.join(sys.path)
os.chdir = lambda folder: os.environ.__setitem__("PYTHONPATH", main_path)
boot.main()
"""


def test_a_pod_that_is_deleted_while_its_agent_starts_hears_of_it(tmp_path: Path) -> None:
    """Else it would be killed at the end of its grace, and count as failed."""
    command = [sys.executable, "-c", EARLY, str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (run.stdout, run.stderr, run.returncode) == ("this node received SIGTERM\n", "", 0)


def test_the_agent_starts_from_its_archives_without_the_images_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, code = tmp_path / "config", tmp_path / "code"
    config.mkdir()
    (config / "pod.tar.gz").write_bytes(archives.archive([Member("agent.py", b"old"), Member("core.py", b"core")]))
    (config / "pod2.tar.gz").write_bytes(archives.archive([Member("agent.py", b"new")]))
    (config / "plan.json").write_text("{}")
    started: list[Any] = []
    (tmp_path / "resolv.conf").write_text("search one.here.svc.cluster.local\n")
    monkeypatch.setattr(boot, "RESOLVER", str(tmp_path / "resolv.conf"))
    monkeypatch.setattr(boot, "CONFIG", str(config))
    monkeypatch.setattr(boot, "CODE", str(code))
    monkeypatch.setattr(os, "execv", lambda *arguments: started.append((arguments, dict(os.environ), str(Path.cwd()))))
    monkeypatch.setenv("PYTHONPATH", "/app")
    monkeypatch.delenv(boot.ENV_IMAGE_PATH, raising=False)
    monkeypatch.chdir(tmp_path)

    boot.main()

    assert {path.name: path.read_text() for path in code.iterdir()} == {"agent.py": "new", "core.py": "core"}
    [((python, arguments), environment, folder)] = started
    assert (python, arguments[1:], folder) == (sys.executable, ["-u", "-m", "spotmpi.agent"], str(code))
    assert environment["PYTHONPATH"] == str(code)
    assert environment[boot.ENV_IMAGE_PATH] == "/app"  # for the ranks


@pytest.mark.parametrize(
    ("searches", "expected"),
    [
        ("here.svc.cluster.local svc.cluster.local cluster.local lan run-1.here.svc.cluster.local", None),
        (
            "here.svc.lab.example svc.lab.example lab.example lan run-1.here.svc.cluster.local",
            "here.svc.lab.example svc.lab.example lab.example lan run-1.here.svc.lab.example",
        ),
        ("here.svc.k8s svc.k8s k8s run-1.here.svc.cluster.local", "here.svc.k8s svc.k8s k8s run-1.here.svc.k8s"),
        ("lan run-1.here.svc.cluster.local", None),
        ("here.svc.lab svc.lab", None),
        ("", None),
    ],
    ids=["the usual domain", "another one", "a short one", "a pod with its own DNS", "no list of ours", "none"],
)
def test_the_names_of_pods_resolve_in_a_cluster_with_another_dns_domain(searches: str, expected: str | None) -> None:
    """The lists as kubelets write them: https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/."""
    text = f"nameserver 10.0.0.10\nsearch {searches}\noptions ndots:5\n"
    assert boot.search_list(text) == expected
    assert boot.search_list(f"search before\n{text}") == expected, "the last list counts"
    assert boot.search_list("nameserver 10.0.0.10\n") is None


def test_the_script_of_the_config_map_runs_alone_with_its_unpacker(tmp_path: Path) -> None:
    """As a pod runs it: by its path, isolated, with the files of the ConfigMap beside it."""
    files = pods.config_files()
    work = tmp_path / "code"
    for name in ("boot.py", "unpack.py"):
        text = files[name].replace("/spotmpi/config", str(tmp_path)).replace("/spotmpi/work/code", str(work))
        (tmp_path / name).write_text(text)
    agent = [Member(f"spotmpi/{name}", b"") for name in ("__init__.py", "agent/__init__.py")]
    agent.append(Member("spotmpi/agent/__main__.py", b"import sys; print('agent', sys.flags.isolated)"))
    (tmp_path / "pod.tar.gz").write_bytes(archives.archive(agent))

    command = [sys.executable, *pods.PYTHON[1:], str(tmp_path / "boot.py")]
    process = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)

    assert (process.stdout, process.stderr) == ("agent 0\n", "")
