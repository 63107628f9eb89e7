from __future__ import annotations

import logging

import msgspec
import pytest

from undaunted.inprocess.attribution import Interruption
from undaunted.inprocess.core.messages import Reason, Record
from undaunted.inprocess.guard.start import VARIABLE
from undaunted.inprocess.rank.failures import log_failure, log_restart, reason_of

RECORD = Record(
    call=0,
    epoch=2,
    members=(0, 2),
    world_size=3,
    terminated=(1,),
    reasons=(
        Reason("HARD_TIMEOUT", 1, rank=1, text="no progress for 4 s"),
        Reason("EXCEPTION", 2, rank=2, text="Connection closed"),
    ),
)


def test_one_rank_says_why_the_function_runs_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    log_restart(RECORD, rank=1)
    assert not caplog.messages
    log_restart(RECORD, rank=0)
    assert caplog.messages == [
        (
            "[undaunted] iteration 2 begins with 2 ranks; rank 1 of the one before: HARD_TIMEOUT: "
            "no progress for 4 s, and 1 more"
        )
    ]


def test_the_place_is_said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    reason = Reason("EXCEPTION", 1, rank=1, text="KeyError(3)", where="step (train.py:7)")
    log_restart(msgspec.structs.replace(RECORD, members=(1,), reasons=(reason,)), rank=0)
    assert "begins with 1 rank; rank 1 of the one before" in caplog.messages[0]
    assert caplog.messages[0].endswith("EXCEPTION: KeyError(3), in step (train.py:7)")


def test_a_failure_is_logged_and_reported_with_its_place(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(KeyError) as info:
        raise KeyError(3)
    log_failure(logging.ERROR, 2, "fn_ex", info.value)
    reason = reason_of(info.value, Interruption.EXCEPTION, 4, 2)
    place = "in test_a_failure_is_logged_and_reported_with_its_place (test_failures.py:"
    assert f"rank=2 fn_ex: KeyError(3), {place}" in caplog.messages[0]
    assert place.startswith(f"in {reason.where.partition(':')[0]}")
    assert reason.text == "KeyError(3)"


def test_where_the_launcher_says_it_ranks_do_not(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "name")
    log_restart(RECORD, rank=0)
    assert not caplog.messages
