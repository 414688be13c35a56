"""This machine's kubeconfig, read as kubectl reads it."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from pathlib import Path

import pytest

from spotmpi.backends.kubernetes.client import kubeconfig, login_program
from spotmpi.backends.kubernetes.client.api import POD, ClusterApi
from spotmpi.backends.kubernetes.client.errors import translate_errors
from spotmpi.core.errors import InputError, SpotmpiError
from tests.cloud.cluster.fake_cluster import FakeCluster, write_kubeconfig
from tests.cloud.cluster.objects import a_pod
from tests.contract.processes import wait_until
from tests.testbed.certificates import Authority


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


def test_a_certificate_may_have_another_name_than_the_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind a tunnel; kubectl takes the name from tls-server-name, also for connections into pods."""
    authority = Authority(tmp_path / "keys")
    cluster = FakeCluster(a_pod("a", "Running", {}), credential=authority.issue("api", hosts=["cluster.internal"]))
    cluster.answer_commands("hello")
    trust = {"certificate-authority": str(authority.certificate)}

    def use(**more: str) -> ClusterApi:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(tmp_path / "config", {**trust, **more})))
        return cluster.api()

    try:
        asyncio.run(use(**{"tls-server-name": "cluster.internal"}).find(POD, "a"))
        assert asyncio.run(cluster.api().execute("a", ["echo"])) == "hello"
        with pytest.raises(SpotmpiError, match=r"Hostname mismatch|IP address mismatch"), translate_errors("list"):
            asyncio.run(use().find(POD, "a"))
    finally:
        cluster.close()


def test_a_user_acts_as_another_one_where_the_kubeconfig_says_so(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without these headers an administrator would have all rights where kubectl has those of the other user."""
    user = {"token": "t", "as": "ann", "as-groups": ["ml", "staff"], "as-uid": "7", "as-user-extra": {"a/b": ["c"]}}
    cluster.put(a_pod("a", "Running", {}))
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "config", cluster.address, user=user)))
    asyncio.run(cluster.api().find(POD, "a"))
    asyncio.run(cluster.api().execute("a", ["true"]))
    headers = [
        ("user", "ann"),
        ("group", "ml"),
        ("group", "staff"),
        ("uid", "7"),
        ("extra-a%2fb", "c"),
    ]  # percent-encoded
    assert cluster.impersonated == [[(f"impersonate-{name}", value) for name, value in headers]] * 2


@pytest.mark.parametrize(
    ("user", "more", "words"),
    [
        (
            {"client-certificate": "me.crt", "client-key": "me.key"},
            {},
            "client-certificate .*me.crt of the kubeconfig cannot be read",
        ),
        (
            {},
            {"certificate-authority": "ca.crt"},
            r"certificate-authority .*ca.crt of the kubeconfig cannot be read \(No such file",
        ),
        ({}, {"certificate-authority-data": "%%%"}, "the certificates of the kubeconfig cannot be used"),
        ({"client-certificate-data": "aGFsbG8="}, {}, "the certificates of the kubeconfig cannot be used"),
        ({"as": "ann", "as-groups": 3}, {}, "not a kubeconfig"),
        ({}, {"proxy-url": 3}, "not a kubeconfig"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_certificates_that_cannot_be_used_are_one_line_that_names_them(
    user: dict[str, object], more: dict[str, object], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_kubeconfig(tmp_path / "config", "https://127.0.0.1:1", user=user, more=more)
    monkeypatch.setenv("KUBECONFIG", str(config))
    with pytest.raises(SpotmpiError, match=words) as refused, translate_errors("list"):
        asyncio.run(ClusterApi(None, None).find(POD, "a"))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [", r"broken.*not a kubeconfig"),
        ("clusters: [{}]", r"broken.*not a kubeconfig"),
        ("just words", r"broken.*not a kubeconfig \(its clusters, users and contexts are not lists of tables\)"),
        ("- 1", r"broken.*not a kubeconfig \(its clusters"),
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
        (
            "echo the SSO session >&2; echo has expired >&2; exit 255",
            "sh",
            r"the login program sh failed \(exit code 255\): the SSO session has expired",
        ),
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


def test_a_login_program_beside_the_kubeconfig_is_found(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path to it is relative to the kubeconfig; a bare name is looked up on PATH."""
    (tmp_path / "two").mkdir()
    program = tmp_path / "two" / "login"
    program.write_text('#!/bin/sh\necho \'{"status": {"token": "t"}}\'\n')
    program.chmod(0o755)
    login_with(tmp_path / "two", monkeypatch, "", cluster.address, shell="./login")
    asyncio.run(ClusterApi(None, "n").find(POD, "a"))
    assert cluster.tokens == ["Bearer t"]


def test_a_login_program_that_waits_for_somebody_shows_what_it_says(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Such as a page to open and a code to enter there, without which the program waits for ever."""
    monkeypatch.setattr(login_program, "_QUIET", 0.05)
    token = 'echo \'{"status": {"token": "t"}}\''
    wait = f"echo open https://login and enter ABC >&2; until [ -e {tmp_path}/done ]; do sleep 0.05; done"
    login_with(tmp_path, monkeypatch, f"{wait}; echo thank you >&2; {token}", cluster.address)
    shown: list[str] = []

    async def log_in() -> None:
        finding = asyncio.create_task(ClusterApi(None, "n").find(POD, "a"))
        while "ABC" not in "".join(shown):
            await asyncio.sleep(0.02)
            shown.append(capfd.readouterr().err)
        (tmp_path / "done").touch()
        await finding

    asyncio.run(asyncio.wait_for(log_in(), 30))
    lines = "".join([*shown, capfd.readouterr().err]).splitlines()
    assert lines == [
        "spotmpi: waiting for the login program sh (Ctrl-C ends it)",
        "open https://login and enter ABC",
        "thank you",
    ]


def test_a_login_program_runs_once_for_all_clients_and_requests_of_a_command(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command has several clients, and each may watch several kinds at once: a browser opens once, not for each."""
    count = f"echo login >> {tmp_path}/logins; sleep 0.1; token=$(wc -l < {tmp_path}/logins)"
    login = f'{count}; printf \'{{"status": {{"token": "%s"}}}}\' $token'
    login_with(tmp_path, monkeypatch, login, cluster.address)

    async def ask() -> None:
        await asyncio.gather(*(api.find(POD, "a") for api in [ClusterApi(None, "n"), ClusterApi(None, "n")] * 2))

    asyncio.run(ask())
    asyncio.run(ask())  # another event loop
    assert cluster.tokens == ["Bearer 1"] * 8
    cluster.admits = lambda token: token != "Bearer 1"
    asyncio.run(ask())
    assert set(cluster.tokens[8:]) == {"Bearer 1", "Bearer 2"}, "a token that is refused is replaced once"


def test_a_login_program_ends_with_the_command_that_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As with Ctrl-C, of which nothing is left that Python would complain about when it collects garbage."""
    errors: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda error: errors.append(f"{error.object} {error.exc_value}"))
    login_with(tmp_path, monkeypatch, f"echo $$ > {tmp_path}/pid; exec sleep 60")

    async def give_up() -> None:
        finding = asyncio.create_task(ClusterApi(None, "n").find(POD, "a"))
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            await asyncio.sleep(0.02)
        finding.cancel()
        await asyncio.wait({finding})

    asyncio.run(asyncio.wait_for(give_up(), 30))
    wait_until(lambda: not Path("/proc", (tmp_path / "pid").read_text().strip()).exists())
    gc.collect()
    assert not [error for error in errors if "Subprocess" in error], "tests before leave other garbage"
    assert "Task was destroyed" not in capfd.readouterr().err
