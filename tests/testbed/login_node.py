"""A login node: a real sshd on this machine, whose users start in a home of their own."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.testbed.daemon import Daemon
from tests.testbed.errors import run_command
from tests.testbed.web import free_port

HOST = "login"  # as ssh names it
_SERVER = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile none
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
SetEnv {variables}
ForceCommand cd '{home}' && exec sh -c "$SSH_ORIGINAL_COMMAND"
"""
_CLIENT = """\
Host {host}
  HostName 127.0.0.1
  Port {port}
  IdentityFile {folder}/user
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  StrictHostKeyChecking accept-new
  LogLevel ERROR
"""


@contextmanager
def login_node(folder: Path, home: Path, variables: Mapping[str, str]) -> Iterator[Path]:
    """A folder for PATH whose `ssh` reaches `HOST`; commands there start in *home* and have *variables*."""
    bin_folder = folder / "bin"
    for path in (bin_folder, home, Path("/run/sshd")):
        path.mkdir(parents=True, exist_ok=True)
    for key in ("host", "user"):
        run_command(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key])
    port = free_port()
    text = " ".join(f"{name}={value}" for name, value in variables.items())
    (folder / "sshd_config").write_text(_SERVER.format(port=port, folder=folder, home=home, variables=text))
    (folder / "ssh_config").write_text(_CLIENT.format(host=HOST, port=port, folder=folder))
    (bin_folder / "ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {folder}/ssh_config "$@"\n')
    (bin_folder / "ssh").chmod(0o755)
    sshd = Daemon("sshd", ["/usr/sbin/sshd", "-D", "-e", "-f", folder / "sshd_config"], folder)

    def problem() -> str:
        """It listens."""
        with socket.socket() as client:
            return "" if client.connect_ex(("127.0.0.1", port)) == 0 else "it does not listen"

    with sshd.running(problem, 10.0):
        yield bin_folder
