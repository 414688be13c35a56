"""The cluster target of a run, resolved from the spec, the environment and, for templates, the cluster itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from spotmpi.backends.kubernetes.client.api import ClusterApi
from spotmpi.backends.kubernetes.submit import pod_templates
from spotmpi.core import wording
from spotmpi.core.environment import Environment, NodeGroup
from spotmpi.core.errors import InputError, Problem, SpotmpiError, input_error
from spotmpi.images import build as images
from spotmpi.images import registry
from spotmpi.images.build import Build
from spotmpi.images.registry import Pinned
from spotmpi.plan.agent_plan import VOLUME
from spotmpi.plan.cluster import ClusterTarget, in_order, on_groups
from spotmpi.plan.run_plan import preload_note
from spotmpi.spec import roles
from spotmpi.spec.job import JobSpec
from spotmpi.spec.node_groups import Choice, own_prices
from spotmpi.spec.workers import StreamWorkers, Workers


@dataclass(frozen=True)
class ResolvedTarget:
    """A target for the run, the spec with the target's defaults filled in, and notes for the user."""

    target: ClusterTarget
    spec: JobSpec
    notes: tuple[str, ...]
    worker_targets: tuple[ClusterTarget, ...] = ()  # of each role of its workers


def volume(spec: JobSpec, environment: Environment | None) -> str | None:
    """The claim of the run volume, or None."""
    return spec.kubernetes.volume or (environment.volume_claim if environment else None)


def persistent_folders(spec: JobSpec, environment: Environment | None) -> tuple[str, ...]:
    """The folders in a pod whose content outlives it."""
    claims = tuple(mount.path for mount in spec.kubernetes.mounts if mount.claim and not mount.read_only)
    return (VOLUME, *claims) if volume(spec, environment) else claims


def hourly_rate(spec: JobSpec, environment: Environment | None) -> float | None:
    """US dollars per hour of all nodes and pods that stand by, where known."""
    rates = hourly_rates(spec, environment)
    return None if rates is None else sum(rates)


def hourly_rates(spec: JobSpec, environment: Environment | None) -> list[float] | None:
    """US dollars per hour of the nodes with the pods that stand by for them, and of each role of workers.

    None where they are unknown; AWS is only asked where the run has a cost limit, or pods that stand by.
    """
    specs = roles.role_specs(spec)
    if spec.price is not None:
        return [(role.price or spec.price) * (role.nodes + role.standby) for role in specs]
    if not (spec.cost_limits or spec.standby) or not environment or not environment.node_groups:
        return None
    # A spec that fits no group is refused later; until then assume the most expensive of all groups.
    unknown = [environment.node_groups] * len(specs)
    choices = roles.choose(spec, environment.node_groups)
    groups = unknown if isinstance(choices, list) else [choice.every_group for choice in choices]
    pairs = zip(groups, specs, strict=True)
    try:
        return [
            (role.price or max(prices_of(spec, environment, each).values())) * (role.nodes + role.standby)
            for each, role in pairs
        ]
    except SpotmpiError as error:
        if spec.limits.cost is not None:
            raise input_error("price", None, f"set it: the price of a node is unknown: {error}") from error
        return None  # it would be shown alone, or what lacks prices for a deadline is named


def placement_rates(
    spec: JobSpec, environment: Environment | None, choices: roles.Choices | None = None
) -> dict[str, float]:
    """US dollars per hour of a run by the node group of its gang, where it may be on several or have several sizes.

    That is all its nodes, pods that stand by and workers. Empty where AWS does not tell the prices; for a run with a
    deadline a SpotmpiError says why. *choices* are the groups where those that the run fits are not meant.
    """
    found = choices or (roles.choose(spec, environment.node_groups) if environment else [])
    if environment is None or isinstance(found, list):
        return {}
    gang, *workers = found
    has_deadline = spec.capacity.deadline is not None
    if not (gang.fallbacks or gang.blocks or has_deadline or len(spec.sizes) > 1):
        return {}
    specs = roles.role_specs(spec)
    if spec.price is not None:
        total = sum((role.price or spec.price) * (role.nodes + role.standby) for role in specs)
        return {group.name: total for group in gang.every_group}
    try:
        prices = prices_of(spec, environment, gang.every_group)
        of_workers = sum(
            (role.price or max(prices_of(spec, environment, choice.groups).values())) * role.nodes
            for choice, role in zip(workers, specs[1:], strict=False)  # `nearest` may leave out workers
        )
    except SpotmpiError:
        if has_deadline:
            raise
        return {}
    return {name: price * (spec.nodes + spec.standby) + of_workers for name, price in prices.items()}


