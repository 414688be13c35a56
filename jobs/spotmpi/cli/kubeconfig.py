"""`spotmpi kubeconfig`: an environment's cluster for kubectl, and the logins of that."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from spotmpi.core.environment import Environment


def command(
    what: Annotated[
        str, typer.Argument(help="A stack, a file of its outputs, or a cluster's ARN.", metavar="STACK|FILE|ARN")
    ],
    into: Annotated[
        Path | None, typer.Option("--into", help="The file to write to (default: kubectl's own).", metavar="FILE")
    ] = None,
    token: Annotated[
        bool, typer.Option("--token", help="Only print a login token, as kubectl expects it of this command.")
    ] = False,
) -> None:
    """Add an environment's cluster to the kubeconfig, for kubectl and other programs.

    It becomes the current context; each login of kubectl calls this command and needs no other. spotmpi itself reads no
    kubeconfig to reach an environment.
    """
    from spotmpi.backends.kubernetes.client import kubeconfig_entries
    from spotmpi.backends.kubernetes.client.kubeconfig import access_of
    from spotmpi.core import names
    from spotmpi.core.errors import input_error
    from spotmpi.core.wording import echo

    environment = None if what.startswith("arn:") else _environment(what)
    access = access_of(environment.context if environment else names.EKS + what)
    if access is None:
        raise input_error("STACK|FILE|ARN", what, "not an EKS cluster: write arn:aws:eks:REGION:ACCOUNT:cluster/NAME")
    if token:
        _print_credential(access.token())
        return
    path = kubeconfig_entries.add(access.endpoint(), environment.namespace if environment else None, into)
    echo(f"{access.cluster} is the current context of {names.display_path(path)}")


def _environment(what: str) -> Environment:
    from spotmpi.backends import targets
    from spotmpi.core.errors import input_error

    environment = targets.environment_of(what)
    if environment is None:
        raise input_error("STACK|FILE|ARN", what, "name a stack or a file of its outputs")
    return environment


def _print_credential(token: str) -> None:
    """Print the credential in the version that its reader asks for; readers keep it until it expires."""
    import contextlib
    import json
    import os
    from datetime import UTC, datetime, timedelta

    from spotmpi.aws.eks import LIFETIME

    asked = None
    with contextlib.suppress(ValueError, AttributeError):  # where it is no such object, as the AWS CLI does
        asked = json.loads(os.environ.get("KUBERNETES_EXEC_INFO") or "{}").get("apiVersion")
    until = f"{datetime.now(UTC) + timedelta(seconds=LIFETIME):%Y-%m-%dT%H:%M:%SZ}"
    version = asked or "client.authentication.k8s.io/v1"
    status = {"token": token, "expirationTimestamp": until}
    print(json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status}))
