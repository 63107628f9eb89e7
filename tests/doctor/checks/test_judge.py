from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.doctor.checks.saying import ISSUES
from undaunted.doctor.checks import MEMORY, judge, memory
from undaunted.doctor.facts import Asked, Facts

if TYPE_CHECKING:
    from undaunted.doctor.advice import Advice


def test_nothing_known_is_nothing_said() -> None:
    assert judge(Facts(), Asked(), ISSUES) == []


def test_a_check_that_breaks_does_not_stop_the_others() -> None:
    def broken(facts: Facts, asked: Asked, issues: Any) -> list[Advice]:
        raise ZeroDivisionError("by\nzero")

    checks = {"luck": broken, MEMORY: memory}
    found = judge(Facts(oom_score_adj=7), Asked(), ISSUES, checks)
    assert [(finding.id, finding.subject) for finding in found] == [
        ("D01", "luck"),
        ("L11", "memory"),
    ]
    assert "this check is broken (ZeroDivisionError('by\\nzero'))" in found[0].found