def prices_of(spec: JobSpec, environment: Environment, groups: Sequence[NodeGroup]) -> dict[str, float]:
    """US dollars per hour of a node by group: those in ``capacity.prices``, else AWS's."""
    from spotmpi.aws.prices import group_prices

    known = own_prices(spec, groups)
    unpriced = [group for group in groups if group.name not in known]
    return known | group_prices(environment, unpriced) if unpriced else known


def group_names(spec: JobSpec, environment: Environment) -> list[str]:
    """The environment's node groups that a run takes nodes from; none where it fits none."""
    choices = roles.choose(spec, environment.node_groups)
    if isinstance(choices, list):
        return []
    return list(dict.fromkeys(group.name for choice in choices for group in choice.every_group))


def resolve(
    spec: JobSpec, environment: Environment | None, api: ClusterApi, job_per_node: bool = False
) -> ResolvedTarget:
    """The target for a valid spec; its nodes have one Job, or a *job_per_node*.

    Raises:
        InputError: there is no image to pull, no node group fits, or a template cannot be read.
    """
    choices = _choices(spec, environment)
    choice = choices[-1 if spec.pool else 0]  # a pool's workers need what node 0 needs, and perhaps GPUs
    build = _build(choice, environment)
    pinned = _pin(spec, build, environment)
    target = ClusterTarget(
        namespace=api.namespace,
        image=pinned.reference,
        volume=volume(spec, environment),
        node_selector={},
        tolerations=(),
        exclusive=False,
        templates=pod_templates.read(spec.kubernetes.templates, api),
        egress_denied=environment is not None,
        job_per_node=job_per_node,
    )
    images_of = [target.image, *(_image_of(each, target.image) for each in spec.workers)]
    targets = [
        _on_nodes(replace(target, image=image), each, environment)
        for image, each in zip(images_of, choices, strict=True)
    ]
    gang = "node 0: " if choices[0].spec.pool else "nodes: "
    names = (gang, "workers: ", "postprocess workers: ") if len(choices) > 1 else ("",)
    named = zip(names, choices, targets, strict=False)
    notes = [
        *(name + note for name, choice, target in named for note in _notes_on_nodes(choice, target)),
        *filter(None, [roles.driver_note(choices[0])]),
        *_notes_on_image(build, environment, pinned),
        *_notes_on_volume(target),
        *filter(None, [preload_note(spec, "python3")]),
    ]
    resolved = spec if spec.pool else choice.spec
    return ResolvedTarget(targets[0], resolved, tuple(notes), tuple(targets[1:]))


def _pin(spec: JobSpec, build: Build | None, environment: Environment | None) -> Pinned:
    """The image of the ranks by its digest: that of *build* in the environment's registry, or the one of the spec."""
    if build and environment:
        return registry.pin(build, environment.repositories[build.image])
    if spec.kubernetes.image:
        return registry.pin_named(spec.kubernetes.image)
    example = wording.option("image", f"REGISTRY/{spec.image or 'chainermn'}:TAG")
    remedy = f"name the image to pull, such as {example}"
    raise input_error("kubernetes.image", None, remedy)


def _image_of(workers: Workers, image: str) -> str:
    """The image of the pods of *workers*; that of the ranks is *image*."""
    own = workers.image if isinstance(workers, StreamWorkers) else None
    return image if own is None else registry.pin_named(own).reference


