"""Helpers for sequences."""

from __future__ import annotations

import pytest

from undaunted.checkpointing.local.replication.utils import batched, zip_strict


def test_batches() -> None:
    assert list(batched("abcde", 2)) == [("a", "b"), ("c", "d"), ("e",)]
    assert list(batched([], 2)) == []
    with pytest.raises(ValueError, match="batches of 0"):
        list(batched("a", 0))


def test_zip_of_unequal_lengths() -> None:
    assert list(zip_strict([1], [2])) == [(1, 2)]
    with pytest.raises(ValueError, match="shorter"):
        list(zip_strict([1, 2], [2]))
