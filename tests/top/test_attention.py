"""What is said of each rank."""

from __future__ import annotations

from tests.top.pages import row
from undaunted.top.attention import look_closer


def test_a_suspect_and_a_slow_rank() -> None:
    ranks = [row(0), row(1), row(2), row(3, step_s=0.2), row(4, 12.0, section="data")]
    assert look_closer(ranks) == []
    assert [rank.suspect for rank in ranks] == [False] * 4 + [True]
    assert ranks[4].note == "suspect: still in 'data' for 12.0 s, 4 others go on"
    assert ranks[3].note == "slow: steps take 100% longer than the median"
    assert ranks[3].slow == 1.0


def test_a_slow_rank_that_the_job_has_found() -> None:
    ranks = [row(0), row(1, 12.0), row(2)]
    look_closer(ranks, {1: 0.15, 2: 0.16, 9: 1.0})
    assert ranks[1].suspect
    assert (ranks[2].note, ranks[2].slow) == (
        "slow: its own work takes 16% longer than its peers'", 0.16,
    )  # fmt: skip


def test_the_section_in_which_a_rank_is_slow_the_most() -> None:
    times = {0: 0.5, 1: 0.8, 2: 0.5}
    ranks = [row(rank, sections_s={"io": 1.0, "forward": lasted_s, "backward": lasted_s + 0.2})
             for rank, lasted_s in times.items()]  # fmt: skip
    look_closer(ranks)
    note = "slow: 'forward' takes 60% longer than the median"
    assert [rank.note for rank in ranks] == ["", note, ""]


def test_a_limit_that_is_near() -> None:
    ranks = [
        row(0, 1.5, limit_s=2.0),
        row(1, limit_s=2.0, section="io", section_s=0.75, section_limit_s=1.0),
        row(2, limit_s=2.0, section="io", section_s=0.4, section_limit_s=1.0),
        row(3, 1.5, limit_s=2.0, watched=False),
    ]
    look_closer(ranks)
    assert [rank.note for rank in ranks] == [
        "no heartbeat for 75% of its limit", "in 'io' for 75% of its limit", "", "",
    ]  # fmt: skip


def test_what_is_said_already_stays() -> None:
    ranks = [row(0, step_s=9.0, note="failed"), row(1), row(2)]
    look_closer(ranks)
    assert ranks[0].note == "failed"


def test_all_wait() -> None:
    assert look_closer([row(0, 15.0), row(1, 16.0)]) == ["ranks 0-1 stand still for 15.0 s"]
    assert look_closer([row(0, 15.0, state="T"), row(1, 16.0)]) == []
