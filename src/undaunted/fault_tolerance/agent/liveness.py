"""Answers over HTTP while the launcher's loop turns, for probes that ask whether it lives.

The loop itself answers: one that stands still answers nobody, and the probe's own timeout tells.
A client of the port learns that and no more, so there is no token.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from undaunted.fault_tolerance.agent.parts import Part

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.base.http_server import PageServer

VARIABLE = "TORCHELASTIC_HEALTH_CHECK_PORT"
_DEADLINE_S = 5.0


class Liveness(Part):
    """One port.

    Args:
        port: None = nobody asks.
        say: shows a line.
        host: its address; "" = all, as probes of Kubernetes come from outside of the pod.

    Attributes:
        port: where it answers, 0 = nowhere.
    """

    def __init__(self, port: int | None, say: Callable[[str], None], host: str = "") -> None:
        self.port = 0
        self._port, self._host = port, host
        self._say = say
        self._server: PageServer | None = None

    async def open(self) -> None:
        """Begin to answer; if that is not possible, say so."""
        if self._port is None:
            return
        from undaunted.base.http_server import Page, PageServer

        try:
            listener = _listen(self._host, self._port)
        except OSError as error:
            why = error.strerror or str(error)
            self._say(f"no probe is answered at port {self._port} ({VARIABLE}): {why}")
            return
        self.port = listener.getsockname()[1]
        alive = Page("alive\n")
        self._server = PageServer(listener, lambda _path, _accept: alive, deadline_s=_DEADLINE_S)

    async def close(self) -> None:
        """Answer no more."""
        if self._server is not None:
            await self._server.close()
            self._server = None


def _listen(host: str, port: int) -> socket.socket:
    if host or not socket.has_dualstack_ipv6():
        return socket.create_server((host, port))
    return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