def _on_nodes(target: ClusterTarget, choice: Choice, environment: Environment | None) -> ClusterTarget:
    """*target* for pods of one role, on the nodes that were chosen for them."""
    exclusive = choice.spec.kubernetes.exclusive
    target = replace(target, exclusive=bool(choice.groups) if exclusive is None else exclusive)
    if environment is None or not choice.groups:
        return target
    elastic = len(choice.spec.sizes) > 1 and len(choice.groups) == 1 and environment.placement_account is not None
    if not choice.fallbacks and not elastic and not choice.blocks:
        return on_groups(target, choice.groups)
    if environment.placement_account is None:
        raise InputError([no_placement_account("capacity", environment)])
    target = replace(target, placement_account=environment.placement_account)
    return in_order(target, choice.every_group)


def no_placement_account(key: str, environment: Environment) -> Problem:
    """What *environment* lacks for a run that may be moved, as *key* of its spec asks for."""
    remedy = f"environment {environment.name} has no service account that moves runs; `spotmpi up` adds it"
    return Problem(key, None, remedy)


def _choices(spec: JobSpec, environment: Environment | None) -> roles.Choices:
    """The choice for each role."""
    if environment is None or not environment.node_groups:
        return tuple(Choice((), each, ()) for each in roles.role_specs(spec))
    choices = roles.choose(spec, environment.node_groups)
    if isinstance(choices, list):
        raise InputError(choices)
    return choices


def _build(choice: Choice, environment: Environment | None) -> Build | None:
    """The build of the spec's image that the environment's repository holds; None where another image is named."""
    image = choice.spec.image
    if choice.spec.kubernetes.image or not environment or not image or image not in environment.repositories:
        return None
    if not choice.spec.resources.gpu:
        return images.build_for(image, environment.has_gpus)
    return images.build_with_kernels(image, choice.capability)


def _notes_on_nodes(choice: Choice, target: ClusterTarget) -> list[str]:
    if not choice.groups:
        return []
    groups = [group.name for group in choice.groups]
    note = f"node group {' or '.join(groups)}: {choice.groups[0].type}, GPUs per slot: {choice.spec.resources.gpu}"
    if choice.others:
        note += f" (also fit: {', '.join(choice.others)}; choose with kubernetes.node_groups)"
    fabric = (
        f"each node requests EFA x {target.efa}: NCCL uses it where the image has libfabric and aws-ofi-nccl, else TCP "
        "(spotmpi's own images have neither)"
    )
    notes = [] if choice.fallbacks else [note]  # `capacity_note` names the groups of an order
    return [*notes, fabric] if target.efa else notes


def capacity_note(spec: JobSpec, target: ClusterTarget, rates: Mapping[str, float]) -> list[str]:
    """The node groups that the run may be on, with what all its nodes cost on each; empty for a run on one."""
    groups, zones = [], {dict(each.machine)["zone"] for each in target.order}
    for each in target.order:
        machine = dict(each.machine)
        rate = rates.get(machine["node_group"])
        price = "price unknown" if rate is None else f"${rate:.4g} an hour"
        where = f"in {machine['zone']}, " * (len(zones) > 1)
        groups.append(f"{machine['node_group']} ({machine['type']}, {machine['market']}, {where}{price})")
    if not groups:
        return []
    what = "the node" if spec.nodes == 1 else f"all {spec.nodes} nodes"
    if len(spec.sizes) > 1:
        what += f", or at least {spec.sizes[0]},"
    if spec.standby:
        what += f", and {spec.standby} to stand by,"
    patience, gpus = wording.duration(spec.capacity.patience), spec.resources.gpu
    if spec.nodes > 1 and spec.capacity.partial < spec.capacity.patience:
        patience += f", {wording.duration(spec.capacity.partial)} once some are there"
    then = " or " if spec.capacity.deadline is not None else ", else from "
    return [f"capacity: {what} from {then.join(groups)}; patience: {patience}, GPUs per slot: {gpus}"]


def _notes_on_image(build: Build | None, environment: Environment | None, pinned: Pinned) -> list[str]:
    notes = [pinned.note] if pinned.note else []
    if build and environment and build != images.build_for(build.image, environment.has_gpus):
        notes.append(f"these GPUs need their own build of the image; push it once with: {images.push_line(build)}")
    return notes


def _notes_on_volume(target: ClusterTarget) -> list[str]:
    if target.volume is not None:
        return []
    consequence = "an interrupted run starts from zero in new pods, and logs are kept for one day"
    return [f"no run volume: {consequence} (set kubernetes.volume to a claim)"]
