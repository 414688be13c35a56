"""Sends the wheels of Dask to a namespace, once for each content, for pods whose image has none."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lightkube import ApiError

from spotmpi.backends.kubernetes.client import api as cluster_api
from spotmpi.backends.kubernetes.client.api import ClusterApi, Object
from spotmpi.backends.kubernetes.client.errors import already_exists, translate_errors
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.names import LABEL_ARCHITECTURE
from spotmpi.core.wording import Echo
from spotmpi.plan.wheels import config_maps, mounted_wheels, wheels_name, with_wheels
from spotmpi.spec.job import JobSpec

if TYPE_CHECKING:
    from spotmpi.images.wheels import PackedWheels


def mount(objects: list[Object], spec: JobSpec, echo: Echo) -> list[Object]:
    """The *objects* of a run whose pods mount the wheels.

    Where the wheels cannot be had, it says why and returns the objects as they are: the image may need none.
    """
    try:
        return with_wheels(objects, _pack(spec, echo))
    except SpotmpiError as error:
        echo(f"pods get no wheels of Dask, so the image has to contain it: {error}")
        return objects


async def send(api: ClusterApi, objects: Sequence[Object], spec: JobSpec, echo: Echo) -> None:
    """Send the wheels that the pods of *objects* mount, if any, unless the namespace has them.

    Raises:
        SpotmpiError: they cannot be had or sent.
    """
    name = mounted_wheels(objects)
    if name is None:
        return
    with translate_errors("send the wheels of Dask to the cluster"):
        if await api.find(cluster_api.CONFIG_MAP, name) is not None:
            return
        wheels = await asyncio.to_thread(_pack, spec, echo)
        if wheels_name(wheels) != name:
            raise SpotmpiError("the wheels of Dask have changed since the run was planned; start the run again")
        *pieces, last = config_maps(wheels, api.namespace)
        await asyncio.gather(*(_create(api, each) for each in pieces))
        await _create(api, last)


def _pack(spec: JobSpec, echo: Echo) -> PackedWheels:
    """The wheels for the architecture of the run's nodes."""
    from spotmpi.images.wheels import ARCHITECTURES, pack  # few runs need it

    label = spec.kubernetes.node_selector.get(LABEL_ARCHITECTURE, "amd64")
    return pack(ARCHITECTURES.get(label, label), echo)


async def _create(api: ClusterApi, config_map: Object) -> None:
    """Create a ConfigMap unless another run has done so."""
    try:
        await api.create(config_map)
    except ApiError as error:
        if not already_exists(error):
            raise
