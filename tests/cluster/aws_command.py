"""The `aws` command of a test: `aws eks update-kubeconfig` and `aws eks get-token`, over the account of the test.

python -m tests.cluster.aws_command ADDRESS eks ...
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.cloud.account.remote import fetch

REPOSITORY = Path(__file__).resolve().parents[2]


def install(folder: Path, address: str) -> None:
    """Write the command to *folder*; it calls *address*."""
    folder.mkdir()
    command = folder / "aws"
    start = f'exec "{sys.executable}" -m tests.cluster.aws_command {address} "$@"'
    command.write_text(f'#!/bin/sh\nPYTHONPATH="{REPOSITORY}" {start}\n')
    command.chmod(0o755)


def kubeconfig(cluster: dict[str, Any], region: str) -> dict[str, Any]:
    """The kubeconfig that the command writes for a cluster as EKS describes it."""
    arn = cluster["arn"]
    server = {"server": cluster["endpoint"], "certificate-authority-data": cluster["certificateAuthority"]["data"]}
    token = ["--region", region, "eks", "get-token", "--cluster-name", cluster["name"], "--output", "json"]
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "aws", "args": token}}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": arn, "cluster": server}],
        "users": [{"name": arn, "user": user}],
        "contexts": [{"name": arn, "context": {"cluster": arn, "user": arn}}],
        "current-context": arn,
    }


def main(address: str, words: Sequence[str]) -> None:
    """Answer as `aws` does."""
    options = dict(itertools.pairwise(words))
    if "get-token" in words:
        token = fetch(address, "token", cluster=options["--cluster-name"])
        header = {"apiVersion": "client.authentication.k8s.io/v1beta1", "kind": "ExecCredential"}
        print(json.dumps({**header, "spec": {}, "status": {"token": token}}))
        return
    assert "update-kubeconfig" in words, words
    region = options["--region"]
    described = fetch(
        address, "aws", service="eks", operation="DescribeCluster", region=region, request={"name": options["--name"]}
    )
    Path(os.environ["KUBECONFIG"]).write_text(json.dumps(kubeconfig(described["cluster"], region)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
