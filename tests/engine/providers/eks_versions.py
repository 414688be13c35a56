"""EKS's versions: what the stand-in offers, and which changes of a version it refuses, as the real service does.

Sources: the operation texts of botocore's EKS model (UpdateClusterVersion, CreateNodegroup, UpdateNodegroupVersion,
UpdateAddon); messages from terraform-aws-eks#2607 and rancher#21043 (minor versions), eksctl#7976 (AMI release),
terraform-aws-eks#2570 (add-on). What the AWS provider sends is in its internal/service/eks/node_group.go: version and
AMI release only where they differ from the state, in one call with the launch template. EKS can also take a control
plane back within 7 days; the stand-in refuses that, since nothing here asks for it.
"""

from typing import Any

from tests.cloud.account.eks import RELEASES
from tests.engine.providers.aws_network import CLUSTER, NODE_GROUP
from tests.engine.providers.records import Record, Records, Refusal

DEFAULT = "1.35"
_WRONG = "InvalidParameterException"


def minor(version: str) -> int:
    """35 of `1.35`, of `1.35.2-20260901` and of the add-on version `v1.35.0-eksbuild.1`."""
    return int(version.split(".")[1])


def addon_versions(version: str) -> tuple[str, ...]:
    """The versions of any add-on for a Kubernetes version, the default first: its own, and that of the minor before."""
    return f"v1.{minor(version)}.1-eksbuild.2", f"v1.{minor(version) - 1}.1-eksbuild.2"


def control_plane(cluster: str, records: Records) -> str:
    """The Kubernetes version of a control plane."""
    record = records.get(CLUSTER, cluster)
    assert record
    return str(record.outputs["version"])


def new_cluster(inputs: dict[str, Any]) -> str:
    """The version of a new control plane."""
    version = str(inputs.get("version") or DEFAULT)
    if version not in RELEASES:
        raise Refusal(f"{_WRONG}: unsupported Kubernetes version {version}")
    return version


def changed_cluster(old: Record, inputs: dict[str, Any], records: Records) -> dict[str, Any]:
    """A control plane goes up one minor version at a time, once all its managed nodes have its own."""
    before, after = str(old.outputs["version"]), str(inputs.get("version") or old.outputs["version"])
    if after == before:
        return {"version": before}
    if after not in RELEASES or minor(after) != minor(before) + 1:
        raise Refusal(f"{_WRONG}: Unsupported Kubernetes minor version update from {before} to {after}")
    for group in records.of(NODE_GROUP):
        if group.inputs["clusterName"] == old.id and group.outputs["version"] != before:
            raise Refusal(f"InvalidRequestException: node group {group.id} must have the cluster's version {before}")
    return {"version": after}


def new_node_group(inputs: dict[str, Any], records: Records) -> dict[str, Any]:
    """A new node group has the control plane's version and its newest AMI release, unless an older one is said."""
    version = control_plane(inputs["clusterName"], records)
    if inputs.get("version", version) != version:
        raise Refusal(f"{_WRONG}: a node group is made with the cluster's version {version}, not {inputs['version']}")
    return {"version": version, "releaseVersion": _release(inputs.get("releaseVersion"), version)}


def changed_node_group(old: Record, inputs: dict[str, Any], records: Records) -> dict[str, Any]:
    """Any update of version, AMI release or launch template: what is not sent becomes the newest there is."""
    current = {key: str(old.outputs[key]) for key in ("version", "releaseVersion")}
    requested = {key: inputs[key] for key in current if inputs.get(key) not in (None, current[key])}
    if not requested and inputs.get("launchTemplate") == old.inputs.get("launchTemplate"):
        return current
    newest = control_plane(inputs["clusterName"], records)
    version = str(requested.get("version", newest))
    if minor(version) > minor(newest):
        raise Refusal(f"{_WRONG}: nodes of {version} are newer than the control plane, which has {newest}")
    release = _release(requested.get("releaseVersion"), version)
    if _order(release) < _order(current["releaseVersion"]):
        raise Refusal(f"{_WRONG}: a node group can't be rolled back from {current['releaseVersion']} to {release}")
    return {"version": version, "releaseVersion": release}


def addon(inputs: dict[str, Any], before: str | None, records: Records) -> dict[str, Any]:
    """An add-on keeps its version until another is said, which has to fit the control plane's."""
    fitting = addon_versions(control_plane(inputs["clusterName"], records))
    version = str(inputs.get("addonVersion") or before or fitting[0])
    if version != before and version not in fitting:
        raise Refusal(f"{_WRONG}: Addon version specified is not supported: {version}")
    return {"addonVersion": version}


def _release(requested: str | None, version: str) -> str:
    if requested is None:
        return RELEASES[version][-1]
    if requested not in RELEASES[version]:
        raise Refusal(f"{_WRONG}: Requested release version {requested} is not valid for kubernetes version {version}.")
    return requested


def _order(release: str) -> tuple[int, int, int]:
    version, _, build = release.partition("-")
    return minor(version), int(version.split(".")[2]), int(build)
