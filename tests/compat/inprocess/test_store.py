from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch.distributed as dist

from nvidia_resiliency_ext.inprocess.store import (
    BarrierOverflow,
    BarrierTimeout,
    FileStore,
    PrefixStore,
    StoreMixin,
    TCPStore,
)

if TYPE_CHECKING:
    from pathlib import Path

# torch keeps a pipe of the first store until the process ends
pytestmark = [pytest.mark.torch, pytest.mark.leaves("fds")]

DEADLINE = timedelta(seconds=60)


def serve() -> TCPStore:
    """A store; not as a fixture, which would hold it for longer than the test."""
    return TCPStore("127.0.0.1", 0, 1, DEADLINE)


def test_it_is_served_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tcp_store = serve()
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(tcp_store.port))
    monkeypatch.setenv("WORLD_SIZE", "1")
    again = TCPStore(timeout=DEADLINE, wait_for_workers=False)
    monkeypatch.setenv("RANK", "1")
    other = TCPStore(timeout=DEADLINE, wait_for_workers=False)
    tcp_store.set("key", "value")
    assert again.get("key") == other.get("key") == b"value"


@pytest.mark.parametrize("missing", ["MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"])
def test_what_is_missing_is_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.delenv(missing)
    with pytest.raises(ValueError, match=f"{missing} is not set"):
        TCPStore()


def come(store: Any, count: int) -> None:
    store.barrier(
        ranks=[0], group_name="start", rendezvous_count=count, timeout=timedelta(milliseconds=20)
    )


def test_barriers_are_ours() -> None:
    tcp_store = serve()
    store = PrefixStore("1", PrefixStore("0", tcp_store))
    assert isinstance(store, StoreMixin)
    come(store, 1)
    with pytest.raises(BarrierOverflow):
        come(store, 1)
    with pytest.raises(BarrierTimeout):
        come(tcp_store, 2)
    with pytest.raises(BarrierTimeout):
        tcp_store.reentrant_barrier([0], "end", 2, timedelta(milliseconds=20))


def test_barrier_of_several_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    tcp_store = serve()
    monkeypatch.setenv("RANK", "1")
    stores = [TCPStore("127.0.0.1", tcp_store.port, 1, DEADLINE) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        ended = pool.map(lambda s: s[1].barrier([s[0]], "start", 8, DEADLINE), enumerate(stores))
        assert list(ended) == [None] * 8


def test_torch_takes_them(tmp_path: Path) -> None:
    tcp_store = serve()
    file_store = FileStore(str(tmp_path / "store"), 1)
    file_store.barrier([0], "start", 1, DEADLINE)
    for store in (file_store, dist.PrefixStore("a", tcp_store), PrefixStore("b", tcp_store)):
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        dist.destroy_process_group()
