"""How soon a name server is asked again."""

from __future__ import annotations

from typing import Any

import pytest

from undaunted.base import name_server


def again_after_s() -> int:
    found: int = name_server._resolver().again_after_s
    return found


@pytest.mark.skipif(name_server._functions() is None, reason="the C library is not glibc")
def test_it_is_asked_again_after_a_second() -> None:
    before = again_after_s()
    with name_server.asked_again_soon():
        assert again_after_s() == 1
    assert again_after_s() == before


def test_another_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing() -> Any:
        return None

    monkeypatch.setattr(name_server, "_functions", nothing)
    with name_server.asked_again_soon():
        pass
