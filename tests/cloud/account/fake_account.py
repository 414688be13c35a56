"""An AWS account behind real boto3 clients, which validate every parameter."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

import boto3
from botocore import xform_name
from botocore.exceptions import EndpointConnectionError

from spotmpi.aws.account import Aws
from spotmpi.core.wording import Echo
from tests.cloud.account.answers import KEY_ID, SECRET, TOKEN, Answer, Refusal, Request
from tests.cloud.account.ec2 import Ec2
from tests.cloud.account.eks import Eks, Ssm
from tests.cloud.account.management import AutoScaling, CloudFormation, Logs, Sts, Tagging
from tests.cloud.account.market import Pricing, ServiceQuotas
from tests.cloud.account.storage import S3, Backup, Ecr, Efs, Kms

FILTER_VALUES = 200  # that EC2 takes
# By protocol: what a region answers that is not enabled in the account, as it does to unknown keys, since it knows none
# of the account's (steampipe-plugin-aws#75, remotion-dev/github-unwrapped-2022#34, chalice#1445, aws-sdk-js#4129).
NOT_ENABLED = {
    "ec2": ("AuthFailure", "AWS was not able to validate the provided access credentials"),
    "query": ("InvalidClientTokenId", "The security token included in the request is invalid"),
    "json": ("UnrecognizedClientException", "The security token included in the request is invalid"),
    "rest-json": ("UnrecognizedClientException", "The security token included in the request is invalid"),
    "rest-xml": ("InvalidToken", "The provided token is malformed or otherwise invalid."),
}


class FakeAccount(Aws):
    """An account with services that a test fills, and `answers` by operation that a test scripts instead.

    A service answers an operation by its method of the same name, as boto3 spells it. What neither answers goes to moto
    if it is active, else to no network; *services* are the boto3 names of those that answer, all by default.
    """

    def __init__(self, region: str | None = "us-east-1", services: Collection[str] | None = None) -> None:
        session = boto3.Session(KEY_ID, SECRET, TOKEN, region_name=region)
        session.events.register("before-parameter-build", self._record)
        session.events.register("before-call", self._answer)
        super().__init__(session, region)
        self._active = services
        self.reset()

    def reset(self) -> None:
        """Make it as new, with its clients, which take a while to create."""
        self.ec2, self.pricing, self.quotas = Ec2(), Pricing(), ServiceQuotas()
        self.eks, self.ssm = Eks(), Ssm()
        self.efs, self.backup, self.s3, self.ecr, self.kms = Efs(), Backup(), S3(), Ecr(), Kms()
        self.autoscaling, self.logs = AutoScaling(), Logs()
        self.cloudformation, self.tagging, self.sts = CloudFormation(), Tagging(self.backup.environments), Sts()
        self.answers: dict[str, Answer] = {}
        self.requests: list[tuple[str, str, Request]] = []  # operation, region and parameters
        self.rights: set[str] = set()  # the IAM actions of all calls so far
        self.refusals: dict[str, tuple[str | None, Refusal]] = {}  # by operation, in one region or in all
        self.throttled: dict[str, int] = Counter()  # how often an operation still is, beyond boto3's attempts
        self._echo = None  # see `tell`
        self.delay = 0.0  # seconds that every answer takes
        self.before_answer: Callable[[], object] = lambda: None  # called before every answer

    def handler(self, service: str, operation: str) -> Answer | None:
        """What answers an operation: the test's script, else the service, else nothing."""
        if operation in self.answers:
            return self.answers[operation]
        if self._active is not None and service not in self._active:
            return None
        names = {"resourcegroupstaggingapi": "tagging", "service-quotas": "quotas"}
        return getattr(getattr(self, names.get(service, service), None), xform_name(operation), None)

    def answer(self, service: str, operation: str, region: str, request: Request) -> Any:
        """The answer to a call; Refusal where the test refuses it.

        Regions that do not exist have no hosts (botocore, data/endpoints.json), services for all of them have one.
        """
        if region not in (*self._session.get_available_regions("ec2"), "aws-global"):
            raise EndpointConnectionError(endpoint_url=f"https://{service}.{region}.amazonaws.com/")
        if not self.ec2.enabled.get(region, True):
            protocol = self.client(service, region).meta.service_model.resolved_protocol
            raise Refusal(*NOT_ENABLED[protocol])
        where, refusal = self.refusals.get(operation, (region, None))
        if refusal and where in (None, region):
            raise refusal
        if self.throttled[operation] > 0:
            self.throttled[operation] -= 1
            raise Refusal("RequestLimitExceeded" if service == "ec2" else "Throttling")
        if service == "ec2" and sum(len(each["Values"]) for each in request.get("Filters", ())) > FILTER_VALUES:
            raise Refusal(
                "FilterLimitExceeded",
                f"The maximum number of filter values specified on a single call is {FILTER_VALUES}",  # gossm#47
            )
        handler = self.handler(service, operation)
        assert handler is not None, f"{service} does not answer {operation}"
        self.before_answer()
        answer = handler(region, request)
        return {} if answer is None else answer  # boto3 returns a dictionary in any case

    def refuse(self, operation: str, code: str, region: str | None = None) -> None:
        """Refuse an operation from now on, in one region or in all."""
        self.refusals[operation] = region, Refusal(code, f"message of {code}")

    def tell(self, echo: Echo) -> list[float]:
        """Report pauses of throttled calls to *echo*, as for a command; the seconds of each, which nobody waits."""
        pauses: list[float] = []
        self._echo, self._sleep = echo, pauses.append
        return pauses

    def script(self, operation: str, **answer: Any) -> None:
        """Answer an operation by these values from now on."""
        self.answers[operation] = lambda region, request: answer

    def requests_of(self, operation: str) -> list[Request]:
        """The parameters of every call of an operation so far."""
        return [request for name, _, request in self.requests if name == operation]

    def _record(self, params: dict[str, Any], model: Any, context: dict[str, Any], **_: Any) -> None:
        context["request"] = params
        self.requests.append((model.name, context.get("client_region", ""), params))
        self.rights.add(f"{model.service_model.signing_name}:{model.name}")

    def _answer(self, model: Any, context: dict[str, Any], **_: Any) -> Any:
        service, operation = model.service_model.service_name, model.name
        is_refused = operation in self.refusals or self.throttled[operation] > 0
        if not is_refused and self.handler(service, operation) is None:
            return None
        time.sleep(self.delay)
        try:
            answer = self.answer(service, operation, context["client_region"], context["request"])
        except Refusal as refusal:
            return SimpleNamespace(status_code=400), refusal.parsed
        return SimpleNamespace(status_code=200), answer
