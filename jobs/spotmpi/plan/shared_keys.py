"""A run without a Secret of its own: its pods share the SSH key pair of one that is there. Pure."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from spotmpi.agent import ssh
from spotmpi.plan import manifests, pods

Object = dict[str, Any]


def forwarded(objects: Sequence[Object]) -> list[str]:
    """The variables of the terminal that a plan's Secret is to hold, by name."""
    prefix = pods.forwarded_key("")
    keys = [key for part in objects if part["kind"] == "Secret" for key in part["stringData"]]
    return [key.removeprefix(prefix) for key in keys if key.startswith(prefix)]


def sharing(objects: Sequence[Object], secret: str) -> list[Object]:
    """A plan's objects without its Secret, the keys in its pods being those of *secret*."""
    found = [copy.deepcopy(each) for each in objects if each["kind"] != "Secret"]
    for volume in manifests.pod_template(found[0])["spec"]["volumes"]:
        if volume["name"] == pods.KEYS:
            items = [{"key": key, "path": key} for key in (ssh.CLIENT_KEY, ssh.PUBLIC_KEY, ssh.AUTHORIZED)]
            volume["secret"] = {**volume["secret"], "secretName": secret, "items": items}
    return found
