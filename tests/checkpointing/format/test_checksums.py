from __future__ import annotations

import importlib
import sys
import zlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.checkpointing.format import checksums

if TYPE_CHECKING:
    from collections.abc import Iterator


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_it_is_the_crc32_of_zlib(first: bytes, second: bytes) -> None:
    assert checksums.crc32(memoryview(second), checksums.crc32(first)) == zlib.crc32(first + second)


@pytest.fixture
def without_zlib_ng(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "zlib_ng.zlib_ng", None)
        importlib.reload(checksums)
        yield
    importlib.reload(checksums)


@pytest.mark.usefixtures("without_zlib_ng")
def test_without_zlib_ng() -> None:
    assert checksums.crc32 is zlib.crc32
    assert checksums.file_of(b"abc", 2).checksums() == [zlib.crc32(b"ab"), zlib.crc32(b"c")]
