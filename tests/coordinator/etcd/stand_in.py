"""A register in memory, which launchers share; see `Register`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from undaunted.coordinator.service.register import Leads, RegisterError, Won

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from undaunted.coordinator.protocol import Ledger

HOLD_S = 3.0


class Store:
    """Who leads, and the ledger."""

    def __init__(self, leads: Leads | None = None, ledger: Ledger | None = None) -> None:
        self.leads = leads or Leads(39)
        self.ledger = ledger
        self._watchers: list[asyncio.Queue[Leads]] = []
        self._holds = 0

    def watched(self) -> asyncio.Queue[Leads]:
        """Return a queue of who leads, from now on."""
        queue: asyncio.Queue[Leads] = asyncio.Queue()
        queue.put_nowait(self.leads)
        self._watchers.append(queue)
        return queue

    def change(self, **changes: object) -> None:
        """Have somebody else lead, or nobody; ``as_of`` rises by one."""
        self.leads = replace(self.leads, as_of=self.leads.as_of + 1, **changes)
        for each in self._watchers:
            each.put_nowait(self.leads)

    def claim(self, address: str, incarnation: str) -> None:
        """Let somebody lead."""
        epoch = self.leads.as_of + 1
        self.change(epoch=epoch, address=address, incarnation=incarnation, held=True)

    def hold(self) -> None:
        """Note that the leader is there, for a while."""
        self._holds += 1
        asyncio.get_running_loop().call_later(HOLD_S, self._expire, self._holds)
        if not self.leads.held:
            self.change(held=True)

    def release(self) -> None:
        """Have nobody lead."""
        self.change(epoch=0, address="", incarnation="", held=False)

    def _expire(self, holds: int) -> None:
        if holds == self._holds:
            self.change(held=False)


class StandIn:
    """One launcher's access.

    Attributes:
        asked: operations, with what they were asked for.
        broken: reasons for which operations fail, by name; `final` ones as a pair.
        lost: operations that are done, but whose answer is lost.
        takes_s: how long an answer takes, by operation.
    """

    hold_s = HOLD_S

    def __init__(self, store: Store, address: str, incarnation: str) -> None:
        self.store, self._address, self._incarnation = store, address, incarnation
        self.asked: list[tuple[object, ...]] = []
        self.broken: dict[str, RegisterError] = {}
        self.lost: set[str] = set()
        self.takes_s: dict[str, float] = {}

    def times(self, operation: str) -> int:
        """How often something was asked for."""
        return sum(each[0] == operation for each in self.asked)

    async def watch(self) -> AsyncIterator[Leads]:
        """See `Register`."""
        await self._ask("watch")
        queue = self.store.watched()
        while True:
            yield await queue.get()

    async def claim(self, after: int) -> Won | Leads:
        """See `Register`."""
        await self._ask("claim", after)
        store = self.store
        if store.leads.epoch != after:
            return store.leads
        store.claim(self._address, self._incarnation)
        store.hold()
        self._answer("claim")
        return Won(store.leads.epoch, store.ledger)

    async def write(self, epoch: int, ledger: Ledger) -> bool:
        """See `Register`."""
        await self._ask("write", epoch, ledger.version)
        if epoch != self.store.leads.epoch:
            return False
        self.store.ledger = ledger
        return True

    async def hold(self, epoch: int) -> bool:
        """See `Register`."""
        await self._ask("hold", epoch)
        if epoch != self.store.leads.epoch:
            return False
        self.store.hold()
        return True

    async def release(self, epoch: int, *, ended: Ledger | None = None) -> None:
        """See `Register`."""
        await self._ask("release", epoch)
        if epoch == self.store.leads.epoch:
            self.store.release()
            self.store.ledger = ended or self.store.ledger

    async def close(self) -> None:
        """See `Register`."""

    async def _ask(self, operation: str, *what: object) -> None:
        self.asked.append((operation, *what))
        if takes_s := self.takes_s.get(operation):
            await asyncio.sleep(takes_s)
        if problem := self.broken.get(operation):
            raise RegisterError(str(problem), final=problem.final)

    def _answer(self, operation: str) -> None:
        if operation in self.lost:
            raise RegisterError("its answer was lost")
