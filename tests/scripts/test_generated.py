"""Pages that are made from code say what the code says."""

from __future__ import annotations

import pytest

from scripts.generated import DOCS, PAGES


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_up_to_date(name: str) -> None:
    assert (DOCS / name).read_text("utf-8") == PAGES[name](), "run: make generated"
