"""Runs a `Campaign` with a real etcd."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from undaunted.base.timers import Timers, lease_clock_ns
from undaunted.coordinator.etcd import campaign
from undaunted.coordinator.etcd.campaign import Campaign
from undaunted.coordinator.etcd.client import Client, EtcdError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from undaunted.coordinator.etcd.store import Access, Store
    from undaunted.coordinator.protocol import Ledger

# How long the end may take: to erase the ledger, and to give back the lease.
_CLOSE_S = 3.0


class Launcher(Protocol):
    """The launcher that takes part in a campaign. Called on the loop; must not block."""

    def lead(self, epoch: int, ledger: Ledger) -> None:
        """Serve the job from now on."""

    def depose(self, reason: str) -> None:
        """Serve it no more."""

    def persisted(self, version: int) -> None:
        """A ledger that was to be kept is in etcd."""

    def leader_at(self, address: str, reason: str) -> None:
        """Another one leads; "" = nobody does, for a reason if it is known."""

    def give_up(self, reason: str) -> None:
        """This launcher cannot take part."""

    def say(self, text: str) -> None:
        """Show a line."""


class Campaigning:
    """One campaign, for as long as its launcher takes part.

    Args:
        store, access: of etcd.
        run_id: the job.
        lease_s: of a leader; rounded up to whole seconds.
        address: of this launcher.
        incarnation: of this launcher.
        launcher: whom it is for.

    Raises:
        EtcdError: something is missing here.
    """

    def __init__(
        self,
        store: Store,
        access: Access,
        run_id: str,
        lease_s: float,
        address: str,
        incarnation: str,
        launcher: Launcher,
    ) -> None:
        lease = int(-(-lease_s // 1))
        self._client = Client(store, access, run_id, lease)
        self._campaign = Campaign(incarnation, address, lease)
        self._address, self._incarnation = address, incarnation
        self._launcher = launcher
        self._timers = Timers()
        self._tasks: set[asyncio.Task[None]] = set()
        self._looking: asyncio.Task[None] | None = None
        self._releasing: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        """Find out who leads, or lead."""
        self._feed(campaign.Begin())

    def keep(self, ledger: Ledger) -> None:
        """Have a ledger written to etcd; `Launcher.persisted` says when it is there."""
        self._feed(campaign.Keep(ledger))

    def step_down(self) -> None:
        """Let it be decided anew who leads, since the leader here has stood down by itself."""
        self._feed(campaign.StepDown())

    def withdraw(self, *, erase: bool = False) -> None:
        """Take part no more; ``erase``: the job is over."""
        self._feed(campaign.Withdraw(erase))
        self._timers.cancel()

    async def close(self, *, erase: bool = False) -> None:
        """Withdraw, tell etcd for 3 s at most, and release everything."""
        self.withdraw(erase=erase)
        if self._releasing:
            await asyncio.wait(self._releasing, timeout=_CLOSE_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.close()

    # --- events and commands --------------------------------------------------------------------

    def _feed(self, event: campaign.Event) -> None:
        for command in self._campaign.handle(event, lease_clock_ns()):
            self._carry_out(command)

    def _carry_out(self, command: campaign.Command) -> None:
        match command:
            case campaign.Look():
                if self._looking is not None:
                    self._looking.cancel()
                self._looking = self._start(self._look())
            case campaign.Claim():
                self._start(self._claim())
            case campaign.Renew(lease=lease):
                self._start(self._renew(lease))
            case campaign.Write(ledger=ledger, revision=revision):
                self._start(self._write(ledger, revision))
            case campaign.Release():
                task = self._start(self._release(command))
                self._releasing.add(task)
                task.add_done_callback(self._releasing.discard)
            case campaign.SetTimer(name=name, delay_s=delay_s):
                self._timers.set(name, delay_s, partial(self._feed, campaign.TimerFired(name)))
            case _:
                self._tell_launcher(command)

    def _tell_launcher(self, command: campaign.Command) -> None:
        launcher = self._launcher
        match command:
            case campaign.Lead(epoch=epoch, ledger=ledger):
                launcher.lead(epoch, ledger)
            case campaign.StandDown(reason=reason):
                launcher.depose(reason)
            case campaign.Persisted(version=version):
                launcher.persisted(version)
            case campaign.Follow(address=address, reason=reason):
                launcher.leader_at(address, reason)
            case campaign.GiveUp(reason=reason):
                launcher.give_up(reason)
            case campaign.Say(text=text):
                launcher.say(text)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- what takes a while ---------------------------------------------------------------------

    async def _look(self) -> None:
        try:
            first = await self._client.leader()
            self._feed(first)
            async for seen in self._client.changes(first.revision + 1):
                self._feed(seen)
        except EtcdError as error:
            self._feed(campaign.Failed("look", str(error), error.final))

    async def _claim(self) -> None:
        try:
            self._feed(await self._client.claim(self._address, self._incarnation))
        except EtcdError as error:
            self._feed(campaign.Failed("claim", str(error), error.final))

    async def _renew(self, lease: int) -> None:
        try:
            self._feed(await self._client.renew(lease))
        except EtcdError as error:
            self._feed(campaign.Failed("renew", str(error)))

    async def _write(self, ledger: Ledger, revision: int) -> None:
        try:
            self._feed(await self._client.write(ledger, revision))
        except EtcdError as error:
            self._feed(campaign.Failed("write", str(error), ledger=ledger))

    async def _release(self, release: campaign.Release) -> None:
        try:
            if release.erase:
                await self._client.erase(release.erase)
        except EtcdError as error:
            self._launcher.say(f"{error}; the ledger of the job is left there")
        await self._client.release(release.lease)
