"""The page of names and its tables are not stale."""

from __future__ import annotations

from scripts import nvrx_names


def test_tables_say_what_is_there() -> None:
    assert not nvrx_names.problems()


def test_page_is_that_of_the_tables() -> None:
    assert nvrx_names.PAGE.read_text() == nvrx_names.page(), "run python scripts/nvrx_names.py"
