"""Metrics of this launcher, for Prometheus and OpenTelemetry, if somebody wants them.

Separate threads read the pages and the events of the journal, and answer. The agent's loop only
hands events over.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import TYPE_CHECKING

from undaunted import __version__
from undaunted.base.ids import NO_NAME
from undaunted.fault_tolerance.agent.parts import Part
from undaunted.fault_tolerance.metrics_config import secrets
from undaunted.journal.events import JournalOpened
from undaunted.journal.launch import MOST_KEPT, LaunchState
from undaunted.journal.metrics.endpoint import Endpoint
from undaunted.journal.metrics.families import Now, RankNow, families
from undaunted.journal.metrics.otlp import wants_spans
from undaunted.journal.metrics.push import Push
from undaunted.journal.metrics.spans import Spans

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from undaunted.fault_tolerance.agent.orders import Orders
    from undaunted.fault_tolerance.agent.round import Round
    from undaunted.fault_tolerance.run_config import RunConfig
    from undaunted.journal.events import Event
    from undaunted.journal.metrics.exposition import Family
    from undaunted.journal.metrics.spans import JobSpan
    from undaunted.journal.writer import JournalWriter
    from undaunted.progress.area import PageArea
    from undaunted.progress.snapshot import PageSnapshot

_CLOSE_S = 2.0
_LAST_PUSH_S = 4.0  # more than one try, at a collector that is not there
_NS = 1_000_000_000


class Metrics(Part):
    """Serves and sends metrics of a run whose settings ask for that.

    Args:
        config: the run.
        listener: what `listen` returned; owned from then on.
        area: the pages.
        journal: whose events are counted.
        say: shows a line; from any thread.
        orders: knows whether this node leads a job of several.
    """

    def __init__(
        self,
        config: RunConfig,
        listener: socket.socket | None,
        area: PageArea,
        journal: JournalWriter,
        say: Callable[[str], None],
        orders: Orders,
    ) -> None:
        assert config.metrics is not None
        self._settings = config.metrics
        self._config = config
        self._listener = listener
        self._area = area
        self._journal = journal
        self._say = say
        self._orders = orders
        self._ranks: tuple[int, ...] = ()
        self._lock = threading.RLock()
        self._launch = LaunchState(MOST_KEPT)
        self._launch.take(JournalOpened(t=time.monotonic_ns(), version=__version__))
        self._endpoint: Endpoint | None = None
        self._push: Push | None = None
        wanted = wants_spans(config.metrics.otlp_endpoint, os.environ)
        self._spans = Spans() if wanted else None
        journal.subscribe(self._take)

    def open(self) -> None:
        """Begin to answer and to send."""
        if self._listener is not None:
            self._serve(self._listener)
        if endpoint := self._settings.otlp_endpoint:
            about = {
                "service.instance.id": self._config.node,
                "undaunted.node": self._config.node,
                "undaunted.run_id": self._config.run_id,
            }
            spans = None if self._spans is None else self._ended
            # One run of no name is not another one: each of its launchers has its own trace.
            unnamed = f"{self._config.node} {time.time_ns()}"
            trace = self._config.run_id if self._config.run_id != NO_NAME else unnamed
            self._push = Push(
                endpoint, self._read, about=about, say=self._say, spans=spans, trace=trace
            )

    def round_begins(self, current: Round) -> None:
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

    def _serve(self, listener: socket.socket) -> None:
        host, port = listener.getsockname()[:2]
        try:
            token, tls = secrets(self._settings)
        except Exception as error:  # noqa: BLE001 - readable when the launcher began
            self._say(f"metrics are not served: {error}")
            return
        self._endpoint = Endpoint(listener, self._read, token=token, tls=tls)
        scheme = "http" if tls is None else "https"
        shown = f"[{host}]" if ":" in host else host
        self._say(f"metrics: {scheme}://{shown}:{port}/metrics")

    def _take(self, event: Event) -> None:
        with self._lock:
            self._launch.take(event)
            if self._spans is not None:
                self._spans.take(event)

    def _ended(self) -> list[JobSpan]:
        """Return the spans that have ended since the last time. In any thread."""
        assert self._spans is not None
        with self._lock:
            return self._spans.drain()

    def _read(self) -> list[Family]:
        """Return the metrics as they are now. In any thread."""
        with self._lock:
            launch = self._launch.copy()
        pages = {rank: self._area.snapshot(index) for index, rank in enumerate(self._ranks)}
        now = now_of(pages, time.monotonic_ns(), self._journal.lost, leads=self._orders.leads)
        return families(launch, self._config.node, now)


def now_of(
    pages: Mapping[int, PageSnapshot], t: int, events_lost: int, *, leads: bool = False
) -> Now:
    """Return what pages show.

    Args:
        pages: by global rank.
        t: when they were read, CLOCK_MONOTONIC, nanoseconds.
        events_lost: events missing in the journal.
        leads: this node leads a job of several.
    """
    ranks = tuple(rank_now(rank, page, t) for rank, page in pages.items() if not page.problem)
    return Now(t=t, ranks=ranks, steps=_steps(pages), events_lost=events_lost, leads=leads)


def rank_now(rank: int, page: PageSnapshot, t: int) -> RankNow:
    """Return what one page shows at ``t``."""
    opened = {
        name: _since(section.open_since_ns, t)
        for name, section in page.sections.items()
        if section.open_since_ns is not None
    }
    return RankNow(
        rank=rank,
        phase=page.phase.name.lower(),
        iteration=page.iteration,
        step_s=_step_s(page),
        heartbeat_age_s=None if page.heartbeat_ns is None else _since(page.heartbeat_ns, t),
        heartbeat_longest_s=page.heartbeat_max_ns / _NS if page.heartbeat_max_ns else None,
        sections=opened,
    )


def _since(moment_ns: int, t: int) -> float:
    return max(0, t - moment_ns) / _NS


def _step_s(page: PageSnapshot) -> float | None:
    ends = (page.first_iteration, page.iteration, page.first_step_ns, page.iteration_ns)
    first, last, first_ns, last_ns = ends
    if first is None or last is None or first_ns is None or last_ns is None or last <= first:
        return None
    return max(0, last_ns - first_ns) / (last - first) / _NS


def _steps(pages: Mapping[int, PageSnapshot]) -> tuple[int, int, int] | None:
    begun = [
        (page.iteration, page.iteration_ns, page.first_iteration)
        for page in pages.values()
        if page.iteration is not None and page.iteration_ns and page.first_iteration is not None
    ]
    if not begun:
        return None
    last, last_ns, _ = max(begun)
    return min(first for _, _, first in begun), last, last_ns
