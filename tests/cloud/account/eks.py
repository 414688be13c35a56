"""EKS and the SSM parameters of its AMIs, as an AWS account answers for them.

Shapes and statuses are those of botocore's EKS and SSM models; the names of the parameters are in the EKS user guide,
retrieve-ami-id. In tests/engine the versions come from the stand-in cloud.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from botocore.auth import SigV4QueryAuth

from tests.cloud.account.answers import ACCOUNT, Refusal, Request, signature_of

_TOKEN_PARAMETERS = {"Action", "Version", "X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires"} | {
    *("X-Amz-SignedHeaders", "X-Amz-Security-Token", "X-Amz-Signature"),
}
# AMI releases by Kubernetes version, the newest last.
RELEASES = {
    "1.34": ("1.34.6-20260501", "1.34.9-20261101"),
    "1.35": ("1.35.2-20260901", "1.35.4-20261110"),
    "1.36": ("1.36.0-20261001", "1.36.1-20261110"),
    "1.37": ("1.37.0-20261120",),
}
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
    region: str = "us-east-1"
    account: str = ACCOUNT
    endpoint: str = "https://127.0.0.1:1"
    authority: str = base64.b64encode(b"no certificate").decode()
    status: str = "ACTIVE"
    security_group: str = "sg-nodes"
    addons: dict[str, str] = field(default_factory=dict)
    addon_status: dict[str, str] = field(default_factory=dict)  # of those that are not ACTIVE
    principals: set[str] = field(default_factory=set)  # with an access entry
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
        """The cluster, in its region only; one that is being created has no endpoint yet (botocore's EKS model)."""
        if not self.version or region != self.region:
            raise Refusal("ResourceNotFoundException", f"No cluster found for name: {request['name']}.")
        name = request["name"]
        cluster = {"name": name, "version": self.version, "status": self.status}
        cluster["arn"] = f"arn:aws:eks:{region}:{self.account}:cluster/{name}"
        if self.status != "CREATING":
            cluster |= {"endpoint": self.endpoint, "certificateAuthority": {"data": self.authority}}
        return {"cluster": {**cluster, "resourcesVpcConfig": {"clusterSecurityGroupId": self.security_group}}}

    def admits(self, bearer: str, cluster: str, now: float) -> bool:
        """Whether the API server of a cluster takes a token at that time, in Unix seconds.

        The rules are those of aws-iam-authenticator's `tokenVerifier.Verify`: prefix and encoding, https to a host of
        STS, the parameters it knows, a signed header with the cluster's name, and a date of at most 15 minutes ago.
        STS then checks the signature.
        """
        encoded = bearer.removeprefix("Bearer k8s-aws-v1.")
        if encoded == bearer or "=" in encoded:
            return False
        url = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
        parts, query = urlsplit(url), dict(parse_qsl(urlsplit(url).query))
        moment = datetime.strptime(query["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
        is_form = (parts.scheme, parts.netloc, parts.path) == ("https", f"sts.{self.region}.amazonaws.com", "/")
        is_call = query["Action"] == "GetCallerIdentity" and set(query) <= _TOKEN_PARAMETERS
        is_header_signed = "x-k8s-aws-id" in query["X-Amz-SignedHeaders"].split(";")
        if not (is_form and is_call and is_header_signed and 0 <= int(query["X-Amz-Expires"]) <= 900):
            return False
        signature = query.pop("X-Amz-Signature")
        right = signature_of(url, SigV4QueryAuth, "sts", self.region, query, **{"x-k8s-aws-id": cluster})
        return now <= moment + 900 and signature == right

    def list_addons(self, region: str, request: Request) -> Any:
        return {"addons": sorted(self.addons)}

    def list_nodegroups(self, region: str, request: Request) -> Any:
        return {"nodegroups": sorted(self.groups)}

    def describe_nodegroup(self, region: str, request: Request) -> Any:
        """A node group; one that is being deleted is gone after this."""
        if (name := request["nodegroupName"]) not in self.groups:
            raise Refusal("ResourceNotFoundException")
        gone = self.groups[name].get("status") == "DELETING"
        return {"nodegroup": self.groups.pop(name) if gone else self.groups[name]}

    def delete_nodegroup(self, region: str, request: Request) -> Any:
        """Begin with its deletion."""
        group = self.groups[request["nodegroupName"]]
        group["status"] = "DELETING"
        return {"nodegroup": dict(group)}

    def describe_access_entry(self, region: str, request: Request) -> Any:
        if request["principalArn"] not in self.principals:
            raise Refusal("ResourceNotFoundException")
        return {"accessEntry": {"principalArn": request["principalArn"]}}

    def describe_addon(self, region: str, request: Request) -> Any:
        """An add-on; one that is being deleted is gone after this."""
        name = request["addonName"]
        if name not in self.addons:
            raise Refusal("ResourceNotFoundException")
        tags = {} if name in self.foreign else {"spotmpi:environment": request["clusterName"]}
        version, status = self.addons[name], self.addon_status.get(name, "ACTIVE")
        if status == "DELETING":
            del self.addons[name], self.addon_status[name]
        return {"addon": {"addonName": name, "addonVersion": version, "status": status, "tags": tags}}

    def delete_addon(self, region: str, request: Request) -> Any:
        """Begin with its deletion."""
        self.addon_status[request["addonName"]] = "DELETING"
        return {"addon": {"addonName": request["addonName"], "status": "DELETING"}}

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
        default_factory=lambda: {version: every[-1] for version, every in RELEASES.items()}
    )

    def get_parameter(self, region: str, request: Request) -> Any:
        for version, release in self.releases.items():
            for kind in ("x86_64/standard", "x86_64/nvidia", "arm64/standard", "arm64/nvidia"):
                stem = f"/aws/service/eks/optimized-ami/{version}/amazon-linux-2023/{kind}"
                if request["Name"] == f"{stem}/recommended/release_version":
                    return {"Parameter": {"Name": request["Name"], "Value": release}}
        raise Refusal("ParameterNotFound", request["Name"])
