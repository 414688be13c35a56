"""How AWS refuses one call of Pulumi's provider, and the line that `spotmpi up` or `spotmpi down` ends with.

The words around AWS's are those of terraform-provider-aws, the codes and messages those of the API references of the
services (errors of each operation), where no issue is named.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.engine.providers.cloud import Cloud

ANSWER = "https response error StatusCode: 400, RequestID: 6bd3b1c6-0b1a"
# Remedies.
WAIT = "AWS is still at work on an earlier change of it: wait a few minutes"
THROTTLED = "AWS throttles the account's calls: wait a minute"
INTERNAL = "AWS had an internal error: wait a few minutes"
ALLOWED = "in your IAM policy; `spotmpi doctor --iam up` prints all that is needed"


class RefusedCall(NamedTuple):
    """The provider's words, the call, AWS's words and the remedy; without a call the first are the whole message."""

    words: str
    call: str
    answer: str
    remedy: str

    def plan(self, cloud: Cloud, method: str, kind: str) -> None:
        """Let the next call of *method* on a resource of *kind* end with it."""
        fault = cloud.script.fail(method, token_of(kind))
        fault.message = (
            f"{self.words}: operation error {self.call}, {ANSWER}, {self.answer}" if self.call else self.words
        )

    def require_line(self, message: str, command: str, kind: str) -> None:
        """Fail unless *message* names the kind of resource, the reason and the remedy in one line."""
        head = kind if kind.startswith("kubernetes:") else f"aws:{kind}"
        assert message.startswith(f"`pulumi {command}` failed: {head} "), message
        assert self.remedy and self.remedy in message and message.endswith("the same command continues"), message
        noise = ("\n", "RequestID", "operation error", "Traceback", "urn:", "rpc error")
        assert not any(each in message for each in noise) and len(message) < 600, message


def token_of(kind: str) -> str:
    """The type of Pulumi's that a short one of AWS, as its output has them, stands for."""
    module, _, name = kind.partition(":")
    return kind if module == "kubernetes" else f"aws:{module}/{name[0].lower()}{name[1:]}:{name}"


def denied(action: str, why: str = "because no identity-based policy allows it") -> str:
    """AWS's words for an action that the caller has no right to."""
    user = "User: arn:aws:sts::123456789012:assumed-role/dev/me"
    return f"AccessDeniedException: {user} is not authorized to perform: {action} on resource: x {why}"
