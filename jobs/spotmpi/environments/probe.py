"""A pod without GPU that checks what runs need: the storage mounted, a file written and read, a name resolved."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from spotmpi.backends.kubernetes.client.portal import call
from spotmpi.backends.kubernetes.volume_access import VolumeAccess, json_answer
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.wording import Echo
from spotmpi.environments.checks.check import Finding
from spotmpi.plan import pods
from spotmpi.plan.agent_plan import VOLUME

TIMEOUT = 10.0  # seconds for the commands in a running pod
SLOW = 2.0  # seconds for a small file that would slow training down
NAME = "kubernetes.default.svc"
Access = Callable[[], AbstractAsyncContextManager[VolumeAccess]]
_PROGRAM = """
import json, os, socket, sys, time
folder, name = sys.argv[1:]
began, path = time.monotonic(), os.path.join(folder, ".spotmpi-probe-%s" % os.getpid())
with open(path, "w") as file:
    file.write("probe"); file.flush(); os.fsync(file.fileno())
with open(path) as file:
    whole = file.read() == "probe"
os.remove(path)
written = time.monotonic() - began
try:
    address, why = socket.gethostbyname(name), None
except OSError as error:
    address, why = None, str(error)
print(json.dumps({"whole": whole, "seconds": written, "address": address, "why": why}))
"""


def probe(access: Access) -> tuple[Finding, ...]:
    """The findings of a pod that *access* opens: one for the storage and one for DNS; never raises."""
    try:
        result = call(_run(access))
    except TimeoutError:
        message = f"writing a small file took more than {TIMEOUT:g} s"
        return (Finding("probe", "error", message, "`spotmpi doctor` without --probe checks mount target and port"),)
    except SpotmpiError as error:
        return (Finding("probe", "error", str(error), "`spotmpi doctor` without --probe checks the parts"),)
    return (_storage(result), _dns(result))


async def _run(access: Access) -> dict[str, object]:
    async with access() as pod:
        output = await asyncio.wait_for(pod.output(pods.python(_PROGRAM, VOLUME, NAME)), TIMEOUT)
        result: dict[str, object] = json_answer(output, dict)
        if not result.keys() >= {"whole", "seconds", "address", "why"} or not isinstance(result["seconds"], float):
            raise SpotmpiError("the answer of the pod is not that of the probe; check its image")
        return result


def _storage(result: dict[str, object]) -> Finding:
    seconds = float(str(result["seconds"]))
    if not result["whole"]:
        return Finding(
            "probe of storage", "error", "a file's content differs from what was written", "check the file system"
        )
    message = f"mounted; wrote and read a small file in {seconds:.2f} s"
    if seconds > SLOW:
        return Finding("probe of storage", "warning", message, "checkpoints and small files will be slow")
    return Finding("probe of storage", "ok", message)


def _dns(result: dict[str, object]) -> Finding:
    if result["address"] is None:
        remedy = "check CoreDNS and the network policy that allows DNS; `pulumi up --refresh` restores both"
        return Finding("probe of names", "error", f"{NAME} does not resolve in a pod: {result['why']}", remedy)
    return Finding("probe of names", "ok", f"{NAME} resolves to {result['address']}")


def probe_stack(stack: str, echo: Echo) -> tuple[Finding, ...]:
    """The findings of a pod on the storage of a stack's environment."""
    from spotmpi.backends.kubernetes.volume_access import volume_access
    from spotmpi.backends.targets import Target
    from spotmpi.data.datasets import Storage, open_storage

    try:
        api, volume = open_storage(Storage(Target(stack)))
    except SpotmpiError as error:
        return (Finding("probe", "error", str(error)),)
    return probe(lambda: volume_access(api, volume, echo))
