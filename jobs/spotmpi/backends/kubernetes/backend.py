"""Runs on a Kubernetes cluster: one JobSet per run, recorded by the agent of its first node."""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from spotmpi.agent import pod_context, protocol, record
from spotmpi.agent.files import exists, is_file
from spotmpi.agent.plan import WORKER, Member
from spotmpi.backends.base import Plan, PoolAddress
from spotmpi.backends.kubernetes import fault_injection, pool_access
from spotmpi.backends.kubernetes import pull as pulling
from spotmpi.backends.kubernetes import stop as stopping
from spotmpi.backends.kubernetes.client import api as cluster_api
from spotmpi.backends.kubernetes.client import kubeconfig_entries
from spotmpi.backends.kubernetes.client.api import ClusterApi, Object
from spotmpi.backends.kubernetes.client.errors import no_such_run, translate_errors
from spotmpi.backends.kubernetes.client.kubeconfig import access_of
from spotmpi.backends.kubernetes.client.portal import call, iterate
from spotmpi.backends.kubernetes.follow.jobset import RUNNING, FollowedRun, add_restart_counts, submission_time
from spotmpi.backends.kubernetes.follow.run import ClusterFollower, Listing, list_all
from spotmpi.backends.kubernetes.follow.waiting import CloudDiagnosis
from spotmpi.backends.kubernetes.submit import (
    adaptation,
    capacity_blocks,
    code,
    deadline,
    pod_templates,
    target,
    wheels,
)
from spotmpi.backends.kubernetes.submit import objects as submitting
from spotmpi.backends.local import machine
from spotmpi.core import archives, names, wording
from spotmpi.core.environment import Environment
from spotmpi.core.errors import InputError, NotPermitted, SpotmpiError, UnreadableRun, input_error
from spotmpi.core.events import Event, Lines, Stream
from spotmpi.core.wording import Echo, duration
from spotmpi.images.build import build_for
from spotmpi.images.environment import launchers_of
from spotmpi.plan import cluster_plan, manifests, pods
from spotmpi.plan.cluster import ClusterTarget
from spotmpi.plan.placement import Beginning
from spotmpi.plan.run_plan import elastic_notes, memory_notes, standby_notes
from spotmpi.plan.volume_pod import Volume
from spotmpi.programs.pool.settings import versions
from spotmpi.runs import fingerprint, ownership, reader, recorded_plan
from spotmpi.runs.folder import create, folder_events
from spotmpi.runs.pod_output import PodEntry, RunCache
from spotmpi.runs.recorded_plan import ClusterNamespace
from spotmpi.spec import roles
from spotmpi.spec.job import JobSpec
from spotmpi.spec.validate import TargetCapabilities

_KEY_PLACEHOLDER = "<generated at submission>"


