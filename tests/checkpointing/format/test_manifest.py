from __future__ import annotations

import importlib.util
import sys
import zlib
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from undaunted.checkpointing.format import manifest

if TYPE_CHECKING:
    import pytest


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_it_is_the_crc32_of_zlib(first: bytes, second: bytes) -> None:
    assert manifest.crc32(memoryview(second), manifest.crc32(first)) == zlib.crc32(first + second)


def test_without_zlib_ng(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zlib_ng.zlib_ng", None)
    spec = importlib.util.find_spec(manifest.__name__)
    assert spec is not None
    assert spec.loader is not None
    anew = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(anew)
    assert anew.crc32 is zlib.crc32
    assert anew.file_of(b"abc", 2).checksums() == [zlib.crc32(b"ab"), zlib.crc32(b"c")]
