"""`Pool`: who has an arena keeps it, who finds none waits, and nothing is lost."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from undaunted.checkpointing.errors import SaveError
from undaunted.checkpointing.memory.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Iterator

LONG_S = 60.0


@pytest.fixture
def pool() -> Iterator[Pool]:
    one = Pool(1, "test", "raise timeout=")
    yield one
    one.close()


def test_memory_is_used_again_and_grows(pool: Pool) -> None:
    lease = pool.lease(5000, 0)
    arena = lease.arena
    lease.release()
    assert lease.arena is None
    lease = pool.lease(1, 0)
    assert lease.arena is arena
    larger = lease.at_least(1 << 16)
    assert larger.size >= 1 << 16
    lease.release()
    assert pool.lease(0, 0).arena is larger


def test_what_is_released_cannot_get_memory(pool: Pool) -> None:
    lease = pool.lease(0, 0)
    lease.release()
    with pytest.raises(SaveError):
        lease.at_least(100)


def test_who_waits_in_vain_learns_what_to_do(pool: Pool) -> None:
    lease = pool.lease(0, 0)
    with pytest.raises(SaveError, match="raise timeout="):
        pool.lease(0, 0.01)
    lease.release()
    lease.release()  # makes no second one
    second = pool.lease(0, 0)
    with pytest.raises(SaveError):
        pool.lease(0, 0)
    second.release()


def test_who_waits_gets_what_is_released(pool: Pool) -> None:
    lease = pool.lease(100, 0)
    arena = lease.arena
    releasing = threading.Timer(0.01, lease.release)
    releasing.start()
    assert pool.lease(0, LONG_S).arena is arena
    releasing.join()


def test_a_forgotten_lease_comes_back(pool: Pool) -> None:
    lease = pool.lease(1, 0)
    del lease
    pool.lease(1, 0).release()


@pytest.mark.parametrize("waits", [False, True])
def test_a_closed_pool_lends_nothing(pool: Pool, waits: bool) -> None:
    lease = pool.lease(0, 0)
    closing = threading.Timer(0.01 if waits else 0, pool.close)
    closing.start()
    if not waits:
        closing.join()
    with pytest.raises(SaveError, match="aborted or closed"):
        pool.lease(0, LONG_S)
    closing.join()
    lease.release()


def test_memory_in_use_is_kept_until_it_is_released() -> None:
    pool = Pool(2, "test", "wait")
    used, free = pool.lease(1 << 16, 0), pool.lease(1 << 16, 0)
    arena, idle = used.arena, free.arena
    assert arena is not None
    assert idle is not None
    free.release()
    pool.close()
    assert idle.fd == -1
    arena.memory[4096:4100] = b"data"
    used.release()
    assert arena.fd == -1


def test_warm_memory_is_that_which_is_used() -> None:
    made = []
    pool = Pool(2, "test", "wait", made.append)
    pool.warm_up(5000, 0)
    assert len(made) == 2
    leases = [pool.lease(5000, 0) for _ in range(2)]
    assert {id(lease.arena) for lease in leases} == {id(arena) for arena in made}
    with pytest.raises(SaveError):
        pool.warm_up(5000, 0)
    for lease in leases:
        lease.release()
    pool.close()


def test_a_fork_that_forgets_a_lease_waits_for_no_lock(pool: Pool) -> None:
    lease = pool.lease(100, 0)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with pool._changed:
            held.set()
            done.wait(LONG_S)

    holding = threading.Thread(target=hold)
    holding.start()
    assert held.wait(LONG_S)
    pid = os.fork()
    if not pid:
        signal.alarm(30)
        del lease
        os._exit(0)
    done.set()
    holding.join()
    assert os.waitpid(pid, 0)[1] == 0
    lease.release()


def test_memory_that_cannot_be_had_leaves_the_pool_as_it_was(pool: Pool) -> None:
    with pytest.raises((OSError, OverflowError)):
        pool.lease(1 << 62, 0)
    pool.lease(1, 0).release()
