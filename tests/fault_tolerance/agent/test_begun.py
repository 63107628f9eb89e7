"""Pipes for stacks: nobody is held up by them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from undaunted.fault_tolerance.agent.begun import StackPipes

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def pipes() -> Iterator[StackPipes]:
    made = StackPipes(2)
    yield made
    made.close()


def test_each_rank_has_its_own(pipes: StackPipes) -> None:
    os.write(pipes.write[1], b"stack ")
    os.write(pipes.write[1], b"of rank 1")
    assert pipes.drain(0) == b""
    assert pipes.drain(1) == b"stack of rank 1"
    assert pipes.drain(1) == b""


def test_a_rank_is_not_held_up_when_nobody_reads(pipes: StackPipes) -> None:
    written = os.write(pipes.write[0], bytes(1 << 22))
    with pytest.raises(BlockingIOError):
        os.write(pipes.write[0], b"more")
    assert len(pipes.drain(0)) == written


def test_ranks_get_only_the_ends_that_are_named(pipes: StackPipes) -> None:
    ends = [pipes.read_fd(0), pipes.read_fd(1), *pipes.write]
    assert not any(os.get_inheritable(fd) for fd in ends)
