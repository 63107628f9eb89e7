from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest

from benchmarks import logs
from benchmarks.workloads import prints

if TYPE_CHECKING:
    from pathlib import Path


def logged(kind: str, mb: int) -> bytes:
    text = b"".join(prints.content(kind, mb))
    return b"0: " + text.removesuffix(b"\n").replace(b"\n", b"\n0: ") + b"\n"


@pytest.mark.parametrize("kind", list(logs.DEFAULT_MB))
def test_a_log_is_compared_with_what_was_printed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prints, "MB", 1000)
    path = tmp_path / "log"
    path.write_bytes(logged(kind, 3))
    assert logs.is_complete(path, kind, 3)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert not logs.is_complete(path, kind, 3)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 100])
def test_prefixes_are_found_wherever_a_piece_ends(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = b"0: a\n0: \n0: 0: b\n0: c0: \n"
    (tmp_path / "log").write_bytes(text)

    class SmallReads(io.BytesIO):
        def read(self, _: int | None = -1) -> bytes:
            return super().read(size)

    monkeypatch.setattr(logs.Path, "open", lambda path, mode: SmallReads(text))
    assert b"".join(logs.without_prefixes(tmp_path / "log")) == b"a\n\n0: b\nc0: \n"
