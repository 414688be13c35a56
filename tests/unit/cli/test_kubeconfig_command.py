"""`spotmpi kubeconfig`: what it writes for kubectl, and the login that kubectl calls."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from spotmpi.backends.kubernetes.client import kubeconfig
from spotmpi.backends.kubernetes.client.api import POD
from spotmpi.backends.kubernetes.client.view import ClusterView
from tests.cloud.account.answers import KEY_ID, SECRET, TOKEN
from tests.cloud.account.fake_account import FakeAccount
from tests.cloud.cluster.fake_cluster import write_kubeconfig
from tests.cloud.cluster.objects import a_pod
from tests.command_line import invoke
from tests.unit.backends.kubernetes.eks_cluster import LAB, NAME, EksCluster, in_another_process
from tests.unit.core.test_environment import OUTPUTS


@pytest.fixture
def lab(account: FakeAccount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EksCluster]:
    """A built environment, whose outputs are in lab.json, and credentials for its account."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kube" / "config"))
    for name, value in (("ACCESS_KEY_ID", KEY_ID), ("SECRET_ACCESS_KEY", SECRET), ("SESSION_TOKEN", TOKEN)):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setattr(kubeconfig, "open_account", lambda region: account)
    monkeypatch.chdir(tmp_path)
    in_another_process(monkeypatch)
    Path("lab.json").write_text(json.dumps(OUTPUTS))
    cluster = EksCluster(account, tmp_path)
    yield cluster
    cluster.server.close()


def written(path: str = "kube/config") -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load(Path(path).read_text())
    return values


def test_kubectl_reaches_the_cluster_by_a_login_that_needs_no_other_program(
    lab: EksCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entries are read, and the login is started, as every reader of a kubeconfig does."""
    code, out, err = invoke("kubeconfig", "lab.json")
    assert (code, out) == (0, "") and err.endswith("is the current context of kube/config\n")
    assert Path("kube/config").stat().st_mode & 0o777 == 0o600
    program = written()["users"][0]["user"]["exec"]
    assert Path(program["command"]).is_absolute() and "aws" not in (program["command"], *program["args"])
    assert written()["contexts"][0]["context"]["namespace"] == "training"

    monkeypatch.setenv("PATH", "")
    lab.server.put(a_pod("a", "Running", {}))
    assert [each["metadata"]["name"] for each in ClusterView(None).list(POD, "here")] == ["a"]


def test_an_entry_of_a_former_cluster_of_that_arn_is_replaced_and_others_stay(lab: EksCluster) -> None:
    first, second = Path("kube") / "config", Path("kube") / "more"
    write_kubeconfig(first, "https://yesterday", LAB.cluster_arn)
    write_kubeconfig(second, "https://other", "other")
    assert invoke("kubeconfig", LAB.cluster_arn)[0] == 0
    values = written()
    assert [each["name"] for each in values["clusters"]] == [values["current-context"]] == [LAB.cluster_arn]
    assert values["clusters"][0]["cluster"]["server"] == lab.account.eks.endpoint
    assert [each["name"] for each in values["users"]] == ["me", LAB.cluster_arn]
    assert invoke("kubeconfig", LAB.cluster_arn, "--into", str(second))[0] == 0
    assert [each["name"] for each in written(str(second))["contexts"]] == ["other", LAB.cluster_arn]


def test_the_token_is_a_credential_in_the_version_that_its_reader_asks_for(
    lab: EksCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1beta1"}
    for info, version in ((None, "v1"), ("v1beta1", "v1"), ("[]", "v1"), (json.dumps(asked), "v1beta1")):
        if info:
            monkeypatch.setenv("KUBERNETES_EXEC_INFO", info)
        code, out, _ = invoke("kubeconfig", LAB.cluster_arn, "--token")
        credential = json.loads(out)
        assert (code, credential["apiVersion"]) == (0, f"client.authentication.k8s.io/{version}")
        assert lab.account.eks.admits(f"Bearer {credential['status']['token']}", NAME, time.time())
    assert lab.account.requests == []


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("arn:aws:s3:::lab",), "not an EKS cluster: write arn:aws:eks:REGION:ACCOUNT:cluster/NAME"),
        (("local",), "STACK|FILE|ARN = 'local': name a stack or a file of its outputs"),
        ((LAB.cluster_arn, "--into", "broken"), "KUBECONFIG = 'broken': not a kubeconfig"),
        ((LAB.cluster_arn, "--into", "/proc/none/config"), "cannot be written"),
        (
            (LAB.cluster_arn, "--into", "/dev/full"),
            "KUBECONFIG = '/dev/full': is not a file: name one",
        ),
        ((LAB.cluster_arn, "--into", "pipe"), "KUBECONFIG = 'pipe': is not a file"),
        ((LAB.cluster_arn, "--into", "huge"), "KUBECONFIG = 'huge': not a kubeconfig (it is larger than 16 MiB)"),
    ],
)
def test_wrong_input_is_one_line(lab: EksCluster, words: tuple[str, ...], line: str) -> None:
    Path("broken").write_text("a: [")
    Path("huge").write_text("#" * (16 << 20) + "\n")
    os.mkfifo("pipe")
    code, _, err = invoke("kubeconfig", *words)
    assert code == 2 and line in err and err.count("\n") == 1
