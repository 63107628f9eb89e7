from __future__ import annotations

from undaunted.inprocess.attribution import (
    Interruption,
    InterruptionRecord,
    format_interruption_records,
)


def test_by_kind() -> None:
    records = [
        InterruptionRecord(3, Interruption.TERMINATED),
        InterruptionRecord(0, Interruption.EXCEPTION),
        InterruptionRecord(1, Interruption.TERMINATED),
        InterruptionRecord(1, Interruption.TERMINATED),
    ]
    assert format_interruption_records(records) == (
        "Interruption.TERMINATED affecting ranks {1, 3}, Interruption.EXCEPTION affecting ranks {0}"
    )


def test_none() -> None:
    assert format_interruption_records([]) == "no interruption"
