from __future__ import annotations

from tests.doctor.checks.saying import said
from undaunted.doctor.checks import unanswered


def test_what_was_not_found_out() -> None:
    found = said(unanswered, unknown={"software": "killed by SIGSEGV"})
    assert found == [("D01", "warn", "software: killed by SIGSEGV")]
