"""Errors of the system with what to do."""

from __future__ import annotations

import errno
import os

import pytest

from undaunted.checkpointing.writer.remedies import explain


def test_path_words_and_remedy() -> None:
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/data/file")
    assert explain(error) == (
        "/data/file: No space left on device [ENOSPC]; free space there, keep fewer checkpoints, "
        "or save to another place"
    )


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError("words"), "words"),
        (OSError(errno.EINTR, "Interrupted"), "Interrupted [EINTR]"),
        (OSError(9999, "odd"), "odd"),
        (OSError(errno.EINTR, None), "Interrupted system call [EINTR]"),
        (FileExistsError(errno.EEXIST, "File exists", 3), "File exists [EEXIST]"),
    ],
)
def test_parts_that_are_missing(error: OSError, text: str) -> None:
    assert explain(error) == text
