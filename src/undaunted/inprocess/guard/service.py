"""Serves the ranks of a node, or the one of a guard, and speaks for them to the controller."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from undaunted.coordinator.wire.sockets import peer
from undaunted.inprocess.core import commands as c
from undaunted.inprocess.guard.ranks import ServedRank

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from undaunted.inprocess.core.messages import FromGuard, ToRank
    from undaunted.inprocess.guard.uplink import Uplink

_ACCEPTS_IN_A_ROW = 64  # then it is the turn of others on the loop
_PAUSE_S = 0.5  # before accepting is tried again when descriptors have run out


class GuardService:
    """Used on one loop. Closes what it was given and has made.

    Args:
        uplink: way to the controller; see `uplink.Uplink`.
        remark: called with lines about ranks that did what they must not do.
    """

    def __init__(self, uplink: Uplink, remark: Callable[[str], None]) -> None:
        self._uplink = uplink
        self._remark = remark
        self._linked = False
        self._ranks: dict[int, ServedRank] = {}
        self._nameless: set[ServedRank] = set()  # they have not said which rank they are
        self._listener: socket.socket | None = None
        self._resumption: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        uplink.attach(self)

    def listen(self, listener: socket.socket) -> None:
        """Serve ranks of this user that connect to a socket, which is ours from here on."""
        self._listener = listener
        asyncio.get_running_loop().add_reader(listener, self._accept)

    def serve(self, sock: socket.socket) -> None:
        """Serve a rank that is connected; ``sock`` is ours from here on."""
        try:
            rank = ServedRank(sock, self)
        except OSError as error:
            sock.close()
            self._remark(f"a rank cannot be served: {error}")
            self._note_idle()
            return
        self._nameless.add(rank)

    async def idle(self) -> None:
        """Wait until no rank is served any more. Not before the first one."""
        await self._idle.wait()

    def close(self) -> None:
        """Release everything; neither ranks nor controller are told."""
        if self._resumption is not None:
            self._resumption.cancel()
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
        for rank in (*self._ranks.values(), *self._nameless):
            rank.close()

    def in_call(self, job_rank: int) -> bool:
        """Whether others go on with a call that this rank, dead or alive, takes part in."""
        rank = self._ranks.get(job_rank)
        return rank is not None and rank.in_call

    def rank(self, job_rank: int) -> ServedRank | None:
        """The process that was this rank last, dead or alive; None = it has never connected."""
        return self._ranks.get(job_rank)

    # --- from the controller --------------------------------------------------------------------

    def up(self) -> None:
        """See `Downlink`."""
        self._linked = True
        self._feed_all(c.LinkUp())

    def down(self) -> None:
        """See `Downlink`."""
        self._linked = False
        self._feed_all(c.LinkDown())

    def told(self, job_ranks: tuple[int, ...], message: ToRank) -> None:
        """See `Downlink`."""
        for job_rank in job_ranks:
            if (rank := self._ranks.get(job_rank)) is not None:
                rank.feed(message)

    def _feed_all(self, event: c.LinkUp | c.LinkDown) -> None:
        for rank in list(self._ranks.values()):
            rank.feed(event)

    # --- from ranks -----------------------------------------------------------------------------

    def entered(self, rank: ServedRank) -> bool:
        """Let it have its job rank, unless another process that lives has it."""
        before = self._ranks.get(rank.job_rank)
        if before is not None and before.alive:
            return False
        if before is not None:
            before.close()
        self._nameless.discard(rank)
        self._ranks[rank.job_rank] = rank
        if self._linked:
            rank.feed(c.LinkUp())
        return True

    def report(self, message: FromGuard) -> None:
        """Pass on what a rank's guard says."""
        self._uplink.send(message)

    def finished(self, rank: ServedRank) -> None:
        """A rank has ended; a controller that is yet to come may have to be told."""
        rank.close()
        self._nameless.discard(rank)
        self._note_idle()

    def _note_idle(self) -> None:
        if not self._nameless and not any(rank.open for rank in self._ranks.values()):
            self._idle.set()

    # --- accepting ------------------------------------------------------------------------------

    def _accept(self) -> None:
        assert self._listener is not None
        for _ in range(_ACCEPTS_IN_A_ROW):
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._remark(f"no rank can be served for {_PAUSE_S} s: {error}")
                self._pause(self._listener)
                return
            if peer(sock).user == os.geteuid():
                self.serve(sock)
            else:
                self._remark(f"user {peer(sock).user} has tried to be served")
                sock.close()

    def _pause(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener)
        self._resumption = loop.call_later(_PAUSE_S, self._resume)

    def _resume(self) -> None:
        assert self._listener is not None
        asyncio.get_running_loop().add_reader(self._listener, self._accept)
