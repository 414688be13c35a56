"""A mock engine that records every resource with its options, and fills in computed outputs as AWS would."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import pulumi
import pulumi.runtime
import yaml
from pulumi.runtime import mocks as engine

from infra import program
from infra.settings import Settings
from infra.stack_config import read
from tests.tools import REPOSITORY

TODAY = date(2026, 11, 27)  # of the warnings
# A run takes 0.2 s and is the same for the same settings; tests don't change a recording.
_RUNS: dict[str, Recording] = {}
# Pulumi's name of the organization in self-managed backends.
_DIY = "organization"
_loop = functools.cache(asyncio.new_event_loop)


@dataclass(frozen=True)
class Resource:
    """One registered resource: type token, logical name, inputs as the engine names them, and its options."""

    kind: str
    name: str
    inputs: Mapping[str, Any]
    urn: str
    parent: str
    depends_on: frozenset[str]
    deleted_with: str
    provider: str
    protect: bool
    ignore_changes: tuple[str, ...]
    delete_timeout: str


@dataclass
class Recording:
    """The resources of one run of a program in order, its look-ups and its exports."""

    resources: list[Resource] = field(default_factory=list)
    exports: dict[str, Any] = field(default_factory=dict)
    lookups: list[str] = field(default_factory=list)
    outputs: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # that components register, by URN
    read: dict[str, str] = field(default_factory=dict)

    def of(self, kind: str) -> list[Resource]:
        """The resources of a type, given by the last part of its token, in the order of their names."""
        matches = [resource for resource in self.resources if kind in (resource.kind, resource.kind.split(":")[-1])]
        return sorted(matches, key=lambda resource: resource.urn)

    def one(self, kind: str, name: str | None = None) -> Resource:
        """The only resource of a type, or of a type and name."""
        matches = [resource for resource in self.of(kind) if name is None or resource.name == name]
        assert len(matches) == 1, f"{kind} {name}: {[resource.name for resource in matches]}"
        return matches[0]

    @property
    def node_groups(self) -> dict[str, Resource]:
        """The node groups of EKS by name, without the prefix of the environment."""
        return {resource.name.split("-", 2)[2]: resource for resource in self.of("aws:eks/nodeGroup:NodeGroup")}


class _Answers(engine.Mocks):
    """The computed outputs of AWS."""

    def __init__(self, recording: Recording, stack_outputs: Mapping[str, Any]):
        self._recording, self._stack_outputs = recording, stack_outputs

    def new_resource(self, args: engine.MockResourceArgs) -> tuple[str | None, dict[Any, Any]]:
        computed: dict[str, dict[str, Any]] = {
            "eks:index:Cluster": {"clusterSecurityGroupId": "sg-cluster", "kubeconfigJson": "{}"},
            "aws:ec2/launchTemplate:LaunchTemplate": {"latestVersion": 1},
            "aws:eks/nodeGroup:NodeGroup": {"resources": [{"autoscalingGroups": [{"name": f"eks-{args.name}-asg"}]}]},
            "aws:ecr/repository:Repository": {"repositoryUrl": f"registry.example/{args.inputs.get('name')}"},
            "tls:index/privateKey:PrivateKey": {
                "privateKeyOpenssh": "PRIVATE",
                "privateKeyPem": f"PRIVATE OF {args.name}",
                "privateKeyPemPkcs8": "PRIVATE OF TLS",
                "publicKeyOpenssh": "PUBLIC",
            },
            "tls:index/selfSignedCert:SelfSignedCert": {"certPem": "CERTIFICATE"},
            "pulumi:pulumi:StackReference": {"outputs": dict(self._stack_outputs)},
        }
        own = {"arn": f"arn:aws:mock:::{args.name}"} if args.typ.startswith("aws:") else {}
        return f"{args.name}-id", {"name": args.name, **args.inputs, **own, **computed.get(args.typ, {})}

    def call(self, args: engine.MockCallArgs) -> tuple[dict[Any, Any], list[tuple[str, str]] | None]:
        self._recording.lookups.append(args.token)
        return {}, None


class _Monitor(engine.MockMonitor):
    """Records the requests of the SDK with their options, which `Mocks` does not get."""

    def __init__(self, recording: Recording, stack_outputs: Mapping[str, Any]):
        super().__init__(_Answers(recording, stack_outputs))
        self._recording, self._lock = recording, threading.Lock()

    def ReadResource(self, request: Any) -> Any:
        with self._lock:
            answer = super().ReadResource(request)  # type: ignore[no-untyped-call]
            self._recording.read[request.name] = request.type
        return answer

    def RegisterResource(self, request: Any) -> Any:
        with self._lock:
            answer = super().RegisterResource(request)  # type: ignore[no-untyped-call]
            if request.type != "pulumi:pulumi:Stack":
                self._recording.resources.append(_resource(request, answer.urn))
        return answer

    def RegisterResourceOutputs(self, request: Any) -> Any:
        with self._lock:
            answer = super().RegisterResourceOutputs(request)  # type: ignore[no-untyped-call]
            self._recording.outputs[request.urn] = pulumi.runtime.rpc.deserialize_properties(request.outputs)
        return answer


def _resource(request: Any, urn: str) -> Resource:
    return Resource(
        kind=request.type,
        name=request.name,
        inputs=pulumi.runtime.rpc.deserialize_properties(request.object),
        urn=urn,
        parent=request.parent,
        depends_on=frozenset(request.dependencies),
        deleted_with=request.deletedWith,
        provider=request.provider,
        protect=request.protect,
        ignore_changes=tuple(request.ignoreChanges),
        delete_timeout=request.customTimeouts.delete,
    )


def record(what: Callable[[], object], stack: str = "lab", stack_outputs: Mapping[str, Any] | None = None) -> Recording:
    """Run any piece of a program against the mock engine and wait until all of it is registered."""
    recording = Recording()
    asyncio.set_event_loop(_loop())  # which `asyncio.run` of an earlier test may have removed
    monitor = _Monitor(recording, stack_outputs or {})
    pulumi.runtime.set_mocks(
        monitor.mocks, project="spotmpi", stack=stack, preview=False, monitor=monitor, organization=_DIY
    )
    root = pulumi.runtime.get_root_resource()
    assert isinstance(root, pulumi.runtime.stack.Stack)
    root.outputs.clear()

    @pulumi.runtime.test  # type: ignore[untyped-decorator]
    def body() -> pulumi.Output[None]:
        what()
        return pulumi.Output.all(**root.outputs).apply(recording.exports.update)

    body()
    return recording


def config_of(stack: str) -> dict[str, str]:
    """The configuration of a ready stack as the engine passes it, with an address that has access."""
    text = (REPOSITORY / "stacks" / f"Pulumi.{stack}.yaml").read_text(encoding="utf-8")
    values = {"spotmpi:access": ["198.51.100.7/32"], **yaml.safe_load(text)["config"]}
    return {key: _text(value) for key, value in values.items()}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def settings_of(stack: str = "lab", **values: Any) -> Settings:
    """The settings of a ready stack with some values replaced."""
    return read(stack, {**config_of(stack), **{f"spotmpi:{key}": _text(value) for key, value in values.items()}})


def run(stack: str = "lab", **values: Any) -> Recording:
    """Run the whole program for a ready stack with some values replaced."""
    key = json.dumps([stack, values], sort_keys=True)
    if key not in _RUNS:
        settings = settings_of(stack, **values)
        storage = {"zone": None, "file_system_id": "fs-0123abcd", "access_point_id": "fsap-0123abcd"}
        _RUNS[key] = record(lambda: program.build(settings, TODAY), stack, storage)
    return _RUNS[key]


def run_with_data_stack(stack: str, outputs: Mapping[str, Any], **values: Any) -> Recording:
    """Run the whole program for a ready stack with a data stack that has these outputs."""
    # A refused program leaves futures that nobody awaits; their errors are not printed.
    asyncio.get_event_loop().set_exception_handler(lambda loop, context: None)
    return record(lambda: program.build(settings_of(stack, **values), TODAY), stack, outputs)
