from __future__ import annotations

import pytest

from undaunted.inprocess.core.messages import Dismissed, End, Finished, Record, Stop
from undaunted.inprocess.rank.watcher import Broken, Inbox, Verdict

RECORD = Record(call=0, epoch=1, members=(0, 1), world_size=2)
STOP = Stop(call=0, epoch=1, reasons=())
LAST = (
    Finished(call=0, epoch=1),
    End(call=0, kind="abort", text=""),
    Dismissed(call=0, job_rank=0, text=""),
    Broken(""),
)


def test_nothing_comes() -> None:
    inbox = Inbox()
    assert inbox.wait_for_record(0.001) is None
    assert inbox.wait_for_verdict(0.001) is None


def test_an_epoch_that_is_stopped_at_once_is_taken_up_first() -> None:
    inbox = Inbox()
    inbox.begin_epoch()
    inbox.put(RECORD)
    inbox.put(STOP)
    assert inbox.wait_for_record(1) == RECORD
    assert inbox.wait_for_verdict(1) == STOP


def test_a_stop_belongs_to_one_epoch() -> None:
    inbox = Inbox()
    inbox.put(STOP)
    inbox.begin_epoch()
    assert inbox.verdict is None


def test_it_is_known_whether_a_verdict_was_taken() -> None:
    inbox = Inbox()
    inbox.put(RECORD)
    inbox.put(STOP)
    assert not inbox.is_taken
    inbox.wait_for_verdict(1)
    assert inbox.is_taken
    inbox.begin_epoch()
    inbox.put(RECORD)
    assert not inbox.is_taken


@pytest.mark.parametrize("last", LAST)
def test_the_end_of_a_call_comes_before_a_record_and_stays(last: Verdict) -> None:
    inbox = Inbox()
    inbox.put(RECORD)
    inbox.put(last)
    assert inbox.wait_for_record(1) == last
    inbox.put(STOP)
    inbox.begin_epoch()
    assert inbox.verdict == last
