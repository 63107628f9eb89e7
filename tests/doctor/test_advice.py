from __future__ import annotations

from undaunted.doctor.advice import Advice, ordered


def test_worst_first_and_otherwise_as_they_came() -> None:
    made = [
        Advice(id=str(number), severity=severity, subject="s", found="f")
        for number, severity in enumerate(("info", "warn", "fail", "warn", "fail"))
    ]
    assert [finding.id for finding in ordered(made)] == ["2", "4", "1", "3", "0"]
