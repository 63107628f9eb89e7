"""Who keeps the others waiting, who is slow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.top.pages import row
from undaunted.top.suspects import slow, standstill, suspects


def test_nobody_while_all_go_on() -> None:
    assert suspects([row(0, 0.05), row(1, 0.1)]) == {}


def test_a_rank_that_stands_still_while_others_go_on() -> None:
    ranks = [row(0, 0.05), row(1, 7.0, section="data"), row(2, 0.1)]
    assert suspects(ranks) == {1: "still in 'data' for 7.0 s, 2 others go on"}
    assert suspects(ranks[:2]) == {1: "still in 'data' for 7.0 s, the other goes on"}


def test_patience_grows_with_the_steps() -> None:
    assert suspects([row(0, 0.1, step_s=10.0), row(1, 25.0, step_s=10.0)]) == {}
    assert 1 in suspects([row(0, 0.1, step_s=10.0), row(1, 35.0, step_s=10.0)])


def test_a_section_may_take_as_long_as_it_ever_did() -> None:
    assert suspects([row(0), row(1, 7.0, section="save", section_longest_s=6.0)]) == {}
    assert 1 in suspects([row(0), row(1, 10.0, section="save", section_longest_s=6.0)])


def test_ranks_that_no_limit_watches_are_not_suspect() -> None:
    assert suspects([row(0), row(1, 99.0, watched=False)]) == {}
    assert suspects([row(0), row(1, still_s=None)]) == {}  # type: ignore[arg-type]


def test_a_stopped_process() -> None:
    assert suspects([row(0), row(1, 0.0, state="T")]) == {1: "stopped by a signal"}


def test_most_wait_for_one_that_goes_on() -> None:
    """One saves, in a section that takes long; that is what it always does."""
    ranks = [row(rank, 9.0) for rank in range(1, 4)]
    ranks.append(row(0, 9.0, section="save", section_longest_s=8.0))
    assert suspects(ranks) == {}
    assert standstill(ranks) == "ranks 1-3 stand still for 9.0 s, not 0"


def test_all_stand_in_one_place_and_one_is_at_work() -> None:
    ranks = [row(0, 9.0, cpu=0.02), row(1, 9.0, cpu=0.98), row(2, 9.0, cpu=0.0)]
    assert suspects(ranks) == {
        1: "still for 9.0 s, at work (98% of a core), the others wait",
    }
    assert standstill(ranks) == "ranks 0-2 stand still for 9.0 s"


@pytest.mark.parametrize("cpu", [
    (0.98, 0.97, 0.0),  # they wait for a GPU, or one waits for two
    (0.98, 0.0), (0.98, 0.97, 0.98), (0.0, 0.0, 0.0),
    (0.98, 0.3, 0.0), (0.98, None, 0.0), (None, None, None),
])  # fmt: skip
def test_work_that_tells_nothing(cpu: tuple[float | None, ...]) -> None:
    assert suspects([row(rank, 9.0, cpu=used) for rank, used in enumerate(cpu)]) == {}


def test_all_stand_in_one_place_and_one_waits_for_a_disk() -> None:
    ranks = [row(0, 9.0), row(1, 9.0, state="D"), row(2, 9.0)]
    why = "its process waits for a disk, a file system or a device"
    assert suspects(ranks) == {1: f"still for 9.0 s, {why}"}
    for rank in ranks:
        rank.state = "D"
    assert suspects(ranks) == {}


def test_as_long_as_no_step_is_known() -> None:
    ranks = [row(0, 0.1, step_s=None), row(1, 20.0, step_s=None)]
    assert suspects(ranks) == {}
    ranks[1].still_s = 31.0
    assert 1 in suspects(ranks)


def test_all_wait_and_one_is_behind() -> None:
    ranks = [row(0, 9.0, iteration=6), row(1, 9.0, iteration=5), row(2, 9.0, iteration=6)]
    assert suspects(ranks) == {1: "still for 9.0 s, at iteration 5, others at 6"}
    assert standstill(ranks) == "ranks 0-2 stand still for 9.0 s"


def test_all_wait_and_one_is_elsewhere() -> None:
    ranks = [row(rank, 9.0, section="reduce") for rank in range(3)]
    ranks.append(row(3, 9.0, section="data"))
    assert suspects(ranks) == {3: "still in 'data' for 9.0 s, the others are in 'reduce'"}
    ranks[0].section = ranks[1].section = ""
    assert suspects(ranks) == {}  # nobody is where most are
    ranks[2].section = ""
    assert suspects(ranks)[3].endswith("the others are outside sections")


def test_all_wait_alike() -> None:
    ranks = [row(0, 9.0), row(1, 8.0)]
    assert suspects(ranks) == {}
    assert standstill(ranks) == "ranks 0-1 stand still for 8.0 s"
    assert standstill([row(0, 9.0)]) == ""  # nobody to compare it with
    assert standstill([row(0, 9.0), row(1)]) == ""


def test_slow_is_who_is_out_of_the_spread() -> None:
    others = {rank: 1.0 + rank / 1000 for rank in range(8)}
    assert list(slow({**others, 8: 1.5})) == [8]
    assert round(slow({**others, 8: 1.5})[8], 2) == 0.49
    assert slow({**others, 8: 1.1}) == {}  # too little to matter
    assert slow({rank: 1.0 + rank / 2 for rank in range(8)}) == {}  # all differ
    assert slow({0: 1.0, 1: 2.0}) == {}
    assert slow({0: 0.0, 1: 0.0, 2: 0.0}) == {}


@given(st.dictionaries(st.integers(0, 50), st.floats(0, 1e9), max_size=20))
def test_less_than_half_are_slow(values: dict[int, float]) -> None:
    found = slow(values)
    assert len(found) <= len(values) / 2
    assert all(part > 0.149 for part in found.values())
