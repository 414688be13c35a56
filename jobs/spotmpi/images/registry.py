"""Image references for a run, pinned by digest, and refused while the repository lacks the image: nodes cost money."""

from __future__ import annotations

from typing import NamedTuple

from spotmpi.aws.errors import CloudError
from spotmpi.aws.registry import tag_digest
from spotmpi.core.errors import input_error
from spotmpi.images import build as images
from spotmpi.images.build import Build


class Pinned(NamedTuple):
    """A reference to pull, by digest where the registry gave one; else a note says why it did not."""

    reference: str
    note: str | None


def pin(build: Build, repository: str) -> Pinned:
    """The reference of a build in *repository*, by digest where that is ECR.

    Raises:
        InputError: the repository does not hold the build.
    """
    try:
        digest = _digest(repository, build.tag)
    except CloudError as error:
        note = f"could not check that the image is in its repository ({error}); pods will try to pull it"
        return Pinned(build.reference(repository), note)
    except LookupError as error:
        remedy = f"this build is not in {repository}: push it with `{images.push_line(build)}`"
        raise input_error("image", build.image, remedy) from error
    return Pinned(f"{repository}@{digest}" if digest else build.reference(repository), None)


def pin_named(reference: str) -> Pinned:
    """A user's own *reference*, by digest where it names a tag in ECR, which could point to another image later."""
    path, slash, last = reference.rpartition("/")
    name, _, tag = last.partition(":")
    repository = f"{path}{slash}{name}"
    try:
        digest = None if "@" in last else _digest(repository, tag or "latest")
    except CloudError as error:
        note = f"could not get the digest of kubernetes.image ({error}); pods pull it by its tag"
        return Pinned(reference, note)
    except LookupError:
        return Pinned(reference, "kubernetes.image is not in its repository, unless a pull-through cache fetches it")
    return Pinned(f"{repository}@{digest}" if digest else reference, None)


def _digest(repository: str, tag: str) -> str | None:
    """The digest of a tag in an ECR repository, None for another registry; LookupError where the tag is missing."""
    region = images.ecr_region(repository)
    return None if region is None else tag_digest(region, repository, tag)
