"""Answers of an attribution service as objects, under the names of NVRx."""

from __future__ import annotations

import json

import pytest

from nvidia_resiliency_ext.services import AttrSvcResult, parse_attrsvc_response

ADVICE = {"action": "STOP", "source": "rules"}


def test_an_answer() -> None:
    said = {
        "status": "completed",
        "result": {"module": "log_analyzer", "result": "text", "recommendation": ADVICE},
        "recommendation": ADVICE,
        "wl_restart": 0,
        "wl_restart_count": 1,
        "mode": "SINGLE",
        "log_file": "/logs/a",
        "something": "new",
    }
    parsed = parse_attrsvc_response(said)
    assert parsed == AttrSvcResult(
        "completed", said["result"], ADVICE, 0, 1, "SINGLE", 0, "/logs/a"
    )
    assert parsed.action == "STOP"
    assert parse_attrsvc_response(json.dumps(said)) == parsed
    assert parse_attrsvc_response(json.dumps(said).encode()) == parsed


def test_answers_that_say_less() -> None:
    assert parse_attrsvc_response({"status": "pending"}).action == "UNKNOWN"
    assert parse_attrsvc_response({"result": {"recommendation": "RESTART"}}).action == "RESTART"
    assert parse_attrsvc_response({"result": {"recommendation": ADVICE}}).action == "STOP"
    assert parse_attrsvc_response({"result": "text"}).result == {"result": "text"}
    assert parse_attrsvc_response({"result": None, "recommendation": None}) == AttrSvcResult()


@pytest.mark.parametrize("said", ["", "no json", b"\xff", "[]", "7", "[" * 100_000])
def test_what_is_no_answer(said: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"Expecting|JSON object|nested|decode"):
        parse_attrsvc_response(said)
