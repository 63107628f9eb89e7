"""Ranks without a launcher of ours agree over a store of torch."""

from __future__ import annotations

import itertools
import threading
import time
from contextlib import ExitStack, closing
from datetime import timedelta

import pytest

dist = pytest.importorskip("torch.distributed")

from undaunted.training.over_store import OverStore  # noqa: E402 - needs torch
from undaunted.training.stopping import StopReason  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")  # torch keeps a pipe of the first one
def port():
    server = dist.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30)
    )
    yield server.port
    del server


def ranks(port: int, number: int) -> list[OverStore]:
    prefix = f"test/{next(starts)}"
    return [OverStore("127.0.0.1", port, prefix, rank, number) for rank in range(number)]


starts = itertools.count()


def never() -> bool:
    return False


def loop(rank: OverStore, first: int, stops: list[int]) -> None:
    """Iterate until all stop."""
    for iteration in range(first, 10**9):
        if rank.ask(iteration):
            answer = rank.after(30.0, never)
            assert answer is not None
            if iteration >= answer.after:
                stops.append(iteration)
                return


def test_all_stop_after_the_same_iteration(port):
    stops: list[int] = []
    with ExitStack() as stack:
        members = [stack.enter_context(closing(rank)) for rank in ranks(port, 3)]
        loops = [threading.Thread(target=loop, args=(rank, 5, stops)) for rank in members]
        for thread in loops:
            thread.start()
        members[1].want(StopReason.REQUESTED)
        for thread in loops:
            thread.join(30)
        answer = members[2].after(0.0, never)
        waiting = threading.Thread(target=members[0].saved, args=(30.0, never))
        waiting.start()
        for rank in members[1:]:
            assert waiting.is_alive(), "not all have saved"
            rank.saved(0.01, never)
        waiting.join(30)
    assert answer is not None
    assert answer.reason is StopReason.REQUESTED
    assert len(stops) == 3
    assert set(stops) == {max(answer.after, 5)}


def test_a_wish_from_before_the_first_iteration(port):
    (alone,) = ranks(port, 1)
    with closing(alone):
        alone.want(StopReason.PREEMPTED)
        while not alone.ask(0):
            time.sleep(0.001)
        answer = alone.after(30.0, never)
    assert answer is not None
    assert answer.after in {0, 1}


def test_close_does_not_wait_for_others(port):
    first, _ = members = ranks(port, 2)
    first.want(StopReason.PREEMPTED)
    for member in members:
        member.close()
        assert not member._thread.is_alive()


@pytest.mark.parametrize("missing", ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"])
def test_an_environment_without_all(missing):
    environ = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    assert (
        OverStore.by_environment({**environ, missing: "x"} if "ADDR" not in missing else {}, "0")
        is None
    )


def test_a_store_that_is_not_there(caplog, monkeypatch):
    monkeypatch.setattr("undaunted.training.over_store._CONNECT_S", 0.2)
    nobody = OverStore("127.0.0.1", 9, "test", 0, 2)
    with closing(nobody):
        nobody.want(StopReason.PREEMPTED)
        nobody._thread.join(30)
        assert nobody.ask(3) == 0
        assert nobody.after(0.0, never) is None
    assert "rank 0" in caplog.text
