"""The way of the user's code to the pods: in the run's ConfigMap, or by the run volume where it is too much."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, NamedTuple

from spotmpi.agent import pod_context
from spotmpi.backends.kubernetes.client.api import ClusterApi
from spotmpi.backends.kubernetes.volume_access import Volume, volume_access
from spotmpi.core import archives, code_folder
from spotmpi.core.code_folder import Packed
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.core.progress import Say
from spotmpi.plan.cluster_target import ClusterTarget
from spotmpi.plan.volume_pod import store_command
from spotmpi.spec.job import JobSpec


class Shipment(NamedTuple):
    """A packed folder of code, and whether it goes by the run volume."""

    packed: Packed
    by_volume: bool

    @property
    def archive(self) -> str:
        """Where pods find it."""
        if self.by_volume:
            return f"{pod_context.CODE_STORE}/{self.packed.digest}.tgz"
        return f"{pod_context.CONFIG}/{pod_context.CODE_ARCHIVE}"

    @property
    def facts(self) -> dict[str, Any]:
        """What pods are told of it: where it is, and what they verify."""
        return {"archive": self.archive, "bytes": len(self.packed.archive), "sha256": self.packed.sha256}

    @property
    def carried(self) -> dict[str, bytes]:
        """What of it the ConfigMap holds, by file name."""
        return {} if self.by_volume else {pod_context.CODE_ARCHIVE: self.packed.archive}

    @property
    def note(self) -> str:
        """For people: what is shipped, and how."""
        return f"code: {self.packed}, by {'the run volume' if self.by_volume else 'ConfigMap'}"


def shipment(spec: JobSpec, target: ClusterTarget) -> Shipment | None:
    """How the code of *spec* gets to a cluster, packed; InputError where there is no way for so much."""
    if spec.code is None:
        return None
    packed = code_folder.pack(Path(spec.code))
    found = Shipment(packed, len(packed.archive) > archives.LARGEST)
    if found.by_volume and target.volume is None:
        size = (
            f"{len(packed.archive) / 1e3:,.0f} kB packed, and {archives.LARGEST / 1e3:,.0f} kB go without a run volume"
        )
        raise input_error(
            "code", spec.code, f"is {size}; set kubernetes.volume, or list in .gitignore what is not needed"
        )
    return found


async def store(api: ClusterApi, plan: dict[str, Any], spec: JobSpec, volume: Volume, say: Say) -> None:
    """Put the code of *plan* on the run volume, if it goes that way and is not there whole, before nodes are asked for.

    Raises:
        SpotmpiError: no pod can reach the volume, or the code is no longer what was planned.
    """
    if plan["code"] is None or not plan["code"]["by_volume"]:
        return
    assert spec.code is not None
    packed = code_folder.pack(Path(spec.code))
    if packed.digest != plan["code"]["digest"]:
        raise SpotmpiError(f"{spec.code} has changed since the run was planned; start it again")
    name, size = f"{packed.digest}.tgz", len(packed.archive)
    async with volume_access(api, volume, say) as there:
        missing, index = io.BytesIO(), json.dumps({name: [size, packed.sha256]}).encode()
        await there.ask(store_command("missing", pod_context.CODE_STORE), io.BytesIO(index), missing)
        if json.loads(missing.getvalue()):
            put = store_command("put", pod_context.CODE_STORE, name, str(size), packed.sha256)
            await there.run(put, io.BytesIO(packed.archive))
