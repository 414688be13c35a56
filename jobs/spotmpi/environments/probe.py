"""A pod that tries what runs need: the storage mounted, a file written and read, names resolved. It costs no GPU."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from spotmpi.backends.kubernetes.client.portal import call
from spotmpi.backends.kubernetes.volume_access import VolumeAccess
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.progress import Say
from spotmpi.environments.checks.finding import Finding
from spotmpi.plan.agent_plan import VOLUME

SECONDS = 10.0  # in which a pod that runs has to have done it
SLOW = 2.0  # seconds for a small file, from which on training would feel it
NAME = "kubernetes.default.svc"
Access = Callable[[], AbstractAsyncContextManager[VolumeAccess]]
_TRY = """
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
    """What a pod found that *access* gives: a line for the storage and one for names; never raises."""
    try:
        told = call(_tried(access))
    except TimeoutError:
        hung = f"writing a small file did not end within {SECONDS:g} s"
        return (Finding("probe", "error", hung, "`spotmpi doctor` without --probe looks at mount target and port"),)
    except SpotmpiError as error:
        return (Finding("probe", "error", str(error), "see the message; `spotmpi doctor` looks at the parts"),)
    return (_storage(told), _names(told))


async def _tried(access: Access) -> dict[str, object]:
    async with access() as pod:
        into = io.BytesIO()
        command = ["python3", "-c", _TRY, VOLUME, NAME]
        await asyncio.wait_for(pod.exchange(command, io.BytesIO(), into), SECONDS)
        found: dict[str, object] = json.loads(into.getvalue())
        return found


def _storage(told: dict[str, object]) -> Finding:
    seconds = float(str(told["seconds"]))
    if not told["whole"]:
        return Finding("probe of storage", "error", "a file reads other than it was written", "look at the file system")
    message = f"mounted; a small file was written and read in {seconds:.2f} s"
    if seconds > SLOW:
        return Finding("probe of storage", "warning", message, "checkpoints and small files will be slow")
    return Finding("probe of storage", "ok", message)


def _names(told: dict[str, object]) -> Finding:
    if told["address"] is None:
        remedy = "CoreDNS, or the network policy that allows DNS; `pulumi up` restores both"
        return Finding("probe of names", "error", f"{NAME} does not resolve in a pod: {told['why']}", remedy)
    return Finding("probe of names", "ok", f"{NAME} is {told['address']}")


def of_stack(stack: str, say: Say) -> tuple[Finding, ...]:
    """The probe of a stack's environment, by a pod on its storage."""
    from spotmpi.backends.kubernetes.volume_access import volume_access
    from spotmpi.backends.targets import Target
    from spotmpi.data.datasets import Storage, reached

    try:
        api, volume = reached(Storage(Target(stack)))
    except SpotmpiError as error:
        return (Finding("probe", "error", str(error), "see the message"),)
    return probe(lambda: volume_access(api, volume, say))
