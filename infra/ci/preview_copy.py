"""A copy of a stack for its preview: the state without its secrets, which a preview does not need and may not read.

A preview runs the program of a pull request, so it gets nothing that decrypts the state. Resources whose inputs hold
secrets can't be compared then: the Secret of the shared SSH keys is left out, the Kubernetes provider (its
kubeconfig) is shown as updated.
"""

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from infra.ci.pulumi_cli import Pulumi
from infra.ci.stack_file import StackFile

# How a state marks a secret (SigKey and SecretSig in sdk/go/common/resource of github.com/pulumi/pulumi); its
# `plaintext` is JSON.
_MARK, _SECRET = "4dabf18193072939515e22adb298388d", "1b47061264138c4ac30d75fd1eb44270"
# A kubeconfig without clusters: the Kubernetes provider parses the old one, and replaces all objects where the cluster
# in it is another (DiffConfig in provider/pkg/provider/provider.go of github.com/pulumi/pulumi-kubernetes).
_PLACEHOLDER = json.dumps("apiVersion: v1\nkind: Config\n")
_PROVIDER = "pulumi:providers:"
_STACKS = "stacks"
_ENCRYPTION_KEYS = ("encryptionsalt", "encryptedkey", "secretsprovider")


@dataclass(frozen=True)
class Copy:
    """Pulumi on the copy, and the URNs of the resources that can't be compared."""

    pulumi: Pulumi
    not_compared: tuple[str, ...]

    @property
    def kinds(self) -> list[str]:
        """The types of those resources, the last part of a URN before the name."""
        return sorted({urn.rpartition("::")[0].rpartition("::")[2].rpartition("$")[2] for urn in self.not_compared})

    @property
    def exclude(self) -> list[str]:
        """The arguments that exclude those resources; the engine includes providers anyway."""
        urns = [urn for urn in self.not_compared if f"::{_PROVIDER}" not in urn]
        return [argument for urn in urns for argument in ("--exclude", urn)]


def make_copy(file: StackFile, pulumi: Pulumi, folder: Path) -> Copy:
    """The stack (and its data stack) in a separate state in an empty folder; NotBuilt if it has none."""
    project, state = folder / "project", folder / "state"
    _link_project(pulumi.project, project)
    state.mkdir()
    # A passphrase for the placeholders.
    backend = {"PULUMI_BACKEND_URL": state.as_uri(), "PULUMI_CONFIG_PASSPHRASE": secrets.token_hex()}
    variables = {key: value for key, value in pulumi.variables.items() if not key.startswith("PULUMI_CONFIG_PASS")}
    target = replace(pulumi, project=project, variables={**variables, **backend})
    not_compared: tuple[str, ...] = ()
    for stack in (f"{file.stack}-data", file.stack) if file.keep_storage else (file.stack,):
        exported = json.loads(replace(pulumi, stack=stack).read("stack", "export"))
        not_compared = tuple(_with_secrets(exported["deployment"]))
        _import(replace(target, stack=stack), _without_secrets(exported), folder / f"{stack}.json")
    return Copy(target, not_compared)


def _import(pulumi: Pulumi, exported: dict[str, Any], path: Path) -> None:
    """Create the stack from a state without secrets, whose placeholders are encrypted as the new stack's secrets."""
    pulumi.read("stack", "init", "--no-select")
    empty = json.loads(pulumi.read("stack", "export"))["deployment"]
    exported["deployment"]["secrets_providers"] = empty["secrets_providers"]
    path.write_text(json.dumps(exported), encoding="utf-8")
    pulumi.read("stack", "import", "--file", str(path))


def _link_project(project: Path, copy: Path) -> None:
    """Link the project, but copy the stacks' files, without encryption keys, as Pulumi may write to them."""
    (copy / _STACKS).mkdir(parents=True)
    for entry in project.iterdir():
        if entry.name != _STACKS:
            (copy / entry.name).symlink_to(entry)
    for path in (project / _STACKS).glob("Pulumi.*.yaml"):
        document = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        settings = {key: value for key, value in document.items() if key not in _ENCRYPTION_KEYS}
        (copy / _STACKS / path.name).write_text(yaml.safe_dump(settings), encoding="utf-8")


def _with_secrets(deployment: dict[str, Any]) -> Iterator[str]:
    for resource in deployment.get("resources", []):
        if resource.get("custom") and _holds_secrets(resource.get("inputs")):
            yield resource["urn"]


def _holds_secrets(value: Any) -> bool:
    if isinstance(value, dict):
        return value.get(_MARK) == _SECRET or any(map(_holds_secrets, value.values()))
    return isinstance(value, list) and any(map(_holds_secrets, value))


def _without_secrets(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_secrets(each) for each in value]
    if not isinstance(value, dict):
        return value
    if value.get(_MARK) == _SECRET:
        return {_MARK: _SECRET, "plaintext": _PLACEHOLDER}
    return {key: _without_secrets(each) for key, each in value.items()}
