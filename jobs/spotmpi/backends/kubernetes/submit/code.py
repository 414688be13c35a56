"""Ships the user's code to the pods: in the run's ConfigMap, or through the run volume where it is too large."""

from __future__ import annotations

import io
import json
from typing import NamedTuple

from spotmpi.agent import pod_context
from spotmpi.agent.plan import UserCode
from spotmpi.backends.kubernetes.client.api import ClusterApi
from spotmpi.backends.kubernetes.volume_access import json_answer, volume_access
from spotmpi.core import archives, code_folder
from spotmpi.core.code_folder import Packed
from spotmpi.core.errors import input_error
from spotmpi.core.wording import Echo
from spotmpi.plan.cluster import ClusterTarget
from spotmpi.plan.cluster_plan import ClusterPlan
from spotmpi.plan.volume_pod import Volume, store_command
from spotmpi.spec.job import JobSpec


class CodeShipment(NamedTuple):
    """The packed code of a run, and whether it goes through the run volume."""

    packed: Packed
    from_volume: bool

    @property
    def archive(self) -> str:
        """The path of the archive in a pod."""
        if self.from_volume:
            return f"{pod_context.CODE_STORE}/{self.packed.digest}.tgz"
        return f"{pod_context.CONFIG}/{pod_context.CODE_ARCHIVE}"

    @property
    def agent_plan(self) -> UserCode:
        """The agent plan's entry: the path of the archive, and what pods verify."""
        return {"archive": self.archive, "bytes": len(self.packed.archive), "sha256": self.packed.sha256}

    @property
    def config_map_files(self) -> dict[str, bytes]:
        """The files for the run's ConfigMap, by name."""
        return {} if self.from_volume else {pod_context.CODE_ARCHIVE: self.packed.archive}

    @property
    def note(self) -> str:
        """What is shipped and how, for people."""
        return f"code: {self.packed}, through {'the run volume' if self.from_volume else 'a ConfigMap'}"


def pack(spec: JobSpec, target: ClusterTarget) -> CodeShipment | None:
    """The packed code of *spec*, None without any; InputError where it is too large for the target."""
    if not spec.code and not spec.files:
        return None
    packed = code_folder.pack(*spec.code_paths)
    shipment = CodeShipment(packed, len(packed.archive) > archives.LARGEST)
    if shipment.from_volume and target.volume is None:
        size, limit = (f"{size / 1e3:,.0f} kB" for size in (len(packed.archive), archives.LARGEST))
        remedy = "set kubernetes.volume, or list files that are not needed in .gitignore"
        field, value = ("code", spec.code) if spec.code else ("files", spec.files)
        raise input_error(field, value, f"is {size} packed, and at most {limit} without a run volume; {remedy}")
    return shipment


async def upload(api: ClusterApi, plan: ClusterPlan, spec: JobSpec, volume: Volume, echo: Echo) -> None:
    """Copy the code of *plan* to the run volume, unless the ConfigMap holds it or the volume has it already.

    This comes before nodes are requested.

    Raises:
        SpotmpiError: no pod can reach the volume, or the code has changed since it was planned.
    """
    if plan["code"] is None or not plan["code"]["from_volume"]:
        return
    packed = code_folder.pack_planned(*spec.code_paths, plan["code"]["digest"])
    name, size = f"{packed.digest}.tgz", len(packed.archive)
    async with volume_access(api, volume, echo) as access:
        index = json.dumps({name: [size, packed.sha256]}).encode()
        if json_answer(await access.output(store_command("missing", pod_context.CODE_STORE), index), list):
            put = store_command("put", pod_context.CODE_STORE, name, str(size), packed.sha256)
            await access.run(put, io.BytesIO(packed.archive))
