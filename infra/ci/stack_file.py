"""What a stack's file says before Pulumi is asked: its account, region and kind."""

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
    """The stack's name, the environment's name, and where it may be built."""

    stack: str
    region: str
    account: str
    kind: str
    access: tuple[str, ...] = ()
    secrets_provider: str | None = None  # a KMS key, where no passphrase encrypts the state's secrets
    keeps_storage: bool = False

    @property
    def environment(self) -> str:
        """The name that everything the stack builds is tagged with."""
        return f"{PROJECT}-{self.stack}"


def read(stack: str, folder: Path, variables: Mapping[str, str] = os.environ) -> StackFile:
    """The stack's file in a folder; CiError if there is none, or no region or account is to be found."""
    path = folder / f"Pulumi.{stack}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(file.name.split(".")[1] for file in folder.glob("Pulumi.*.yaml")))
        raise CiError(f"stack {stack!r} has no file {path}: use one of {known}, or write it")
    held: Mapping[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    config: Mapping[str, Any] = held.get("config", {})
    region = config.get("aws:region")
    if not region:
        raise CiError(f"{path} names no region: set aws:region")
    return StackFile(
        stack=stack,
        region=str(region),
        account=_account(path, config, variables),
        kind=str(config.get(f"{PROJECT}:kind", "compute")),
        access=tuple(config.get(f"{PROJECT}:access", ())),
        secrets_provider=held.get("secretsprovider"),
        keeps_storage=bool(config.get(f"{PROJECT}:storage", {}).get("keep")),
    )


def _account(path: Path, config: Mapping[str, Any], variables: Mapping[str, str]) -> str:
    said, given = config.get(f"{PROJECT}:account"), variables.get(ACCOUNT_VARIABLE)
    if said and given and str(said) != given:
        raise CiError(f"{path} says account {said} and {ACCOUNT_VARIABLE} says {given}: make them agree")
    if not (account := said or given):
        raise CiError(f"{path} names no account: set {PROJECT}:account there, or {ACCOUNT_VARIABLE}")
    return str(account)
