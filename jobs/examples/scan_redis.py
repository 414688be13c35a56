"""Counts the keys of Redis servers by prefix, each server by one call: python3 scan_redis.py WORKERS HOST:PORT ...

Workers need no package for it. A server whose worker is lost is scanned again, and still counts once.
"""

import socket
import sys
from collections import Counter
from typing import Any, BinaryIO

import spotmpi


def scan(server: str) -> Counter[str]:
    """The number of keys of one server by their prefix, the part before the colon; each key counts once."""
    host, port = server.rsplit(":", 1)
    keys: set[bytes] = set()  # SCAN may return a key twice
    with socket.create_connection((host, int(port)), timeout=30) as connection, connection.makefile("rwb") as stream:
        cursor = b"0"
        while True:
            cursor, page = command(stream, b"SCAN", cursor, b"COUNT", b"100")
            keys.update(page)
            if cursor == b"0":
                break
    print(f"{server}: {len(keys)} keys")
    return Counter(key.decode().partition(":")[0] for key in keys)


def command(stream: BinaryIO, *words: bytes) -> Any:
    """The server's answer to one command."""
    stream.write(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
    stream.flush()
    return answer(stream)


def answer(stream: BinaryIO) -> Any:
    """One value of Redis' protocol."""
    line = stream.readline().rstrip(b"\r\n")
    kind, rest = line[:1], line[1:]
    if kind == b"*":
        return [answer(stream) for _ in range(int(rest))]
    if kind == b"$":
        return stream.read(int(rest) + 2)[:-2]
    if kind in (b"+", b":"):
        return rest
    raise ConnectionError(f"the server answered {line!r}")


def main() -> None:
    """Scan all servers and print the sum."""
    if len(sys.argv) < 3:
        sys.exit("usage: python3 scan_redis.py WORKERS HOST:PORT ...")
    workers, servers = int(sys.argv[1]), sys.argv[2:]
    with spotmpi.pool(workers=workers) as pool:
        total: Counter[str] = sum(pool.map(scan, servers), Counter())
    for prefix, count in total.most_common():
        print(f"{prefix} {count}")


if __name__ == "__main__":
    main()
