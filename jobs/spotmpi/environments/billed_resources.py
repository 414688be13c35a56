"""What still bills, or holds what bills, once an environment is taken down."""

from __future__ import annotations

from dataclasses import dataclass

from spotmpi.aws.account import Aws
from spotmpi.aws.errors import CallFailed
from spotmpi.environments.inventory import CNI_MACHINE, INTERFACES, KINDS, Trace, networks_of
from spotmpi.environments.tagged_resources import still_tagged


@dataclass(frozen=True)
class Left:
    """One thing that is left, and the command that deletes it."""

    what: str
    id: str
    command: str


def still_billed(aws: Aws, trace: Trace) -> tuple[Left, ...]:
    """Everything of an environment that is still there: by kind, then whatever else carries its tag."""
    found = []
    for kind in KINDS:
        for id in kind.find(aws, trace):
            found.append(Left(kind.what, id, kind.command.format(id=id) + f" --region {trace.region}"))
    known = {each.id for each in found}
    for arn in still_tagged(aws, trace):
        if arn.id not in known:
            found.append(Left("tagged", arn.text, "see the console of that service"))
    return tuple(found)


def sweep_interfaces(aws: Aws, trace: Trace) -> list[str]:
    """Delete the unattached interfaces that the CNI left in the environment's network; gives their ids."""
    networks = networks_of(aws, trace)
    if not networks:
        return []
    unused = [
        {"Name": "vpc-id", "Values": networks},
        {"Name": "status", "Values": ["available"]},
        {"Name": "tag-key", "Values": [CNI_MACHINE]},
    ]
    swept = []
    for each in aws.pages("ec2", trace.region, "describe_network_interfaces", "NetworkInterfaces", Filters=unused):
        try:
            aws.call("ec2", trace.region, "delete_network_interface", NetworkInterfaceId=each["NetworkInterfaceId"])
        except CallFailed as error:
            if error.code != "InvalidNetworkInterfaceID.NotFound":
                raise
        swept.append(each["NetworkInterfaceId"])
    return swept


def interfaces_in_use(aws: Aws, trace: Trace) -> list[tuple[str, str]]:
    """The network interfaces that the environment has now, to be written down before it goes."""
    (kind,) = [kind for kind in KINDS if kind.what == INTERFACES]
    return [(INTERFACES, id) for id in kind.find(aws, trace)]
