"""Runs a command on another node of the run: what mpirun starts in place of ssh (``plm_rsh_agent``).

    python remote_start.py SOCKET HOST COMMAND [ARGUMENT ...]

The agent of this node listens on SOCKET, and that of the other node runs the command with its shell, as sshd would.
Its output comes to stderr, its exit code is that of this process; it has no input.
It is run by path, alone; mpirun waits for one such process per node, so it imports little.
"""

from __future__ import annotations

import json
import os
import socket
import sys

UNREACHABLE = 255  # as the exit code of ssh


def main(arguments: list[str]) -> int:
    """Run the command that *arguments* name; its exit code."""
    path, host, *command = arguments
    try:
        with socket.socket(socket.AF_UNIX) as agent:
            agent.connect(path)
            agent.sendall(json.dumps({"host": host, "command": " ".join(command)}).encode() + b"\n")
            for line in agent.makefile("rb"):
                answer = json.loads(line)
                os.write(2, answer.get("output", "").encode())
                if "code" in answer:
                    return int(answer["code"])
        reason = "the agent of this node has ended the attempt"
    except OSError as error:
        reason = str(error)
    sys.stderr.write("no process can be started on %s: %s\n" % (host, reason))
    return UNREACHABLE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
