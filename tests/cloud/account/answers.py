"""What the services of a fake account share: refusals, tags and filters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

KEY_ID, SECRET, TOKEN = "AKIA" + "Q" * 16, "thisIsTheSecretKey/0123456789abcdefXYZ", "FwoGZXIvYXdzTOKENtokenTOKEN=="
ACCOUNT = "123456789012"
Tags = Mapping[str, str]
Request = Mapping[str, Any]  # the parameters of a call
Answer = Callable[[str, Request], Any]  # (region, parameters) -> the answer; Refusal to refuse
Filters = Sequence[Mapping[str, Any]]


class Refusal(Exception):
    """The refusal of a call, with AWS's error code."""

    def __init__(
        self, code: str, message: str = "", date: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(code)
        self.message = message
        headers = {**({"date": date} if date else {}), **(headers or {})}
        self.parsed = {
            "Error": {"Code": code, "Message": message},
            "ResponseMetadata": {"HTTPHeaders": headers},
        }


def signature_of(
    url: str, kind: type[SigV4QueryAuth], service: str, region: str, query: Mapping[str, str], **headers: str
) -> str:
    """The signature by version 4 that a presigned GET of *url* should have, with *query* and these signed headers."""
    auth = kind(Credentials(KEY_ID, SECRET, TOKEN), service, region)
    request = AWSRequest("GET", url.partition("?")[0], headers=headers, params=query)
    request.context["timestamp"] = query["X-Amz-Date"]
    signature: str = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
    return signature


def tag_list(tags: Tags) -> list[dict[str, str]]:
    """Tags as most services return them."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def tags_of(description: Mapping[str, Any]) -> Tags:
    """The tags of a resource as `tag_list` has them."""
    return {each["Key"]: each["Value"] for each in description["Tags"]}


def tagged(key: str, id: str, tags: Tags) -> dict[str, Any]:
    """A resource with the id under *key*, and its tags."""
    return {key: id, "Tags": tag_list(tags)}


def matches(facts: Mapping[str, str], tags: Tags, filters: Filters) -> bool:
    """Whether a resource passes all filters: by tag, or by one of its *facts*."""
    return all(_matches_one(facts, tags, each["Name"], each["Values"]) for each in filters)


def _matches_one(facts: Mapping[str, str], tags: Tags, name: str, values: Sequence[str]) -> bool:
    if name == "tag-key":
        return any(value in tags for value in values)
    if name.startswith("tag:"):
        return tags.get(name.removeprefix("tag:")) in values
    return facts[name] in values
