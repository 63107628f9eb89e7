"""Shards of peers: two ranks as threads, over gloo."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from undaunted.checkpointing.errors import DamagedCheckpointError  # noqa: E402
from undaunted.checkpointing.local import shard  # noqa: E402
from undaunted.checkpointing.local.replication import retrieval  # noqa: E402
from undaunted.checkpointing.local.replication.exchange import Header, exchange  # noqa: E402
from undaunted.checkpointing.local.replication.group_utils import (  # noqa: E402
    GroupWrapper,
    PeerError,
    open_group,
)
from undaunted.checkpointing.staging.copy import memory_of  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch


class Group(GroupWrapper):
    """A rank in a thread: `torch.distributed` knows of none."""

    def __init__(self, store: Any, me: int, ranks: list[int], timeout_s: float = 20.0) -> None:
        self.me = me
        group = open_group(store, "test", ranks, me, timeout_s)
        super().__init__(group, ranks=ranks, timeout_s=timeout_s)

    @property
    def my_global_rank(self) -> int:
        return self.me

    @property
    def supported_devices(self) -> list[Any]:
        return [torch.device("cpu")]


class Given:
    def __init__(self, image: Any, crc32: str | None = None) -> None:
        self.image = image
        self.crc32 = crc32

    def checksums(self) -> str | None:
        return self.crc32


class Taken:
    def __init__(self) -> None:
        self.got: list[tuple[int, list[int], str]] = []

    def room(self, size: int) -> Any:
        return torch.empty(size + 7, dtype=torch.uint8)

    def received(self, rank: int, image: Any, crc32: str) -> None:
        self.got.append((rank, image.tolist(), crc32))


def on_ranks(ranks: list[int], function: Callable[[Group], Any], timeout_s: float = 20.0) -> list:
    """What the function returns, or raises, on each rank."""
    store = dist.HashStore()

    def run(me: int) -> Any:
        group = Group(store, me, ranks, timeout_s)
        try:
            return function(group)
        except Exception as error:
            return error.with_traceback(None)

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(run, ranks))


def test_every_rank_gets_what_the_others_have() -> None:
    def swap(group: Group) -> Any:
        taken = Taken()
        image = torch.full((group.me + 1,), group.me, dtype=torch.uint8)
        headers = exchange(group, Given(image, f"{group.me:08x}"), taken, "s", f"p{group.me}")
        return list(headers), taken.got

    for me, (headers, got) in zip([3, 5, 9], on_ranks([3, 5, 9], swap), strict=True):
        assert sorted(got) == [(r, [r] * (r + 1), f"{r:08x}") for r in (3, 5, 9) if r != me]
        assert dict(headers) == {r: Header.of(r + 1, "s", f"p{r}") for r in (3, 5, 9) if r != me}


def test_who_has_nothing_or_has_not_written_it_says_so() -> None:
    def swap(group: Group) -> Any:
        taken = Taken()
        given = Given(None) if group.me == 0 else Given(torch.zeros(3, dtype=torch.uint8))
        return [header.size for _, header in exchange(group, given, taken, "s")], taken.got

    assert on_ranks([0, 1], swap) == [([3], []), ([-1], [])]


def test_another_save_is_an_error_of_both() -> None:
    def swap(group: Group) -> Any:
        given = Given(torch.zeros(1, dtype=torch.uint8), "0" * 8)
        return list(exchange(group, given, Taken(), f"save-{group.me}"))

    one, other = on_ranks([0, 1], swap)
    assert isinstance(one, PeerError)
    assert one.ranks == (1,)
    assert other.ranks == (0,)


def test_a_peer_that_does_nothing_is_named_in_time() -> None:
    def swap(group: Group) -> Any:
        if group.me == 1:
            return group  # stays connected
        return list(exchange(group, Given(None), Taken(), "s"))

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
                retrieval.send(group, 1, sent, checksums, "s")
            return None
        got = [retrieval.receive(group, 0, "s"), retrieval.receive(group, 0, "s")]
        with pytest.raises(DamagedCheckpointError, match="the bytes arrived changed"):
            retrieval.receive(group, 0, "s")
        return got

    (_, (whole, nothing)) = on_ranks([0, 1], move)
    assert torch.equal(whole, image)
    assert nothing is None


def test_ranks_that_do_not_come_are_named() -> None:
    with pytest.raises(PeerError, match=r"ranks 0, 1 could not be connected within 0\.1 s"):
        open_group(dist.HashStore(), "x", [0, 1], 0, 0.1)
