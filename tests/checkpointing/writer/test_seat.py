"""`WriterSeat`: a writer that dies is replaced, one that was ended is not."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.checkpointing.writer.processes import LONG_S
from undaunted.checkpointing.errors import SaveError, WriterError
from undaunted.checkpointing.format.image import Image
from undaunted.checkpointing.memory.arena import HEADER_BYTES
from undaunted.checkpointing.memory.pool import Lease, Pool
from undaunted.checkpointing.writer.options import WriterOptions
from undaunted.checkpointing.writer.seat import WriterSeat

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILES = [Image("file", HEADER_BYTES, 100)]


@pytest.fixture
def seat(tmp_path: Path) -> Iterator[WriterSeat]:
    one = WriterSeat(str(tmp_path), WriterOptions())
    yield one
    one.abort()


@pytest.fixture
def lease() -> Iterator[Lease]:
    pool = Pool(1, "test", "wait")
    one = pool.lease(1 << 16, LONG_S)
    yield one
    one.release()
    pool.close()


def target(tmp_path: Path, attempt: int) -> str:
    return str(tmp_path / f".step-00000001.abc-{attempt}")


def test_a_dead_writer_is_replaced(seat: WriterSeat, lease: Lease, tmp_path: Path) -> None:
    seat.write(lease, target(tmp_path, 0), FILES, LONG_S)
    process = seat._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(WriterError, match="SIGKILL"):
        seat.write(lease, target(tmp_path, 1), FILES, LONG_S)
    assert set(seat.write(lease, target(tmp_path, 2), FILES, LONG_S).crc32) == {"file"}


@pytest.mark.parametrize("how", ["abort", "close"])
def test_no_writer_is_started_after_the_end(
    seat: WriterSeat, lease: Lease, tmp_path: Path, how: str
) -> None:
    if how == "abort":
        seat.abort()
    else:
        seat.close(LONG_S)
    with pytest.raises(SaveError, match="ended"):
        seat.write(lease, target(tmp_path, 0), FILES, LONG_S)
    assert seat._process is None
