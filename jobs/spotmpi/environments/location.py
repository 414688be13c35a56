"""The account and region of a stack, which must be those of the credentials and of its file.

Pulumi does not compare them: with the credentials of another account it would find nothing, and forget what bills.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from spotmpi.aws.account import Aws
from spotmpi.aws.eks import require_account, wrong_account
from spotmpi.core.environment import Environment
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.pulumi import resources_of

_ACCOUNT = re.compile(r"arn:[\w-]+:[\w-]+:[\w-]*:(\d{12}):")


def require_location(aws: Aws, region: str, environment: Environment) -> None:
    """SpotmpiError where an environment is built in another region, CloudError for credentials of another account."""
    if environment.region != region:
        remedy = "set aws:region back, or select the backend that has this stack's state"
        raise SpotmpiError(f"Pulumi's state has {environment.name} in {environment.region}, not in {region}: {remedy}")
    require_account(aws, environment.cluster_arn)


def require_account_of_state(aws: Aws, region: str, stack: str, state: Mapping[str, Any] | None) -> None:
    """CloudError where the resources of a stack, by `pulumi stack export`, are in another account than ours.

    It needs no outputs, which a stack has only once it is complete.
    """
    arns = [str((each.get("outputs") or {}).get("arn")) for each in resources_of(state)]
    accounts = {match[1] for match in map(_ACCOUNT.match, arns) if match}
    if accounts and (own := aws.account_id(region)) not in accounts:
        other = ", ".join(sorted(accounts))
        raise wrong_account(own, f"stack {stack} is built in {other}", other)
