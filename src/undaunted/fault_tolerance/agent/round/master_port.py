"""A port for the workers' store that nobody else takes before rank 0 does."""

from __future__ import annotations

import socket


class ReservedPort:
    """Holds a port by binding to it without listening.

    With SO_REUSEADDR on both sides, rank 0's store can bind and listen beside this socket, while
    the kernel gives the port to nobody who asks for a free one.
    """

    def __init__(self, wanted: int = 0) -> None:
        """Reserve port ``wanted``, or a free one for 0.

        Raises:
            OSError: ``wanted`` is in use.
        """
        # TCPStore listens on the IPv6 wildcard (dual stack) where there is one.
        family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            self._socket.bind(("", wanted))
        except OSError as error:
            self._socket.close()
            raise OSError(
                error.errno,
                f"port {wanted} of rank 0's store cannot be had ({error.strerror}); end what uses "
                "it, or give another one with --master-port (0 = a free one)",
            ) from error
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        """Give the port back."""
        self._socket.close()
