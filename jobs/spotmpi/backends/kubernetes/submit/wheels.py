"""Sends the wheels of Dask to a namespace, once for each content, for pods whose image has none."""

from __future__ import annotations

import asyncio

from lightkube import ApiError

from spotmpi.backends.kubernetes.client import api as cluster_api
from spotmpi.backends.kubernetes.client.api import ClusterApi, Object
from spotmpi.backends.kubernetes.client.errors import already_exists, translate_errors
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.progress import Say
from spotmpi.plan.wheels import config_maps, wheels_name, with_wheels
from spotmpi.spec.job import JobSpec

_ARCHITECTURE = "kubernetes.io/arch"  # label of nodes


async def ship(api: ClusterApi, objects: list[Object], spec: JobSpec, say: Say) -> list[Object]:
    """The *objects* of a run with the wheels, which are in the namespace then.

    Where the wheels cannot be had or sent, it says why and returns the objects as they are: the image may need none.
    """
    from spotmpi.images.wheels import ARCHITECTURES, pack  # few runs need it

    label = spec.kubernetes.node_selector.get(_ARCHITECTURE, "amd64")
    try:
        wheels = await asyncio.to_thread(pack, ARCHITECTURES.get(label, label), say)
        with translate_errors("send the wheels of Dask to the cluster"):
            if await api.find(cluster_api.CONFIG_MAP, wheels_name(wheels)) is None:
                *pieces, last = config_maps(wheels, api.namespace)
                await asyncio.gather(*(_create(api, each) for each in pieces))
                await _create(api, last)
    except SpotmpiError as error:
        say(f"pods get no wheels of Dask, so the image has to contain it: {error}")
        return objects
    return with_wheels(objects, wheels)


async def _create(api: ClusterApi, config_map: Object) -> None:
    """Create a ConfigMap unless another run has done so."""
    try:
        await api.create(config_map)
    except ApiError as error:
        if not already_exists(error):
            raise
