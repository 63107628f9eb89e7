"""Pytest plugin: sentences for people stand in golden files, which ``pytest --update`` writes anew.

A word that changes is changed there, in one place, and the diff shows every text that has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption(
        "--update", action="store_true", help="write golden files instead of comparing"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """Compare a text with the content of a file, or write it there."""
    update = request.config.getoption("--update")

    def compare(file: Path, text: str) -> None:
        if update:
            file.write_text(text, encoding="utf-8")
        assert file.exists(), f"{file} is made by pytest --update"
        assert text == file.read_text(encoding="utf-8"), f"is it meant? pytest --update {file.name}"

    return compare
