"""A `pulumi` for tests of the CI scripts that only records its calls, and the state that it exports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def secret(**value: str) -> dict[str, str]:
    return {"4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270", **value}


STATE: dict[str, Any] = {
    "secrets_providers": {"type": "passphrase", "state": {"salt": "v1:x"}},
    "resources": [
        {
            "urn": "urn:pulumi:lab::spotmpi::tls:index/privateKey:PrivateKey::key",
            "custom": True,
            "outputs": {"private": secret(ciphertext="v1:k")},
        },
        {"urn": "urn:pulumi:lab::spotmpi::aws:ec2/vpc:Vpc::vpc", "custom": True, "inputs": {"cidr": "10.0.0.0/16"}},
        {
            "urn": "urn:pulumi:lab::spotmpi::spotmpi:inside:MpiSsh$kubernetes:core/v1:Secret::mpi-ssh",
            "custom": True,
            "inputs": {"stringData": [secret(ciphertext="v1:s")]},
        },
        {
            "urn": "urn:pulumi:lab::spotmpi::eks:index:Cluster::shell",
            "custom": False,
            "inputs": {"kubeconfig": secret(ciphertext="v1:c")},
        },
    ],
}


class ScriptedPulumi:
    """A `pulumi` on PATH that records its calls and answers each with the next line of a script.

    `stack export` prints a state with a secret instead, in the form of the real one without a passphrase.
    As the real one (pkg/cmd/pulumi/operations), it refuses a preview alone where the variables confirm everything.
    It runs no program, so it accepts settings that the program refuses: a preview or `up` without `spotmpi:access`
    fails in `infra/checks.py`, as tests/infra/test_ci_in_engine.py shows with the real CLI.
    """

    def __init__(self, folder: Path):
        self._calls, self._answers = folder / "calls", folder / "answers"
        self._answers.write_text("")
        self._state, self._imported = folder / "state.json", folder / "imported"
        self._events = folder / "events"
        self._events.write_text("")
        self._state.write_text(json.dumps({"version": 3, "deployment": STATE}))
        program = folder / "bin" / "pulumi"
        program.parent.mkdir()
        program.write_text(
            "#!/bin/sh\n"
            f'echo "$* [$PULUMI_BACKEND_URL] [$PULUMI_SKIP_UPDATE_CHECK] [$AWS_REGION]" >> {self._calls}\n'
            f'case "$*" in "stack import"*) cp "$4" {self._imported} ;; esac\n'
            f'case "$*" in preview*--event-log*) log=${{*#*--event-log }}; cp {self._events} "${{log%% *}}" ;; esac\n'
            'case "$* [$PULUMI_SKIP_CONFIRMATIONS]" in *--preview-only*"[true]")\n'
            "  echo 'error: --yes and --preview-only cannot be used together' >&2; exit 255 ;;\n"
            "esac\n"
            f'case "$*" in "stack export"*) [ -f {self._state} ] && cat {self._state} && exit 0 ;; esac\n'
            f"answer=$(head -n 1 {self._answers}); sed -i 1d {self._answers}\n"
            'echo "${answer#* }" >&2\n'
            'exit "${answer%% *}"\n'
        )
        program.chmod(0o755)
        self.path = str(program.parent)

    def answers(self, *lines: str) -> None:
        self._answers.write_text("".join(f"{line}\n" for line in lines))

    def announce(self, *steps: dict[str, Any]) -> None:
        """Let previews announce these steps in the engine's event log."""
        lines = [json.dumps({"resourcePreEvent": {"metadata": step}}) for step in steps]
        self._events.write_text("\n".join(lines))

    def never_built(self) -> None:
        self._state.unlink()

    @property
    def imported(self) -> dict[str, Any]:
        """The deployment of the last `stack import`."""
        return dict(json.loads(self._imported.read_text())["deployment"])

    @property
    def calls(self) -> list[str]:
        return self._calls.read_text().splitlines() if self._calls.exists() else []

    @property
    def commands(self) -> list[str]:
        """The calls without the stack, options and variables that each has."""
        return [call.split(" --stack")[0].split(" --event-log")[0] for call in self.calls]
