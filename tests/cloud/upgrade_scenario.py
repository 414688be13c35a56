"""A built environment for tests of `spotmpi upgrade`: EKS runs what Pulumi applied last."""

from __future__ import annotations

import json
from typing import Any

import yaml

from spotmpi.environments.upgrade import UpgradeOptions, UpgradePlan, upgrade
from tests.cloud.account.eks import PLAIN, node_group
from tests.cloud.fake_environment import FakeEnvironment

STACK = """# The lab.
config:
  aws:region: us-east-1
  spotmpi:zones: [us-east-1a] # beside the data
  spotmpi:cluster:
    version: "1.35"
  spotmpi:groups:
    - name: g4dn # two of them
      type: g4dn.xlarge
      max: 2
"""
OLD = "1.35.2-20260901"
NEW = "1.36.1-20261110"


class UpgradeScenario:
    """A built environment at 1.35 with one GPU group; EKS runs what the file that Pulumi applied last says."""

    def __init__(self, lab: FakeEnvironment) -> None:
        self.lab, self.eks = lab, lab.account.eks
        self.eks.addons = {"coredns": "v1.34.1-eksbuild.2", "kube-proxy": "v1.35.1-eksbuild.2"}
        self.eks.groups = {
            "spotmpi-lab-g4dn-1234567": node_group("g4dn", OLD),
            "spotmpi-lab-system-1234567": node_group("system", OLD, PLAIN),
        }
        lab.account.before_answer = self.follow
        self.path = lab.folder / "stacks" / "Pulumi.lab.yaml"
        self.path.write_text(STACK)
        (lab.folder / "lab.held").write_text(json.dumps({"deployment": {"resources": [{"type": "a", "id": "b"}]}}))
        self.applied = lab.folder / "lab.applied"
        self.applied.write_text(STACK)
        self.shown: list[UpgradePlan] = []

    def follow(self) -> None:
        config = yaml.safe_load(self.applied.read_text())["config"]
        cluster = config["spotmpi:cluster"]
        self.eks.version = cluster["version"]
        self.eks.addons.update(cluster.get("addon_versions", {}))
        settings = {group["name"]: group for group in config["spotmpi:groups"]} | {"system": cluster.get("system", {})}
        for group in self.eks.groups.values():
            group_name = group["labels"].get("spotmpi.dev/group", "system" if group["labels"] else "")
            if release := settings.get(group_name, {}).get("ami_release"):
                group.update(releaseVersion=release, version=".".join(release.split(".")[:2]))

    def __call__(self, **options: Any) -> UpgradePlan:
        return upgrade("lab", self.lab.dependencies, UpgradeOptions(**options), self.shown.append)

    @property
    def update_count(self) -> int:
        return sum("up --yes" in line for line in self.lab.pulumi_commands())

    @property
    def config(self) -> Any:
        return yaml.safe_load(self.path.read_text())["config"]
