"""The preview of CI: of a copy of the state without secrets, with a scripted `pulumi` on PATH."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.infra.conftest import Ci
from tests.infra.scripted_pulumi import STATE, ScriptedPulumi, secret


def test_a_preview_checks_the_account_and_the_guardrails(pulumi: ScriptedPulumi, ci: Ci) -> None:
    pulumi.answers("0 created", "0 imported", "0 1 to create")
    code, output, errors = ci("preview", "lab")
    assert code == 0
    ssh = "urn:pulumi:lab::spotmpi::spotmpi:inside:MpiSsh$kubernetes:core/v1:Secret::mpi-ssh"
    command = f"preview --diff --policy-pack infra/guardrails --exclude {ssh} --stack lab --non-interactive"
    assert pulumi.calls[-1].startswith(f"{command} [file:///") and pulumi.calls[-1].endswith(
        "/state] [true] [us-east-1]"
    )
    assert "account 123456789012" in errors
    assert (
        "not compared, because they hold secrets (providers are shown as updated): kubernetes:core/v1:Secret" in errors
    )
    assert "1 to create" in output


def test_a_preview_reads_the_state_once_and_gets_neither_secrets_nor_keys(
    pulumi: ScriptedPulumi, ci: Ci, monkeypatch: pytest.MonkeyPatch, project: Path
) -> None:
    path = project / "stacks" / "Pulumi.lab.yaml"
    path.write_text(path.read_text() + "encryptionsalt: v1:x\n")
    monkeypatch.delenv("PULUMI_CONFIG_PASSPHRASE")
    pulumi.answers("0 created", "0 imported", "0 1 to create")
    assert ci("preview", "lab")[0] == 0
    assert [call.split(" [")[0] for call in pulumi.calls if "[s3://example-state]" in call] == [
        "stack export --stack lab --non-interactive"
    ]
    assert "ciphertext" not in json.dumps(pulumi.imported)
    key, vpc, ssh, shell = pulumi.imported["resources"]
    assert (
        key["outputs"]["private"]
        == shell["inputs"]["kubeconfig"]
        == secret(plaintext=json.dumps("apiVersion: v1\nkind: Config\n"))
    )
    assert ssh["inputs"]["stringData"] == [key["outputs"]["private"]]
    assert vpc == STATE["resources"][1]
    assert path.read_text().endswith("encryptionsalt: v1:x\n")


def test_a_preview_includes_the_storage_of_the_data_stack(pulumi: ScriptedPulumi, ci: Ci, project: Path) -> None:
    path = project / "stacks" / "Pulumi.lab.yaml"
    path.write_text(path.read_text() + "  spotmpi:storage: {keep: true}\n")
    pulumi.answers(*["0 done"] * 5)
    assert ci("preview", "lab")[0] == 0
    exported = [call for call in pulumi.calls if "[s3://example-state]" in call]
    assert [call.split("--stack ")[1].split()[0] for call in exported] == ["lab-data", "lab"]


def test_a_preview_includes_permanent_access(pulumi: ScriptedPulumi, ci: Ci, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTMPI_ACCESS", "203.0.113.0/24")
    pulumi.answers(*["0 done"] * 4)
    assert ci("preview", "lab")[0] == 0
    assert pulumi.commands[-2] == "config set --path spotmpi:access[1] 203.0.113.0/24"
