"""Has the ranks of this node stop after the same iteration as all others.

They ask and are answered by words of their pages; see docs/design/training.md.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from undaunted.base.text import one_line
from undaunted.coordinator.policy import messages as job
from undaunted.progress.layout import STOPPED_ALONE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from undaunted.fault_tolerance.agent.orders import Orders
    from undaunted.fault_tolerance.agent.processes import Workers
    from undaunted.progress.area import PageArea
    from undaunted.progress.layout import Wish

_TEXT = 200  # characters


class Stopping:
    """Serves one round after the other.

    Args:
        node: the name of this one.
        area: the pages of its ranks.
        orders: get what ranks have asked.
        workers: their processes.

    Attributes:
        over: ranks are ended without asking.
    """

    def __init__(self, node: str, area: PageArea, orders: Orders, workers: Workers) -> None:
        self._node = node
        self._area = area
        self._orders = orders
        self._workers = workers
        self.over = False
        self._round = -1
        self._wanted: set[Wish] = set()  # of ranks of this round
        self._texts: dict[int, str] = {}  # what they say of it, by local rank
        self._why = ""

    def begin_round(self, number: int) -> None:
        """The pages are of ranks of this round from now on."""
        self._round, self._wanted, self._texts, self.over = number, set(), {}, False

    def keep_text(self, local_rank: int, text: str) -> None:
        """A rank says what has happened; its wish comes afterwards."""
        self._texts[local_rank] = one_line(text, _TEXT)

    def pass_wish(self, local_rank: int, rank: int, wish: Wish | None) -> None:
        """A rank wants all to stop; perhaps its session took the signal that was to end it."""
        if wish is not None and self.over:
            self._workers.signal_ranks((local_rank,), signal.SIGKILL)
        elif wish is not None and wish not in self._wanted:
            self._wanted.add(wish)
            cause = rank if wish.rank is None else wish.rank
            text = self._texts.get(local_rank, "")
            self._orders.post(job.StopWanted(self._node, self._round, cause, wish.why, text))

    def freeze(self, stop: job.Stop) -> None:
        """Have ranks wait from now on that ask; report what they have asked about."""
        if stop.round != self._round:
            return
        self._why = stop.agree
        self._area.have_wait()
        known = self._area.stops_after(0)
        asked = [each for each in self._area.asked() if each not in (None, STOPPED_ALONE)]
        iteration = max(asked, default=-1) if known is None else known
        asks = any(self._area.asks(index) for index in range(self._area.ranks))
        fixed = known is not None
        self._orders.post(
            job.RanksAsked(self._node, self._round, iteration, fixed, asks=asks or fixed)
        )

    def stop_after(self, iteration: int) -> None:
        """All nodes have reported. -1 = nobody asks: who begins to stops at once."""
        self._area.stop_after(max(0, iteration), self._why)

    def who_asks(self, local_ranks: Iterable[int]) -> tuple[int, ...]:
        """Those of these ranks that ask whether to stop, or have stopped and asked nobody."""
        return tuple(
            rank for rank in local_ranks if self._area.asks(rank) or self.has_stopped(rank)
        )

    @property
    def early(self) -> bool:
        """Return whether a rank of this node was stopped before it had done all its work."""
        return any(self.has_stopped(local_rank) for local_rank in range(self._area.ranks))

    def has_stopped(self, local_rank: int) -> bool:
        """Return whether a rank was stopped before it had done all its work.

        One that asks no more has come to the end of its loop.
        """
        asked, end = self._area.asked()[local_rank], self._area.stops_after(local_rank)
        if asked is None or end is None or asked == STOPPED_ALONE:
            return asked == STOPPED_ALONE
        return asked >= end and self._area.asks(local_rank)
