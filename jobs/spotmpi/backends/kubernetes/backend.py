"""Runs on a Kubernetes cluster: one JobSet per run, recorded by the agent of its first node."""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from spotmpi.agent import record
from spotmpi.backends.kubernetes import fault_injection
from spotmpi.backends.kubernetes import pull as pulling
from spotmpi.backends.kubernetes import stop as stopping
from spotmpi.backends.kubernetes.client import api as cluster_api
from spotmpi.backends.kubernetes.client.api import ClusterApi, Object
from spotmpi.backends.kubernetes.client.errors import translate_errors
from spotmpi.backends.kubernetes.client.portal import call, iterate
from spotmpi.backends.kubernetes.follow.attempt_counts import with_counters
from spotmpi.backends.kubernetes.follow.pending_diagnostics import Ask
from spotmpi.backends.kubernetes.follow.run import ClusterFollower
from spotmpi.backends.kubernetes.follow.state import submitted
from spotmpi.backends.kubernetes.submit import code, pod_templates, target
from spotmpi.backends.kubernetes.submit import objects as submitting
from spotmpi.backends.kubernetes.submit.hourly_price import run_rate
from spotmpi.backends.kubernetes.submit.keys import make_keys
from spotmpi.backends.kubernetes.volume_access import Volume
from spotmpi.backends.local import machine
from spotmpi.core import archives, names
from spotmpi.core.environment import Environment
from spotmpi.core.errors import NotPermitted, Problem, UnknownRun, UnreadableRun, input_error
from spotmpi.core.events import Event, Lines, Stream
from spotmpi.core.progress import Say
from spotmpi.images.build import build_for
from spotmpi.plan import manifests, pods
from spotmpi.plan.local import Plan
from spotmpi.runs import cache as run_cache
from spotmpi.runs import fingerprint, reader
from spotmpi.runs.cache import Given, RunCache
from spotmpi.runs.folder import folder_events
from spotmpi.runs.pod_output import Entry
from spotmpi.spec import node_groups
from spotmpi.spec.job import JobSpec
from spotmpi.spec.validate import TargetCapabilities

_MADE_LATER = "<made at submission>"


