"""Records of a rank, cut where its program was started again."""

from __future__ import annotations

from dataclasses import replace

from tests.chaos.histories import Run, fault, undisturbed
from undaunted.chaos.checker.lives import lives, reference_lines
from undaunted.chaos.history import Start
from undaunted.digests.record import FORWARD, UPDATE, Record

COUNTED = {"counted": True, "told": False}


def test_a_life_per_process() -> None:
    history = Run().history(
        fault(iteration=6, resume=5, id="a"), fault("sigterm", iteration=12, resume=13, id="b")
    )

    found = lives(history, reference_lines(undisturbed()))

    assert [life.start for life in found[0]] == [Start(0, 0), Start(0, 1), Start(1, 0)]
    assert [(life.keys[0].iteration, life.keys[-1].iteration) for life in found[1]] == [
        (0, 6),
        (5, 12),
        (13, 19),
    ]


def test_a_life_per_restart_inside_of_a_process() -> None:
    history = Run().history(
        fault("exception", how="inside", iteration=6, resume=6, id="a"),
        fault("exception", how="inside", iteration=12, resume=3, id="b"),
    )

    found = lives(history, reference_lines(undisturbed()))

    assert [life.start for life in found[0]] == [Start(0, 0, 0), Start(0, 0, 1), Start(0, 0, 2)]
    assert {key.n for life in found[0] for key in life.keys} == {0}


def test_several_forward_passes_of_a_step_are_one_life() -> None:
    records = [
        Record(0, iteration, FORWARD, n, {"parameters": f"p{iteration}"}, pid=5)
        for iteration in range(3)
        for n in range(4)
    ]
    history = replace(undisturbed(), records={0: records})

    [life] = lives(history, reference_lines(history))[0]

    assert len(life.records) == 12


def test_counted_steps_are_placed_by_their_parameters() -> None:
    history = Run(**COUNTED).history(fault(iteration=12, resume=10))  # type: ignore[arg-type]

    first, second = lives(history, reference_lines(undisturbed(**COUNTED)))[0]

    assert (first.keys[0].iteration, first.keys[-1].iteration) == (0, 11)
    assert second.records[0].iteration == 0
    assert (second.keys[0].iteration, second.keys[-1].iteration) == (10, 19)
    assert second.placed


def test_counted_steps_that_go_back_inside_of_a_process() -> None:
    history = Run(**COUNTED).history(  # type: ignore[arg-type]
        fault("exception", how="inside", iteration=12, resume=5)
    )
    # A process that counts goes on counting.
    records = [
        Record(r.round, number // 2, r.at, 0, r.parts, r.counted, pid=r.pid)
        for number, r in enumerate(history.records[0])
    ]

    first, second = lives(
        replace(history, records={0: records}), reference_lines(undisturbed(**COUNTED))
    )[0]

    assert (first.keys[-1].iteration, first.start.part) == (11, 0)
    assert (second.keys[0].iteration, second.keys[-1].iteration) == (5, 19)
    assert second.start.part == 1


def test_parameters_that_stay_the_same_for_some_steps_are_placed_by_what_follows() -> None:
    def line(begin: int, pid: int) -> list[Record]:
        return [
            Record(0, i - begin, FORWARD, 0, {"parameters": f"p{i // 4}"}, True, pid=pid)
            for i in range(begin, 20)
        ]

    reference = replace(undisturbed(), records={0: line(0, 1)})
    history = replace(undisturbed(), records={0: [*line(0, 1)[:11], *line(8, 2)]})

    _, second = lives(history, reference_lines(reference))[0]

    assert second.placed
    assert [key.iteration for key in second.keys] == list(range(8, 20))


def test_a_process_that_the_journal_does_not_know() -> None:
    history = replace(Run().history(fault(iteration=12, resume=10)), launches=())

    found = lives(history, reference_lines(undisturbed()))

    assert [life.start for life in found[0]] == [Start(0, 0), Start(0, 1)]


def test_a_step_that_is_begun_again_where_it_was() -> None:
    def step(iteration: int, first: int = 0, passes: int = 3) -> list[Record]:
        return [Record(0, iteration, FORWARD, first + n, {}, pid=5) for n in range(passes)]

    reference = replace(undisturbed(), records={0: [*step(0), *step(1), *step(2)]})
    again = [*step(0), *step(1, passes=3), *step(1, first=3), *step(2)]

    found = lives(replace(reference, records={0: again}), reference_lines(reference))[0]

    assert [[(key.iteration, key.n) for key in life.keys] for life in found] == [
        [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)],
        [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)],
    ]


def test_a_step_that_is_begun_again_from_a_later_one_that_recorded_nothing() -> None:
    def step(iteration: int) -> list[Record]:
        return [Record(0, iteration, at, 0, {}, pid=5) for at in (FORWARD, UPDATE)]

    reference = replace(undisturbed(), records={0: [*step(0), *step(1), *step(2)]})
    again = [*step(0), *step(1), *step(1), *step(2)]

    found = lives(replace(reference, records={0: again}), reference_lines(reference))[0]

    assert [[(key.iteration, key.n) for key in life.keys] for life in found] == [
        [(0, 0), (0, 0), (1, 0), (1, 0)],
        [(1, 0), (1, 0), (2, 0), (2, 0)],
    ]
