"""Memory for shards."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from undaunted.checkpointing.local.buffers import Buffers  # noqa: E402

pytestmark = pytest.mark.torch


def test_memory_is_used_again_and_grows() -> None:
    buffers = Buffers(1)
    lease = buffers.take(5000, 1)
    first = lease.buffer
    assert first.size == 8192
    first.tensor[0] = 7
    assert first.memory[0] == 7
    assert first.tensor.data_ptr() % 4096 == 0
    lease.release()
    lease = buffers.take(1, 1)
    assert lease.buffer is first
    lease.release()
    lease = buffers.take(9000, 1)
    assert lease.buffer.size == 12288
    lease.release()
    buffers.close()


def test_who_wants_too_many_waits_and_is_told() -> None:
    buffers = Buffers(1)
    lease = buffers.take(1, 1)
    with pytest.raises(TimeoutError, match="the saves before this one are not done yet"):
        buffers.take(1, 0.01)
    lease.release()
    lease.release()
    buffers.take(1, 1).release()
    buffers.close()


def test_a_forgotten_lease_comes_back() -> None:
    buffers = Buffers(1)
    lease = buffers.take(1, 1)
    del lease
    buffers.take(1, 0).release()
    buffers.close()


def test_what_is_lent_at_the_end_is_freed_when_it_comes_back() -> None:
    buffers = Buffers(1)
    lease = buffers.take(1, 1)
    buffers.close()
    buffer = lease.buffer
    lease.release()
    assert buffer.tensor is None


def test_memory_goes_with_the_last_tensor_over_it() -> None:
    buffers = Buffers(1)
    lease = buffers.take(64 << 20, 1)
    lease.buffer.tensor[:] = 7
    view = lease.buffer.tensor[1 << 20 : (1 << 20) + 10]
    lease.release()
    buffers.close()
    assert view.tolist() == [7] * 10


def test_warm_memory_is_that_which_is_used() -> None:
    buffers = Buffers(2)
    buffers.warm_up(5000, 1)
    one, other = buffers.take(5000, 0), buffers.take(5000, 0)
    assert {one.buffer.size, other.buffer.size} == {8192}
    with pytest.raises(TimeoutError):
        buffers.warm_up(5000, 0)
    one.release()
    other.release()
    buffers.close()


def test_memory_that_cannot_be_had() -> None:
    buffers = Buffers(1)
    with pytest.raises((OSError, OverflowError, MemoryError)):
        buffers.take(1 << 62, 1)
    buffers.take(1, 0).release()
    buffers.close()
