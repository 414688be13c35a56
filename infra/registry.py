"""ECR repositories, one for each image."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi
from pulumi_aws import ecr

from infra import policies

_MAX_IMAGES = 20


@dataclass(frozen=True)
class RegistryArgs:
    """The images by name; each gets the repository `<environment>/<image>`."""

    images: Sequence[str]
    tags: Mapping[str, str]


class Registry(pulumi.ComponentResource):
    """Repositories with immutable tags and scanned images; provides `urls` by image."""

    def __init__(self, name: str, args: RegistryArgs, opts: pulumi.ResourceOptions | None = None):
        super().__init__("spotmpi:registry:Registry", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        self.urls: dict[str, pulumi.Output[str]] = {}
        for image in args.images:
            repository = ecr.Repository(
                f"{name}-{image}",
                name=f"{name}/{image}",
                image_tag_mutability="IMMUTABLE",
                image_scanning_configuration=ecr.RepositoryImageScanningConfigurationArgs(scan_on_push=True),
                # Destroying an environment deletes its images.
                force_delete=True,
                tags=dict(args.tags),
                opts=child,
            )
            ecr.LifecyclePolicy(
                f"{name}-{image}",
                repository=repository.name,
                policy=json.dumps(policies.ecr_lifecycle(_MAX_IMAGES)),
                opts=child,
            )
            self.urls[image] = repository.repository_url
        self.register_outputs({"urls": self.urls})
