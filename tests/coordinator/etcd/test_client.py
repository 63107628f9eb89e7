"""Candidacies with a real etcd."""

from __future__ import annotations

import asyncio
import json
import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.coordinator.etcd.server import (
    Cluster,
    Etcd,
    Secured,
    Way,
    secured_cluster,
    skip_without_etcd,
)
from tests.coordinator.wire.certificates import make_certificate
from undaunted.base.timers import lease_clock_ns
from undaunted.coordinator.etcd.candidacy import Candidacy, Launcher
from undaunted.coordinator.etcd.client import Client, EtcdError
from undaunted.coordinator.etcd.store import Access, parse_store
from undaunted.coordinator.lead import messages as c
from undaunted.coordinator.lead.leader import LeaderState
from undaunted.coordinator.protocol import Ledger, ended
from undaunted.coordinator.service.participant import Participant
from undaunted.coordinator.service.register import Won

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

DEADLINE_S = 60.0
OPEN = Access()

pytestmark = [
    pytest.mark.e2e,
    # gRPC keeps a thread and its descriptors for the rest of the process.
    pytest.mark.leaves("threads", "fds"),
]


class Candidate:
    """A launcher that writes down what its candidacy says, as words.

    As the launcher does, it has what it kept last written once more whenever it leads again: on a
    busy machine it may lose its lease at any time.
    """

    def __init__(self, name: str, url: str, access: Access = OPEN, lease_s: float = 6) -> None:
        self.name = name
        self.said: list[tuple[str, ...]] = []
        self.all: list[tuple[str, ...]] = []
        self.state = LeaderState.LEADING
        self._kept = 0
        self.ledger = Ledger(run_id="")
        self.epoch = 0
        self._news = asyncio.Event()
        self._listener: Any = Participant()
        # Of no job that etcd says has ended, as of a test before.
        told = Ledger(run_id="", round=0, epoch=1 << 60)
        knows = SimpleNamespace(promised=0, told=told)
        follower = SimpleNamespace(knows=knows, leader_stops_s=lambda now: 0.0)
        self._listener.following = SimpleNamespace(follower=follower, leader_at=self._leader_at)
        network: Any = SimpleNamespace(now_ns=lease_clock_ns)
        self.candidacy = Candidacy(
            Launcher(name, f"{name}1", f"{name}:1", "job", 0, lease_s),
            Client(parse_store(url), access, "job", lease_s, f"{name}:1", f"{name}1"),
            self._listener,
            network,
            self._lead,
            lambda reason: self._say("given up", reason),
            lambda text: self._say("say", text),
        )
        self.candidacy.begin()

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
            raise AssertionError(f"{self.name} has not said {words}, but {self.all}") from None

    def keep(self, version: int) -> None:
        self._kept = version
        ledger = Ledger(run_id="job", epoch=self.epoch, version=version)
        self.candidacy.keep(ledger, lambda written: self._say("persisted", str(written)))

    async def leave(self, *, erase: bool = False) -> None:
        self.state = LeaderState.ENDED if erase else self.state
        await self.candidacy.close()

    def miss(self, *, ended: str = "") -> None:
        """Its follower has lost the leader."""
        self.candidacy.missed(c.Missed(lost=True, ended=ended, turn=0))

    def _lead(
        self, epoch: int, ledger: Ledger, lost: str, silent: tuple[str, ...], stops_s: float
    ) -> None:
        del lost, silent, stops_s
        self.epoch, self.ledger = epoch, ledger
        self._listener.leading = SimpleNamespace(
            leader=self,
            holds=lambda held: self._say("held" if held else "not held"),
            deposed=lambda reason: self._say("deposed", reason),
        )
        self._say("lead", str(ledger.version))
        if self._kept:
            asyncio.get_running_loop().call_soon(self.keep, self._kept)

    def _leader_at(self, address: str, reason: str, epoch: int) -> None:
        del epoch
        self._say("leader at", address, reason)

    def _say(self, *words: str) -> None:
        self.said.append(words)
        self.all.append(words)
        self._news.set()


