"""Loopback ports and health addresses of the testbed's programs."""

from __future__ import annotations

import socket
import ssl
import urllib.error
import urllib.request

from tests.testbed.certificates import Credential


def free_ports(count: int) -> list[int]:
    """Return that many different free loopback ports."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def https_health(url: str, credential: Credential | None = None) -> str:
    """Return "" when the address answers 200, else the reason why not."""
    context = ssl.create_default_context()
    # Components other than the API server sign their own certificate; this only asks for their health on loopback.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if credential:
        context.load_cert_chain(credential.certificate, credential.key)
    return _health(url, urllib.request.HTTPSHandler(context=context))


def http_health(url: str) -> str:
    """Return "" when the address answers 200, else the reason why not."""
    return _health(url)


def _health(url: str, *handlers: urllib.request.BaseHandler) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), *handlers)
    try:
        with opener.open(url, timeout=2):
            return ""
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read(300).decode(errors='replace').strip()}"
    except OSError as error:
        return str(error)
