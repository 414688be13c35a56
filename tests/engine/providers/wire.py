"""Values on the wire to and from Python's: no wrapping of secrets and outputs, whole numbers as int."""

from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format, struct_pb2

from tests.engine.providers.schema import UNKNOWN

_SIGNATURE = "4dabf18193072939515e22adb298388d"
_SECRET = "1b47061264138c4ac30d75fd1eb44270"
_OUTPUT = "d0e6a833031e9bbcd3f4e8bde6ca49a4"
_RESOURCE = "5cf8f73096256a8f31e491e813e4eb8e"


def from_struct(struct: struct_pb2.Struct) -> dict[str, Any]:
    """A structure of the engine as Python values."""
    return {key: _plain(value) for key, value in json_format.MessageToDict(struct).items()}


def to_struct(values: Mapping[str, Any]) -> struct_pb2.Struct:
    """Python values as a structure of the engine."""
    return json_format.ParseDict(dict(values), struct_pb2.Struct())


def secret(value: Any) -> dict[str, Any]:
    """The value as one that the engine must encrypt."""
    return {_SIGNATURE: _SECRET, "value": value}


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    kind = value.get(_SIGNATURE)
    if kind == _OUTPUT:
        return _plain(value["value"]) if "value" in value else UNKNOWN
    if kind == _RESOURCE:
        return value.get("id") or value.get("urn")
    if kind is not None and "value" in value:
        return _plain(value["value"])
    return {key: _plain(item) for key, item in value.items()}
