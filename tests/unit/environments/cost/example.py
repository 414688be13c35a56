"""The worked example: machines, runs and prices, with costs computed by hand."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spotmpi.aws.billing import Lifetime, PriceCurve, Usage
from spotmpi.aws.scaling import CLUSTER_TAG, GROUP_TAG
from spotmpi.core import environment
from tests.cloud.account.fake_account import FakeAccount
from tests.unit.core.test_environment import OUTPUTS

# Without disk and address, so that only the machines of the example cost something.
_GROUP = {**OUTPUTS["node_groups"][0], "name": "gpus", "type": "g5.xlarge", "disk_gib": 0, "public_address": False}
LAB = environment.parse({**OUTPUTS, "region": "us-east-1", "zone": "us-east-1a", "node_groups": [_GROUP]})
KIND = ("g5.xlarge", "us-east-1a", "spot")
T0 = datetime(2026, 11, 20, 8, 0, tzinfo=UTC).timestamp()
HOUR = 3600.0
NOW = T0 + 9 * HOUR  # after all runs
EC2 = "Amazon Elastic Compute Cloud - Compute"
ONE, TWO = "i-0000000000000000a", "i-0000000000000000b"

# The example. Hours after T0; g5.xlarge costs $0.40 an hour at first and $0.60 from hour 2.5 on.
#   machine ONE  0.0 launched, 0.1 in service; `big` from 0.5 (training from 0.6) to 2.0 and again, alone, to 3.0;
#                idle from 3.0 to 4.0, ended
#   machine TWO  0.0 launched, 0.1 in service; `big` from 0.5 to 2.0, shared with `small` from 1.0 on; reclaimed at 2.0
# Computed by hand:
#   ONE  boot 0.1 h x 0.40 = 0.04; idle 0.4 h x 0.40 + 1.0 h x 0.60 = 0.76; used 2.0 h x 0.40 + 0.5 h x 0.60 = 1.10
#   TWO  boot 0.04; idle 0.4 h x 0.40 = 0.16; used 1.5 h x 0.40 = 0.60
#   big    waiting 2 x 0.1 h x 0.40 = 0.08; training ONE 1.10 - 0.04, TWO 0.4 h x 0.40 + half of 1.0 h x 0.40 = 0.36
#   small  half of 1.0 h x 0.40 = 0.20
CHANGES = [(-20.0, "0.40"), (2.5, "0.60")]
BIG = [
    Usage("big", "ann", "vision", ONE, T0 + 0.5 * HOUR, T0 + 0.6 * HOUR, T0 + 2 * HOUR),
    Usage("big", "ann", "vision", TWO, T0 + 0.5 * HOUR, T0 + 0.6 * HOUR, T0 + 2 * HOUR),
    Usage("big", "ann", "vision", ONE, T0 + 2 * HOUR, T0 + 2 * HOUR, T0 + 3 * HOUR),
]
SMALL = [Usage("small", "bob", "none", TWO, T0 + HOUR, T0 + HOUR, T0 + 2 * HOUR)]
LIVES = [
    Lifetime(ONE, "ip-10-0-0-1.ec2.internal", "gpus", KIND, T0, T0 + 0.1 * HOUR, T0 + 4 * HOUR),
    Lifetime(TWO, None, "gpus", KIND, T0, T0 + 0.1 * HOUR, T0 + 2 * HOUR, reclaimed=True),
]
CURVES = {KIND: PriceCurve(tuple((T0 + hour * HOUR, float(price)) for hour, price in CHANGES))}


def at(hour: float) -> datetime:
    """That many hours after T0."""
    return datetime.fromtimestamp(T0 + hour * HOUR, UTC)


REBALANCE = "an instance was taken out of service in response to an EC2 instance rebalance recommendation."
INTERRUPTION = "an instance was taken out of service in response to an EC2 Spot interruption."
UNHEALTHY = (  # AWS knowledge center, Why did Amazon EC2 Auto Scaling terminate an instance?
    "an instance was taken out of service in response to an EC2 health check indicating it has been terminated or "
    "stopped."
)


def activity(verb: str, machine: str, hour: float, cause: str = "a user request", **more: Any) -> dict[str, Any]:
    """A scaling activity that took six minutes: a termination lasts until the node is drained and the instance ends."""
    return {
        "Description": f"{verb} EC2 instance: {machine}",
        "Cause": f"At 2026-11-20T08:00:00Z {cause}",
        "StatusCode": "Successful",
        "StartTime": at(hour),
        "EndTime": at(hour + 0.1),
        "Details": json.dumps({"Subnet ID": "subnet-1", "Availability Zone": "us-east-1a"}),
        **more,
    }


# Of the group of both machines, newest first.
ACTIVITIES = [
    activity("Terminating", ONE, 3.9),
    activity("Terminating", TWO, 1.9, INTERRUPTION),
    activity("Launching a new", "i-0fffffffffffffff0", 0, StatusCode="Failed"),
    activity("Launching a new", TWO, 0.0),
    activity("Launching a new", ONE, 0.0),
]


def record_run(folder: Path, uses: list[Usage], **plan: Any) -> None:
    """Write the run folder of a run that held machines for *uses*."""
    paths = folder / uses[0].run
    paths.mkdir(parents=True)
    queue = "" if uses[0].team == "none" else f'[kubernetes]\nqueue = "{uses[0].team}"\n'
    (paths / "spec.toml").write_text(f'command = ["train"]\n{queue}')
    (paths / "plan.yaml").write_text(json.dumps(plan))
    events: list[dict[str, Any]] = [{"t": uses[0].began, "event": "submitted", "owner": uses[0].owner}]
    for attempt, end in enumerate(sorted({use.ended or 0 for use in uses}), 1):
        own = [use for use in uses if use.ended == end]
        machines = [
            {"member": f"node/{k}", "since": u.began, "instance": u.machine, "type": "g5.xlarge"}
            for k, u in enumerate(own)
        ]
        events += [{"t": own[0].started, "event": "started", "attempt": attempt, "machines": machines}]
        events += [{"t": end, "event": "interrupted" if end < uses[-1].ended else "succeeded"}]  # type: ignore[operator]
    (paths / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


class Colleagues:
    """A backend with a run of another user, whose record `list` copies to the runs folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def list(self) -> list[object]:
        if not (self._folder / "small").exists():
            record_run(self._folder, SMALL)
        return []