class KubernetesBackend:
    """Runs in one namespace of one cluster; *runs_folder* holds this terminal's copies of them."""

    def __init__(
        self,
        runs_folder: Path,
        context: str | None = None,
        namespace: str | None = None,
        environment: Environment | None = None,
    ) -> None:
        self.runs_folder = runs_folder
        self._context = context
        self._namespace = namespace or (environment.namespace if environment else None)
        self._environment = environment

    def survey(self, spec: JobSpec) -> TargetCapabilities:
        """What `spotmpi.spec.validate` has to know; the GPUs are the scheduler's business."""
        here = machine.survey(spec)
        return TargetCapabilities(
            programs=here.programs,
            data_is_folder=True,
            code_is_folder=here.code_is_folder,
            tools=frozenset({"none", "mpirun", "torchrun"}),
            gpus=spec.resources.gpu * spec.world_size,
            variables=here.variables,
            lasting=target.lasting(spec, self._environment),
            groups=self._environment.node_groups if self._environment else (),
            rate=run_rate(spec, self._environment),
        )

    def plan(self, spec: JobSpec, run: str) -> Plan:
        """The run's objects in the order of creation, without its keys."""
        offer = target.make(spec, self._environment, self._api())
        shipped = code.shipment(offer.spec, offer.target)
        submission = manifests.Submission(
            run=run,
            owner=names.user(),
            keys=dict.fromkeys([*make_keys(), *map(pods.forwarded_key, spec.forward)], _MADE_LATER),
            code={"pod.tar.gz": archives.pod_side(names.SOURCE), **(shipped.carried if shipped else {})},
            user_code=shipped.facts if shipped else None,
            work=fingerprint.identify(offer.spec, here=False),
            rate=run_rate(offer.spec, self._environment),
        )
        objects = manifests.kubernetes_plan(offer.spec, offer.target, submission)
        if offer.target.templates:
            pod_templates.require_shape(manifests.pod_template(objects[0]), offer.target.templates)
        return {
            **manifests.copied_plan(spec, run, self._api().context, offer.target.namespace),
            "notes": [*offer.notes, *([shipped.note] if shipped else [])],
            "code": {"digest": shipped.packed.digest, "by_volume": shipped.by_volume} if shipped else None,
            "owner": submission.owner,
            "ssh_secret": spec.kubernetes.ssh_secret or (self._environment.ssh_secret if self._environment else None),
            "environment": self._environment.name if self._environment else None,
            "there": self._environment.model_dump(mode="json") if self._environment else None,
            "objects": objects,
        }

    def submit(self, spec: JobSpec, plan: Plan, say: Say) -> None:
        """Create the JobSet suspended, then what it owns, then let it go."""
        paths = names.RunPaths(self.runs_folder / plan["run"])
        mounted = manifests.mounted(plan["objects"][0])
        # A run that is continued has a record here, which nobody may delete meanwhile.
        with reader.lock(paths) if paths.folder.exists() else contextlib.nullcontext():
            if mounted:
                call(code.store(self._api(), plan, spec, Volume(*mounted), say))
            created = call(submitting.create(self._api(), plan, say))
            run_cache.create(paths, spec.to_toml(), {**plan, "objects": created.objects}, created.submitted)

    def events(self, run: str, follow: bool) -> Iterator[Event]:
        """All events that the cluster still has, kept in this terminal's copy as they come."""
        paths = names.RunPaths(self.runs_folder / run)
        cached = self._cached(run)
        jobset = None if cached and cached.state in record.TERMINAL else call(self._find(run))
        if jobset is None:
            return Stream(folder_events(reader.find(run, self.runs_folder), follow=False, alive=lambda: False))
        return Stream(self._live_events(paths, jobset, follow, wants_output=not follow))

    def state(self, run: str) -> reader.RunState:
        """What the run has come to: from this terminal's copy once that holds its end, else from the cluster."""
        cached = self._cached(run)
        if cached and cached.state in record.TERMINAL:
            return cached
        jobset = call(self._find(run))
        if jobset is None and cached is None:
            raise UnknownRun(
                [Problem("run", run, "no such run in the namespace; `spotmpi list` shows those there are")]
            )
        return self._of_jobset(jobset) if jobset else self._without_jobset(run)

    def _of_jobset(self, jobset: Object) -> reader.RunState:
        """The state of a run that the cluster has, be it only that this version cannot read it."""
        run = jobset["metadata"]["name"]
        cached = self._cached(run)
        if cached and cached.state in record.TERMINAL:
            return cached
        try:
            return self._looked_at(run, jobset)
        except UnreadableRun as error:
            known = cached or reader.RunState(run, str(self.runs_folder / run), run, reader.UNKNOWN)
            owner = manifests.annotations_of(jobset).get(manifests.ANNOTATION_OWNER)
            return replace(known, state=reader.UNKNOWN, reason=str(error), submitted=submitted(jobset), owner=owner)

    def _without_jobset(self, run: str) -> reader.RunState:
        """The state of a run that the namespace lacks: lost, unless its end is known or it is in another cluster."""
        paths = reader.find(run, self.runs_folder)
        found, api = reader.state(paths), self._api()
        if found.state != reader.ELSEWHERE or reader.cluster_of(paths) not in _targets(api):
            return found
        return replace(found, state=record.LOST, reason=f"its JobSet is gone from namespace {api.namespace}")

    def _looked_at(self, run: str, jobset: Object) -> reader.RunState:
        """The state of a run that the cluster has; its copy alone cannot know that somebody carries it on."""
        paths = names.RunPaths(self.runs_folder / run)
        last = None
        for event in self._live_events(paths, jobset, follow=False):
            last = event if isinstance(event, Event) else None
        found = reader.state(paths)
        waiting = last is not None and last.kind == record.WAITING
        found = with_counters(found, jobset, reader.earlier_attempts(paths), waiting)
        if found.state in record.TERMINAL:
            return found
        if last and waiting:
            return replace(found, state=record.WAITING, reason=last.reason)
        return replace(found, state=reader.RUNNING)

    def list(self) -> list[reader.RunState]:
        """The runs of the namespace and those that this terminal has copies of, oldest first."""
        there = {jobset["metadata"]["name"]: jobset for jobset in call(self._jobsets())}
        here = _targets(self._api())
        gone = [paths.id for paths in reader.every(self.runs_folder) if reader.cluster_of(paths) in here]
        found = [self._of_jobset(jobset) for jobset in there.values()]
        found += [self._without_jobset(run) for run in gone if run not in there]
        return sorted(found, key=lambda state: (state.submitted or math.inf, state.id))

    def stop(self, run: str, reason: str, now: bool) -> None:
        """Ask node 0's agent to stop, wait for it as long as a checkpoint may take, and delete all of the run."""
        if not now:
            call(stopping.ask(self._api(), run, reason))
        state = self.state(run)  # what the agents have said to the end is in the copy from now on
        moment = call(stopping.delete(self._api(), run, reason, now))
        if state.state not in record.TERMINAL:
            with RunCache(names.RunPaths(self.runs_folder / run)) as cache:
                cache.take([Entry(0, event=Event(moment, record.STOPPED, values={"reason": reason}))])

    def inject_fault(self, run: str, node: int, how: str) -> None:
        """Evict or delete a node's pod, or kill the ranks in it."""
        call(fault_injection.inject_fault(self._api(), run, node, how))

    def shell(self, run: str, node: int) -> Sequence[str]:
        """Kubectl exec into a node's pod."""
        pod = call(fault_injection.pod_of(self._api(), run, node))["metadata"]["name"]
        context = ["--context", self._context] if self._context else []
        there = ["--namespace", self._api().namespace, "--container", pods.CONTAINER, "--stdin", "--tty", pod]
        return ["kubectl", *context, "exec", *there, "--", "/bin/sh"]

    def pull(self, run: str, say: Say, part: str | None = None) -> Path:
        """Bring the run's folder from its run volume, by way of one of its pods or of a pod for the purpose."""
        paths = names.RunPaths(self.runs_folder / run)
        jobset = call(self._find(run))
        if jobset:
            self.state(run)
        call(pulling.pull(self._api(), paths, self._volume_of(paths, jobset), say, part))
        return paths.folder

    def _volume_of(self, paths: names.RunPaths, jobset: Object | None) -> Volume:
        """Where a run's folder is, from the cluster, this terminal's copy, or the environment that was named."""
        objects = [jobset] if jobset else reader.plan(paths).get("objects") if paths.plan.is_file() else None
        if objects:
            return pulling.volume_of(manifests.mounted(objects[0]), paths.id)
        if self._environment is None:
            remedy = "neither the cluster nor this terminal knows it any more; name its environment with --on STACK"
            raise input_error("run", paths.id, remedy)
        image, repository = next(iter(self._environment.repositories.items()))
        build = build_for(image, self._environment.has_gpus)
        return Volume(self._environment.volume_claim, build.reference(repository))

    def _api(self) -> ClusterApi:
        return ClusterApi(self._context, self._namespace)

    async def _find(self, run: str) -> Object | None:
        with translate_errors(f"look up run {run}"):
            return await self._api().find(cluster_api.JOBSET, run)

    async def _jobsets(self) -> Sequence[Object]:
        with translate_errors("list runs"):
            api = self._api()
            return await stopping.without_strays(api, await api.list(cluster_api.JOBSET, {names.LABEL_APP: "spotmpi"}))

    def _live_events(
        self, paths: names.RunPaths, jobset: Object, follow: bool, wants_output: bool = False
    ) -> Iterator[Event | Lines]:
        """What this terminal's copy holds, then what is new; NotPermitted where no wanted output can be had."""
        self._ensure_copy(jobset)
        given = Given()
        for event in folder_events(paths, follow=False, alive=lambda: True):
            if given.is_new(event):
                yield event
        batches = iterate(self._entries(jobset, follow, wants_output))
        with translate_errors(f"follow run {paths.id}"), contextlib.closing(batches), RunCache(paths) as cache:
            for entries in batches:
                cache.take(entries)
                for entry in entries:
                    yield from given.fresh(entry)

    async def _entries(self, jobset: Object, follow: bool, wants_output: bool) -> AsyncIterator[Sequence[Entry]]:
        follower = ClusterFollower(self._api(), jobset, self._why_no_machine(jobset))
        async for entries in follower.follow() if follow else follower.so_far():
            yield entries
        if wants_output and follower.folder.failure:
            raise NotPermitted(follower.folder.failure)

    def _why_no_machine(self, jobset: Object) -> Ask | None:
        """What asks the environment's cloud why a run gets no nodes."""
        if (environment := self._environment) is None:
            return None
        choice = node_groups.choose(manifests.spec_of(jobset), environment.node_groups)
        groups = () if isinstance(choice, list) else [group.name for group in choice.groups]

        def ask() -> str | None:
            from spotmpi.aws import launch_failures
            from spotmpi.aws.account import open_account

            return launch_failures.why_no_machine(
                open_account(environment.region), environment, groups, submitted(jobset)
            )

        return ask

    def _ensure_copy(self, jobset: Object) -> None:
        paths = names.RunPaths(self.runs_folder / jobset["metadata"]["name"])
        if not paths.folder.exists():
            spec = manifests.spec_of(jobset)
            plan = manifests.copied_plan(spec, paths.id, self._api().context, jobset["metadata"]["namespace"])
            if owner := manifests.annotations_of(jobset).get(manifests.ANNOTATION_OWNER):
                plan["owner"] = owner
            run_cache.create(paths, spec.to_toml(), plan, submitted(jobset))

    def _cached(self, run: str) -> reader.RunState | None:
        paths = names.RunPaths(self.runs_folder / run)
        return reader.state(paths) if paths.events.is_file() else None


def _targets(api: ClusterApi) -> tuple[reader.ClusterName, reader.ClusterName]:
    """How copies name the namespace of *api*; those of older versions name no context where it was the current one."""
    return reader.ClusterName(api.context, api.namespace), reader.ClusterName(None, api.namespace)
