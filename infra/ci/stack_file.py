"""The settings of a stack's file that scripts need before they run Pulumi: account, region and kind."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from infra.ci.errors import CiError
from infra.settings import PROJECT

ACCOUNT_VARIABLE = "SPOTMPI_ACCOUNT"


@dataclass(frozen=True)
class StackFile:
    """A stack, its account and region, and its other settings for scripts."""

    stack: str
    region: str
    account: str
    kind: str
    access: tuple[str, ...] = ()
    secrets_provider: str | None = None  # a KMS key, if no passphrase encrypts the state's secrets
    keep_storage: bool = False

    @property
    def environment(self) -> str:
        """The environment's name, with which every resource is tagged."""
        return f"{PROJECT}-{self.stack}"


def read(stack: str, folder: Path, variables: Mapping[str, str] = os.environ) -> StackFile:
    """The stack's file in a folder; CiError if it does not exist, or has no region or account."""
    path = folder / f"Pulumi.{stack}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(file.name.split(".")[1] for file in folder.glob("Pulumi.*.yaml")))
        raise CiError(f"stack {stack} has no file {path}: use one of {known}, or create it")
    document: Mapping[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    config: Mapping[str, Any] = document.get("config", {})
    region = config.get("aws:region")
    if not region:
        raise CiError(f"{path} has no region: set aws:region")
    return StackFile(
        stack=stack,
        region=str(region),
        account=_account(path, config, variables),
        kind=str(config.get(f"{PROJECT}:kind", "compute")),
        access=tuple(config.get(f"{PROJECT}:access", ())),
        secrets_provider=document.get("secretsprovider"),
        keep_storage=bool(config.get(f"{PROJECT}:storage", {}).get("keep")),
    )


def _account(path: Path, config: Mapping[str, Any], variables: Mapping[str, str]) -> str:
    in_file, in_variable = config.get(f"{PROJECT}:account"), variables.get(ACCOUNT_VARIABLE)
    if in_file and in_variable and str(in_file) != in_variable:
        raise CiError(f"{path} has account {in_file} and {ACCOUNT_VARIABLE} has {in_variable}: make them agree")
    if not (account := in_file or in_variable):
        raise CiError(f"{path} has no account: set {PROJECT}:account there, or {ACCOUNT_VARIABLE}")
    return str(account)
