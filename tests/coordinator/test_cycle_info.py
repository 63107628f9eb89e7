from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.coordinator.core.seats import ledger, table
from undaunted.coordinator.cycle_info import CycleInfo, CycleTracker, content, iso_time, node_ranges
from undaunted.coordinator.protocol import Ledger

NONE = Ledger(run_id="job")
about = {"job_id": "7", "attempt": 1, "log_file": "/l/train_cycle0.log"}


def spares(*names: str):
    return lambda: names


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ((), ""),
        (("b", "a"), "a,b"),
        (("node1",), "node1"),
        (("node3", "node1", "node2", "node7"), "node[1-3,7]"),
        (("n08", "n09", "n10", "n11"), "n[08-11]"),
        (("n8", "n9", "n10"), "n[8-10]"),
        (("n9", "n010"), "n[9,010]"),
        (("n98", "n99", "n100"), "n[98-100]"),
        (("a-2", "a-1", "b1.site", "login"), "a-[1-2],b1.site,login"),
        (("1", "2", "3"), "[1-3]"),
    ],
)
def test_nodes_as_slurm_writes_them(names, text):
    assert node_ranges(names) == text


def expand(text: str) -> set[str]:
    prefix, bracket, rest = text.partition("[")
    if not bracket:
        return {text}
    names = set()
    for part in rest.removesuffix("]").split(","):
        low, _, high = part.partition("-")
        numbers = range(int(low), int(high or low) + 1)
        names |= {f"{prefix}{str(number).zfill(len(low))}" for number in numbers}
    return names


@given(st.sets(st.from_regex(r"\A[0-9]{1,3}\Z"), min_size=1))
def test_ranges_name_exactly_these_nodes(numbers):
    names = {f"node{digits}" for digits in numbers}
    assert expand(node_ranges(names)) == names


def test_a_round_from_its_start_to_its_end():
    tracker = CycleTracker(NONE)
    assert tracker.take(msgspec.structs.replace(NONE, pending_round=0), spares(), 1.0) == []
    (begun,) = tracker.take(ledger("abc"), spares("d"), 1000.5)
    info = content(begun, **about)
    assert info == CycleInfo(
        job_id="7",
        attempt_index=1,
        cycle_number=0,
        cycle_start_time="1970-01-01T00:16:40.500Z",
        cycle_log_file="/l/train_cycle0.log",
        active_nodes="a,b,c",
        standby_nodes="d",
        generation=1,
        active_ranks="0-5",
    )
    assert tracker.take(ledger("abc", version=9), spares(), 1001.0) == []
    (ended,) = tracker.take(ledger("abc", running=False), spares("x"), 1002.0)
    info.cycle_end_time = "1970-01-01T00:16:42.000Z"
    assert content(ended, **about) == info
    assert tracker.take(ledger("abc", running=False, version=9), spares(), 1003.0) == []


def test_the_next_round_ends_one_that_has_not_been_ended():
    tracker = CycleTracker(NONE)
    tracker.take(ledger("abc"), spares(), 1.0)
    ended, begun = tracker.take(ledger("bc", round=1), spares("a"), 2.0)
    assert (ended.number, ended.started_s, ended.ended_s) == (0, 1.0, 2.0)
    assert (begun.number, begun.table, begun.ended_s) == (1, table("bc"), None)


def test_a_job_that_begins_anew_begins_with_round_0():
    tracker = CycleTracker(NONE)
    tracker.take(ledger("abc"), spares(), 1.0)
    (ended,) = tracker.take(ledger("abc", round=-1, running=False), spares(), 2.0)
    assert ended.ended_s == 2.0
    (begun,) = tracker.take(ledger("abc"), spares(), 3.0)
    assert (begun.number, begun.started_s) == (0, 3.0)


def test_a_later_leader_keeps_what_it_cannot_know():
    tracker = CycleTracker(ledger("abc", round=4))
    assert tracker.running is not None
    assert content(tracker.running, **about).cycle_start_time is None
    (ended,) = tracker.take(ledger("abc", round=4, running=False), spares(), 9.0)
    before = CycleInfo(
        job_id="7",
        attempt_index=1,
        cycle_number=4,
        cycle_start_time=iso_time(5.0),
        standby_nodes="d",
    )
    info = content(ended, **about, before=before)
    assert (info.cycle_start_time, info.standby_nodes) == (iso_time(5.0), "d")
    assert info.cycle_end_time == iso_time(9.0)
    before.cycle_number = 3
    assert content(ended, **about, before=before).cycle_start_time is None
