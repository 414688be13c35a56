"""What requests to a fake cluster and its answers look like."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from tests.cloud.cluster.store import Object


class Request(NamedTuple):
    """A request: RBAC's verb, the resource with its subresource, and what it is about."""

    verb: str
    resource: str
    namespace: str
    name: str
    parameters: Mapping[str, str]
    values: Any


class Refusal(NamedTuple):
    """What the API answers to some requests in place of what it would; without a *code* nothing at all."""

    verb: str
    resource: str
    code: int | None
    body: str
    headers: Mapping[str, str]


def status(code: int, message: str, reason: str = "") -> Object:
    """A refusal as the API answers it."""
    values = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return {**values, "code": code, "message": message, "reason": reason}


def stamp_of(moment: float) -> str:
    """A moment as the API writes it, in whole seconds."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