def run(main: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(main())


async def leading(*candidates: Candidate) -> Candidate:
    """Wait until one of them leads and all know it."""
    for each in candidates:
        while not (found := (await each.until("leader at", ""))[1]):
            pass
    return next(each for each in candidates if found == f"{each.name}:1")


def test_a_restart_of_etcd_changes_nothing(etcd: Etcd) -> None:
    async def main() -> None:
        a = Candidate("a", etcd.url, lease_s=3)
        await a.until("lead")
        await asyncio.to_thread(etcd.kill)
        await a.until("not held")
        a.keep(3)
        await asyncio.to_thread(etcd.start)
        await a.until("persisted", "3")
        a.keep(4)
        await a.until("persisted", "4")
        assert ("deposed",) not in {each[:1] for each in a.said}
        await a.leave(erase=True)

    run(main)


@pytest.mark.slow
def test_nothing_is_persisted_while_etcd_is_paused(etcd: Etcd) -> None:
    async def main() -> None:
        a, b = Candidate("a", etcd.url, lease_s=3), Candidate("b", etcd.url, lease_s=3)
        first = await leading(a, b)
        etcd.pause()
        first.keep(3)
        assert "no answer in time" in (await first.until("say"))[1]
        await first.until("not held")
        etcd.resume()
        await first.until("persisted", "3")
        if ("held",) not in first.all:  # it comes before or after that
            await first.until("held")
        for each in (a, b):
            await each.leave(erase=True)

    run(main)


def test_a_silent_leader_is_replaced_and_writes_nothing_more(etcd: Etcd) -> None:
    way = Way(etcd)

    async def main() -> None:
        a = Candidate("a", way.url, lease_s=3)
        await a.until("lead")
        b = Candidate("b", etcd.url, lease_s=3)
        await b.until("leader at", "a:1")
        way.block()
        await a.until("not held")
        b.miss()
        await b.until("lead")
        a.keep(9)
        way.open()
        await a.until("deposed")
        await a.until("leader at", "b:1")
        for each in (a, b):
            await each.leave(erase=True)
        (key,) = etcd.control("get", "--prefix", "", "--keys-only").split()
        assert key.endswith("/ledger")
        assert '"run_id":""' in etcd.control("get", key)

    try:
        run(main)
    finally:
        way.close()


def test_a_leader_whose_launcher_has_ended_is_replaced_before_its_lease_is_over(
    etcd: Etcd,
) -> None:
    async def main() -> None:
        a, b = Candidate("a", etcd.url, lease_s=60), Candidate("b", etcd.url, lease_s=60)
        first = await leading(a, b)
        second = b if first is a else a
        second.miss(ended=f"{first.name}:1")
        await second.until("lead")
        await first.until("deposed")
        for each in (a, b):
            await each.leave(erase=True)

    run(main)


@pytest.mark.parametrize("mute", [False, True], ids=["refuses", "mute"])
def test_a_member_that_is_away_is_not_waited_for(etcd: Etcd, mute: bool) -> None:
    """Launchers begin with different members: some of these with the one that is away."""

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
            if not mute:
                listening.close()
            url = f"etcd://127.0.0.1:{port},127.0.0.1:{etcd.port}"
            candidates = [Candidate(name, url, lease_s=3) for name in "abcdefgh"]
            await leading(*candidates)
            said = {each for one in candidates for each in one.all}
            assert any(f"etcd at 127.0.0.1:{port}" in words[-1] for words in said)
            for each in candidates:
                await each.leave(erase=True)

    run(main)


def test_keys_of_something_else_are_left_alone(etcd: Etcd) -> None:
    etcd.control("put", "/undaunted/job/leader", "mine")

    async def main() -> None:
        a = Candidate("a", etcd.url)
        assert "/undaunted/job/leader in etcd is not ours" in (await a.until("given up"))[1]
        await a.leave(erase=True)
        assert "mine" in etcd.control("get", "--prefix", "")

    run(main)


def test_the_end_of_a_job_is_kept_as_long_as_launchers_look_for_it(etcd: Etcd) -> None:
    async def main() -> None:
        store, job = parse_store(etcd.url), "job-that-ends"
        a = Client(store, OPEN, job, 6, "a:1", "a1", ended_kept_s=5000)
        won = await a.claim(0)
        assert isinstance(won, Won)
        await a.release(won.epoch, ended=ended(Ledger(run_id=job, epoch=won.epoch)))
        await a.close()
        (kept,) = json.loads(etcd.control("get", f"/undaunted/{job}/ledger", "-w=json"))["kvs"]
        left = etcd.control("lease", "timetolive", f"{kept['lease']:x}", "-w=json")
        assert json.loads(left)["granted-ttl"] == 5000

    run(main)


def test_a_request_that_is_lost_with_the_leader_of_etcd_is_made_again(tmp_path: Path) -> None:
    skip_without_etcd()
    cluster = Cluster(tmp_path)
    leader = cluster.leader()
    others = ",".join(f"127.0.0.1:{each.port}" for each in cluster.members if each is not leader)

    async def main() -> None:
        a = Client(parse_store(f"etcd://{others}"), OPEN, "job", 60, "a:1", "a1")
        assert not (await anext(a.watch())).epoch
        leader.kill()
        # The others take it there until they notice, and etcd says after 5 s that it was lost.
        assert isinstance(await a.claim(0), Won)
        await a.close()

    try:
        run(main)
    finally:
        leader.start()
        cluster.kill()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    skip_without_etcd()
    made = secured_cluster(tmp_path_factory.mktemp("secured"))
    yield made
    made.cluster.kill()


def test_users_and_certificates(secured: Secured, tmp_path: Path) -> None:
    url, access = secured.cluster.url, secured.access

    async def main() -> None:
        good = Candidate("a", url, access)
        await good.until("lead")
        good.keep(1)
        await good.until("persisted", "1")
        wrong = Candidate("b", url, replace(access, password="other"))
        assert "authentication failed" in (await wrong.until("given up"))[1]
        nobody = Candidate("c", url, replace(access, user="", password=""))
        await nobody.until("given up")
        elsewhere = Candidate("d", f"{url}/other", access)
        assert "permission denied" in (await elsewhere.until("given up"))[1]
        without = Candidate("e", url, replace(access, cert="", key=""))
        assert "ETCDCTL_CERT" in (await without.until("say", "etcd at"))[1]
        plain = Candidate("f", url, Access("me", "secret"))
        assert "ETCDCTL_CACERT" in (await plain.until("say", "etcd at"))[1]
        for each in (wrong, nobody, elsewhere, without, plain, good):
            await each.leave(erase=True)

    run(main)
    with pytest.raises(EtcdError, match="no-such-file: No such file"):
        Candidate("c", url, replace(access, ca=str(tmp_path / "no-such-file")))


def test_a_token_that_is_too_old_does_not_leave_a_ledger(secured: Secured) -> None:
    async def main() -> None:
        a = Candidate("a", secured.cluster.url, secured.access)
        await a.until("lead")
        a.keep(1)
        await a.until("persisted", "1")
        secured.control("role", "add", "more")
        secured.control("user", "grant-role", "me", "more")  # ends tokens of that user
        await a.leave(erase=True)
        assert not [each for each in a.said if each[0] == "say"]
        secured.control("role", "delete", "more")

    run(main)


def test_rights_that_change_do_not_end_a_launcher(secured: Secured) -> None:
    async def main() -> None:
        a = Candidate("a", secured.cluster.url, secured.access, lease_s=3)
        await a.until("lead")
        b = Candidate("b", secured.cluster.url, secured.access, lease_s=3)
        await b.until("leader at", "a:1")
        words = ("jobs", "--prefix=true", "/undaunted/")
        secured.control("role", "revoke-permission", *words)
        a.keep(2)
        b.miss(ended="a:1")
        assert "denied" in (await b.until("say", "etcd at"))[1]
        secured.control("role", "grant-permission", *words[:2], "readwrite", words[2])
        await b.until("lead")
        for each in (a, b):
            await each.leave(erase=True)
        assert not [each for each in (*a.said, *b.said) if each[0] == "given up"]

    run(main)


def test_certificates_that_are_renewed_are_read_anew(secured: Secured, tmp_path: Path) -> None:
    access, stranger = secured.access, make_certificate(tmp_path, "other", "DNS:other")
    cert, key = tmp_path / "cert", tmp_path / "key"
    cert.write_bytes(stranger.cert.read_bytes())
    key.write_bytes(stranger.key.read_bytes())

    async def main() -> None:
        a = Candidate("a", secured.cluster.url, replace(access, cert=str(cert), key=str(key)))
        await a.until("say", "etcd at")
        cert.write_bytes(Path(access.cert).read_bytes())
        key.write_bytes(Path(access.key).read_bytes())
        await a.until("lead")
        await a.leave(erase=True)

    run(main)


def test_a_member_that_is_frozen_is_noticed(secured: Secured) -> None:
    async def main() -> None:
        a = Candidate("a", secured.cluster.url, secured.access, lease_s=3)
        await a.until("lead")
        b = Candidate("b", secured.cluster.url, secured.access, lease_s=3)
        await b.until("leader at", "a:1")
        for frozen in secured.cluster.members:
            frozen.pause()
            b.miss(ended=f"{a.name}:1")
            await b.until("lead")
            a, b = b, a
            await b.until("deposed")
            await b.until("leader at", f"{a.name}:1")
            frozen.resume()
        for each in (a, b):
            await each.leave(erase=True)

    run(main)
