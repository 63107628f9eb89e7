"""What ranks have calculated is put into the limits, if it makes sense."""

from __future__ import annotations

import json
from typing import Any

import pytest

from undaunted.fault_tolerance.calculated_limits import take, with_calculated
from undaunted.progress.limits import Limits

TINY = {"heartbeat": [0.01, 0.02], "sections": {"step": 0.0022}, "out_of_section": 0.001}


@pytest.mark.parametrize(
    "payload", [b"{", b"\xff", b"[" * 100_000, b"3", b"[]", b"{}", b'{"action": "x"}']
)
def test_what_is_not_about_limits(payload: bytes) -> None:
    assert take(payload, Limits()) is None


def test_a_question_whether_a_heartbeat_has_arrived() -> None:
    limits = Limits()
    taken = take(b'{"confirm": true}', limits)
    assert taken is not None
    assert taken.limits is limits
    assert taken.reply == b"ok"


def test_limits_are_taken() -> None:
    taken = take(json.dumps({"timeouts": {"out_of_section": 90.0}}).encode(), Limits())
    assert taken is not None
    assert taken.reply == b"ok"
    assert taken.limits.out_of_section_s == 90.0


@pytest.mark.parametrize(
    "request_",
    [
        None, 3, {"heartbeat": [1.0]}, {"heartbeat": [0, 1]}, {"sections": {"a": -1}},
        {"sections": {"a": None}}, {"out_of_section": 1e99}, {"unknown": 1},
    ],
)  # fmt: skip
def test_requests_that_make_no_sense(request_: Any) -> None:
    limits = Limits()
    taken = take(json.dumps({"timeouts": request_}).encode(), limits)
    assert taken is not None
    assert taken.reply.startswith(b"limits that make no sense: ")
    assert taken.limits is limits


def test_what_is_missing_stays() -> None:
    limits = Limits(heartbeat_s=5.0, sections={"a": 1.0}, sources={"heartbeat": "--flag"})
    changed = with_calculated(limits, {"sections": {"b": 90.0}})
    assert changed.sections == {"a": 1.0, "b": 90.0}
    assert (changed.heartbeat_s, changed.out_of_section_s) == (5.0, None)
    assert changed.sources == {"heartbeat": "--flag", "section:b": "calculated"}


def test_calculated_limits_are_a_minute_at_least() -> None:
    changed = with_calculated(Limits(sections={"mine": 0.5}), TINY)
    assert (changed.initial_heartbeat_s, changed.heartbeat_s) == (60.0, 60.0)
    assert (changed.sections, changed.out_of_section_s) == ({"mine": 0.5, "step": 60.0}, 60.0)


def test_the_user_may_want_shorter_ones() -> None:
    """But not to the first heartbeat: the first start of a job has no checkpoint to load."""
    changed = with_calculated(Limits(floor_s=0.01), TINY)
    assert (changed.initial_heartbeat_s, changed.heartbeat_s) == (60.0, 0.02)
    assert (changed.sections, changed.out_of_section_s) == ({"step": 0.01}, 0.01)
