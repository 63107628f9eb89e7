from __future__ import annotations

import pytest

from undaunted.base.sizes import GIB, parse_size, size, whole


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1024, "1 KiB"),
        (64 * 2**20, "64 MiB"),
        (1.5 * GIB, "1.5 GiB"),
        (2**41, "2 TiB"),
    ],
)
def test_sizes_for_people(count: float, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("12", 12),
        ("1k", 1024),
        ("20GB", 20 * 10**9),
        ("1.5 TiB", 3 * 2**39),
        ("2G", 2**31),
    ],
)
def test_sizes_from_people(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize("text", ["", "-1", "many", "1 XB", "1e9", "nan", "9" * 400, "B"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is no size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("3", 3),
        (" -1\n", -1),
        ("", None),
        (None, None),
        ("1 2", None),
        ("x", None),
        ("9" * 99, None),
    ],
)
def test_whole_numbers_in_files(text: str | None, number: int | None) -> None:
    assert whole(text) == number
