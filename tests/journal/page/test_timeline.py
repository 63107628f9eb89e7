"""Tests of `undaunted.journal.page.timeline`."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.journal.page.jobs import job, journal, two
from tests.journal.sample import RUN
from undaunted.journal.page import timeline as module
from undaunted.journal.page.timeline import CLASSES, timeline


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
