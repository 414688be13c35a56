"""What a cluster offers a run: found out from the spec, the environment and, for templates, the cluster itself."""

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
from spotmpi.plan.cluster_target import ClusterTarget, on_groups
from spotmpi.spec import node_groups
from spotmpi.spec.job import JobSpec
from spotmpi.spec.node_groups import Choice


@dataclass(frozen=True)
class Offer:
    """A target for the run, the spec as it is there, and what its user should know of both."""

    target: ClusterTarget
    spec: JobSpec
    notes: tuple[str, ...]


def volume(spec: JobSpec, environment: Environment | None) -> str | None:
    """The claim that keeps the run, or None."""
    return spec.kubernetes.volume or (environment.volume_claim if environment else None)


def lasting(spec: JobSpec, environment: Environment | None) -> tuple[str, ...]:
    """The folders in a pod that outlive it."""
    claims = tuple(mount.path for mount in spec.kubernetes.mounts if mount.claim and not mount.read_only)
    return (VOLUME, *claims) if volume(spec, environment) else claims


def make(spec: JobSpec, environment: Environment | None, api: ClusterApi) -> Offer:
    """The offer for a valid spec.

    Raises:
        InputError: there is no image to pull, no node group that fits, or a template cannot be read.
    """
    choice = _choice(spec, environment)
    build = _build(choice, environment)
    if build and environment:
        pinned = registry.pin(build, environment.repositories[build.image])
    elif spec.kubernetes.image:
        pinned = registry.pin_named(spec.kubernetes.image)
    else:
        raise input_error(
            "kubernetes.image", None, "name the image to pull, such as --set kubernetes.image=REGISTRY/chainermn:TAG"
        )
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
    return Offer(target, choice.spec, tuple(notes))


def _choice(spec: JobSpec, environment: Environment | None) -> Choice:
    if environment is None or not environment.node_groups:
        return Choice((), spec, ())
    found = node_groups.choose(spec, environment.node_groups)
    if isinstance(found, list):
        raise InputError(found)
    return found


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
    chosen = [group.name for group in choice.groups]
    note = f"node group {' or '.join(chosen)}: {choice.groups[0].type}, GPUs per slot: {choice.spec.resources.gpu}"
    if choice.others:
        note += f" (kubernetes.node_groups could name {', '.join(choice.others)}, which fit as well)"
    fabric = (
        f"each node requests EFA x {target.efa}: NCCL uses it where the image has libfabric and aws-ofi-nccl, else TCP "
        "(spotmpi's own images have neither)"
    )
    return [note, fabric] if target.efa else [note]


def _notes_on_image(build: Build | None, environment: Environment | None, pinned: Pinned) -> list[str]:
    notes = [pinned.note] if pinned.note else []
    if build and environment and build != images.build_for(build.image, environment.has_gpus):
        notes.append(f"these GPUs need a build of their own, pushed once by: {images.push_line(build)}")
    return notes


def _notes_on_volume(target: ClusterTarget) -> list[str]:
    if target.volume is not None:
        return []
    return ["no run volume: an interruption starts from zero, and logs last a day (set kubernetes.volume to a claim)"]
