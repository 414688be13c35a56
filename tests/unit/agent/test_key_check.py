"""The check of a run's SSH keys in its pods."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotmpi.agent import ssh
from spotmpi.backends.kubernetes.submit.objects import generate_keys


@pytest.fixture
def secret(tmp_path: Path) -> str:
    folder = tmp_path / "secret"
    folder.mkdir()
    for name, text in generate_keys().items():
        (folder / name).write_text(text)
    return str(folder)


def test_a_check_that_takes_too_long_keeps_no_run_from_starting(
    secret: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The failure is one line in the log and the keys are installed; a subprocess traceback would end the attempt."""
    slow = tmp_path / "bin" / "ssh-keygen"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", str(slow.parent))
    monkeypatch.setattr(ssh, "CHECK_TIMEOUT", 0.05)

    ssh.install_keys(secret, str(tmp_path / "ssh"))

    assert (tmp_path / "ssh" / "ssh_config").is_file()
    assert capsys.readouterr().err.startswith("ssh-keygen did not finish within 0.05 s: ")


def test_a_secret_without_a_key_is_reported(secret: str, tmp_path: Path) -> None:
    Path(secret, "id").write_text("not a key\n")
    with pytest.raises(ssh.InvalidKeys, match="the SSH Secret's id is not a usable private key"):
        ssh.install_keys(secret, str(tmp_path / "ssh"))
