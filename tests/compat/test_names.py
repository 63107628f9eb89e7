"""The tables of names are not stale."""

from __future__ import annotations

from scripts import nvrx_names


def test_tables_say_what_is_there() -> None:
    assert not nvrx_names.problems()