def script(account: FakeAccount) -> None:
    """Let the account answer with the example's groups, activities, prices and bill."""
    account.autoscaling.add("eks-gpus", {CLUSTER_TAG: LAB.cluster, GROUP_TAG: "gpus"}, most=8)
    account.autoscaling.add("eks-system", {CLUSTER_TAG: LAB.cluster})
    account.autoscaling.add("eks-other", {CLUSTER_TAG: "other", GROUP_TAG: "gpus"})
    account.autoscaling.activities["eks-gpus"] = list(ACTIVITIES)
    instance = {"InstanceId": ONE, "PrivateDnsName": "ip-10-0-0-1.ec2.internal"}
    account.script("DescribeInstances", Reservations=[{"Instances": [instance]}])
    kind = {"InstanceType": "g5.xlarge", "AvailabilityZone": "us-east-1a"}
    prices = [{**kind, "Timestamp": at(hour), "SpotPrice": price} for hour, price in CHANGES]
    account.script("DescribeSpotPriceHistory", SpotPriceHistory=prices)
    days = [{EC2: "3.10", "EC2 - Other": "0.5"}, {EC2: "0.40"}]
    account.script("GetCostAndUsage", ResultsByTime=[{"Groups": bill_of_a_day(day)} for day in days])


def bill_of_a_day(dollars: dict[str, str]) -> list[dict[str, Any]]:
    """AWS's bill of a day by the name of a service."""
    metrics = {name: {"UnblendedCost": {"Amount": amount, "Unit": "USD"}} for name, amount in dollars.items()}
    return [{"Keys": [name], "Metrics": each} for name, each in metrics.items()]
