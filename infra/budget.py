"""A budget alarm for what an environment costs."""

from collections.abc import Mapping

import pulumi
from pulumi_aws import budgets

from infra.settings import TAG_ENVIRONMENT, Budget

_AT_PERCENT = 80.0


class BudgetAlarm(pulumi.ComponentResource):
    """A mail at 80 % of the month's budget, and when the forecast exceeds all of it; counts tagged costs only.

    The tag is the environment's name, so only the region tells it from one of that name elsewhere.
    """

    def __init__(
        self,
        name: str,
        region: str,
        budget: Budget,
        tags: Mapping[str, str],
        opts: pulumi.ResourceOptions | None = None,
    ):
        super().__init__("spotmpi:budget:BudgetAlarm", name, None, opts)
        budgets.Budget(
            name,
            budget_type="COST",
            limit_amount=f"{budget.monthly_usd:.2f}",
            limit_unit="USD",
            time_unit="MONTHLY",
            cost_filters=[
                budgets.BudgetCostFilterArgs(name="TagKeyValue", values=[f"user:{TAG_ENVIRONMENT}${name}"]),
                budgets.BudgetCostFilterArgs(name="Region", values=[region]),
            ],
            notifications=[
                _mail("ACTUAL", _AT_PERCENT, budget.email),
                _mail("FORECASTED", 100.0, budget.email),
            ],
            tags=dict(tags),
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.register_outputs({})


def _mail(kind: str, percent: float, email: str) -> budgets.BudgetNotificationArgs:
    return budgets.BudgetNotificationArgs(
        comparison_operator="GREATER_THAN",
        notification_type=kind,
        threshold=percent,
        threshold_type="PERCENTAGE",
        subscriber_email_addresses=[email],
    )
