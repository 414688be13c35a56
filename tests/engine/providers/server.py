"""The stand-ins as the engine sees them: one gRPC server for each package, all in this process."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.empty_pb2 import Empty
from pulumi.runtime.proto import plugin_pb2, provider_pb2, provider_pb2_grpc, status_pb2

from tests.engine.providers import eks, schema
from tests.engine.providers.aws import Aws
from tests.engine.providers.cloud import Cloud, Provider, ResourceRequest
from tests.engine.providers.kubernetes import Kubernetes
from tests.engine.providers.records import Record, Refusal
from tests.engine.providers.scaling_api import serving_scaling
from tests.engine.providers.script import Fault
from tests.engine.providers.tls import Tls
from tests.engine.providers.wire import from_struct, to_struct

# More than the engine asks for at once, since a construction waits for the requests that it causes.
_THREADS = 64


class Servicer(provider_pb2_grpc.ResourceProviderServicer):
    """The engine's protocol for one provider."""

    def __init__(self, provider: Provider):
        self._provider = provider
        self._script = provider.cloud.script

    def GetPluginInfo(self, request: Any, context: Any) -> Any:
        return plugin_pb2.PluginInfo(version=schema.installed_version(self._provider.package))

    def Handshake(self, request: Any, context: Any) -> Any:
        # The engine falls back to the protocol without it.
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "no handshake")

    def Attach(self, request: Any, context: Any) -> Any:
        return Empty()

    def Cancel(self, request: Any, context: Any) -> Any:
        return Empty()

    def CheckConfig(self, request: Any, context: Any) -> Any:
        token = f"pulumi:providers:{self._provider.package}"
        problems = schema.problems(token, from_struct(request.news))
        failures = [provider_pb2.CheckFailure(reason=problem) for problem in problems]
        return provider_pb2.CheckResponse(inputs=request.news, failures=failures)

    def DiffConfig(self, request: Any, context: Any) -> Any:
        return provider_pb2.DiffResponse()

    def Configure(self, request: Any, context: Any) -> Any:
        settings, constructs = from_struct(request.args), self._provider.package == "eks"
        self._answer(
            context, "configure", ResourceRequest("", "", ""), False, lambda: self._provider.configure(settings)
        )
        return provider_pb2.ConfigureResponse(
            supportsPreview=True, acceptSecrets=constructs, acceptResources=constructs, acceptOutputs=constructs
        )

    def Check(self, request: Any, context: Any) -> Any:
        olds, news = from_struct(request.olds), from_struct(request.news)
        inputs, problems = self._provider.check(_resource_request(request), olds, news, request.randomSeed)
        failures = [provider_pb2.CheckFailure(reason=problem) for problem in problems]
        if problems:
            resource = _resource_request(request)
            self._script.record("check", resource.token, resource.name, False, "; ".join(problems))
        return provider_pb2.CheckResponse(inputs=to_struct(inputs), failures=failures)

    def Diff(self, request: Any, context: Any) -> Any:
        resource, olds, news = _resource_request(request), from_struct(request.old_inputs), from_struct(request.news)
        state = from_struct(request.olds)
        changed = self._provider.changed(resource, olds, news, state)
        if not changed:
            return provider_pb2.DiffResponse(changes=provider_pb2.DiffResponse.DIFF_NONE)
        replaced = self._provider.replaced_by(resource, olds, news, state)
        return provider_pb2.DiffResponse(
            changes=provider_pb2.DiffResponse.DIFF_SOME,
            diffs=changed,
            replaces=replaced,
            deleteBeforeReplace=bool(replaced) and self._provider.deletes_first(resource, news),
        )

    def Create(self, request: Any, context: Any) -> Any:
        resource, inputs = _resource_request(request), from_struct(request.properties)
        if request.preview:
            self._script.record("create", resource.token, resource.name, True, None)
            return provider_pb2.CreateResponse(properties=to_struct(self._provider.planned(resource, inputs, None)))
        record: Record = self._answer(
            context, "create", resource, False, lambda: self._provider.create(resource, inputs)
        )
        return provider_pb2.CreateResponse(id=record.id, properties=to_struct(record.outputs))

    def Update(self, request: Any, context: Any) -> Any:
        resource, inputs = _resource_request(request), from_struct(request.news)
        if request.preview:
            self._script.record("update", resource.token, resource.name, True, None)
            planned = self._provider.planned(resource, inputs, from_struct(request.olds))
            return provider_pb2.UpdateResponse(properties=to_struct(planned))
        state = from_struct(request.olds)
        act = lambda: self._provider.update(resource, request.id, inputs, state)  # noqa: E731
        changed: Record = self._answer(context, "update", resource, False, act)
        return provider_pb2.UpdateResponse(properties=to_struct(changed.outputs))

    def Delete(self, request: Any, context: Any) -> Any:
        resource = _resource_request(request)
        self._answer(context, "delete", resource, False, lambda: self._provider.delete(resource, request.id))
        return Empty()

    def Read(self, request: Any, context: Any) -> Any:
        resource = _resource_request(request)
        record = self._answer(context, "read", resource, False, lambda: self._provider.read(resource, request.id))
        if record is None:
            return provider_pb2.ReadResponse()
        return provider_pb2.ReadResponse(
            id=record.id, properties=to_struct(record.outputs), inputs=to_struct(record.inputs)
        )

    def Construct(self, request: Any, context: Any) -> Any:
        resource = ResourceRequest(request.type, request.name, "")
        inputs = from_struct(request.inputs)
        if problems := schema.problems(request.type, inputs):
            self._script.record("check", resource.token, resource.name, False, "; ".join(problems))
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "; ".join(problems))
        if request.type != eks.COMPONENT:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{request.type}: the stand-in constructs {eks.COMPONENT}")
        urn, outputs = self._answer(context, "construct", resource, request.dryRun, lambda: eks.construct(request))
        return provider_pb2.ConstructResponse(urn=urn, state=to_struct(outputs))

    def _answer(
        self, context: Any, method: str, resource: ResourceRequest, preview: bool, act: Callable[[], Any]
    ) -> Any:
        """What `act` gives, as the script has it; a refusal becomes the call's error. Both go into the journal."""
        refused: str | None = None
        answer: Any = None
        after: Fault | None = None
        try:
            after = self._script.before(method, resource.token, resource.name)
            if not context.is_active():
                raise Refusal("the engine is gone, so this was never sent")
            answer = act()
            if after:
                self._script.wait(after)
                refused = after.message
                if after.incomplete:
                    answer = self._provider.cloud.records.fail(answer)
        except Refusal as error:
            refused = str(error)
        except grpc.RpcError as error:
            refused = str(error.details())
        self._script.record(method, resource.token, resource.name, preview, refused)
        if refused and after and after.incomplete:
            context.set_trailing_metadata((("grpc-status-details-bin", _incomplete(answer, refused)),))
        if refused:
            context.abort(grpc.StatusCode.UNKNOWN, f"{resource.name}: {refused}")
        return answer


