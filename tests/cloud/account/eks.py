"""EKS and the SSM parameters of its AMIs, as an AWS account answers for them.

Shapes and statuses are those of botocore's EKS and SSM models; the names of the parameters are in the EKS user guide,
retrieve-ami-id. In tests/engine the versions come from the stand-in cloud.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.cloud.account.answers import Refusal, Request

STANDARD, EXTENDED = "STANDARD_SUPPORT", "EXTENDED_SUPPORT"
GPU, PLAIN = "AL2023_x86_64_NVIDIA", "AL2023_x86_64_STANDARD"


def node_group(group: str, release: str, ami_type: str = GPU, status: str = "ACTIVE") -> dict[str, Any]:
    """A node group as DescribeNodegroup returns it; `system` is that of the system nodes."""
    labels = {"spotmpi.dev/role": "system"} if group == "system" else {"spotmpi.dev/group": group}
    version = ".".join(release.split(".")[:2])
    return {"labels": labels, "version": version, "releaseVersion": release, "amiType": ami_type, "status": status}


@dataclass
class Eks:
    """One cluster (none without a version) with add-ons and node groups, and what EKS offers."""

    version: str = ""
    status: str = "ACTIVE"
    security_group: str = "sg-nodes"
    addons: dict[str, str] = field(default_factory=dict)
    foreign: set[str] = field(default_factory=set)  # add-ons that the environment did not create
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    offered: dict[str, tuple[str, datetime]] = field(
        default_factory=lambda: {
            "1.36": (STANDARD, datetime(2027, 8, 2, tzinfo=UTC)),
            "1.35": (STANDARD, datetime(2027, 3, 27, tzinfo=UTC)),
            "1.34": (STANDARD, datetime(2026, 12, 2, tzinfo=UTC)),
            "1.33": (EXTENDED, datetime(2026, 7, 29, tzinfo=UTC)),
        }
    )
    # Of each add-on by Kubernetes version, newest first, and which of them is EKS's default.
    addon_versions: dict[str, list[tuple[str, bool]]] = field(
        default_factory=lambda: {
            "1.36": [("v1.36.9-eksbuild.1", False), ("v1.36.1-eksbuild.2", True), ("v1.35.1-eksbuild.2", False)],
            "1.35": [("v1.35.1-eksbuild.2", True), ("v1.34.1-eksbuild.2", False)],
        }
    )

    def describe_cluster(self, region: str, request: Request) -> Any:
        if not self.version:
            raise Refusal("ResourceNotFoundException", f"No cluster found for name: {request['name']}.")
        network = {"clusterSecurityGroupId": self.security_group}
        cluster = {"name": request["name"], "version": self.version, "status": self.status}
        return {"cluster": {**cluster, "resourcesVpcConfig": network}}

    def list_addons(self, region: str, request: Request) -> Any:
        return {"addons": sorted(self.addons)}

    def list_nodegroups(self, region: str, request: Request) -> Any:
        return {"nodegroups": sorted(self.groups)}

    def describe_nodegroup(self, region: str, request: Request) -> Any:
        return {"nodegroup": self.groups[request["nodegroupName"]]}

    def describe_addon(self, region: str, request: Request) -> Any:
        name = request["addonName"]
        tags = {} if name in self.foreign else {"spotmpi:environment": request["clusterName"]}
        return {"addon": {"addonName": name, "addonVersion": self.addons[name], "status": "ACTIVE", "tags": tags}}

    def describe_addon_versions(self, region: str, request: Request) -> Any:
        kubernetes = request["kubernetesVersion"]
        versions = [
            {"addonVersion": name, "compatibilities": [{"clusterVersion": kubernetes, "defaultVersion": default}]}
            for name, default in self.addon_versions.get(kubernetes, [])
        ]
        return {"addons": [{"addonName": request["addonName"], "addonVersions": versions}] if versions else []}

    def describe_cluster_versions(self, region: str, request: Request) -> Any:
        wanted = request.get("clusterVersions", list(self.offered))
        found = [
            {"clusterVersion": version, "versionStatus": status, "endOfStandardSupportDate": ends}
            for version, (status, ends) in self.offered.items()
            if version in wanted
        ]
        return {"clusterVersions": found}


@dataclass
class Ssm:
    """The parameters of the newest AMI releases of EKS, by Kubernetes version."""

    releases: dict[str, str] = field(
        default_factory=lambda: {"1.35": "1.35.4-20261110", "1.36": "1.36.1-20261110", "1.37": "1.37.0-20261120"}
    )

    def get_parameter(self, region: str, request: Request) -> Any:
        for version, release in self.releases.items():
            for kind in ("standard", "nvidia"):
                stem = f"/aws/service/eks/optimized-ami/{version}/amazon-linux-2023/x86_64/{kind}"
                if request["Name"] == f"{stem}/recommended/release_version":
                    return {"Parameter": {"Name": request["Name"], "Value": release}}
        raise Refusal("ParameterNotFound", request["Name"])
