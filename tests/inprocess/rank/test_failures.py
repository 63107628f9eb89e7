from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.inprocess.core.messages import Reason, Record
from undaunted.inprocess.guard.start import VARIABLE
from undaunted.inprocess.rank.failures import log_restart

if TYPE_CHECKING:
    import pytest

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


def test_where_the_launcher_says_it_ranks_do_not(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "name")
    log_restart(RECORD, rank=0)
    assert not caplog.messages
