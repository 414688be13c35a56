"""How an agent on this machine that was started ahead gets its run: folder, lock and log, over the socket on its stdin.

Its imports are done while the command line still reads the spec. Both ends use `_socket`, the part of `socket` in C:
`socket` itself takes longer to import than all that is done here.
"""

from __future__ import annotations

import _socket
import os
import struct

WAIT = "--wait"  # the argument of an agent that is started ahead
_READY = b"r"
_DESCRIPTORS = struct.Struct("2i")


def pair() -> tuple[_socket.socket, _socket.socket]:
    """The ends of the side that starts an agent, and of the agent, which its stdin becomes."""
    return _socket.socketpair()


def hand_over(connection: _socket.socket, folder: str, lock: int, log: int) -> bool:
    """Give an agent the run in *folder* with two open files; False where it has ended."""
    try:
        if connection.recv(1) != _READY:
            return False
        files = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, _DESCRIPTORS.pack(lock, log))]
        connection.sendmsg([os.fsencode(folder)], files)
        return True
    except OSError:
        return False


def receive() -> str | None:
    """The run folder, with its lock held by this process and its log as output; None where there is none to come."""
    connection = _socket.socket(fileno=os.dup(0))
    try:
        connection.send(_READY)
        folder, files, _, _ = connection.recvmsg(1 << 16, _socket.CMSG_LEN(_DESCRIPTORS.size), _socket.MSG_CMSG_CLOEXEC)
    except OSError:  # the other end is closed
        return None
    finally:
        connection.close()
    if not folder:
        return None
    _, log = _DESCRIPTORS.unpack(files[0][2])
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number, descriptor in enumerate((nowhere, log, log)):
        os.dup2(descriptor, number)
    os.close(nowhere)
    os.close(log)
    return os.fsdecode(folder)
