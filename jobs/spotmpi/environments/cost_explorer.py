"""What AWS's own bill says: Cost Explorer, by the environment's tag."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta

from spotmpi.aws.account import Aws
from spotmpi.environments.inventory import TAG

_REGION = "us-east-1"  # Cost Explorer lives here and answers for all regions


def billed(aws: Aws, environment: str, since: float, until: float) -> dict[str, float]:
    """US dollars by service for whole days (UTC) from *since* to *until*, Unix seconds; CallFailed where not allowed.

    AWS is up to a day behind, estimates the last days, and charges a cent for the question.
    """
    first = datetime.fromtimestamp(since, UTC).date()
    last = datetime.fromtimestamp(until, UTC).date() + timedelta(days=1)  # this day itself is not included
    found: dict[str, float] = defaultdict(float)
    token: dict[str, str] = {}
    while True:
        answer = aws.call(
            "ce",
            _REGION,
            "get_cost_and_usage",
            TimePeriod={"Start": first.isoformat(), "End": last.isoformat()},
            Granularity="DAILY",
            Metrics=["UnblendedCost"],
            Filter={"Tags": {"Key": TAG, "Values": [environment]}},
            GroupBy=[{"Type": "DIMENSION", "Key": "SERVICE"}],
            **token,
        )
        for day in answer["ResultsByTime"]:
            for group in day["Groups"]:
                found[group["Keys"][0]] += float(group["Metrics"]["UnblendedCost"]["Amount"])
        if not answer.get("NextPageToken"):
            return dict(sorted(found.items(), key=lambda item: -item[1]))
        token = {"NextPageToken": answer["NextPageToken"]}
