"""The tables of known issues: complete, and only where the page has its mark."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.known_issues import with_tables
from undaunted.doctor.known_issues import known_issues

PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"


def test_every_id_is_on_the_page() -> None:
    page = PAGE.read_text("utf-8")
    issues = known_issues()
    for issue in (*issues.versions, *issues.variables, *issues.settings):
        assert f"\n| {issue.id} | " in page


def test_a_page_without_a_mark() -> None:
    with pytest.raises(ValueError, match="has no line"):
        with_tables("# Doctor\n")
