"""Runs on the test cluster, followed as a user's terminal follows them, with what tests need to inject faults."""

from __future__ import annotations

import itertools
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import launcher_output, record
from spotmpi.agent.attempt_history import pods_at_work
from spotmpi.agent.plan import NODE, Member
from spotmpi.backends.kubernetes.backend import KubernetesBackend
from spotmpi.backends.kubernetes.follow.jobset import member_of
from spotmpi.backends.local.backend import LocalBackend
from spotmpi.core import names
from spotmpi.core.events import Event
from spotmpi.spec.source import from_values
from spotmpi.spec.validate import require_valid
from tests.cluster.environment_namespace import user_kubeconfig
from tests.contract import processes
from tests.testbed.cluster import Cluster
from tests.testbed.kubernetes import Object
from tests.testbed.waiting import wait_for

LIMIT = 90.0  # seconds in which anything that a test waits for has happened
PARTS = "pods,jobsets,jobs,secrets,configmaps,networkpolicies,services"


class FollowedRun:
    """One run with every event that its follower has yielded so far."""

    def __init__(self, runs: Runs, run: str) -> None:
        self.id = run
        self.runs = runs
        self.events: list[Event] = []
        self.error: Exception | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._follow, name=f"follow {run}", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        try:
            for event in self.runs.backend.events(self.id, follow=True):
                with self._changed:
                    self.events.append(event)
                    self._changed.notify_all()
        except Exception as error:
            self.error = error
        with self._changed:
            self._changed.notify_all()

    def until(self, what: str, matches: Callable[[Event], object], after: int = 0, limit: float = LIMIT) -> Event:
        """The first event from the *after*-th on that matches; fails with the last events if none comes in time."""
        deadline, checked = time.monotonic() + limit, after
        while True:
            with self._changed:
                new = self.events[checked:]
                if not new:
                    over = not self._thread.is_alive()
                    assert not over and time.monotonic() < deadline, f"{what} did not come: {self.recent_events()}"
                    self._changed.wait(0.5)
            for event in new:
                checked += 1
                if matches(event):
                    return event

    def until_kind(self, kind: str, after: int = 0, limit: float = LIMIT) -> Event:
        """The first event of that kind from the *after*-th on."""
        return self.until(f"{kind!r}", lambda event: event.kind == kind, after, limit)

    def until_reason(self, *words: str, after: int = 0, limit: float = LIMIT) -> Event:
        """The first event, from the *after*-th on, whose reason has all these words."""
        return self.until(f"{words!r}", lambda event: all(word in (event.reason or "") for word in words), after, limit)

    def until_attempt(self, number: int, after: int = 0) -> Event:
        """The start of an attempt, from the *after*-th event on."""
        return self.until(
            f"attempt {number}", lambda event: (event.kind, event.attempt) == (record.STARTED, number), after
        )

    def until_iteration(self, number: int, attempt: int = 1) -> Event:
        """The first metric of an attempt at or beyond that iteration."""
        return self.until(
            f"iteration {number} of attempt {attempt}",
            lambda event: event.attempt == attempt and (event.values.get("iteration") or 0) >= number,
        )

    def end(self, limit: float = LIMIT) -> Event:
        """The terminal event, once the stream has ended."""
        self._thread.join(limit)
        assert not self._thread.is_alive(), f"the run does not end: {self.recent_events()}"
        if self.error:
            raise self.error
        assert self.events and self.events[-1].terminal, f"the stream ended without an end: {self.recent_events()}"
        return self.events[-1]

    @property
    def has_ended(self) -> bool:
        """Whether the stream of events has ended."""
        return not self._thread.is_alive()

    def kinds(self) -> list[str]:
        """The kinds of all events but output and waiting, in order."""
        return [event.kind for event in self.events if event.kind not in (record.LINE, record.METRIC, record.WAITING)]

    def lines(self) -> list[str]:
        """The text of every line of output, without a warning that mpirun prints now and then for no error."""
        texts = [event.values["text"] for event in self.events if event.kind == record.LINE]
        return [text for text in texts if not launcher_output.is_harmless(text)]

    def reasons(self) -> list[str]:
        """Every reason for which the run waited."""
        return [event.reason or "" for event in self.events if event.kind == record.WAITING]

    def recent_events(self) -> str:
        """The last events in short, for failures: those of the run, then what the program has printed and reported."""
        of_program = (record.LINE, record.METRIC)
        own = [event for event in self.events if event.kind not in of_program][-15:]
        last = [event for event in self.events[-5:] if event.kind in of_program]
        lines = [f"{event.time:.1f} {event.kind} {event.attempt} {str(event.values)[:200]}" for event in (*own, *last)]
        return "\n  ".join([f"{len(self.events)} events, error {self.error!r}", *lines])

    @property
    def folder(self) -> Path:
        """The run folder on the run volume, as this machine sees it."""
        assert self.runs.volume is not None
        return self.runs.volume / "runs" / self.id

    def summary(self) -> dict[str, Any]:
        """The summary in the run folder."""
        values: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return values

    def pod(self, node: Member | int) -> Object:
        """A node's newest pod."""
        return self.runs.pod(self.id, node)

    def at_work(self, node: int) -> Member:
        """The pod that does the work of a node, by what it was at the beginning: where pods stand by, that changes."""
        pods = None if self.runs.volume is None else pods_at_work(str(self.folder))
        return Member(NODE, node) if pods is None else pods[node]

    def wait_for_next_pod(self, node: int, uid: str) -> None:
        """Wait until a node has another pod than the one of *uid*; between the two it has none for a moment."""

        def uids() -> set[str]:
            return {pod["metadata"]["uid"] for pod in self.runs.pods(self.id, Member(NODE, node))}

        wait_for(f"the next pod of node {node}", lambda: uids() - {uid})

    def processes(self, node: Member | int) -> dict[int, str]:
        """The command line of every process in a node's pods, by process id on this machine; none before it has one."""
        pods = self.runs.pods(self.id, Member(NODE, node) if isinstance(node, int) else node)
        started = {pod["metadata"]["uid"]: pod["spec"]["nodeName"] for pod in pods if "nodeName" in pod["spec"]}
        by_pod = [self.runs.testbed.node(name).pod_processes(uid) for uid, name in started.items()]
        return {pid: command for each in by_pod for pid, command in each.items()}

    def process(self, node: Member | int, what: str, matches: Callable[[str], bool]) -> int:
        """The id, on this machine, of a process in a node's pod whose command line matches; waits for one."""
        pids: list[int] = []

        def look() -> bool:
            pids[:] = [pid for pid, command in self.processes(node).items() if command and matches(command)]
            return bool(pids)

        wait_for(f"{what} on node {node}", look)
        return pids[0]

    def fork_server(self, node: int) -> int:
        """The id, on this machine, of the process that forks the ranks of a node."""
        return self._forks(node)[0]

    def rank(self, node: Member | int) -> int:
        """The id, on this machine, of a node's only rank; waits for one."""

        def seen() -> str:
            lines = self.lines()
            return f"{self.processes(node)}, {[text for text in lines if 'preload' in text]}, {lines[-20:]}"

        wait_for(f"a rank on node {node}", lambda: len(self._forks(node)) > 1, seen=seen)
        return self._forks(node)[1]

    def _forks(self, node: Member | int) -> list[int]:
        """The fork server of a node, then its ranks, which have the same command line."""
        pids = [pid for pid, command in self.processes(node).items() if "/fork_server.py " in command]
        return sorted(pids, key=lambda pid: _parent(pid) in pids)

    def wait_until_gone(self, limit: float = 60.0) -> None:
        """Wait until no object and no process of the run is left."""
        deadline = time.monotonic() + limit
        while leftovers := self.leftovers():
            assert time.monotonic() < deadline, f"not gone after {limit:g} s: {leftovers}"
            time.sleep(0.2)

    def leftovers(self) -> list[str]:
        """Every object that carries the run's label, and every process of it on the test cluster's machine."""
        label = f"{names.LABEL_RUN}={self.id}"
        objects = self.runs.testbed.kubectl("get", PARTS, "-n", self.runs.namespace, "-l", label, "-o", "name").split()
        return objects + [f"process {pid}: {command}" for pid, command in processes.of_run(self.id).items()]


