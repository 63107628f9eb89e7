"""Shards of peers: two ranks as threads, over gloo."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from undaunted.checkpointing.errors import DamagedCheckpointError  # noqa: E402
from undaunted.checkpointing.local import shard  # noqa: E402
from undaunted.checkpointing.local.replication.exchange import (  # noqa: E402  # noqa: E402
    Group,
    Header,
    PeerError,
    exchange,
    receive,
    send,
)
from undaunted.checkpointing.memory.copy import memory_of  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch


class Taken:
    """What becomes of what others send."""

    def __init__(self, me: int) -> None:
        self.me = me
        self.headers: dict[int, Header] = {}
        self.got: list[tuple[int, list[int], str]] = []

    def room(self, rank: int, theirs: Header) -> Any:
        self.headers[rank] = theirs
        return torch.empty(max(theirs.size, 0) + 7, dtype=torch.uint8)

    def received(self, rank: int, image: Any, crc32: str) -> None:
        self.got.append((rank, image.tolist(), crc32))


def swapped(
    group: Group, image: Any, crc32: str | None = None, save: str = "s", place: str = ""
) -> Taken:
    taken = Taken(group.me)
    mine = Header.of(image, save, place)
    exchange(group, mine, image, lambda: crc32, taken.room, taken.received)
    return taken


def on_ranks(ranks: list[int], function: Callable[[Group], Any], timeout_s: float = 20.0) -> list:
    """What the function returns, or raises, on each rank."""
    store = dist.HashStore()

    def run(me: int) -> Any:
        group = Group.connect(store, "test", ranks, me, timeout_s)
        try:
            return function(group)
        except Exception as error:
            return error.with_traceback(None)

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(run, ranks))


def test_every_rank_gets_what_the_others_have() -> None:
    def swap(group: Group) -> Taken:
        image = torch.full((group.me + 1,), group.me, dtype=torch.uint8)
        return swapped(group, image, f"{group.me:08x}", place=f"p{group.me}")

    images = {rank: torch.empty(rank + 1) for rank in (3, 5, 9)}
    for taken in on_ranks([3, 5, 9], swap):
        others = [rank for rank in images if rank != taken.me]
        assert sorted(taken.got) == [(r, [r] * (r + 1), f"{r:08x}") for r in others]
        assert taken.headers == {r: Header.of(images[r], "s", f"p{r}") for r in others}


def test_who_has_nothing_or_has_not_written_it_says_so() -> None:
    def swap(group: Group) -> tuple[list[int], list[Any]]:
        taken = swapped(group, None if group.me == 0 else torch.zeros(3, dtype=torch.uint8))
        return [header.size for header in taken.headers.values()], taken.got

    assert on_ranks([0, 1], swap) == [([3], []), ([-1], [])]


def test_another_save_is_an_error_of_both() -> None:
    def swap(group: Group) -> Taken:
        return swapped(group, torch.zeros(1, dtype=torch.uint8), "0" * 8, f"save-{group.me}")

    one, other = on_ranks([0, 1], swap)
    assert isinstance(one, PeerError)
    assert one.ranks == (1,)
    assert other.ranks == (0,)


def test_a_peer_that_does_nothing_is_named_in_time() -> None:
    def swap(group: Group) -> Any:
        if group.me == 1:
            return group  # stays connected
        return swapped(group, None)

    error, _ = on_ranks([0, 1], swap, timeout_s=2.0)
    assert isinstance(error, PeerError)
    assert "rank 1 has ended, or has not answered within 2 s" in str(error)
    assert "[" not in str(error)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ([1, 1, 0, 0, 0], "another version"),
        ([0x554E4441, 1, -2, 0, 0], "announced -2 bytes"),
        ([0x554E4441, 1, 1 << 50, 0, 0], "announced"),
    ],
)
def test_what_is_not_a_header(message: list[int], why: str) -> None:
    with pytest.raises(PeerError, match=why):
        Header.read(torch.tensor(message), 1)


def test_a_shard_is_sent_when_it_is_loaded() -> None:
    image = torch.arange(100, dtype=torch.uint8)
    crc32 = shard.block_checksums(memory_of(image))

    def move(group: Group) -> Any:
        if group.me == 0:
            for sent, checksums in [(image, crc32), (None, ""), (image, "0" * 8)]:
                send(group, 1, sent, checksums, "s")
            return None
        got = [receive(group, 0, "s"), receive(group, 0, "s")]
        with pytest.raises(DamagedCheckpointError, match="the bytes arrived changed"):
            receive(group, 0, "s")
        return got

    (_, (whole, nothing)) = on_ranks([0, 1], move)
    assert torch.equal(whole, image)
    assert nothing is None


def test_ranks_that_do_not_come_are_named() -> None:
    with pytest.raises(PeerError, match=r"ranks 0, 1 could not be connected within 0\.1 s"):
        Group.connect(dist.HashStore(), "x", [0, 1], 0, 0.1)
