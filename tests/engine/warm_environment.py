"""A virtual environment whose `python` forks from an interpreter that has imported what the Pulumi program imports.

The imports of the SDKs are most of a program's processor time, and one change of a setting starts the program three
times. The program itself, its arguments, variables, output and exit status are the same as in a new interpreter.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import warm_python

REPOSITORY = Path(__file__).resolve().parents[2]

PROGRAM = "pulumi-language-python-exec"
_SOCKET = "warm.sock"
# Packages of the SDKs are loaded when an attribute is first used.
_USED = (
    *("infra.program:build", "infra.stack_config:current", "grpc.experimental:unary_unary"),
    *("pulumi_aws.ecr:Repository", "pulumi_aws.efs:FileSystem", "pulumi_aws.vpc:SecurityGroupIngressRule"),
    "pulumi_kubernetes.core.v1:Namespace",
)
# `bin/python` of the environment: hands a program on with its files, and runs everything else itself.
_CLIENT = f"""#!{sys.executable} -ISE
import json, os, socket, sys

if sys.argv[1:3] == ["-m", "pip"]:  # the list of what is installed, for which the language host asks at each start
    with open(os.path.join(os.path.dirname(__file__), "installed")) as installed:
        sys.exit(print(installed.read(), end=""))
if not any(each.endswith({PROGRAM!r}) for each in sys.argv[1:]):
    os.execv({sys.executable!r}, [{sys.executable!r}, *sys.argv[1:]])
start = {{"executable": {sys.executable!r}, "arguments": sys.argv[1:], "folder": os.getcwd(), "numbers": [0, 1, 2]}}
start = json.dumps({{**start, "variables": dict(os.environ)}}).encode()
os.chdir(os.path.dirname(__file__))  # whose path can be longer than a socket's may be
server = socket.socket(socket.AF_UNIX)
server.connect({_SOCKET!r})
socket.send_fds(server, [len(start).to_bytes(8, "big")], [0, 1, 2])
server.sendall(start)
status = server.recv(1)
sys.exit(status[0] if status else 70)
"""


@contextmanager
def warm_environment(folder: Path) -> Iterator[None]:
    """Lay out a virtual environment in *folder*, ready to fork while the context lasts."""
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text((Path(sys.prefix) / "pyvenv.cfg").read_text())
    python = folder / "bin" / "python"
    python.write_text(_CLIENT)
    python.chmod(0o755)
    with (python.parent / "installed").open("w") as installed:
        subprocess.run([sys.executable, "-m", "pip", "list", "-v", "--format", "json"], stdout=installed, check=True)
    variables = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with warm_python.server(_SOCKET, _USED, python.parent, variables, ["-u"]):
        yield