def _parent(pid: int) -> int:
    """The parent of a process, 0 where it is gone."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


class Runs:
    """Submits runs into one namespace of the test cluster; *volume* is the folder of its run volume, if it has one."""

    def __init__(self, testbed: Cluster, namespace: str, folder: Path, volume: Path | None) -> None:
        self.testbed = testbed
        self.namespace = namespace
        self.volume = volume
        self.backend = KubernetesBackend(folder, namespace=namespace)
        # Ids that no other session on this machine uses: processes are found by their run's id.
        self._ids = (f"{secrets.token_hex(2)}-{number}" for number in itertools.count(1))

    def submit(self, values: Mapping[str, Any], image: str = "chainermn", run: str | None = None) -> str:
        """Start a run of the spec with *values* on an image of the cluster; its id.

        It is *run*, if given, which is resumed where there is such a run.
        """
        kubernetes = {"image": self.testbed.images.get(image, image), **values.get("kubernetes", {})}
        if self.volume is not None:
            kubernetes.setdefault("volume", "shared")
        spec = from_values({**values, "kubernetes": kubernetes})
        require_valid(spec, self.backend.inspect(spec))
        run = run or f"{names.slug(spec.title)}-{next(self._ids)}"
        self.backend.submit(spec, self.backend.plan(spec, run, print), lambda text: None)
        return run

    def start(self, values: Mapping[str, Any], image: str = "chainermn") -> FollowedRun:
        """Start a run and follow it."""
        return FollowedRun(self, self.submit(values, image))

    def pod(self, run: str, member: Member | int) -> Object:
        """The newest pod of a member of a run, or of a node by its number."""
        member = Member(NODE, member) if isinstance(member, int) else member
        pods = self.pods(run, member)
        assert pods, f"{member} has no pod"
        return max(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def pods(self, run: str, member: Member) -> list[Object]:
        """All pods of a member of a run, those that are being deleted included."""
        selector = f"{names.LABEL_RUN}={run}"
        pods: list[Object] = self.testbed.get("pods", "-n", self.namespace, "-l", selector)["items"]
        return [pod for pod in pods if member_of(pod) == member]

    def apply(self, kind: str, name: str, **content: Any) -> None:
        """Put an object into the namespace, such as a Secret or ConfigMap."""
        manifest = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **content}
        self.testbed.apply(manifest, namespace=self.namespace)

    def in_another_terminal(self, folder: Path) -> Runs:
        """The same runs as another terminal sees them, which has its copies in *folder*."""
        return Runs(self.testbed, self.namespace, folder, self.volume)


@contextmanager
def runs_in(
    testbed: Cluster, namespace: str, folder: Path, volume: bool = True, megabytes: int | None = None
) -> Iterator[Runs]:
    """The `Runs` of a namespace, for an ordinary user; all of them are deleted at the end of the block.

    With *megabytes* the run volume is no bigger.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(user_kubeconfig(testbed)))
        shared = testbed.shared_volume(namespace, megabytes=megabytes) if volume else None
        runs = Runs(testbed, namespace, folder, shared)
        try:
            yield runs
        finally:
            runs.testbed.try_kubectl("delete", "jobsets", "-n", namespace, "--all", "--wait=false")


def digits(epochs: int = 20, **more: Any) -> dict[str, Any]:
    """The values of a spec that trains digits on two nodes, 22 iterations an epoch."""
    return {
        "name": "digits",
        "image": "chainermn",
        "program": "digits",
        "args": ["--global-batch", "64", "--epochs", str(epochs)],
        "nodes": 2,
        **more,
    }


def plain(*command: str, **more: Any) -> dict[str, Any]:
    """The values of a spec that runs a plain command."""
    return {"name": "plain", "command": list(command), "launcher": "none", **more}


def local_events(values: Mapping[str, Any], folder: Path) -> list[Event]:
    """The events of the same work on this machine, which has to succeed."""
    backend, spec = LocalBackend(folder), from_values(values)
    backend.submit(spec, backend.plan(spec, "local-1", print), lambda text: None)
    events = list(backend.events("local-1", follow=True))
    assert events[-1].kind == "succeeded", events[-1]
    return events


def parameters(events: list[Event]) -> str:
    """The checksum of the final parameters that a run reported."""
    (result,) = [event for event in events if event.values.get("kind") == "result"]
    return str(result.values["parameters"])
