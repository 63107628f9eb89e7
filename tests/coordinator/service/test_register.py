"""What every register must do: etcd, the committee's rules, a file of one coordinator, a stand-in.

The committee's operations travel in the messages of leader and followers, and the file has one
coordinator at a time, which its lock sees to: here each has a small adapter around the same code.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.coordinator.etcd.server import Etcd, skip_without_etcd
from tests.coordinator.etcd.stand_in import StandIn, Store
from tests.coordinator.lead.seats import committee
from undaunted.coordinator.etcd.client import Client
from undaunted.coordinator.etcd.store import Access, parse_store
from undaunted.coordinator.lead import register as rules
from undaunted.coordinator.protocol import NO_LEDGER, Ledger, newer
from undaunted.coordinator.protocol import ended as ended_ledger
from undaunted.coordinator.service.ledger_file import LedgerFile
from undaunted.coordinator.service.register import Leads, RegisterError, Won

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
    from pathlib import Path

DEADLINE_S = 60.0


@dataclass
class Committee:
    """Launchers a, b and c, which keep the ledger; some may be ``away``."""

    votes: dict[rules.Voter, rules.Vote[Ledger]] = field(default_factory=dict)
    leads: Leads = field(default_factory=lambda: Leads(0))
    away: set[str] = field(default_factory=set)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def __post_init__(self) -> None:
        first = msgspec.structs.replace(NO_LEDGER, committee=committee("abc"))
        self.votes = {rules.voter(each): rules.Vote(first, later=newer) for each in first.committee}

    def here(self) -> list[tuple[rules.Voter, rules.Vote[Ledger]]]:
        return [(who, vote) for who, vote in self.votes.items() if who[0] not in self.away]


class OfCommittee:
    """One launcher's access; it knows what members know that it reaches."""

    hold_s = 5.0

    def __init__(self, kept_by: Committee, name: str) -> None:
        self._of, self._name = kept_by, name
        self._writer: rules.Writer[Ledger] | None = None

    async def watch(self) -> AsyncIterator[Leads]:
        while True:
            yield (seen := self._of.leads)
            async with self._of.changed:
                await self._of.changed.wait_for(lambda: self._of.leads != seen)

    async def claim(self, after: int) -> Won | Leads:
        if self._of.leads.epoch != after:
            return self._of.leads
        known = NO_LEDGER
        for _, vote in self._of.here():
            known = vote.value if newer(vote.value, known) or known is NO_LEDGER else known
        epoch = rules.next_epoch(self._of.leads.as_of, self._name)
        claim = rules.Claim(epoch, known)
        claim.granted |= {who for who, vote in self._of.here() if vote.claimed(epoch, known)}
        if not claim.won:
            raise RegisterError("no majority grants it")
        taken_over = msgspec.structs.replace(known, epoch=epoch)
        self._writer = rules.Writer(taken_over, known.version)
        self._write(epoch, taken_over)
        await self._lead(Leads(epoch, epoch, f"{self._name}:1", self._name, held=True))
        return Won(epoch, known if known.run_id else None)

    async def write(self, epoch: int, ledger: Ledger) -> bool:
        assert self._writer is not None
        value = msgspec.structs.replace(ledger, epoch=epoch, committee=committee("abc"))
        self._writer.value = value
        self._write(epoch, value)
        if self._writer.holds(value.version):
            return True
        if any(vote.promised > epoch for _, vote in self._of.here()):
            return False
        raise RegisterError("no majority has taken it")

    async def hold(self, epoch: int) -> bool:
        return all(vote.promised <= epoch for _, vote in self._of.here())

    async def release(self, epoch: int, *, ended: Ledger | None = None) -> None:
        if self._of.leads.epoch == epoch:
            if ended is not None:
                self._of.__post_init__()
            await self._lead(Leads(epoch))

    async def close(self) -> None:
        pass

    def _write(self, epoch: int, value: Ledger) -> None:
        assert self._writer is not None
        for who, vote in self._of.here():
            if vote.written(epoch, value):
                self._writer.wrote(who, value.version)

    async def _lead(self, leads: Leads) -> None:
        async with self._of.changed:
            self._of.leads = leads
            self._of.changed.notify_all()


class OfFile:
    """The access of the one coordinator that has a run's directory."""

    hold_s = 5.0

    def __init__(self, directory: Path, name: str) -> None:
        self._file, self._name = LedgerFile(str(directory), "here:1", print), name
        self._epoch = 0

    async def watch(self) -> AsyncIterator[Leads]:
        yield Leads(self._epoch, self._epoch, f"{self._name}:1", self._name, held=True)

    async def claim(self, after: int) -> Won | Leads:
        del after  # nobody else has it
        known = self._file.read()
        self._epoch = rules.next_epoch(0 if known is None else known.epoch, self._name)
        return Won(self._epoch, known)

    async def write(self, epoch: int, ledger: Ledger) -> bool:
        loop = asyncio.get_running_loop()
        written = loop.create_future()
        ledger = msgspec.structs.replace(ledger, epoch=epoch)
        self._file.keep(ledger, lambda v: loop.call_soon_threadsafe(written.set_result, v))
        return bool(await written == ledger.version)

    async def hold(self, epoch: int) -> bool:
        return epoch == self._epoch

    async def release(self, epoch: int, *, ended: Ledger | None = None) -> None:
        del epoch
        await asyncio.to_thread(self._file.close, remove=ended is not None)

    async def close(self) -> None:
        pass


