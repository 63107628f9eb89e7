from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.health.answers import (
    START_S,
    Examination,
    Report,
    Result,
    first_line,
    request,
)
from undaunted.health.check import Settings


def line(**fields: Any) -> bytes:
    return json.dumps({"request": 1, **fields}).encode() + b"\n"


def announce(*checks: dict[str, Any]) -> bytes:
    return line(checks=[{"check": number, **check} for number, check in enumerate(checks)])


STORAGE = {"name": "storage", "subject": "/mnt/data", "deadline_s": 10.0}
GPU = {"name": "GPU", "periodic": True}
SERVICE = {"name": "health service", "deadline_s": 70.0, "must_answer": False}


def test_what_the_program_is_told() -> None:
    settings = Settings(storage_paths=("/a",))
    told = json.loads(first_line(settings, {"storage /a": {"writable": True}}))
    tuples = {key: tuple(each) for key, each in told["settings"].items() if isinstance(each, list)}
    assert Settings(**{**told["settings"], **tuples}) == settings
    assert told["seen"] == {"storage /a": {"writable": True}}
    assert json.loads(request(7, periodic=True)) == {"request": 7, "periodic": True}


def test_all_is_well() -> None:
    one = Examination(1, {})
    assert one.wait_s(0.0) == START_S
    one.take(announce(STORAGE, GPU), 1.0)
    assert one.wait_s(1.0) == 10.0
    assert one.has_periodic
    one.take(line(check=1, seconds=0.5), 1.5)
    one.take(line(check=0, seconds=0.7, seen={"writable": True}), 1.7)
    assert one.wait_s(1.7) == 0.0
    assert not one.stuck
    assert one.seen == {"GPU ": {}, "storage /mnt/data": {"writable": True}}
    report = one.report()
    assert report.problem() == ""
    assert report.notes() == []
    assert [result.seconds for result in report.results] == [0.7, 0.5]


def test_findings_and_notes() -> None:
    one = Examination(1, {})
    one.take(announce(STORAGE, GPU), 0.0)
    one.take(line(check=0, text="No such file or directory", failed=True), 0.0)
    one.take(line(check=1, text="no library"), 0.0)
    report = one.report()
    assert report.problem() == "the storage check of /mnt/data failed: No such file or directory"
    assert report.notes() == ["the GPU check could not tell: no library"]


def test_silence_names_the_check() -> None:
    one = Examination(1, {})
    one.take(announce(STORAGE, GPU, SERVICE), 2.0)
    one.take(line(check=1), 2.0)
    assert one.wait_s(11.0) == 61.0  # the service may take longer
    assert one.waits_for() == "the storage check of /mnt/data, the health service check"
    one.take(line(check=2), 11.0)
    assert one.wait_s(11.0) == 1.0
    assert one.wait_s(12.0) == 0.0
    assert one.stuck
    report = one.report()
    assert report.problem() == "the storage check of /mnt/data did not answer within 10 s"


def test_a_service_may_be_silent() -> None:
    one = Examination(1, {})
    one.take(announce(SERVICE), 0.0)
    assert one.report().problem() == ""
    assert one.report().notes() == ["the health service check did not answer within 70 s"]


def test_a_program_that_does_not_begin_or_ends_is_no_fault_of_the_node() -> None:
    one = Examination(1, {})
    assert one.wait_s(START_S) == 0.0
    assert one.waits_for() == "the health checks to begin"
    assert one.stuck
    assert one.report().problem() == ""
    assert "did not begin within 10 s" in one.report().notes()[0]
    one.take(announce(STORAGE), 0.0)
    one.end("the program ended")
    assert one.wait_s(0.0) == 0.0
    assert one.stuck
    assert one.report().notes() == [
        "the storage check of /mnt/data has no result: the program ended"
    ]


@pytest.mark.parametrize(
    "garbage", [b"", b"[]", b"{", b'{"checks": 3}', b'{"check": "x"}', b"\xff"]
)
def test_garbage_is_an_error(garbage: bytes) -> None:
    with pytest.raises(ValueError, match="no answer of the checks"):
        Examination(1, {}).take(garbage, 0.0)


def test_results_of_nobody_are_ignored() -> None:
    one = Examination(1, {})
    one.take(line(request=0, checks=[{"check": 0, "name": "late"}]), 0.0)
    assert one.wait_s(0.0) == START_S
    one.take(line(check=0, text="x", failed=True), 0.0)
    one.take(announce(STORAGE), 0.0)
    one.take(line(check=5, text="x", failed=True), 0.0)
    assert one.stuck
    assert "x" not in one.report().problem()


@given(st.text(max_size=400))
def test_findings_are_one_bounded_line(text: str) -> None:
    one = Examination(1, {})
    one.take(announce(GPU), 0.0)
    one.take(line(check=0, text=text, failed=True), 0.0)
    problem = one.report().problem()
    assert len(problem.splitlines()) <= 1
    assert len(problem) < 340


def test_a_report_of_nothing() -> None:
    assert Report().problem() == ""
    assert Report([Result("", text="why")]).notes() == ["why"]
