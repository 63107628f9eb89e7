"""Whose iterations count, and what their records are numbered."""

from __future__ import annotations

from undaunted.digests.position import Position


def begin(position: Position) -> list[int]:
    position.update_begins()
    return list(position.news())


def test_a_script_that_counts_is_believed() -> None:
    position = Position()
    position.told(7)
    assert (position.iteration, position.counted, position.held) == (7, False, False)
    assert begin(position) == []
    assert [position.number("forward"), position.number("forward")] == [0, 1]
    assert position.number("update") == 0
    position.told(8)
    assert position.number("forward") == 0


def test_updates_are_counted_where_nobody_counts() -> None:
    position = Position()
    assert not position.known
    assert begin(position) == []
    assert (position.iteration, position.counted, position.held) == (0, True, True)
    assert begin(position) == [0, 1]
    assert (position.iteration, position.counted, position.held) == (1, True, False)
    assert begin(position) == [2]
    assert list(position.news()) == []


def test_a_process_that_goes_on_counts_from_where_it_does() -> None:
    position = Position()
    position.nobody_counts()
    position.update_begins()
    assert not position.held
    position.begins_at(20)
    assert list(position.news()) == [20]
    assert begin(position) == [21]


def test_where_it_goes_on_may_be_known_and_not_who_counts() -> None:
    position = Position()
    position.update_begins()
    position.begins_at(20)
    assert list(position.news()) == []
    assert begin(position) == [20, 21]


def test_a_script_may_count_at_the_end_of_its_loop() -> None:
    position = Position()
    position.update_begins()
    position.told(30)
    assert (position.iteration, position.counted, position.held) == (30, False, False)
    assert begin(position) == []


def test_a_script_that_begins_to_count_late_takes_over() -> None:
    position = Position()
    for _ in range(5):
        position.update_begins()
    position.told(100)
    assert begin(position) == []
    assert (position.iteration, position.counted) == (100, False)


def test_a_repeated_iteration_of_the_same_process_begins_anew() -> None:
    position = Position()
    for iteration in (4, 5, 4):
        position.told(iteration)
        assert position.number("step") == 0
    position.told(4)
    assert position.number("step") == 1
