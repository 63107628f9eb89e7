"""`WriterSeat`: a writer that dies is replaced, one that was ended is not."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.checkpointing.writer.processes import LONG_S
from undaunted.checkpointing.errors import SaveError, WriterError
from undaunted.checkpointing.format.image import Image
from undaunted.checkpointing.slots import Slot
from undaunted.checkpointing.staging.arena import HEADER_BYTES
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
def slot() -> Iterator[Slot]:
    one = Slot(0)
    one.room(1 << 16)
    yield one
    one.close()


def target(tmp_path: Path, attempt: int) -> str:
    return str(tmp_path / f".step-00000001.abc-{attempt}")


def test_a_dead_writer_is_replaced(seat: WriterSeat, slot: Slot, tmp_path: Path) -> None:
    seat.write(slot, target(tmp_path, 0), FILES, LONG_S)
    process = seat._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(WriterError, match="SIGKILL"):
        seat.write(slot, target(tmp_path, 1), FILES, LONG_S)
    assert set(seat.write(slot, target(tmp_path, 2), FILES, LONG_S).crc32) == {"file"}


@pytest.mark.parametrize("how", ["abort", "close"])
def test_no_writer_is_started_after_the_end(
    seat: WriterSeat, slot: Slot, tmp_path: Path, how: str
) -> None:
    if how == "abort":
        seat.abort()
    else:
        seat.close(LONG_S)
    with pytest.raises(SaveError, match="ended"):
        seat.write(slot, target(tmp_path, 0), FILES, LONG_S)
    assert seat._process is None
