from __future__ import annotations

import gc

import pytest

from undaunted.base.garbage import collection_paused


def test_it_goes_on_afterwards() -> None:
    def fail() -> None:
        with collection_paused():
            assert not gc.isenabled()
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        fail()
    assert gc.isenabled()


def test_who_has_switched_it_off_keeps_it_off() -> None:
    gc.disable()
    try:
        with collection_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
