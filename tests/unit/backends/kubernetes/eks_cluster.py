"""A cluster as EKS has it: described by an account, and served over https for tokens of STS."""

from __future__ import annotations

import base64
import time
from pathlib import Path

import pytest

from spotmpi.backends.kubernetes.client import kubeconfig
from spotmpi.core import environment
from tests.cloud.account.fake_account import FakeAccount
from tests.cloud.cluster.fake_cluster import FakeCluster
from tests.testbed.certificates import Authority
from tests.unit.core.test_environment import OUTPUTS

LAB = environment.parse(OUTPUTS)
NAME = LAB.cluster


class EksCluster:
    """The cluster of `LAB` in the account; `rebuild` makes another of that name, as `down` and `up` do.

    Its address and its authority are then others, and its ARN is the same (Amazon EKS API Reference, Cluster).
    """

    def __init__(self, account: FakeAccount, folder: Path) -> None:
        self.account, self._folder, self.servers = account, folder, [FakeCluster()]
        self.now = time.time  # by the clock of STS
        account.eks.version = "1.35"
        self.rebuild()

    @property
    def server(self) -> FakeCluster:
        """The API server of today's cluster."""
        return self.servers[-1]

    def rebuild(self) -> None:
        """Build the cluster anew; the API server of the former one answers nobody any more."""
        self.servers[-1].close()
        authority = Authority(self._folder / f"keys {len(self.servers)}")
        server = FakeCluster(credential=authority.issue("api", hosts=["127.0.0.1"]))
        server.admits = lambda token: self.account.eks.admits(token, NAME, self.now())
        self.servers.append(server)
        self.account.eks.endpoint = server.address
        self.account.eks.authority = base64.b64encode(authority.certificate.read_bytes()).decode()


def in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on nothing is known of any cluster."""
    monkeypatch.setattr(kubeconfig, "_accesses", {})
