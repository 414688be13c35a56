"""How nodes reach each other: the interface that leads to a peer, the addresses of a host, SSH and its keys."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import network, node, processes, record, ssh, tcp
from spotmpi.agent.connection import Connection
from spotmpi.agent.context import AgentContext
from spotmpi.agent.plan import NODE, Member
from spotmpi.agent.tcp import Tcp
from spotmpi.backends.kubernetes.submit.objects import generate_keys
from tests.clocks import SetClock
from tests.contract.processes import wait_until
from tests.unit.agent.agent_process import mounts_below
from tests.unit.agent.peer_ends import identity


def test_the_own_address_is_that_of_the_host_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "127.0.0.3")
    assert network.own_address() == "127.0.0.3"
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-host.invalid")
    assert network.own_address() is None


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_the_interface_of_an_address_is_found_without_sending_anything(address: str) -> None:
    assert network.interface_towards(address) == "lo"
    assert network.address_towards(address) == address


def test_a_kernel_without_ipv6_has_no_table_of_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_IPV6_TABLE", "/no/such/file")
    assert network.interface_towards("127.0.0.1") == "lo"


@pytest.mark.parametrize("available", [True, False], ids=["both families", "a container without IPv6"])
def test_agents_listen_on_every_family_of_addresses_that_there_is(
    available: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = socket.create_server

    def refuse(address: Any, **options: Any) -> socket.socket:
        if options.get("family") == socket.AF_INET6:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        return create(address, **options)

    if not available:
        monkeypatch.setattr(socket, "create_server", refuse)
    with network.listen(0) as listener:
        port = listener.getsockname()[1]
        for host in ("127.0.0.1", "::1") if available else ("127.0.0.1",):
            with socket.create_connection((host, port), timeout=5), listener.accept()[0] as accepted:
                assert Connection(accepted, identity().accepting).address == host, (
                    "as the name of a host resolves to it"
                )


def test_an_address_that_no_interface_has_is_an_error_with_both_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "no-such-device")])
    with pytest.raises(OSError) as error:
        network.interface_towards("127.0.0.2")
    assert str(error.value).startswith("no interface has the address 127.0.0.")
    assert str(error.value).endswith("from which 127.0.0.2 is reached")


def test_a_host_has_all_addresses_that_its_name_resolves_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(host: str, port: Any, **options: Any) -> list[Any]:
        addresses = {"run-0": ["10.0.0.1", "10.0.0.2"]}
        if host == "run-2":
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        if host not in addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        assert options == {"type": socket.SOCK_DGRAM}, "each address once"
        return [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", (address, port or 0)) for address in addresses[host]]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert network.addresses("run-0") == {"10.0.0.1", "10.0.0.2"}
    assert network.addresses("run-1") == network.addresses("run-2") == set()
    hosts = [host for host in ("run-0", "run-1", "run-2") if network.has_no_address(host)]
    assert hosts == ["run-1"], "nobody knows about one while no server answers"


NO_SSH = pytest.mark.skipif(not shutil.which("ssh"), reason="needs ssh: openssh-client")


@pytest.mark.parametrize(("noted", "asked"), [("10.0.0.7", ["10.0.0.7", "run-0"]), (None, ["run-0"])])
def test_node_0_is_looked_for_at_its_noted_address_before_any_name_server_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, noted: str | None, asked: list[str]
) -> None:
    """A name server that does not answer costs seconds each time, and one with a cache leads to the pod before."""
    tried: list[str] = []

    def join(host: str, *_arguments: Any) -> str:
        tried.append(host)
        return f"{host}: refused"

    monkeypatch.setattr(tcp, "join", join)
    monkeypatch.setattr(Tcp, "_channel", lambda transport, context: None)
    if noted:
        (tmp_path / "run").mkdir()
        record.note_address(str(tmp_path / "run"), noted)
    plan: Any = {"hosts": ["run-0", "run-1"], "run": "run", "roles": [{"count": 2}]}
    mounts = mounts_below("")._replace(runs=str(tmp_path))
    context = AgentContext(plan, Member(NODE, 1), 0, None, mounts, SetClock())
    greeting: Any = {}
    assert Tcp().join(context, greeting) == "run-0: refused", "the reason names the pod"
    assert tried == asked


@pytest.fixture
def secret(tmp_path: Path) -> str:
    folder = tmp_path / "secret"
    folder.mkdir()
    for name, text in generate_keys().items():
        (folder / name).write_text(text)
    return str(folder)


KeygenScript = Callable[[str], None]


@pytest.fixture
def keygen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeygenScript:
    """Makes a shell script the only ssh-keygen."""

    def install(script: str) -> None:
        program = tmp_path / "bin" / "ssh-keygen"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent))

    return install


def test_a_check_that_takes_too_long_keeps_no_run_from_starting(
    secret: str,
    keygen: KeygenScript,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The failure is one line in the log and the keys are installed; a subprocess traceback would end the attempt."""
    keygen("exec /bin/sleep 60")
    monkeypatch.setattr(ssh, "CHECK_TIMEOUT", 0.05)

    ssh.install_keys(secret, str(tmp_path / "ssh"))

    assert (tmp_path / "ssh" / "ssh_config").is_file()
    assert capsys.readouterr().err.startswith("ssh-keygen did not finish within 0.05 s: ")


