"""What a rank does by itself, out of its steps and the moments of its collectives."""

from __future__ import annotations

import pytest

from undaunted.fault_tolerance.slow_ranks import own_times
from undaunted.fault_tolerance.slow_ranks.own_times import Chunk, Step
from undaunted.progress.writer import CHUNK

MS = 1_000_000


def chunks(steps: list[Step], called: list[int], after: int = 0) -> tuple[Chunk, ...]:
    return own_times.chunks(steps, called, after)[0]


def steps(count: int, *, first: int = 0, each_ms: int = 20, begin_ms: int = 1000) -> list[Step]:
    return [Step((begin_ms + each_ms * index) * MS, first + index) for index in range(count)]


def calls(of: list[Step], *after_ms: int) -> list[int]:
    return sorted(step.begun_ns + ms * MS for step in of for ms in after_ms)


def later(step: Step, by_ms: int) -> Step:
    return step._replace(begun_ns=step.begun_ns + by_ms * MS)


def test_one_collective_of_each_step() -> None:
    known = steps(11)
    assert chunks(known, [0, *calls(known, 12)]) == (
        Chunk(0, 1, 20_000, (12_000,)),
        Chunk(1, 1, 20_000, (12_000,)),
    )


def test_of_many_collectives_the_first_the_last_and_two_between() -> None:
    known = steps(6)
    (chunk,) = chunks(known, [0, *calls(known, *range(1, 11))])
    assert chunk == Chunk(0, 10, 20_000, (1_000, 4_000, 7_000, 10_000))


def test_one_long_step_is_not_the_median() -> None:
    known = steps(3) + [later(step, 500) for step in steps(6)[3:]]
    (chunk,) = chunks(known, [0, *calls(known, 12)])
    assert chunk.step_us == 20_000


def test_chunks_begin_at_multiples_and_are_whole() -> None:
    known = steps(12, first=3)
    found = chunks(known, [0, *calls(known, 12)])
    assert [chunk.first for chunk in found] == [1], "3, 4 and 10 to 13 are no whole chunks"


def test_what_was_told_is_not_told_again() -> None:
    known = steps(21)
    called = [0, *calls(known, 12)]
    _, over = own_times.chunks(known[:13], called)
    assert [chunk.first for chunk in chunks(known, called, over)] == [2, 3]


def test_steps_without_collectives_or_with_another_number_of_them_say_nothing() -> None:
    known = steps(11)
    assert chunks(known, []) == ()
    some = calls(known[5:], 12)
    assert [chunk.first for chunk in chunks(known, [0, *some])] == [1]
    assert [chunk.first for chunk in chunks(known, [0, *some, *calls(known[:1], 3)])] == [1]


def test_steps_from_before_the_oldest_entry_of_the_recorder_say_nothing() -> None:
    known = steps(16)
    assert [chunk.first for chunk in chunks(known, calls(known[2:], 12))] == [1, 2]


def test_iterations_that_go_back_or_jump() -> None:
    again = [later(step, 1000) for step in steps(6)]
    assert [chunk.first for chunk in chunks([*steps(3), *again], [0, *calls(again, 12)])] == [0]
    jumping = [step._replace(iteration=2 * step.iteration) for step in steps(20)]
    assert chunks(jumping, [0, *calls(jumping, 12)]) == ()


def test_of_many_chunks_those_are_left_that_ranks_with_fewer_have_as_well() -> None:
    known = steps(CHUNK * 200 + 1)
    found = chunks(known, [0, *calls(known, 12)])
    assert len(found) <= 32
    assert all(chunk.first % 8 == 0 for chunk in found)


def test_the_cpu_time_of_a_step() -> None:
    known = [
        step._replace(cpu_ns=(1 + 4 * step.iteration) * MS if step.iteration % CHUNK == 0 else 0)
        for step in steps(13)
    ]
    assert [chunk.cpu_us for chunk in chunks(known, [0, *calls(known, 12)])] == [4_000, 4_000]


@pytest.mark.parametrize("cpu_ns", [0, 500])
def test_cpu_time_that_is_not_known(cpu_ns: int) -> None:
    """It was not noted, or the steps after these are another thread's."""
    known = [*steps(5), Step(1100 * MS, 5, cpu_ns)]
    known[0] = known[0]._replace(cpu_ns=1000)
    assert [chunk.cpu_us for chunk in chunks(known, [0, *calls(known, 12)])] == [0]


def whole(rank_steps: list[Step], called: list[int]) -> Chunk:
    (chunk,) = own_times.chunks(rank_steps, [0, *called], waited=True)[0]
    return chunk


def test_what_is_done_behind_the_last_collective_is_counted_from_the_last_rank_to_call_it() -> None:
    known = steps(6)
    early, late = whole(known, calls(known, 3, 10)), whole(known, calls(known, 4, 12))
    assert own_times.tails_us([early, late]) == [8_000, 8_000]
    behind = whole([later(step, 2) for step in known], calls(known, 10))
    assert own_times.tails_us([early, behind]) == [10_000, 12_000]


def test_ranks_that_go_on_before_others_have_called_it_differ_as_much() -> None:
    known = steps(6)
    ahead, last = (
        whole(known, calls(known, 12)),
        whole([later(s, 15) for s in known], calls(known, 30)),
    )
    one, other = own_times.tails_us([ahead, last])
    assert (one, other - one) == (0, 15_000)


@pytest.mark.parametrize(
    "chunk", [Chunk(0, 1, 20_000, (12_000,)), Chunk(0, 1, 9, (1,), 0, 7, (1,))]
)
def test_tails_are_not_known_where_one_rank_does_not_tell(chunk: Chunk) -> None:
    known = steps(6)
    assert own_times.tails_us([whole(known, calls(known, 12)), chunk]) == []
    assert own_times.tails_us([]) == []
