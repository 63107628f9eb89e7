from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from nvidia_resiliency_ext.inprocess.store import (
    BarrierOverflow,
    BarrierTimeout,
    barrier,
    reentrant_barrier,
)

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

DEADLINE = timedelta(seconds=60)
SOON = timedelta(milliseconds=20)


@pytest.fixture
def store() -> Any:
    return torch.distributed.HashStore()


@pytest.mark.parametrize("wait", [barrier, reentrant_barrier])
def test_all_come(wait: Any, store: Any) -> None:
    def come(rank: int) -> None:
        wait(store, [rank], "start", 4, DEADLINE)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(come, range(4))) == [None] * 4


@pytest.mark.parametrize("wait", [barrier, reentrant_barrier])
def test_one_is_missing(wait: Any, store: Any) -> None:
    with pytest.raises(BarrierTimeout, match="'start', which is for 3 ranks, was not full"):
        wait(store, [0, 1], "start", 3, SOON)


def test_too_many(store: Any) -> None:
    barrier(store, [0, 1], "start", 2, DEADLINE)
    with pytest.raises(BarrierOverflow, match="3 ranks have come"):
        barrier(store, [0], "start", 2, DEADLINE)
    with pytest.raises(BarrierOverflow, match="rank 2 has come"):
        reentrant_barrier(store, [2], "start", 2, DEADLINE)


def test_one_comes_for_another_that_has_come(store: Any) -> None:
    for ranks in ([0], [0], [0, 1]):
        with pytest.raises(BarrierTimeout):
            reentrant_barrier(store, ranks, "end", 3, SOON)
    reentrant_barrier(store, [2], "end", 3, DEADLINE)
    reentrant_barrier(store, [1], "end", 3, DEADLINE)


def test_one_ends_between_its_mark_and_the_count(store: Any) -> None:
    store.add("inprocess_barrier_prefix:reentrant_barrier:end:rank:0", 1)
    with pytest.raises(BarrierTimeout):
        reentrant_barrier(store, [0], "end", 2, SOON)
    reentrant_barrier(store, [1], "end", 2, DEADLINE)


def test_nobody_comes_at_once(store: Any) -> None:
    barrier(store, [], "start", 2, SOON)


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (RuntimeError("Wait timeout"), BarrierTimeout),
        (torch.distributed.DistStoreError("wait timeout after 3 ms"), BarrierTimeout),
        (
            torch.distributed.DistNetworkError("timeout, it is gone"),
            torch.distributed.DistNetworkError,
        ),
        (RuntimeError("another matter"), RuntimeError),
    ],
)
def test_how_stores_fail(error: Exception, raised: type[Exception]) -> None:
    class Failing:
        def add(self, key: str, count: int) -> int:
            return 1

        def wait(self, keys: list[str], timeout: timedelta) -> None:
            raise error

    with pytest.raises(raised) as caught:
        barrier(Failing(), [0], "start", 2, DEADLINE)
    assert raised is BarrierTimeout or caught.value is error


def test_stores_take_a_chunk_of_the_timeout_as_well(tmp_path: Path) -> None:
    from nvidia_resiliency_ext.inprocess.store import FileStore

    shared = FileStore(str(tmp_path / "store"), 1)
    shared.barrier([0], "one", 1, DEADLINE, timeout_chunk=SOON)
    shared.reentrant_barrier([0], "two", 1, DEADLINE, SOON)
