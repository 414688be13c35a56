"""Images: `spotmpi image` as functions."""

from __future__ import annotations

from collections.abc import Iterable

from spotmpi.backends import targets
from spotmpi.backends.targets import TargetLike
from spotmpi.core import wording
from spotmpi.core.environment import Environment
from spotmpi.core.errors import input_error
from spotmpi.core.wording import Echo, silent
from spotmpi.images import builder as image_builder
from spotmpi.images.build import Build, build_for, require_arguments, require_known, require_repository


def build_image(
    image: str,
    arguments: Iterable[str] = (),
    tool: str | None = None,
    echo: Echo = silent,
    cpu: bool = False,
) -> str:
    """Build *image* with ``NAME=VALUE`` build *arguments*, unless the same build exists; its local reference.

    With *cpu* it is for machines without GPUs.
    """
    requested = _build(image, arguments, not cpu)
    return image_builder.build(image_builder.find_tool(tool), requested, echo)


def push_image(
    image: str,
    repository: str | None = None,
    on: TargetLike = None,
    arguments: Iterable[str] = (),
    tool: str | None = None,
    echo: Echo = silent,
    cpu: bool = False,
) -> str:
    """Build *image* if needed and push it to *repository*, by default the environment's; the reference to run.

    With *cpu*, and for an environment without GPUs, it is for machines without GPUs.

    Raises:
        InputError: no such image, or no repository is named and the target has none for it.
        SpotmpiError: the builder, the login or the push failed.
    """
    environment = targets.environment_of(on)
    requested = _build(image, arguments, not cpu and (environment is None or environment.has_gpus))
    target = _repository(image, environment) if repository is None else repository
    require_repository(target)
    builder = image_builder.find_tool(tool)
    image_builder.build(builder, requested, echo)
    return image_builder.push(builder, requested, target, echo)


def _build(image: str, arguments: Iterable[str], gpus: bool) -> Build:
    require_known(image)
    own = {}
    for text in arguments:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise input_error(wording.option("build-arg"), text, "write it as NAME=VALUE")
        own[name] = value
    require_arguments(image, own)
    return Build(image, tuple({**dict(build_for(image, gpus).arguments), **own}.items()))


def _repository(image: str, environment: Environment | None) -> str:
    if environment is None:
        raise input_error(
            wording.option("to"), None, f"name a repository, or with {wording.option('on')} an environment that has one"
        )
    if image not in environment.repositories:
        known = ", ".join(sorted(environment.repositories)) or "none"
        raise input_error("image", image, f"environment {environment.name} has repositories for: {known}")
    return environment.repositories[image]