class _Placement(NamedTuple):
    """The target on which a gang begins and why, with notes for people.

    *rates* are US dollars per hour of the gang by node group, where it may be on several, *prices* those of each role.
    """

    target: ClusterTarget
    beginning: Beginning
    rates: dict[str, float]
    prices: list[float] | None
    notes: list[str]


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

    def inspect(self, spec: JobSpec) -> TargetCapabilities:
        """The capabilities to validate against; GPUs are left to the scheduler."""
        now = datetime.now(UTC)
        return machine.inspect_client(spec)._replace(
            tools=frozenset(launchers_of(spec.image or "")),
            gpus=sum(role.resources.gpu * role.world_size for role in roles.role_specs(spec)),
            persistent=target.persistent_folders(spec, self._environment),
            groups=self._environment.node_groups if self._environment else (),
            rate=target.hourly_rate(spec, self._environment),
            capacity=(
                *deadline.problems(spec, self._environment, now),
                *capacity_blocks.problems(spec, self._environment, now),
            ),
        )

    def plan(self, spec: JobSpec, run: str, echo: Echo) -> cluster_plan.ClusterPlan:
        """The run's objects in the order of creation, without its keys, as the cluster permits them.

        Where the cluster does not answer, the plan names that as the reason for which it cannot be submitted.
        """
        plan, paths = self._draft(spec, run, self._restart_obstacle(spec, run)), names.RunPaths(self.runs_folder / run)
        if attempts := reader.newest_attempt(paths):  # without a run volume the pods of a resumed run cannot know
            plan["objects"] = [cluster_plan.with_agent_plan(each, attempts_before=attempts) for each in plan["objects"]]
        if spec.workers and any(each.kubernetes.image for each in roles.role_specs(spec)):
            plan["objects"] = wheels.mount(plan["objects"], spec, echo)
        try:
            return call(adaptation.adapt(self._api(), plan, echo))
        except (InputError, NotPermitted):
            raise
        except SpotmpiError as error:
            return {**plan, "unchecked": str(error)}

    def _restart_obstacle(self, spec: JobSpec, run: str) -> str | None:
        """Why JobSet cannot restart one node of the run alone, as a note; None where it can.

        Empty for one node, and without a run volume: the end of such a run would take away what other nodes printed.
        """
        if spec.nodes == 1 or target.volume(spec, self._environment) is None:
            return ""
        try:
            return call(adaptation.restart_obstacle(self._api(), run, spec.nodes + spec.standby))
        except SpotmpiError:
            return ""  # whatever asks the cluster next says why it does not answer

    def _draft(self, spec: JobSpec, run: str, obstacle: str | None) -> cluster_plan.ClusterPlan:
        """The plan of a valid spec; its nodes have a Job each where there is no *obstacle* to restarting one alone."""
        if obstacle and len(spec.sizes) > 1:
            raise input_error("nodes", list(spec.sizes), f"give one number of nodes: {obstacle}")
        requested, spec = spec, spec if obstacle is None else spec.model_copy(update={"standby": 0})
        resolved = target.resolve(spec, self._environment, self._api(), job_per_node=obstacle is None)
        shipment = code.pack(resolved.spec, resolved.target)
        placed = self._place(resolved)
        submission = _submission(spec, run, resolved, placed, shipment)
        objects = manifests.kubernetes_plan(resolved.spec, placed.target, submission, resolved.worker_targets)
        if resolved.target.templates:
            for pod in cluster_plan.templates(objects):
                pod_templates.validate(pod, resolved.target.templates)
        environment = self._environment
        return {
            **cluster_plan.cached_plan(spec.title, run, self._api().context, resolved.target.namespace),
            "notes": [
                *placed.notes,
                *resolved.notes,
                *elastic_notes(spec, _unused_pods_note(spec, placed.target)),
                *standby_notes(requested, placed.prices, obstacle is None),
                *([shipment.note] if shipment else []),
                *memory_notes(spec, pod_context.MEMORY, copied=True),
                *([obstacle] if obstacle else []),
            ],
            "code": {"digest": shipment.packed.digest, "from_volume": shipment.from_volume} if shipment else None,
            "owner": submission.owner,
            "ssh_secret": spec.kubernetes.ssh_secret or (environment.ssh_secret if environment else None),
            "unchecked": None,
            "environment": environment.name if environment else None,
            "outputs": environment.model_dump(mode="json") if environment else None,
            "objects": objects,
        }

    def _place(self, resolved: target.ResolvedTarget) -> _Placement:
        """Where the gang of a resolved run begins."""
        spec, environment = resolved.spec, self._environment
        rates, prices = target.placement_rates(spec, environment), target.hourly_rates(spec, environment)
        blocks = capacity_blocks.read(spec, environment)
        first, beginning, notes = deadline.begin(spec, resolved.target, rates, datetime.now(UTC), blocks)
        return _Placement(first, beginning, rates, prices, [*target.capacity_note(spec, first, rates), *notes])

    def submit(self, spec: JobSpec, plan: Plan, echo: Echo) -> None:
        """Create the JobSet suspended, then the parts it owns, then unsuspend it."""
        assert plan["backend"] == names.KUBERNETES
        if plan["unchecked"]:
            raise SpotmpiError(plan["unchecked"])
        paths = names.RunPaths(self.runs_folder / plan["run"])
        volume = cluster_plan.run_volume(plan["objects"][0])
        # A resumed run has a record on this machine; the lock keeps others from deleting it meanwhile.
        with reader.lock(paths) if exists(paths.folder) else contextlib.nullcontext():
            if volume:
                call(code.upload(self._api(), plan, spec, volume, echo))
            call(wheels.send(self._api(), plan["objects"], spec, echo))
            created = call(submitting.create(self._api(), plan, echo))
            own_plan = {**plan, "objects": [*created.objects]}
            create(paths, spec.to_toml(), own_plan, created.submitted, plan["owner"])
            ownership.mark(paths)

    def events(self, run: str, follow: bool) -> Iterator[Event]:
        """All events that the cluster still has; they are recorded in this terminal's copy on the way."""
        paths = names.RunPaths(self.runs_folder / run)
        cached = self._cached(run)
        jobset = None if cached and cached.has_end else call(self._find(run))
        if jobset is None:
            return folder_events(reader.find(run, self.runs_folder), follow=False, alive=lambda: False)
        return Stream(self._live_events(paths, jobset, follow, need_output=not follow))

    def state(self, run: str) -> reader.RunState:
        """The state of the run: from this terminal's copy once that holds its end, else from the cluster."""
        cached = self._cached(run)
        if cached and cached.has_end:
            return cached
        jobset = call(self._find(run))
        if jobset is None and cached is None:
            raise no_such_run(run)
        return self._state_of(jobset, cached) if jobset else self._without_jobset(run)

    def _state_of(
        self, jobset: Object, cached: reader.RunState | None, listing: Listing | None = None
    ) -> reader.RunState:
        """The state of a run that the cluster has; unknown where this version cannot read its JobSet."""
        run = jobset["metadata"]["name"]
        if cached and cached.has_end:
            return cached
        try:
            return self._current_state(run, jobset, listing)
        except UnreadableRun as error:
            state = cached or reader.RunState(run, str(self.runs_folder / run), run, reader.UNKNOWN)
            owner = cluster_plan.annotations_of(jobset).get(manifests.ANNOTATION_OWNER)
            return replace(
                state, state=reader.UNKNOWN, reason=str(error), submitted=submission_time(jobset), owner=owner
            )

    def _without_jobset(self, run: str) -> reader.RunState:
        """The state of a run that the namespace lacks: lost, unless its end is known or it is in another cluster."""
        paths = reader.find(run, self.runs_folder)
        state, api = reader.state(paths), self._api()
        if state.state != reader.ELSEWHERE or recorded_plan.cluster_of(paths) != _namespace(api):
            return state
        return replace(state, state=record.LOST, reason=f"its JobSet is gone from namespace {api.namespace}")

    def _current_state(self, run: str, jobset: Object, listing: Listing | None) -> reader.RunState:
        """The state of a run that the cluster has; the copy alone cannot know whether it has been resumed."""
        paths = names.RunPaths(self.runs_folder / run)
        last = None
        for event in self._live_events(paths, jobset, follow=False, listing=listing):
            if not isinstance(event, Event):
                last = None
            elif event.kind != record.PLACED:  # which ends no wait of an agent
                last = event
        waiting = last is not None and last.kind == record.WAITING and RUNNING not in last.values
        state = add_restart_counts(reader.state(paths), jobset, reader.earlier_attempts(paths), waiting)
        if state.has_end:
            return state
        state = reader.with_workers(state, FollowedRun(jobset).workers)
        if last and last.terminal:  # another process writes the copy, and is still reading the last output
            return replace(state, state=last.kind, reason=last.reason, ended=last.time, workers={})
        if last and waiting:
            return replace(state, state=record.WAITING, reason=last.reason)
        known = None if state.state == reader.ELSEWHERE else state.reason  # which says to ask the cluster
        return replace(state, state=reader.RUNNING, reason=last.reason if last and RUNNING in last.values else known)

    def list(self) -> list[reader.RunState]:
        """The runs of the namespace and those that this terminal has copies of, oldest first."""
        listed, listing = call(self._jobsets())
        jobsets = {jobset["metadata"]["name"]: jobset for jobset in listed}
        own = _namespace(self._api())
        copies = [paths.id for paths in reader.every(self.runs_folder) if recorded_plan.cluster_of(paths) == own]
        states = [self._state_of(jobset, self._cached(run), listing) for run, jobset in jobsets.items()]
        states += [self._without_jobset(run) for run in copies if run not in jobsets]
        return sorted(states, key=lambda state: (state.submitted or math.inf, state.id))

    def stop(self, run: str, reason: str, now: bool) -> None:
        """Ask node 0's agent to stop, wait for it as long as a checkpoint may take, and delete the run's objects."""
        if not now:
            call(stopping.request_stop(self._api(), run, reason))
        state = self.state(run)  # this records the agents' last output in the copy
        moment = call(stopping.delete_run(self._api(), run, reason, now))
        if not state.has_end:
            with RunCache(names.RunPaths(self.runs_folder / run)) as cache:
                cache.write([PodEntry(0, event=Event(moment, record.STOPPED, values={"reason": reason}))])

    def require_fault(self, run: str, member: Member, fault: str) -> None:
        """Refuse a member without a pod: a pod takes each fault."""
        call(fault_injection.pod_of(self._api(), run, member))

    def inject_fault(self, run: str, member: Member, fault: str) -> None:
        """Evict or delete a member's pod, or kill the ranks in it."""
        call(fault_injection.inject_fault(self._api(), run, member, fault))

    def shell(self, run: str, member: Member) -> Sequence[str]:
        """Kubectl exec into a member's pod."""
        pod = call(fault_injection.pod_of(self._api(), run, member))["metadata"]["name"]
        context = ["--context", self._context] if self._context else []
        if access := access_of(self._context):
            context = ["--kubeconfig", str(kubeconfig_entries.own_file(access.endpoint(), self._api().namespace))]
        options = ["--namespace", self._api().namespace, "--container", pods.CONTAINER, "--stdin", "--tty", pod]
        return ["kubectl", *context, "exec", *options, "--", "/bin/sh"]

    def pool_address(self, run: str) -> AbstractContextManager[PoolAddress]:
        """The scheduler of a pool that is up, by a port of this machine while the context lasts."""
        return pool_access.pool_address(self._api, run, lambda: self.state(run))

    def forward_port(self, run: str, port: int) -> AbstractContextManager[int]:
        """A port of this machine that leads to one of node 0's pod while the context lasts."""
        return pool_access.forward_to_node_0(self._api(), run, port)

    def resize(self, run: str, workers: int, role: str = WORKER) -> None:
        """Let a pool have so many workers."""
        call(pool_access.resize(self._api(), run, workers, role))

    def pull(self, run: str, echo: Echo, part: str | None = None) -> Path:
        """Copy the run's folder from its run volume, through one of its pods or a short-lived reader pod."""
        paths = names.RunPaths(self.runs_folder / run)
        jobset = call(self._find(run))
        if jobset:
            self.state(run)
        call(pulling.pull(self._api(), paths, self._volume_of(paths, jobset), echo, part))
        return paths.folder

    def _volume_of(self, paths: names.RunPaths, jobset: Object | None) -> Volume:
        """The volume with a run's folder, according to the cluster, this terminal's copy, or the environment."""
        objects = [jobset] if jobset else recorded_plan.read(paths).objects if is_file(paths.plan) else None
        if objects:
            return pulling.require_volume(cluster_plan.run_volume(objects[0]), paths.id)
        if self._environment is None:
            place = wording.option("on", "STACK")
            remedy = f"not found in the cluster or in the runs folder; name its environment with {place}"
            raise input_error("run", paths.id, remedy)
        image, repository = next(iter(self._environment.repositories.items()))
        build = build_for(image, self._environment.has_gpus)
        return Volume(self._environment.volume_claim, build.reference(repository))

    def _api(self) -> ClusterApi:
        return ClusterApi(self._context, self._namespace)

    async def _find(self, run: str) -> Object | None:
        with translate_errors(f"look up run {run}"):
            return await self._api().find(cluster_api.JOBSET, run) if names.is_folder_name(run) else None

    async def _jobsets(self) -> tuple[Sequence[Object], Listing | None]:
        """The JobSets of the namespace, and what all of them are looked up in; None where that may not be listed."""
        with translate_errors("list runs"):
            api = self._api()
            jobsets = await api.list(cluster_api.JOBSET, {names.LABEL_APP: "spotmpi"})
            own = [jobset for jobset in jobsets if names.is_folder_name(jobset["metadata"]["name"])]
            current = await stopping.delete_abandoned(api, own)
            return current, await list_all(api) if len(current) > 1 else None

    def _live_events(
        self,
        paths: names.RunPaths,
        jobset: Object,
        follow: bool,
        need_output: bool = False,
        listing: Listing | None = None,
    ) -> Iterator[Event | Lines]:
        """The events in this terminal's copy, then new ones; NotPermitted where needed output may not be read."""
        self._ensure_copy(jobset)
        with RunCache(paths) as cache:
            yield from cache.recorded
            batches = iterate(self._entries(jobset, follow, need_output, listing))
            with translate_errors(f"follow run {paths.id}"), contextlib.closing(batches):
                for entries in batches:
                    yield from cache.write(entries)

    async def _entries(
        self, jobset: Object, follow: bool, need_output: bool, listing: Listing | None
    ) -> AsyncIterator[Sequence[PodEntry]]:
        follower = ClusterFollower(self._api(), jobset, self._why_no_machine(jobset), listing)
        async for entries in follower.follow() if follow else follower.snapshot():
            yield entries
        if need_output and follower.folder_log.failure:
            raise NotPermitted(follower.folder_log.failure)

    def _why_no_machine(self, jobset: Object) -> CloudDiagnosis | None:
        """A function that queries AWS for the reason why the environment's node groups get no instances for a run."""
        if (environment := self._environment) is None:
            return None
        groups = target.group_names(cluster_plan.spec_of(jobset), environment)

        def ask() -> str | None:
            from spotmpi.aws import launch_failures
            from spotmpi.aws.account import open_account

            return launch_failures.last_launch_failure(
                open_account(environment.region), environment, groups, submission_time(jobset)
            )

        return ask

    def _ensure_copy(self, jobset: Object) -> None:
        paths = names.RunPaths(self.runs_folder / jobset["metadata"]["name"])
        if not exists(paths.folder):
            spec = cluster_plan.spec_of(jobset)
            plan = cluster_plan.cached_plan(spec.title, paths.id, self._api().context, jobset["metadata"]["namespace"])
            if owner := cluster_plan.annotations_of(jobset).get(manifests.ANNOTATION_OWNER):
                plan["owner"] = owner
            create(paths, spec.to_toml(), plan, submission_time(jobset), plan.get("owner"))

    def _cached(self, run: str) -> reader.RunState | None:
        paths = names.RunPaths(self.runs_folder / run)
        return reader.state(paths) if is_file(paths.events) else None


