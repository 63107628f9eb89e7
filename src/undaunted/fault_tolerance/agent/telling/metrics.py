"""Metrics of this launcher, for Prometheus and OpenTelemetry, if somebody wants them.

Threads of their own read the pages and what the journal was told, and answer. The agent's loop only
hands events over.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

from undaunted import __version__
from undaunted.fault_tolerance.metrics_access import secrets

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from undaunted.fault_tolerance.agent.round.round import Round
    from undaunted.fault_tolerance.metrics_config import MetricsConfig
    from undaunted.fault_tolerance.run_config import RunConfig
    from undaunted.journal.events import Event
    from undaunted.journal.metrics.endpoint import Endpoint
    from undaunted.journal.metrics.family import Family
    from undaunted.journal.metrics.push import Push
    from undaunted.journal.metrics.tally import Tally
    from undaunted.journal.writer import JournalWriter
    from undaunted.progress.area import PageArea

_CLOSE_S = 2.0
_LAST_PUSH_S = 4.0  # more than one try, at a collector that is not there


class Metrics:
    """Serves and sends metrics; does nothing where nobody wants any.

    Args:
        config: the run.
        listener: what `listen` returned; owned from then on.
        area: the pages.
        journal: whose events are counted.
        say: tells the user a line; from any thread.
        leads: tells whether this node leads a job of several; in any thread.
    """

    def __init__(
        self,
        config: RunConfig,
        listener: socket.socket | None,
        area: PageArea,
        journal: JournalWriter,
        say: Callable[[str], None],
        leads: Callable[[], bool],
    ) -> None:
        self._config = config
        self._listener = listener
        self._area = area
        self._journal = journal
        self._say = say
        self._leads = leads
        self._ranks: tuple[int, ...] = ()
        self._lock = threading.RLock()
        self._tally: Tally | None = None
        self._endpoint: Endpoint | None = None
        self._push: Push | None = None
        if config.metrics is not None:
            self._tally = _new_tally()
            journal.also = self._take

    def open(self) -> None:
        """Begin to answer and to send."""
        if (config := self._config.metrics) is None:
            return
        if self._listener is not None:
            self._serve(config, self._listener)
        if config.otlp_endpoint:
            from undaunted.journal.metrics.push import Push

            about = {
                "service.instance.id": self._config.node,
                "undaunted.node": self._config.node,
                "undaunted.run_id": self._config.run_id,
            }
            self._push = Push(config.otlp_endpoint, self._read, about=about, say=self._say)

    def begin_round(self, current: Round) -> None:
        """The pages are of these ranks from now on."""
        self._ranks = tuple(current.rank(index) for index in range(current.start.slots))

    async def close(self) -> None:
        """End everything, bounded. Before the pages are released."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        if self._push is not None:
            self._push.close(_LAST_PUSH_S)
        if self._endpoint is not None:
            self._endpoint.close(_CLOSE_S)
        elif self._listener is not None:
            self._listener.close()

    def _serve(self, config: MetricsConfig, listener: socket.socket) -> None:
        from undaunted.journal.metrics.endpoint import Endpoint

        host, port = listener.getsockname()[:2]
        try:
            token, tls = secrets(config)
        except Exception as error:  # noqa: BLE001 - readable when the launcher began
            self._say(f"metrics are not served: {error}")
            return
        self._endpoint = Endpoint(listener, self._read, token=token, tls=tls)
        scheme = "http" if tls is None else "https"
        shown = f"[{host}]" if ":" in host else host
        self._say(f"metrics: {scheme}://{shown}:{port}/metrics")

    def _take(self, event: Event) -> None:
        with self._lock:
            if self._tally is not None:
                self._tally.take(event)

    def _read(self) -> list[Family]:
        """Return the metrics as they are now. In any thread."""
        from undaunted.fault_tolerance.agent.telling.page_metrics import now_of
        from undaunted.journal.metrics.families import families

        with self._lock:
            assert self._tally is not None, "only who wants metrics reads them"
            tally = self._tally.copy()
        pages = {rank: self._area.snapshot(index) for index, rank in enumerate(self._ranks)}
        now = now_of(pages, time.monotonic_ns(), self._journal.lost, leads=self._leads())
        return families(tally, self._config.node, now)


def _new_tally() -> Tally:
    from undaunted.journal.events import JournalOpened
    from undaunted.journal.metrics.tally import Tally

    tally = Tally()
    tally.take(JournalOpened(t=time.monotonic_ns(), version=__version__))
    return tally