def test_a_check_that_the_end_of_an_attempt_kills_leaves_the_pod_its_sshd(
    secret: str, keygen: KeygenScript, tmp_path: Path
) -> None:
    """The sshd of a pod starts while its first attempt does, which another node may end at any moment."""
    keygen("kill -KILL $$")

    ssh.install_keys(secret, str(tmp_path / "ssh"))

    assert (tmp_path / "ssh" / "sshd_config").is_file()


def test_an_image_without_ssh_keygen_gets_the_keys_unchecked_and_lacks_sshd_at_most(
    secret: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    ssh.install_keys(secret, str(tmp_path / "ssh"))
    assert (tmp_path / "ssh" / "ssh_config").is_file()
    monkeypatch.setattr(shutil, "which", lambda name, path: None)
    with pytest.raises(FileNotFoundError, match="the image has no sshd: install openssh-server in it"):
        ssh.start_daemon(str(tmp_path / "ssh"))


@pytest.mark.parametrize("old", [False, True], ids=["OpenSSH 8.5 or newer", "an older one"])
def test_strangers_who_stay_silent_have_few_places_for_a_short_time(
    secret: str, old: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older sshd refuses an option that it does not know (servconf.c: "Bad configuration option")."""
    folder = tmp_path / "ssh"
    ssh.install_keys(secret, str(folder))
    error = 'echo "$3: line 18: Bad configuration option: PerSourceMaxStartups" >&2; exit 255'
    script = f'[ "$1" = -D ] && exec cat "$4"\n{"! grep -q PerSource $3 || { " + error + "; }" if old else "exit 0"}\n'
    (tmp_path / "sshd").write_text(f"#!/bin/sh\n{script}")
    (tmp_path / "sshd").chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name, path: str(tmp_path / "sshd"))

    assert ssh.start_daemon(str(folder)).wait(60) == 0

    words = dict(line.split(" ", 1) for line in (folder / "sshd_config").read_text().splitlines())
    assert int(words["LoginGraceTime"]) <= 30
    start, _, full = map(int, words["MaxStartups"].split(":"))
    assert 260 < start < full, "silent clients of an older sshd"
    assert ("PerSourceMaxStartups" in words) is not old
    assert old or 2 * int(words["PerSourceMaxStartups"]) < start, "one stranger takes few of the places"


def test_an_sshd_that_ends_is_started_again_and_outlives_what_an_attempt_leaves(
    secret: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f'#!/bin/sh\n[ "$1" = -D ] || exit 0\necho $$ >> {tmp_path}/started\nexec sleep 60\n'
    (tmp_path / "sshd").write_text(script)
    (tmp_path / "sshd").chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name, path: str(tmp_path / "sshd"))
    plan: Any = {"launcher": "mpirun"}
    clock, mounts = SetClock(), mounts_below(str(tmp_path))._replace(secret=secret, work=str(tmp_path))
    node.start_sshd(AgentContext(plan, Member(NODE, 1), 0, None, mounts, clock))

    def started() -> list[int]:
        return [int(line) for line in (tmp_path / "started").read_text().split()]

    wait_until(lambda: (tmp_path / "started").exists() and started())
    wait_until(lambda: processes.exempt == {started()[0]})
    os.kill(started()[0], signal.SIGKILL)
    wait_until(lambda: len(started()) == 2 and processes.exempt == {started()[1]})
    assert clock.pauses == [1.0]

    processes.exempt.clear()  # as the end of the agent does
    os.kill(started()[1], signal.SIGKILL)
    wait_until(lambda: "sshd" not in [thread.name for thread in threading.enumerate()])
    assert len(started()) == 2


def test_a_pod_without_sshd_says_so_and_goes_on(
    secret: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path: None)
    plan: Any = {"launcher": "mpirun"}
    mounts = mounts_below(str(tmp_path))._replace(secret=secret, work=str(tmp_path))
    node._run_sshd(AgentContext(plan, Member(NODE, 1), 0, None, mounts, SetClock()))
    assert "no sshd runs in this pod, which only programs that call ssh need: the image has no sshd" in (
        capsys.readouterr().err
    )


REFUSED = "the SSH Secret's id is not a usable private key: Load key"


def test_a_secret_without_a_key_is_reported(secret: str, keygen: KeygenScript, tmp_path: Path) -> None:
    keygen('echo "Load key $5: invalid format" >&2; exit 255')
    with pytest.raises(ssh.InvalidKeys, match=f"{REFUSED} .*/ssh/id: invalid format"):
        ssh.install_keys(secret, str(tmp_path / "ssh"))


@NO_SSH
def test_the_real_ssh_keygen_accepts_generated_keys_and_refuses_others(secret: str, tmp_path: Path) -> None:
    ssh.install_keys(secret, str(tmp_path / "ssh"))
    Path(secret, "id").write_text("not a key\n")
    with pytest.raises(ssh.InvalidKeys, match=REFUSED):
        ssh.install_keys(secret, str(tmp_path / "ssh"))