def _namespace(api: ClusterApi) -> ClusterNamespace:
    """The namespace of *api* as copies record it."""
    return ClusterNamespace(api.context, api.namespace)


def _submission(
    spec: JobSpec, run: str, resolved: target.ResolvedTarget, placed: _Placement, shipment: code.CodeShipment | None
) -> manifests.Submission:
    """What the objects of a run have besides its spec and target; keys are filled in when they are created."""
    keys = [*submitting.generate_keys(), *protocol.TLS_FILES, *map(pods.forwarded_key, spec.env_passthrough)]
    return manifests.Submission(
        run=run,
        owner=names.user(),
        keys=dict.fromkeys(keys, _KEY_PLACEHOLDER),
        code=_archives(shipment, with_policy=bool(spec.capacity.deadline and placed.target.order)),
        user_code=shipment.agent_plan if shipment else None,
        work=fingerprint.identify(resolved.spec, local=False),
        rate=None if placed.prices is None else sum(placed.prices),
        rates=placed.rates,
        versions=versions() if spec.pool else None,
        beginning=placed.beginning,
    )


def _archives(shipment: code.CodeShipment | None, with_policy: bool) -> dict[str, bytes]:
    """The archives in the ConfigMap of a run, by file name; *with_policy* for a gang that is placed by a deadline."""
    policy = {"policy.tar.gz": archives.policy_archive()} if with_policy else {}
    own = shipment.config_map_files if shipment else {}
    return {"pod.tar.gz": archives.agent_archive(), **policy, **own}


def _unused_pods_note(spec: JobSpec, on: ClusterTarget) -> str:
    """What becomes of pods that an attempt does not use, of a run that may have fewer nodes."""
    if on.order:
        return f"pods beyond that are released after {duration(spec.capacity.partial)}, and asked for again later"
    return "pods beyond that stand by, and cost as much as nodes"
