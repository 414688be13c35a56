"""A built environment for tests of `spotmpi upgrade`: what Pulumi applied last is what EKS then runs."""

from __future__ import annotations

import json
from typing import Any

import yaml

from spotmpi.environments.upgrade import Request, UpgradePlan, upgrade
from tests.cloud.eks_account import PLAIN, Eks, node_group
from tests.cloud.environment_life import Life

STACK = """# The lab.
config:
  aws:region: us-east-1
  spotmpi:zone: us-east-1a # beside the data
  spotmpi:cluster:
    version: "1.35"
  spotmpi:groups:
    - name: g4dn # two of them
      type: g4dn.xlarge
      max: 2
"""
OLD = "1.35.2-20260901"
NEW = "1.36.1-20261110"


class Upgraded:
    """A built environment at 1.35, with one GPU group; the file that Pulumi applied last is what EKS then runs."""

    def __init__(self, life: Life) -> None:
        self.life, self.eks = life, Eks()
        self.eks.addons = {"coredns": "v1.34.1-eksbuild.2", "kube-proxy": "v1.35.1-eksbuild.2"}
        self.eks.groups = {
            "spotmpi-lab-g4dn-1234567": node_group("g4dn", OLD),
            "spotmpi-lab-system-1234567": node_group("system", OLD, PLAIN),
        }
        self.eks.look = self.follow
        self.eks.script(life.account)
        self.path = life.folder / "stacks" / "Pulumi.lab.yaml"
        self.path.write_text(STACK)
        (life.folder / "lab.held").write_text(json.dumps({"deployment": {"resources": [{"type": "a", "id": "b"}]}}))
        self.applied = life.folder / "lab.applied"
        self.applied.write_text(STACK)
        self.shown: list[UpgradePlan] = []

    def follow(self) -> None:
        config = yaml.safe_load(self.applied.read_text())["config"]
        cluster = config["spotmpi:cluster"]
        self.eks.version = cluster["version"]
        self.eks.addons.update(cluster.get("addon_versions", {}))
        said = {group["name"]: group for group in config["spotmpi:groups"]} | {"system": cluster.get("system", {})}
        for group in self.eks.groups.values():
            group_name = group["labels"].get("spotmpi.dev/group", "system" if group["labels"] else "")
            if release := said.get(group_name, {}).get("ami_release"):
                group.update(releaseVersion=release, version=".".join(release.split(".")[:2]))

    def __call__(self, **wishes: Any) -> UpgradePlan:
        return upgrade("lab", self.life.hands, Request(**wishes), self.shown.append)

    @property
    def ups(self) -> int:
        return sum("up --yes" in line for line in self.life.asked())

    @property
    def config(self) -> Any:
        return yaml.safe_load(self.path.read_text())["config"]
