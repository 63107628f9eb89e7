"""What a rank does by itself, out of its steps and the moments of its collectives."""

from __future__ import annotations

from undaunted.attribution.straggler import own_times
from undaunted.attribution.straggler.own_times import STEPS, Chunk

MS = 1_000_000


def chunks(steps: list[tuple[int, int]], called: list[int], after: int = 0) -> tuple[Chunk, ...]:
    return own_times.chunks(steps, called, after)[0]


def steps(
    count: int, *, first: int = 0, each_ms: int = 20, begin_ms: int = 1000
) -> list[tuple[int, int]]:
    return [((begin_ms + each_ms * index) * MS, first + index) for index in range(count)]


def calls(of: list[tuple[int, int]], *after_ms: int) -> list[int]:
    return sorted(begun + ms * MS for begun, _ in of for ms in after_ms)


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
    known = steps(3) + [(at + 500 * MS, number) for at, number in steps(6)[3:]]
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
    again = [(at + 1000 * MS, number) for at, number in steps(6)]
    assert [chunk.first for chunk in chunks([*steps(3), *again], [0, *calls(again, 12)])] == [0]
    jumping = [(at, 2 * number) for at, number in steps(20)]
    assert chunks(jumping, [0, *calls(jumping, 12)]) == ()


def test_of_many_chunks_those_are_left_that_ranks_with_fewer_have_as_well() -> None:
    known = steps(STEPS * 200 + 1)
    found = chunks(known, [0, *calls(known, 12)])
    assert len(found) <= 32
    assert all(chunk.first % 8 == 0 for chunk in found)
