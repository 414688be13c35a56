"""What the installed SDKs accept: every resource's inputs by name, type and required set, read from their classes."""

import collections.abc
import enum
import importlib.util
import inspect
import json
import re
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import pulumi
from pulumi import _types

# The engine's mark of a value that is not known yet.
UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
_SDKS = {"aws": "pulumi_aws", "eks": "pulumi_eks", "kubernetes": "pulumi_kubernetes", "tls": "pulumi_tls"}


@dataclass(frozen=True)
class Property:
    """One input of a resource or of a nested object."""

    annotation: Any
    required: bool


def installed_version(package: str) -> str:
    """The version of a package's SDK, which the engine wants its provider to have."""
    return metadata.version(_SDKS[package])


def package_of(token: str) -> str:
    """The package that a type token or a provider's token belongs to."""
    return token.rsplit(":", 1)[-1] if token.startswith("pulumi:providers:") else token.split(":", 1)[0]


@cache
def inputs_of(token: str) -> Mapping[str, Property] | None:
    """The inputs that the SDK has for a resource type, by their names on the wire; None for a type it doesn't know."""
    if token.startswith("pulumi:providers:"):
        module = importlib.import_module(f"{_SDKS[package_of(token)]}.provider")
        return properties(module.ProviderArgs)
    where = _classes(package_of(token)).get(token)
    if where is None:
        return None
    return properties(_arguments_class(*where))


@cache
def _classes(package: str) -> Mapping[str, tuple[str, str]]:
    """Type token to (module that exports the class, class), as the SDK registers them."""
    folder = importlib.util.find_spec(_SDKS[package])
    assert folder and folder.origin
    text = Path(folder.origin).read_text()
    table = re.search(r'resource_modules="""(.*?)"""', text, re.DOTALL)
    assert table, f"{_SDKS[package]} registers no resources"
    return {
        token: (entry["fqn"], name) for entry in json.loads(table.group(1)) for token, name in entry["classes"].items()
    }


def _arguments_class(module: str, name: str) -> type:
    # Only the resource's own module, never its whole package: importing all of pulumi_aws takes seconds.
    resource = getattr(importlib.import_module(module), name)
    own = importlib.import_module(resource.__module__)
    for suffix in ("Args", "InitArgs"):
        class_ = getattr(own, name + suffix, None)
        if isinstance(class_, type) and _types.is_input_type(class_):
            return class_
    raise LookupError(f"{module}.{name} has no class of arguments")


@cache
def properties(arguments: type) -> Mapping[str, Property]:
    """The properties of an SDK class of arguments, by their names on the wire."""
    wire_names = _types.input_type_py_to_pulumi_names(arguments)
    parameters = inspect.signature(arguments.__init__).parameters  # type: ignore[misc]
    annotations = _types.input_type_types(arguments)
    return {
        wire: Property(annotations[wire], parameters[python].default is inspect.Parameter.empty)
        for python, wire in wire_names.items()
    }


def problems(token: str, inputs: Mapping[str, Any]) -> list[str]:
    """Everything in the inputs that the SDK's class does not allow; a type it doesn't have is a problem too."""
    properties = inputs_of(token)
    if properties is None:
        return list(_custom_problems(token, inputs))
    if token.startswith("pulumi:providers:"):
        inputs = {key: _decode(properties.get(key), value) for key, value in inputs.items() if key != "version"}
    return list(_object_problems("", inputs, properties))


def _custom_problems(token: str, inputs: Mapping[str, Any]) -> Iterator[str]:
    """A type that some chart brings to Kubernetes has free fields, but metadata as every other object."""
    version, _, kind = token.removeprefix("kubernetes:").rpartition(":")
    group = version.partition("/")[0]
    brought = token.startswith("kubernetes:") and "." in group
    if not brought or any(other.startswith(f"kubernetes:{group}/") for other in _classes("kubernetes")):
        yield f"{token}: the SDK has no such resource"
        return
    if (inputs.get("apiVersion"), inputs.get("kind")) != (version, kind):
        yield f"apiVersion, kind: {inputs.get('apiVersion')} and {inputs.get('kind')} are not those of {token}"
    metadata = importlib.import_module("pulumi_kubernetes.meta.v1").ObjectMetaArgs
    yield from _object_problems("metadata", inputs.get("metadata") or {}, properties(metadata))


