"""The columns of the timeline say what the job was."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.journal.page.jobs import job, journal, two
from tests.journal.sample import MS, RUN, at
from undaunted.journal import events as e
from undaunted.journal.events import InProcessPhase
from undaunted.journal.page import timeline as module
from undaunted.journal.page.timeline import (
    CLASSES,
    KINDS,
    RankLists,
    Texts,
    differences,
    gapped_differences,
    ranges,
    timeline,
    to_ms,
)
from undaunted.journal.words import words_of


def spans(node: dict[str, Any]) -> list[tuple[str, int]]:
    ends = list(accumulate(node["lengths"], initial=node["from"]))[1:]
    return [(CLASSES[kind], end) for kind, end in zip(node["classes"], ends, strict=True)]


def moments(node: dict[str, Any], place: int, column: str) -> list[int]:
    begin = list(accumulate(node["rounds"]["at"]))[place]
    return list(accumulate(node["rounds"][column][place], initial=begin))[1:]


def test_spans_of_a_node_follow_each_other_to_the_end_of_the_job():
    data = timeline(*job())
    (node,) = data["nodes"]
    found = spans(node)
    assert found[0][0] == "idle"
    assert found[-1][1] == data["length"] == 9003
    assert {"productive", "recomputed", "detect", "stop"} <= {kind for kind, _ in found}


def test_rounds_of_a_node_hold_what_each_rank_did():
    (node,) = timeline(*job())["nodes"]
    rounds = node["rounds"]
    assert rounds["number"] == [0, 1, 2]
    assert list(accumulate(rounds["at"])) == [9, 1042, 5111]
    assert rounds["length"][0] == 1032
    assert rounds["spawned"][0] == 5
    assert (rounds["first"], rounds["last"]) == ([7, 7, 7], [27, 47, 107])
    assert moments(node, 0, "line") == [19, 21]
    assert moments(node, 0, "step") == [44, 39]
    assert rounds["ready"][0] == []


def test_ends_of_processes_are_named():
    data = timeline(*job())
    (node,) = data["nodes"]
    how = [data["text"][place - 1] for place in node["rounds"]["how"][0]]
    assert how == ["SIGTERM, told to stop", "exit code 1"]
    assert moments(node, 0, "end") == [1029, 1002]


def test_nodes_with_other_clocks_lie_on_one_axis():
    data = timeline(*job(*two(3_600_000)))
    first, second = data["nodes"]
    assert [one["name"] for one in (first, second)] == ["n0", "n1"]
    assert [first["all"], second["all"]] == [[0, 2], [2, 2]]
    begins = [list(accumulate(one["rounds"]["at"])) for one in (first, second)]
    # By the order of what happened alone, half a round is as exact as it gets here.
    assert all(abs(a - b) < 6000 for a, b in zip(*begins, strict=True))


def test_milestones_of_the_oldest_rounds_are_left_out_when_they_are_too_many(monkeypatch):
    monkeypatch.setattr(module, "_MOST_MILESTONES", 5)
    data = timeline(*job())
    rounds = data["nodes"][0]["rounds"]
    assert [len(one) for one in rounds["line"]] == [0, 2, 2]
    assert [len(one) for one in rounds["how"]] == [0, 0, 2]  # how round 1 ended, nobody told
    assert data["detailed_from"] == 9  # when the oldest round began


def test_launches_of_a_node_that_ran_twice_follow_each_other():
    later = [
        msgspec.structs.replace(one, t=one.t + 60_000_000_000, wall=one.wall + 60)
        for one in RUN
        if not hasattr(one, "at_ns")
        and not hasattr(one, "last_ns")
        and not hasattr(one, "since_ns")
    ]
    later[0] = msgspec.structs.replace(later[0], pid=43)
    data = timeline(*job(journal([*RUN, *later])))
    (node,) = data["nodes"]
    assert node["rounds"]["number"] == [0, 1, 2, 0, 1, 2]
    begins = list(accumulate(data["rounds"]["at"]))
    # The last round of a launch does not go on until the next launch begins.
    assert data["rounds"]["until"][1] <= begins[2]
    assert data["rounds"]["until"][2] < begins[3]
    assert module._NO_LAUNCHER in node["classes"]
    assert node["from"] + sum(node["lengths"]) == data["length"]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sets(st.integers(0, len(RUN) - 1)), st.randoms(use_true_random=False))
def test_a_journal_with_gaps_makes_a_page_too(left_out, random):
    events = [one for place, one in enumerate(RUN) if place not in left_out]
    if random.random() < 0.3:
        random.shuffle(events)
    data = timeline(*job(journal(events)))
    for node in data["nodes"]:
        assert all(length > 0 for length in node["lengths"])
        columns = node["rounds"]
        assert len({len(column) for column in columns.values()}) == 1
        assert all(length >= 0 for length in columns["length"])
    msgspec.json.encode(data)


def marks(*journals: Any) -> list[tuple[int, str, int, int, str]]:
    data = timeline(*job(*journals))
    columns = data["marks"]
    return [
        (when, KINDS[kind], node, rank, data["text"][text])
        for when, kind, node, rank, text in zip(
            accumulate(columns["at"]), columns["kind"], columns["node"], columns["rank"],
            columns["text"], strict=True,
        )
    ]  # fmt: skip


def test_failures_say_when_they_happened_and_who_is_to_blame():
    assert marks() == [
        (997, "crash", 0, 1, "rank 1 raised ValueError: bad batch"),
        (4999, "hang", 0, 0, "rank 0 hangs"),
    ]


def test_a_failure_without_a_verdict_has_its_detail():
    events = [one for one in RUN if not isinstance(one, e.Verdict)]
    assert marks(journal(events))[0] == (997, "crash", 0, 1, "crash of rank 1: exit code 1")


def test_a_node_that_failed_because_of_another_is_a_victim():
    kinds = [kind for _, kind, *_ in marks(*two())]
    assert sorted(kinds) == ["crash", "hang", "victim", "victim"]


def test_a_checkpoint_is_one_mark_of_all_ranks():
    told = [
        at(600 + rank, e.RankEvent, 0, rank=rank, name="checkpoint", at_ns=(600 + rank) * MS,
           text=f"saved step=20 bytes=1 stall_s=0.{rank}")
        for rank in (0, 1)
    ]  # fmt: skip
    found = marks(journal([*RUN, *told]))
    assert found[0] == (600, "checkpoint", 0, -1, "saved, step 20, by 2 ranks")


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (at(700, e.RankEvent, 0, rank=1, name="fault", at_ns=700 * MS, text="kill"), "fault"),
        (at(700, e.NodeChecked, 0, problem="disk full"), "health"),
        (at(700, e.AgentPaused, 0, seconds=3.0), "warning"),
        (at(700, e.SignalReceived, 0, signal="SIGTERM"), "warning"),
        (at(700, e.TemplateLost, 0, reason="threads"), "warning"),
        (at(700, e.Remark, 0, text="the agent was killed", level="error"), "warning"),
        (at(700, e.ControlRequested, 0, rank=1, action="Exclude", description="hot"), "warning"),
        (at(700, e.RankLost, 0, rank=1, detail="killed"), "in-process restart"),
        (at(700, InProcessPhase, 0, call=0, epoch=2, phase="detect", reasons=["rank 1 raised"]),
         "in-process restart"),
    ],
)  # fmt: skip
def test_what_else_happened(event, kind):
    found = [one for one in marks(journal([*RUN, event])) if one[0] == 699]
    assert [(one[1], one[4]) for one in found] == [(kind, words_of(event).full)]


@pytest.mark.parametrize(
    "event",
    [
        at(700, e.NodeChecked, 0),
        at(700, InProcessPhase, 0, call=0, epoch=2, phase="abort"),
        at(700, e.RankEvent, 0, rank=0, name="checkpoint", at_ns=1, text="deleted step=3"),
        at(700, e.RankEvent, 0, rank=0, name="note", at_ns=1, text="hello"),
    ],
)
def test_what_is_not_worth_a_mark(event):
    assert len(marks(journal([*RUN, event]))) == 2


def test_of_very_many_marks_an_even_part_is_kept_and_all_failures(monkeypatch):
    monkeypatch.setattr(module, "_MOST", 10)
    many = [at(100 + ms, e.SignalReceived, 0, signal=f"SIG{ms}") for ms in range(100)]
    found = marks(journal([*RUN, *many]))
    assert len(found) == 12
    assert found[1][0] - found[0][0] == 10


def test_a_text_is_kept_once_and_made_one_printable_line():
    texts = Texts()
    assert [texts.place(one) for one in ("a\nb", "c\x1b", "a\nb")] == [0, 1, 0]
    assert texts.all == ["a b", "c\\x1b"]


def test_a_long_text_is_cut():
    texts = Texts()
    texts.place("x" * 10_000)
    assert len(texts.all[0]) == 500


def test_ranks_are_ranges_in_their_order():
    assert ranges([0, 1, 2, 7, 8, 3]) == [0, 3, 7, 2, 3, 1]
    assert ranges([]) == []


def test_the_same_ranks_are_kept_once():
    lists = RankLists()
    assert [lists.place(one) for one in ([0, 1], [2], [0, 1])] == [0, 1, 0]
    assert lists.all == [[0, 2], [2, 1]]


@given(st.lists(st.integers(-(2**40), 2**40)), st.integers(0, 2**40))
def test_differences_add_up(values, start):
    value, back = start, []
    for one in differences(values, start):
        value += one
        back.append(value)
    assert back == values


def test_what_is_missing_stays_missing():
    assert gapped_differences([5, None, 7], 3) == [2, None, 2]


def test_a_column_of_which_nothing_is_known_is_empty():
    assert gapped_differences([None, None], 3) == []


def test_milliseconds_are_rounded():
    assert [to_ms(one) for one in (0, 499_999, 500_000, 1_700_000)] == [0, 0, 1, 2]
