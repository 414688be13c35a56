"""How both ends of a connection between agents prove that they hold the run's token, which never travels.

Each end sends a random challenge. The key of the connection is an HMAC by the token over both challenges, the node
index and the generation; every message carries an HMAC by this key over the role of its sender, its number and its
text. So the first message of each end authenticates it, and no message can be forged, repeated, reordered or sent back
to its sender, not even by somebody who passes the bytes of two agents on.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets

NODE_0, WORKER = b"node 0", b"worker"
_VERSION = b"spotmpi agents 1\n"


def challenge() -> str:
    """A fresh challenge: 128 random bits."""
    return secrets.token_hex(16)


class Session:
    """The messages of one connection, as *role* sends and receives them; *challenges* are node 0's and the worker's."""

    def __init__(self, token: str, role: bytes, challenges: tuple[str, str], node: int, generation: int) -> None:
        bound = json.dumps([*challenges, node, generation]).encode()
        self._key = hmac.new(token.encode(), _VERSION + bound, hashlib.sha256).digest()
        self._role = role
        self._peer = NODE_0 if role == WORKER else WORKER
        self._sent = self._received = 0

    def sign(self, text: bytes) -> bytes:
        """The line, without its end, that carries *text* as the next message to the other end."""
        line = self._code(self._role, self._sent, text) + b" " + text
        self._sent += 1
        return line

    def verify(self, line: bytes) -> bytes | None:
        """The text in *line*; None where it is not the next message of the other end."""
        code, _, text = line.partition(b" ")
        if not hmac.compare_digest(code, self._code(self._peer, self._received, text)):
            return None
        self._received += 1
        return text

    def _code(self, role: bytes, number: int, text: bytes) -> bytes:
        return hmac.new(self._key, b"%s %d %s" % (role, number, text), hashlib.sha256).hexdigest().encode()
