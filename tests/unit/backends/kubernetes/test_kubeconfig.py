"""This machine's kubeconfig, read as kubectl reads it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import yaml

from spotmpi.backends.kubernetes.client import kubeconfig
from spotmpi.backends.kubernetes.client.api import POD, ClusterApi
from spotmpi.backends.kubernetes.client.errors import translate_errors
from spotmpi.backends.kubernetes.client.kubeconfig import context_of
from spotmpi.core.errors import InputError, SpotmpiError


def write_config(path: Path, name: str, *, current: bool = True, authority: str = "ca") -> Path:
    content = {
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}", "certificate-authority": authority}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": "me"}}],
        "users": [{"name": "me", "user": {"token": f"token of {name}"}}],
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump({**content, **({"current-context": name} if current else {})}))
    return path


def test_several_files_count_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KUBECONFIG is a list of paths; a file in it may be missing."""
    first, second = write_config(tmp_path / "a", "first", current=False), write_config(tmp_path / "b", "second")
    monkeypatch.setenv("KUBECONFIG", f"{first}:{tmp_path / 'none'}:{second}")
    assert kubeconfig.configuration(None).cluster.server == "https://second"  # the only current context
    chosen = kubeconfig.configuration("first")
    assert chosen.cluster.server == "https://first"
    assert chosen.user.token == "token of first"  # of two users of that name, the first file's
    assert context_of("second") == "second"


def test_a_relative_path_is_resolved_from_its_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path is relative to its own kubeconfig file, not to the first one or the working folder."""
    second = write_config(tmp_path / "two" / "b", "second", authority="ca.crt")
    monkeypatch.setenv("KUBECONFIG", f"{write_config(tmp_path / 'a', 'first')}:{second}")
    config = kubeconfig.configuration("second")
    assert config.abs_file(config.cluster.certificate_auth) == str(tmp_path / "two" / "ca.crt")


@pytest.mark.parametrize("text", ["a: [", "clusters: [{}]", "just words", "- 1", "\x00", "users: [{name: a, user: 3}]"])
def test_a_file_that_is_no_kubeconfig_is_named(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is one line with the file and its problem, not a parser's exception."""
    (tmp_path / "broken").write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "broken"))
    with pytest.raises(InputError, match=r"broken.*not a kubeconfig") as refused:
        kubeconfig.configuration(None)
    assert "\n" not in str(refused.value)


def test_an_empty_file_has_no_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").touch()
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "empty"))
    with pytest.raises(InputError, match=r"No current context.*kubectl config get-contexts"):
        kubeconfig.configuration(None)


def login_with(folder: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """Write a kubeconfig whose user logs in by *command*, in version v1 of the credential API."""
    path = write_config(folder / "config", "first")
    content = yaml.safe_load(path.read_text())
    program = {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", command]}
    content["users"][0]["user"] = {"exec": program}
    content["clusters"][0]["cluster"] = {"server": "http://127.0.0.1:1"}
    path.write_text(yaml.safe_dump(content))
    monkeypatch.setenv("KUBECONFIG", str(path))


def test_a_login_program_gets_the_same_environment_as_from_kubectl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The credential plugin gets the version that the kubeconfig names."""
    command = f'echo "$KUBERNETES_EXEC_INFO" > {tmp_path}/info; echo \'{{"status": {{"token": "t"}}}}\''
    login_with(tmp_path, monkeypatch, command)
    with pytest.raises(SpotmpiError, match="could not list: cannot reach the cluster"), translate_errors("list"):
        asyncio.run(ClusterApi(None, "n").find(POD, "a"))
    assert json.loads((tmp_path / "info").read_text())["apiVersion"] == "client.authentication.k8s.io/v1"


def test_a_failed_login_is_reported_with_the_programs_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the plugin's message and a remedy, not a ConfigError."""
    login_with(tmp_path, monkeypatch, "echo the SSO session has expired >&2; exit 255")
    words = "could not list: Exec sh returned 255: the SSO session has expired; log in again"
    with pytest.raises(SpotmpiError, match=words), translate_errors("list"):
        asyncio.run(ClusterApi(None, "n").find(POD, "a"))


def test_a_context_that_refers_to_an_unknown_cluster_is_an_input_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the missing entry, instead of a bare KeyError."""
    path = write_config(tmp_path / "config", "first")
    path.write_text(path.read_text().replace("cluster: first", "cluster: other"))
    monkeypatch.setenv("KUBECONFIG", str(path))
    with pytest.raises(InputError, match="'other', which is not in the kubeconfig"):
        kubeconfig.configuration(None)
