from __future__ import annotations

import io

import pytest

from undaunted.doctor.known_issues import known_issues
from undaunted.doctor.log_reader import findings_of, lines_of, scan

MESSAGES = known_issues().messages


def said(*lines: str) -> list[tuple[str, str, str]]:
    found = findings_of(scan([line.encode() for line in lines], MESSAGES))
    return [(finding.id, finding.subject, finding.found) for finding in found]


def test_causes_come_first() -> None:
    assert said(
        "step 1",
        "[rank0] Watchdog caught collective operation timeout: Work",
        "[rank1] Watchdog caught collective operation timeout: Work",
        "failed (exitcode: -9) local_rank: 3",
        "OSError: [Errno 28] No space left on device",
    ) == [
        ("M43", "a cause", "line 5: OSError: [Errno 28] No space left on device"),
        ("M15", "cause or consequence", "line 4: failed (exitcode: -9) local_rank: 3"),
        (
            "M01",
            "a consequence",
            "line 2 and 1 more: [rank0] Watchdog caught collective operation timeout: Work",
        ),
    ]


@pytest.mark.parametrize("issue", MESSAGES, ids=lambda issue: issue.id)
def test_each_message_is_found(issue: object) -> None:
    for text in issue.texts:  # type: ignore[attr-defined]
        assert issue.id in {row[0] for row in said(f"x {text} y")}  # type: ignore[attr-defined]


XID = "[ 12.3] NVRM: Xid (PCI:0000:05:00): {}, pid=1234, name=python3, Ch 00000008"


@pytest.mark.parametrize(
    ("xid", "key"), [(xid, issue.id) for issue in MESSAGES for xid in issue.xids]
)
def test_each_event_of_the_driver_is_found(xid: int, key: str) -> None:
    assert [row[0] for row in said(XID.format(xid))] == [key]


@pytest.mark.parametrize("line", [XID.format(12345), XID.format(9), "Xid 79,", "NVRM: Xid 79"])
def test_no_event_of_the_driver(line: str) -> None:
    assert said(line) == []


def test_nothing_known() -> None:
    assert said("all is well", "") == []
    assert said() == []


def test_two_in_a_line_and_one_twice() -> None:
    rows = said("Too many open files, Too many open files, No space left on device")
    assert [row[0] for row in rows] == ["M41", "M43"]
    assert "more" not in rows[0][2]


def test_lines_are_shown_safely() -> None:
    ((_, _, text),) = said("\x1b[2J No space left on device " + "x" * 9999)
    assert text.isprintable()
    assert len(text) < 200


def test_lines_of_any_length() -> None:
    content = b"x" * 200_000 + b"\n" + b"\xff\0\n"
    lines = list(lines_of(io.BytesIO(content)))
    assert b"".join(lines) == content
    assert max(map(len, lines)) <= 64 * 1024
