"""The login of the Kubernetes provider: the real program, in a shell that has no AWS CLI."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from infra.login import PYTHON, with_login
from tests.cloud.account.answers import KEY_ID, SECRET, TOKEN
from tests.cloud.account.eks import Eks

# What the component of pulumi-eks gives (generateKubeconfig in nodejs/eks/cluster.ts of github.com/pulumi/pulumi-eks).
KUBECONFIG: dict[str, Any] = {
    "apiVersion": "v1",
    "clusters": [{"cluster": {"server": "https://x", "certificate-authority-data": "Y2E="}, "name": "kubernetes"}],
    "contexts": [{"context": {"cluster": "kubernetes", "user": "aws"}, "name": "aws"}],
    "current-context": "aws",
    "kind": "Config",
    "users": [{"name": "aws", "user": {"exec": {"command": "aws", "args": ["eks", "get-token"]}}}],
}


def login() -> list[str]:
    """The command by which the provider logs in."""
    values = json.loads(with_login(json.dumps(KUBECONFIG), "us-east-1", "spotmpi-lab"))
    program = values["users"][0]["user"]["exec"]
    return [program["command"], *program["args"]]


def run(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    keys = {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_SESSION_TOKEN": TOKEN}
    own = {"PATH": "/usr/bin:/bin", **keys, **variables}
    shell, *arguments = login()
    return subprocess.run([f"/bin/{shell}", *arguments], env=own, cwd=folder, capture_output=True, text=True)


def test_only_the_login_of_the_components_kubeconfig_changes() -> None:
    """The provider would replace all objects if the cluster in it changed."""
    values = json.loads(with_login(json.dumps(KUBECONFIG), "us-east-1", "spotmpi-lab"))
    assert {**values, "users": None} == {**KUBECONFIG, "users": None}
    assert [each["name"] for each in values["users"]] == ["aws"] and "aws" not in login()


@pytest.mark.parametrize("where", ["variable", "project", "program"])
def test_the_login_prints_a_token_that_eks_accepts_without_any_other_program(where: str, tmp_path: Path) -> None:
    """Whichever folder the engine starts providers in."""
    (tmp_path / "infra").mkdir()
    variables = {PYTHON: sys.executable}
    if where != "variable":
        (tmp_path / ".venv" / "bin").mkdir(parents=True)
        script = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'
        (tmp_path / ".venv" / "bin" / "python").write_text(script)
        (tmp_path / ".venv" / "bin" / "python").chmod(0o755)
        variables = {}
    result = run(tmp_path / "infra" if where == "program" else tmp_path, **variables)
    credential = json.loads(result.stdout)
    assert result.stderr == "" and credential["kind"] == "ExecCredential"
    status = credential["status"]
    assert Eks().admits(f"Bearer {status['token']}", "spotmpi-lab", time.time())
    until = datetime.fromisoformat(status["expirationTimestamp"]).timestamp()
    assert 800 < until - time.time() < 880


def test_without_a_python_that_has_boto3_the_login_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "sh").symlink_to("/bin/sh")
    result = run(tmp_path, PATH=str(tmp_path))
    assert (result.returncode, result.stdout) == (1, "")
    assert "run pulumi in the project, after its scripts/setup" in result.stderr