OF_ETCD = pytest.param("etcd", marks=[pytest.mark.e2e, pytest.mark.leaves("threads", "fds")])
SHARED = ("stand-in", "committee", OF_ETCD)


@pytest.fixture
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], Any]]:
    """Make accesses to one register, by name of the launcher; call it on the loop."""
    server: Etcd | None = None
    found: dict[str, Any] = {}
    if request.param == "etcd":
        skip_without_etcd()
        server = Etcd(tmp_path)

    def access(name: str) -> Any:
        match request.param:
            case "stand-in":
                return StandIn(found.setdefault("store", Store()), f"{name}:1", name)
            case "committee":
                return OfCommittee(found.setdefault("store", Committee()), name)
            case "file":
                return OfFile(tmp_path, name)
        assert server is not None
        return Client(parse_store(server.url), Access(), "job", 15.0, f"{name}:1", name)

    yield access
    if server is not None:
        server.kill()


def of(*which: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("make", which, indirect=True)


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), DEADLINE_S))


def ledger(version: int, epoch: int) -> Ledger:
    return Ledger(run_id="job", epoch=epoch, version=version, restarts_used=version)


async def until(register: Any, leads: Callable[[Leads], bool]) -> Leads:
    async with aclosing(register.watch()) as seen:
        async for each in seen:
            if leads(each):
                return each  # type: ignore[no-any-return]
    raise AssertionError("the watch has ended")


async def claimed(register: Any, after: int) -> Won:
    won = await register.claim(after)
    assert isinstance(won, Won)
    return won


@of(*SHARED, "file")
def test_the_next_leader_goes_on_from_what_was_written_last(make: Callable[[str], Any]) -> None:
    async def main() -> None:
        a, b = make("a"), make("b")
        first = await claimed(a, 0)
        assert first.ledger is None
        for version in (1, 2):
            assert await a.write(first.epoch, ledger(version, first.epoch))
        await a.release(first.epoch)
        second = await claimed(b, 0)
        assert second.epoch > first.epoch
        assert second.ledger is not None
        assert second.ledger.restarts_used == 2
        await b.release(second.epoch, ended=ended_ledger(ledger(2, second.epoch)))
        third = await claimed(make("c"), 0)
        assert third.ledger is None or not third.ledger.run_id
        for each in (a, b):
            await each.close()

    run(main)


@of(*SHARED)
def test_an_epoch_is_claimed_once(make: Callable[[str], Any]) -> None:
    async def main() -> None:
        a, b = make("a"), make("b")
        answers = await asyncio.gather(a.claim(0), b.claim(0))
        (won,) = [each for each in answers if isinstance(each, Won)]
        (other,) = [each for each in answers if isinstance(each, Leads)]
        assert other.epoch == won.epoch
        assert other.address == ("a:1" if isinstance(answers[0], Won) else "b:1")
        for each in (a, b):
            await each.close()

    run(main)


@of(*SHARED)
def test_who_was_replaced_writes_and_holds_nothing(make: Callable[[str], Any]) -> None:
    async def main() -> None:
        a, b = make("a"), make("b")
        first = await claimed(a, 0)
        assert await a.write(first.epoch, ledger(1, first.epoch))
        second = await claimed(b, first.epoch)
        assert not await a.write(first.epoch, ledger(2, first.epoch))
        await a.release(first.epoch, ended=ended_ledger(ledger(2, first.epoch)))
        now = await until(b, lambda _: True)
        assert (now.epoch, now.address, now.incarnation) == (second.epoch, "b:1", "b")
        assert await b.hold(second.epoch)
        third = await claimed(a, second.epoch)
        assert third.ledger is not None
        assert third.ledger.restarts_used == 1
        for each in (a, b):
            await each.close()

    run(main)


@of(*SHARED)
def test_others_see_who_leads_and_when_nobody_does(make: Callable[[str], Any]) -> None:
    async def main() -> None:
        a, b = make("a"), make("b")
        nobody = await until(b, lambda _: True)
        assert nobody.epoch == 0
        watching = asyncio.create_task(until(b, lambda seen: seen.epoch > 0))
        won = await claimed(a, 0)
        seen = await watching
        assert (seen.epoch, seen.address, seen.held) == (won.epoch, "a:1", True)
        assert seen.as_of >= won.epoch > nobody.as_of
        watching = asyncio.create_task(until(b, lambda seen: seen.epoch == 0))
        await a.release(won.epoch)
        assert (await watching).as_of >= won.epoch
        for each in (a, b):
            await each.close()

    run(main)


def test_a_committee_without_a_majority_neither_makes_a_leader_nor_keeps_anything() -> None:
    async def main() -> None:
        kept_by = Committee()
        a, b = OfCommittee(kept_by, "a"), OfCommittee(kept_by, "b")
        kept_by.away = {"b"}
        first = await claimed(a, 0)
        assert await a.write(first.epoch, ledger(1, first.epoch))
        kept_by.away = {"b", "c"}
        with pytest.raises(RegisterError):
            await a.write(first.epoch, ledger(2, first.epoch))
        with pytest.raises(RegisterError):
            await b.claim(first.epoch)
        kept_by.away = {"a"}
        second = await claimed(b, first.epoch)
        assert second.ledger is not None
        assert second.ledger.restarts_used == 1

    run(main)
