"""What the agents of a run know each other by: the certificate in the run's Secret, which only its pods can read.

All agents present the same certificate and accept only those of its authority. Names of hosts are not compared, for
pods have several, and dates are not either: a node's clock may be off by hours, and the Secret is deleted with its run.
"""

from __future__ import annotations

import os
import ssl
from functools import cached_property

from . import protocol
from .ssh import TLS_REMEDY, InvalidKeys

# ALPN's name of the protocol of `peers`: the scheduler of a pool has the same certificate, and speaks another one.
PROTOCOL = "spotmpi-agents"
_NO_CHECK_TIME = 0x200000  # X509_V_FLAG_NO_CHECK_TIME of OpenSSL since 1.1.0, for which Python has no name


class Identity:
    """Membership of the run called *run*, by the TLS files in *folder*.

    Runs may share a Secret, so agents compare the name of the run as well.
    """

    def __init__(self, run: str, folder: str) -> None:
        self.run = run
        self._folder = folder

    @cached_property
    def accepting(self) -> ssl.SSLContext:
        """The settings of the end that accepts connections; `InvalidKeys` where the files are of no use."""
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        if ssl.HAS_TLSv1_3:
            context.num_tickets = 0  # no connection is resumed
        return context

    @cached_property
    def connecting(self) -> ssl.SSLContext:
        """The settings of the end that connects; `InvalidKeys` where the files are of no use."""
        return self._context(ssl.PROTOCOL_TLS_CLIENT)

    def _context(self, protocol_of_end: int) -> ssl.SSLContext:
        authority, certificate, key = (os.path.join(self._folder, name) for name in protocol.TLS_FILES)
        missing = [name for name in protocol.TLS_FILES if not os.path.exists(os.path.join(self._folder, name))]
        if missing:
            raise InvalidKeys("the SSH Secret has no %s; %s" % (", ".join(missing), TLS_REMEDY))
        context = ssl.SSLContext(protocol_of_end)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= _NO_CHECK_TIME
        context.set_alpn_protocols([PROTOCOL])
        try:
            context.load_verify_locations(authority)
            context.load_cert_chain(certificate, key)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise InvalidKeys("the TLS files of the SSH Secret cannot be used: %s" % error) from error
        return context