def _decode(property_: Property | None, value: Any) -> Any:
    """A provider's setting: everything but text comes as JSON in a string."""
    if isinstance(value, str) and property_ and str not in _options(property_.annotation):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _object_problems(path: str, value: Mapping[str, Any], properties: Mapping[str, Property]) -> Iterator[str]:
    for key, item in value.items():
        place = f"{path}.{key}" if path else key
        if key not in properties:
            yield f"{place}: unknown, there are {', '.join(sorted(properties))}"
        elif item is not None:
            yield from _problems(place, item, properties[key].annotation)
    for key, property_ in properties.items():
        if property_.required and value.get(key) is None:
            yield f"{path + '.' if path else ''}{key}: required, and not given"


def _problems(path: str, value: Any, annotation: Any) -> Iterator[str]:
    """What is wrong with one value; of several allowed types the one that fits best speaks."""
    if value == UNKNOWN:
        return
    verdicts = [list(_against(path, value, option)) for option in _options(annotation)]
    if verdicts and all(verdicts):
        yield from min(verdicts, key=len)


def _options(annotation: Any) -> list[Any]:
    """The types that an input may have once it is known, without the spellings that mean the same."""
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return [annotation]
    options: list[Any] = []
    for option in typing.get_args(annotation):
        if option is type(None) or typing.get_origin(option) in (collections.abc.Awaitable, pulumi.Output):
            continue
        options.extend(_options(option))
    if not any(isinstance(option, type) and _types.is_input_type(option) for option in options):
        return options
    # A class of arguments comes with a dictionary type of the same shape, whose names are Python's.
    return [option for option in options if not _is_dictionary(option)]


def _is_dictionary(option: Any) -> bool:
    origin = typing.get_origin(option) or option
    return typing.is_typeddict(option) or (isinstance(origin, type) and issubclass(origin, collections.abc.Mapping))


def _against(path: str, value: Any, option: Any) -> Iterator[str]:
    if option is Any or option is object:
        return
    if isinstance(option, type) and _types.is_input_type(option):
        if isinstance(value, Mapping):
            yield from _object_problems(path, value, properties(option))
        else:
            yield f"{path}: an object is wanted, not {value!r}"
        return
    origin = typing.get_origin(option) or option
    if isinstance(origin, type) and issubclass(origin, collections.abc.Mapping):
        yield from _mapping_problems(path, value, typing.get_args(option))
    elif origin in (list, collections.abc.Sequence):
        yield from _list_problems(path, value, typing.get_args(option))
    elif not _is_plain(value, option):
        yield f"{path}: {getattr(option, '__name__', option)} is wanted, not {value!r}"


def _mapping_problems(path: str, value: Any, arguments: tuple[Any, ...]) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield f"{path}: an object is wanted, not {value!r}"
        return
    for key, item in value.items():
        if item is not None and len(arguments) == 2:
            yield from _problems(f"{path}.{key}", item, arguments[1])


def _list_problems(path: str, value: Any, arguments: tuple[Any, ...]) -> Iterator[str]:
    if not isinstance(value, list):
        yield f"{path}: a list is wanted, not {value!r}"
        return
    for index, item in enumerate(value):
        yield from _problems(f"{path}[{index}]", item, arguments[0] if arguments else Any)


def _is_plain(value: Any, option: Any) -> bool:
    if option is bool or option is str:
        return isinstance(value, option)
    if option is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if option is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(option, type) and issubclass(option, enum.Enum):
        return value in {member.value for member in option}
    # Assets, archives and other values that can't be recognized by their form.
    return not isinstance(option, type) or not issubclass(option, str | int | float)
