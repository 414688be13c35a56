"""The cluster target of a run, resolved from the spec, the environment and, for templates, the cluster itself."""

from __future__ import annotations

from dataclasses import dataclass

from spotmpi.backends.kubernetes.client.api import ClusterApi
from spotmpi.backends.kubernetes.submit import pod_templates
from spotmpi.core.environment import Environment
from spotmpi.core.errors import InputError, input_error
from spotmpi.images import build as images
from spotmpi.images import registry
from spotmpi.images.build import Build
from spotmpi.images.registry import Pinned
from spotmpi.plan.agent_plan import VOLUME
from spotmpi.plan.cluster import ClusterTarget, on_groups
from spotmpi.spec import node_groups
from spotmpi.spec.job import JobSpec
from spotmpi.spec.node_groups import Choice


@dataclass(frozen=True)
class ResolvedTarget:
    """A target for the run, the spec with the target's defaults filled in, and notes for the user."""

    target: ClusterTarget
    spec: JobSpec
    notes: tuple[str, ...]


def volume(spec: JobSpec, environment: Environment | None) -> str | None:
    """The claim of the run volume, or None."""
    return spec.kubernetes.volume or (environment.volume_claim if environment else None)


def persistent_folders(spec: JobSpec, environment: Environment | None) -> tuple[str, ...]:
    """The folders in a pod whose content outlives it."""
    claims = tuple(mount.path for mount in spec.kubernetes.mounts if mount.claim and not mount.read_only)
    return (VOLUME, *claims) if volume(spec, environment) else claims


def hourly_rate(spec: JobSpec, environment: Environment | None) -> float | None:
    """US dollars per hour of all nodes, where known; AWS is only asked where the run has a cost limit."""
    price = spec.price
    if price is None and spec.limits.cost is not None and environment and environment.node_groups:
        from spotmpi.aws.prices import node_price

        choice = node_groups.choose(spec, environment.node_groups)
        # A spec that fits no group is refused later; until then assume the most expensive of all groups.
        price = node_price(environment, choice.groups if isinstance(choice, Choice) else environment.node_groups)
    return None if price is None else price * spec.nodes


def resolve(spec: JobSpec, environment: Environment | None, api: ClusterApi) -> ResolvedTarget:
    """The target for a valid spec.

    Raises:
        InputError: there is no image to pull, no node group fits, or a template cannot be read.
    """
    choice = _choice(spec, environment)
    build = _build(choice, environment)
    if build and environment:
        pinned = registry.pin(build, environment.repositories[build.image])
    elif spec.kubernetes.image:
        pinned = registry.pin_named(spec.kubernetes.image)
    else:
        raise input_error("kubernetes.image", None, "name the image to pull, such as --image REGISTRY/chainermn:TAG")
    target = ClusterTarget(
        namespace=api.namespace,
        image=pinned.reference,
        volume=volume(spec, environment),
        node_selector={},
        tolerations=(),
        spread=spec.kubernetes.spread or ("node" if choice.groups else "any"),
        templates=pod_templates.read(spec.kubernetes.templates, api),
        egress_denied=environment is not None,
    )
    if environment and choice.groups:
        target = on_groups(target, choice.groups, environment.zone)
    notes = [*_notes_on_nodes(choice, target), *_notes_on_image(build, environment, pinned), *_notes_on_volume(target)]
    return ResolvedTarget(target, choice.spec, tuple(notes))


def _choice(spec: JobSpec, environment: Environment | None) -> Choice:
    if environment is None or not environment.node_groups:
        return Choice((), spec, ())
    choice = node_groups.choose(spec, environment.node_groups)
    if isinstance(choice, list):
        raise InputError(choice)
    return choice


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
    return [note, fabric] if target.efa else [note]


def _notes_on_image(build: Build | None, environment: Environment | None, pinned: Pinned) -> list[str]:
    notes = [pinned.note] if pinned.note else []
    if build and environment and build != images.build_for(build.image, environment.has_gpus):
        notes.append(f"these GPUs need their own build of the image; push it once with: {images.push_line(build)}")
    return notes


def _notes_on_volume(target: ClusterTarget) -> list[str]:
    if target.volume is not None:
        return []
    consequence = "an interrupted run starts from zero, and logs are kept for one day"
    return [f"no run volume: {consequence} (set kubernetes.volume to a claim)"]
