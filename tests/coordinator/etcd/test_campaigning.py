"""Campaigns with a real etcd."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import pytest

from tests.coordinator.etcd.server import Etcd, skip_without_etcd
from tests.coordinator.wire.certificates import make_certificate
from undaunted.coordinator.etcd.campaigning import Campaigning
from undaunted.coordinator.etcd.client import EtcdError
from undaunted.coordinator.etcd.store import Access, parse_store
from undaunted.coordinator.protocol import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

DEADLINE_S = 60.0
OPEN = Access()

pytestmark = [
    pytest.mark.e2e,
    # gRPC keeps a thread and its descriptors for the rest of the process.
    pytest.mark.leaves("threads", "fds"),
]


class Candidate:
    """A launcher that writes down what its campaign says, as words.

    As the launcher does, it has what it kept last written once more whenever it leads again: on a
    busy machine it may lose its lease at any time.
    """

    def __init__(self, name: str, url: str, access: Access = OPEN, lease_s: float = 6) -> None:
        self.name = name
        self.said: list[tuple[str, ...]] = []
        self._all: list[tuple[str, ...]] = []
        self._kept = 0
        self.ledger = Ledger(run_id="")
        self.epoch = 0
        self._news = asyncio.Event()
        store = parse_store(url)
        self.campaigning = Campaigning(store, access, "job", lease_s, f"{name}:1", f"{name}1", self)
        self.campaigning.begin()

    async def until(self, *words: str) -> tuple[str, ...]:
        """Wait for that, with texts that begin like that, and forget what was said before."""

        async def wait() -> tuple[str, ...]:
            while True:
                while self.said:
                    heard = self.said.pop(0)
                    rest = zip(words[1:], heard[1:], strict=False)
                    if heard[0] == words[0] and all(text.startswith(word) for word, text in rest):
                        return heard
                self._news.clear()
                await self._news.wait()

        try:
            return await asyncio.wait_for(wait(), DEADLINE_S)
        except TimeoutError:
            raise AssertionError(f"{self.name} has not said {words}, but {self._all}") from None

    def keep(self, version: int) -> None:
        self._kept = version
        self.campaigning.keep(Ledger(run_id="job", epoch=self.epoch, version=version))

    async def leave(self, *, erase: bool = False) -> None:
        await self.campaigning.close(erase=erase)

    def lead(self, epoch: int, ledger: Ledger) -> None:
        self.epoch, self.ledger = epoch, ledger
        self._say("lead", str(ledger.version))
        if self._kept:
            self.keep(self._kept)

    def depose(self, reason: str) -> None:
        self._say("deposed", reason)

    def persisted(self, version: int) -> None:
        self._say("persisted", str(version))

    def leader_at(self, address: str, reason: str) -> None:
        self._say("leader at", address, reason)

    def give_up(self, reason: str) -> None:
        self._say("given up", reason)

    def say(self, text: str) -> None:
        self._say("say", text)

    def _say(self, *words: str) -> None:
        self.said.append(words)
        self._all.append(words)
        self._news.set()


def run(main: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(main())


async def leading(*candidates: Candidate) -> Candidate:
    """Wait until one of them leads and all know it."""
    for each in candidates:
        while not (found := (await each.until("leader at", ""))[1]):
            pass
    return next(each for each in candidates if found == f"{each.name}:1")


def test_one_of_two_leads_and_the_other_goes_on_with_its_ledger(etcd: Etcd) -> None:
    async def main() -> None:
        a, b = Candidate("a", etcd.url), Candidate("b", etcd.url)
        first = await leading(a, b)
        second = b if first is a else a
        first.keep(1)
        first.keep(7)
        await first.until("persisted", "7")
        await first.leave()
        await second.until("lead", "7")
        assert second.epoch > first.epoch
        await second.leave(erase=True)
        assert etcd.control("get", "--prefix", "") == ""

    run(main)


def test_a_restart_of_etcd_within_the_lease_changes_nothing(etcd: Etcd) -> None:
    async def main() -> None:
        a = Candidate("a", etcd.url, lease_s=30)
        await a.until("lead")
        await asyncio.to_thread(etcd.kill)
        await a.until("say", "etcd at 127.0.0.1")
        a.keep(3)
        await asyncio.to_thread(etcd.start)
        heard = await a.until("persisted", "3")
        assert heard == ("persisted", "3")
        assert ("deposed",) not in {each[:1] for each in a.said}
        a.keep(4)
        await a.until("persisted", "4")
        await a.leave(erase=True)

    run(main)


def test_nothing_is_persisted_while_etcd_is_paused(etcd: Etcd) -> None:
    async def main() -> None:
        a = Candidate("a", etcd.url, lease_s=20)
        await a.until("lead")
        etcd.pause()
        a.keep(3)
        heard = await a.until("say")
        assert "no answer in time" in heard[1]
        assert "nothing new is started" in heard[1]
        etcd.resume()
        await a.until("persisted", "3")
        await a.leave(erase=True)

    run(main)


def test_a_pause_longer_than_the_lease_deposes_the_leader(etcd: Etcd) -> None:
    async def main() -> None:
        a, b = Candidate("a", etcd.url, lease_s=2), Candidate("b", etcd.url, lease_s=2)
        first = await leading(a, b)
        first.keep(5)
        await first.until("persisted", "5")
        etcd.pause()
        first.keep(6)
        assert (await first.until("deposed"))[1] == "etcd could not be reached for 2 s"
        etcd.resume()
        after = await leading(a, b)
        assert after.ledger.version in {5, 6}
        for each in (a, b):
            await each.leave(erase=True)

    run(main)


def test_a_member_that_is_away_is_not_waited_for(etcd: Etcd) -> None:
    async def main() -> None:
        a = Candidate("a", f"etcd://127.0.0.1:1,127.0.0.1:{etcd.port}")
        await a.until("say", "etcd at 127.0.0.1:1: Connection refused; it is tried again")
        await a.until("lead")
        a.keep(1)
        await a.until("persisted", "1")
        await a.leave(erase=True)

    run(main)


def test_a_member_that_does_not_answer_is_not_waited_for_long(etcd: Etcd) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as mute:
            port = mute.getsockname()[1]
            a = Candidate("a", f"etcd://127.0.0.1:{port},127.0.0.1:{etcd.port}", lease_s=2)
            await a.until("say", f"etcd at 127.0.0.1:{port}: no answer in time")
            await a.until("lead")
            await a.leave(erase=True)

    run(main)


def test_keys_of_something_else_are_left_alone(etcd: Etcd) -> None:
    etcd.control("put", "/undaunted/job/leader", "mine")

    async def main() -> None:
        a = Candidate("a", etcd.url)
        assert "/undaunted/job/leader in etcd is not ours" in (await a.until("given up"))[1]
        await a.leave(erase=True)
        assert "mine" in etcd.control("get", "--prefix", "")

    run(main)


def test_password(etcd: Etcd) -> None:
    for words in (
        "role add jobs",
        "role grant-permission jobs --prefix=true readwrite /undaunted/",
        "user add root:root",
        "user grant-role root root",
        "user add me:secret",
        "user grant-role me jobs",
        "auth enable",
    ):
        etcd.control(*words.split())

    async def main() -> None:
        good = Candidate("a", etcd.url, Access("me", "secret"))
        await good.until("lead")
        good.keep(1)
        await good.until("persisted", "1")
        wrong = Candidate("b", etcd.url, Access("me", "other"))
        assert "authentication failed" in (await wrong.until("given up"))[1]
        nobody = Candidate("c", etcd.url)
        await nobody.until("given up")
        elsewhere = Candidate("d", f"{etcd.url}/other", Access("me", "secret"))
        assert "permission denied" in (await elsewhere.until("given up"))[1]
        for each in (wrong, nobody, elsewhere, good):
            await each.leave(erase=True)

    run(main)


def test_tls(tmp_path: Path) -> None:
    skip_without_etcd()
    server = make_certificate(tmp_path, "server", "IP:127.0.0.1")
    own = make_certificate(tmp_path, "own", "DNS:own")
    etcd = Etcd(
        tmp_path,
        *("--cert-file", str(server.cert), "--key-file", str(server.key)),
        *("--client-cert-auth", "--trusted-ca-file", str(own.cert)),
    )

    async def main() -> None:
        access = Access(ca=str(server.cert), cert=str(own.cert), key=str(own.key))
        a = Candidate("a", etcd.url, access)
        await a.until("lead")
        stranger = Candidate("b", etcd.url, Access(ca=str(own.cert)))
        await stranger.until("say", "etcd at 127.0.0.1")
        await stranger.leave()
        await a.leave(erase=True)

    try:
        run(main)
        with pytest.raises(EtcdError, match="no-such-file: No such file"):
            Candidate("c", etcd.url, Access(ca=str(tmp_path / "no-such-file")))
    finally:
        etcd.kill()
