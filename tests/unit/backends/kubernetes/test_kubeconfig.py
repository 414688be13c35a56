"""This machine's kubeconfig, read as kubectl reads it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from spotmpi.backends.kubernetes.client import kubeconfig
from spotmpi.backends.kubernetes.client.api import POD, ClusterApi
from spotmpi.backends.kubernetes.client.errors import translate_errors
from spotmpi.core.errors import InputError, SpotmpiError
from tests.cloud.cluster.fake_cluster import FakeCluster, write_kubeconfig


def write_config(path: Path, name: str, current: bool = True, authority: str = "ca") -> Path:
    token, cluster = {"token": f"token of {name}"}, {"certificate-authority": authority}
    return write_kubeconfig(path, f"https://{name}", name, current=current, user=token, more=cluster)


def test_several_files_count_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KUBECONFIG is a list of paths; a file in it may be missing."""
    first, second = write_config(tmp_path / "a", "first", current=False), write_config(tmp_path / "b", "second")
    monkeypatch.setenv("KUBECONFIG", f"{first}:{tmp_path / 'none'}:{second}")
    assert kubeconfig.configuration(None).cluster.server == "https://second"  # the only current context
    chosen = kubeconfig.configuration("first")
    assert chosen.cluster.server == "https://first"
    assert chosen.user.token == "token of first"  # of two users of that name, the first file's


def test_a_relative_path_is_resolved_from_its_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path is relative to its own kubeconfig file, not to the first one or the working folder."""
    second = write_config(tmp_path / "two" / "b", "second", authority="ca.crt")
    monkeypatch.setenv("KUBECONFIG", f"{write_config(tmp_path / 'a', 'first')}:{second}")
    config = kubeconfig.configuration("second")
    assert config.abs_file(config.cluster.certificate_auth) == str(tmp_path / "two" / "ca.crt")


def test_in_a_pod_a_kubeconfig_takes_precedence_over_the_service_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with kubectl: a notebook's pod may use another cluster than its own."""
    for name in ("token", "namespace", "ca.crt"):
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(kubeconfig, "SERVICE_ACCOUNT", str(tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    own = kubeconfig.configuration(None)
    assert (own.cluster.server, own.namespace, kubeconfig.in_pod()) == ("https://10.0.0.1:443", "namespace", True)
    write_config(tmp_path / "config", "lab")
    assert kubeconfig.configuration("lab").cluster.server == "https://lab" and not kubeconfig.in_pod()


def test_a_cluster_is_reached_through_its_proxy(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def use(proxy: str) -> None:
        path = write_kubeconfig(tmp_path / "config", "http://cluster.invalid", "a", more={"proxy-url": proxy})
        monkeypatch.setenv("KUBECONFIG", str(path))

    use(cluster.address)
    assert asyncio.run(ClusterApi(None, "n").find(POD, "a")) is None
    assert cluster.paths == ["http://cluster.invalid/api/v1/namespaces/n/pods/a"]
    use("socks5://p:1")
    with pytest.raises(InputError, match="proxy-url socks5://p:1 of its cluster is not supported; use an HTTP proxy"):
        kubeconfig.configuration(None)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [", r"broken.*not a kubeconfig"),
        ("clusters: [{}]", r"broken.*not a kubeconfig"),
        ("just words", r"broken.*not a kubeconfig"),
        ("- 1", r"broken.*not a kubeconfig"),
        ("\x00", r"broken.*not a kubeconfig"),
        ("users: [{name: a, user: 3}]", r"broken.*not a kubeconfig"),
        ("", r"No current context.*kubectl config get-contexts"),
        ("{current-context: a, contexts: [{name: a, context: {cluster: b}}]}", "'b', which is not in the kubeconfig"),
    ],
)
def test_a_broken_kubeconfig_is_one_line_that_names_the_problem(
    text: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is not a parser's exception or a bare KeyError."""
    (tmp_path / "broken").write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "broken"))
    with pytest.raises(InputError, match=problem) as refused:
        kubeconfig.configuration(None)
    assert "\n" not in str(refused.value)


def test_a_context_that_the_kubeconfig_lacks_is_an_input_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(InputError, match="context"):
        ClusterApi("absent", None)


def login_with(
    folder: Path, monkeypatch: pytest.MonkeyPatch, command: str, server: str = "http://127.0.0.1:1", shell: str = "sh"
) -> None:
    """Write a kubeconfig whose user logs in by *command*, in version v1 of the credential API."""
    program = {"apiVersion": "client.authentication.k8s.io/v1", "command": shell, "args": ["-c", command]}
    program |= {"installHint": "install it"}
    path = write_kubeconfig(folder / "config", server, user={"exec": program})
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


@pytest.mark.parametrize(
    ("command", "shell", "words"),
    [
        ("echo the SSO session has expired >&2; exit 255", "sh", "Exec sh returned 255: the SSO session has expired"),
        ("", "no-login", r"cannot start the login program no-login \(No such file or directory\): install it"),
        ("echo Welcome", "sh", "the login program sh printed no token; client certificates .* are not supported"),
        ('echo \'{"status": {"clientKeyData": "k"}}\'', "sh", "the login program sh printed no token; client certif"),
    ],
)
def test_a_failed_login_is_one_line_with_a_remedy(
    command: str, shell: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has the plugin's message and a remedy, not a ConfigError or a parser's exception."""
    login_with(tmp_path, monkeypatch, command, shell=shell)
    words = f"could not list: {words}.*; log in again"
    with pytest.raises(SpotmpiError, match=words), translate_errors("list"):
        asyncio.run(ClusterApi(None, "n").find(POD, "a"))