def _incomplete(record: Record, reason: str) -> bytes:
    """What tells the engine that a thing exists although its creation failed.

    As AWS's provider does once it has an id (`initializationError` in pkg/tfbridge/provider.go).
    """
    inputs, outputs = to_struct(record.inputs), to_struct(record.outputs)
    error = provider_pb2.ErrorResourceInitFailed(id=record.id, properties=outputs, inputs=inputs, reasons=[reason])
    status = status_pb2.Status(code=grpc.StatusCode.UNKNOWN.value[0], message=reason)
    status.details.add().Pack(error)
    return bytes(status.SerializeToString())


def _resource_request(request: Any) -> ResourceRequest:
    urn = request.urn
    return ResourceRequest(request.type or urn.split("::")[-2].split("$")[-1], request.name or urn.split("::")[-1], urn)


@dataclass(frozen=True)
class StandInServers:
    """Where the stand-ins are: the value of PULUMI_DEBUG_PROVIDERS, and the address of the Auto Scaling API."""

    providers: str
    scaling: str


@contextmanager
def serve_cloud(cloud: Cloud, kubernetes: Kubernetes | None = None) -> Iterator[StandInServers]:
    """Serve every package, and the API that the program itself calls, while the context lasts."""
    with serving_scaling(cloud) as scaling, _providers(cloud, kubernetes) as providers:
        yield StandInServers(providers, scaling)


@contextmanager
def _providers(cloud: Cloud, kubernetes: Kubernetes | None) -> Iterator[str]:
    servers: list[grpc.Server] = []
    ports: list[str] = []
    try:
        for provider in (Aws(cloud), eks.Eks(cloud), kubernetes or Kubernetes(cloud), Tls(cloud)):
            server = grpc.server(ThreadPoolExecutor(_THREADS))
            provider_pb2_grpc.add_ResourceProviderServicer_to_server(Servicer(provider), server)
            ports.append(f"{provider.package}:{server.add_insecure_port('127.0.0.1:0')}")
            server.start()
            servers.append(server)
        yield ",".join(ports)
    finally:
        cloud.script.over.set()
        for server in servers:
            server.stop(grace=0).wait()
