"""The page in which a writer shows how far it is."""

from __future__ import annotations

import os

import pytest

from undaunted.checkpointing.writer.page import Page, Progress, create


def test_both_see_the_same() -> None:
    fd = create()
    trainer, writer = Page(os.dup(fd)), Page(fd)
    assert trainer.look() == Progress(0.0, 0, 0)
    writer.show(1_500_000_000, 3, 1 << 40)
    assert trainer.look() == Progress(1.5, 3, 1 << 40)
    trainer.close()
    writer.close()


def test_a_descriptor_of_something_else() -> None:
    ours, theirs = os.pipe()
    with pytest.raises(OSError, match=r"No such device|Permission denied"):
        Page(ours)
    os.close(theirs)
