"""The tables of names are not stale, nor is what is made from them."""

from __future__ import annotations

from scripts import nvrx_names


def test_tables_say_what_is_there() -> None:
    assert not nvrx_names.problems()


def test_modules_are_as_the_tables_say() -> None:
    stale = [path for path, text in nvrx_names.files().items() if path.read_text() != text]
    assert not stale, "run `make generated`"
