"""SSH between the pods of a run: key files, an sshd that needs no root, a client that trusts one host key."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

PORT = 2222
CHECK_TIMEOUT = 10.0  # seconds, for one key
CLIENT_KEY = "id"
PUBLIC_KEY = "id.pub"  # only in a Secret that runs share
HOST_KEY = "host_key"
AUTHORIZED = "authorized_keys"
KNOWN_HOSTS = "known_hosts"

_SSHD = """\
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
AllowTcpForwarding no
X11Forwarding no
PermitTunnel no
AllowAgentForwarding no
PrintMotd no
LoginGraceTime 15
MaxStartups 300:30:600
"""
# Strangers who connect and stay silent, where no policy keeps them out, have few of the places, and not for long:
# OpenSSH counts clients that have not logged in for each address since 8.5 (its release notes).
_SINCE_8_5 = "PerSourceMaxStartups 50\n"
_CLIENT = """\
Host *
  Port {port}
  IdentityFile {folder}/id
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  BatchMode yes
  ConnectTimeout 10
  LogLevel ERROR
"""


# For a Secret that runs share. A certificate may be its own authority.
TLS_REMEDY = (
    "in an environment `pulumi up` adds them; to a Secret of your own, add those of `openssl req -x509 -newkey ec "
    "-pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=spotmpi -keyout key.pem -out cert.pem && cp cert.pem ca.pem`"
)


class InvalidKeys(Exception):
    """The run's Secret has no keys that ssh or the agents can use."""


def install_keys(secret: str, folder: str) -> None:
    """Copy the keys of *secret* into *folder* with mode 0600 and write both configurations.

    A Secret that runs share holds one key pair, which is the host key as well.

    Raises:
        InvalidKeys: a key is missing, or ssh cannot read it.
    """
    os.makedirs(folder, mode=0o700, exist_ok=True)
    shared = os.path.join(secret, PUBLIC_KEY)
    if os.path.exists(shared):
        with open(shared, encoding="utf-8") as public:
            _write(os.path.join(folder, KNOWN_HOSTS), "* " + public.read())
        sources = {CLIENT_KEY: CLIENT_KEY, HOST_KEY: CLIENT_KEY, AUTHORIZED: AUTHORIZED}
    else:
        sources = {name: name for name in (CLIENT_KEY, HOST_KEY, AUTHORIZED, KNOWN_HOSTS)}
    for name, source in sources.items():
        target = os.path.join(folder, name)
        try:
            shutil.copyfile(os.path.join(secret, source), target)
        except FileNotFoundError:
            raise InvalidKeys("the SSH Secret has no %s" % source) from None
        os.chmod(target, 0o600)
    for name in (CLIENT_KEY, HOST_KEY):
        _check(os.path.join(folder, name))
    _write(os.path.join(folder, "sshd_config"), _SSHD.format(port=PORT, folder=folder) + _SINCE_8_5)
    _write(os.path.join(folder, "ssh_config"), _CLIENT.format(port=PORT, folder=folder))


def start_daemon(folder: str) -> subprocess.Popen[bytes]:
    """Start sshd in the foreground of a process of its own; FileNotFoundError where the image has none."""
    sshd = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    if sshd is None:
        raise FileNotFoundError("the image has no sshd: install openssh-server in it")
    config = os.path.join(folder, "sshd_config")
    check = subprocess.run([sshd, "-t", "-f", config], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if b"PerSourceMaxStartups" in check.stderr:  # before 8.5
        _write(config, _SSHD.format(port=PORT, folder=folder))
    return subprocess.Popen(
        [sshd, "-D", "-e", "-f", config],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=open(os.path.join(folder, "sshd.log"), "ab"),
        start_new_session=True,
    )


def _check(key: str) -> None:
    """Raise InvalidKeys for an invalid key.

    A check that takes too long, as on a busy node, is skipped, and so it is without ssh-keygen, or where the agent has
    killed that with the rest of an attempt: sshd and ssh tell then.
    """
    command = ["ssh-keygen", "-y", "-P", "", "-f", key]
    try:
        check = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=CHECK_TIMEOUT)
    except FileNotFoundError:
        return
    except subprocess.TimeoutExpired:
        message = "ssh-keygen did not finish within %g s: %s was not checked" % (CHECK_TIMEOUT, os.path.basename(key))
        print(message, file=sys.stderr, flush=True)
        return
    if check.returncode > 0:
        error = check.stderr.decode("utf-8", "replace").strip()
        raise InvalidKeys("the SSH Secret's %s is not a usable private key: %s" % (os.path.basename(key), error))


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
