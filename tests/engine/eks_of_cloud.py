"""EKS's answers about versions, over the clusters of the stand-in cloud."""

from __future__ import annotations

from datetime import UTC, datetime

from tests.cloud.fake_eks import STANDARD, FakeEks
from tests.engine.providers import eks_versions
from tests.engine.providers.aws_cluster import ADDON
from tests.engine.providers.aws_network import CLUSTER, NODE_GROUP
from tests.engine.providers.cloud import Cloud


def eks_of(cloud: Cloud) -> FakeEks:
    """EKS as an account answers for it: the only cluster in *cloud*, and the versions that the stand-in offers."""
    made = FakeEks(
        version="",
        offered={version: (STANDARD, datetime(2027, 12, 1, tzinfo=UTC)) for version in eks_versions.RELEASES},
        addon_versions={
            version: [(each, number == 0) for number, each in enumerate(eks_versions.addon_versions(version))]
            for version in eks_versions.RELEASES
        },
        releases={version: releases[-1] for version, releases in eks_versions.RELEASES.items()},
    )

    def read_cloud() -> None:
        records = cloud.records
        made.version = next((str(each.outputs["version"]) for each in records.of(CLUSTER)), "")
        made.addons = {each.inputs["addonName"]: str(each.outputs["addonVersion"]) for each in records.of(ADDON)}
        made.groups = {
            each.inputs["nodeGroupName"]: {key: each.outputs[key] for key in ("version", "releaseVersion", "status")}
            | {"labels": each.inputs["labels"], "amiType": each.inputs["amiType"]}
            for each in records.of(NODE_GROUP)
        }

    made.before_answer = read_cloud
    return made
