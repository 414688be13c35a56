"""A copy of a stack for its preview: the state without its secrets, which a preview neither needs nor may read.

What runs in a preview is the program of a pull request, so it gets nothing that opens the state. Resources whose inputs
hold secrets can't be compared then: the Secret of the shared SSH keys is left out, the Kubernetes provider (its
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
_OPENS = ("encryptionsalt", "encryptedkey", "secretsprovider")


@dataclass(frozen=True)
class Copy:
    """Pulumi on the copy, and the URNs of the resources that can't be compared."""

    pulumi: Pulumi
    not_compared: tuple[str, ...]

    @property
    def kinds(self) -> list[str]:
        """The types of those resources, the last part of what stands before the name in a URN."""
        return sorted({urn.rpartition("::")[0].rpartition("::")[2].rpartition("$")[2] for urn in self.not_compared})

    @property
    def exclude(self) -> list[str]:
        """The arguments that leave those resources out; the engine takes providers all the same."""
        urns = [urn for urn in self.not_compared if f"::{_PROVIDER}" not in urn]
        return [argument for urn in urns for argument in ("--exclude", urn)]


def make(file: StackFile, pulumi: Pulumi, folder: Path) -> Copy:
    """The stack (and the one that keeps its storage) in a state of its own in an empty folder; NotBuilt without one."""
    project, state = folder / "project", folder / "state"
    _lay_out(pulumi.project, project)
    state.mkdir()
    # A passphrase that opens placeholders.
    opened = {"PULUMI_BACKEND_URL": state.as_uri(), "PULUMI_CONFIG_PASSPHRASE": secrets.token_hex()}
    variables = {key: value for key, value in pulumi.variables.items() if not key.startswith("PULUMI_CONFIG_PASS")}
    copied = replace(pulumi, project=project, variables={**variables, **opened})
    not_compared: tuple[str, ...] = ()
    for stack in (f"{file.stack}-data", file.stack) if file.keeps_storage else (file.stack,):
        exported = json.loads(replace(pulumi, stack=stack).read("stack", "export"))
        not_compared = tuple(_with_secrets(exported["deployment"]))
        _import(replace(copied, stack=stack), _without_secrets(exported), folder / f"{stack}.json")
    return Copy(copied, not_compared)


def _import(pulumi: Pulumi, exported: dict[str, Any], path: Path) -> None:
    """Make the stack of a state without secrets, whose placeholders are encrypted as the new stack's secrets."""
    pulumi.read("stack", "init", "--no-select")
    empty = json.loads(pulumi.read("stack", "export"))["deployment"]
    exported["deployment"]["secrets_providers"] = empty["secrets_providers"]
    path.write_text(json.dumps(exported), encoding="utf-8")
    pulumi.read("stack", "import", "--file", str(path))


def _lay_out(project: Path, copy: Path) -> None:
    """The project by links, but the stacks' files, without what opens a state, as files that Pulumi may write."""
    (copy / _STACKS).mkdir(parents=True)
    for entry in project.iterdir():
        if entry.name != _STACKS:
            (copy / entry.name).symlink_to(entry)
    for path in (project / _STACKS).glob("Pulumi.*.yaml"):
        held = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        kept = {key: value for key, value in held.items() if key not in _OPENS}
        (copy / _STACKS / path.name).write_text(yaml.safe_dump(kept), encoding="utf-8")


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
