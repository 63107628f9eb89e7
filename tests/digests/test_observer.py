"""What is recorded when, and that nothing of it gets into training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from undaunted.digests.generators import Generators
from undaunted.digests.observer import Observer, Past, Position
from undaunted.digests.record import FORWARD, STEP, UPDATE, Record, Recorder, read_records
from undaunted.digests.state import digest_of

if TYPE_CHECKING:
    from pathlib import Path


def observer(directory: Path, announced: list[int] | None = None) -> Observer:
    return Observer(
        Recorder(directory, 1),
        Generators(directory, 1),
        rank=1,
        round_=2,
        announce=(announced if announced is not None else []).append,
    )


def records(directory: Path) -> list[Record]:
    return read_records(directory).by_rank.get(1, [])


def test_a_step_without_digest_leaves_no_record(tmp_path: Path) -> None:
    observer(tmp_path).step(3, None)
    assert records(tmp_path) == []


def test_what_the_script_gives_is_recorded_with_the_generators(tmp_path: Path) -> None:
    observer(tmp_path).step(3, {"loss": 1.5})
    (one,) = records(tmp_path)
    assert (one.round, one.iteration, one.at, one.n, one.counted) == (2, 3, STEP, 0, False)
    assert one.parts == {"loss": digest_of(1.5), "rng": one.parts["rng"]}


def test_what_has_no_digest_is_said_once_and_the_rest_recorded(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    one = observer(tmp_path)
    one.step(0, object())
    one.step(1, object())
    error = capfd.readouterr().err
    assert error.count("\n") == 1
    assert "rank 1: some of its state is not recorded" in error
    assert "object has no digest; give a module" in error
    assert [list(record.parts) for record in records(tmp_path)] == [["rng"], ["rng"]]


class Raising:
    def state_dict(self) -> object:
        raise RuntimeError("not now")


def test_a_state_that_cannot_be_had_is_said_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    one = observer(tmp_path)
    for iteration in range(3):
        one.step(iteration, Raising())
    assert capfd.readouterr().err.count("RuntimeError: not now") == 1


def test_a_place_that_is_gone_is_said_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    one = observer(tmp_path / "absent")
    one.step(0, 1)
    one.step(1, 1)
    assert capfd.readouterr().err.count("No such file") == 1


@pytest.mark.parametrize("odd", [None, "x", object()])
def test_an_odd_iteration_is_left_to_others(tmp_path: Path, odd: object) -> None:
    observer(tmp_path).step(odd, 1)
    assert records(tmp_path) == []


def begin(one: Observer) -> None:
    one.update_begins()
    one.announce()


def test_counted_iterations_are_announced(tmp_path: Path) -> None:
    announced: list[int] = []
    one = observer(tmp_path, announced)
    begin(one)
    assert announced == []
    begin(one)
    begin(one)
    assert announced == [0, 1, 2]
    one.step(50, None)
    begin(one)
    assert announced == [0, 1, 2]


def test_what_announcing_raises_is_the_scripts(tmp_path: Path) -> None:
    def fault(_iteration: int) -> None:
        raise KeyError("fault")

    one = Observer(Recorder(tmp_path, 0), Generators(tmp_path, 0), rank=0, round_=0, announce=fault)
    begin(one)
    with pytest.raises(KeyError, match="fault"):
        begin(one)


def test_a_past_that_cannot_be_read_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def unreadable() -> Past:
        raise PermissionError("not yours")

    announced: list[int] = []
    one = Observer(
        Recorder(tmp_path, 0),
        Generators(tmp_path, 0),
        rank=0,
        round_=0,
        announce=announced.append,
        past=unreadable,
    )
    begin(one)
    begin(one)
    assert announced == [0, 1]
    assert "counted from 0: not yours" in capfd.readouterr().err


def updating(position: Position) -> list[int]:
    position.update_begins()
    return list(position.news())


def test_a_script_that_counts_is_believed() -> None:
    position = Position()
    position.told(7)
    assert (position.iteration, position.counted, position.held) == (7, False, False)
    assert updating(position) == []
    assert [position.number("forward"), position.number("forward")] == [0, 1]
    assert position.number("update") == 0
    position.told(8)
    assert position.number("forward") == 0


def test_updates_are_counted_where_nobody_counts() -> None:
    position = Position()
    assert not position.known
    assert updating(position) == []
    assert (position.iteration, position.counted, position.held) == (0, True, True)
    assert updating(position) == [0, 1]
    assert (position.iteration, position.counted, position.held) == (1, True, False)
    assert updating(position) == [2]
    assert list(position.news()) == []


def test_a_process_that_goes_on_counts_from_where_it_does() -> None:
    position = Position()
    position.nobody_counts()
    position.update_begins()
    assert not position.held
    position.begins_at(20)
    assert list(position.news()) == [20]
    assert updating(position) == [21]


def test_where_it_goes_on_may_be_known_and_not_who_counts() -> None:
    position = Position()
    position.update_begins()
    position.begins_at(20)
    assert list(position.news()) == []
    assert updating(position) == [20, 21]


def test_a_script_may_count_at_the_end_of_its_loop() -> None:
    position = Position()
    position.update_begins()
    position.told(30)
    assert (position.iteration, position.counted, position.held) == (30, False, False)
    assert updating(position) == []


def test_a_script_that_begins_to_count_late_takes_over() -> None:
    position = Position()
    for _ in range(5):
        position.update_begins()
    position.told(100)
    assert updating(position) == []
    assert (position.iteration, position.counted) == (100, False)


def test_a_repeated_iteration_of_the_same_process_begins_anew() -> None:
    position = Position()
    for iteration in (4, 5, 4):
        position.told(iteration)
        assert position.number("step") == 0
    position.told(4)
    assert position.number("step") == 1


def begun(iteration: int, parameters: str, data: str = "x", *, counted: bool = True) -> Record:
    parts = {"data": data, "parameters": parameters}
    return Record(0, iteration, FORWARD, 0, parts, counted=counted)


def unknown() -> str:
    return "?"


def test_nothing_is_known_of_the_first_process() -> None:
    past = Past(())
    assert not past.counted
    assert past.iteration_of({"parameters": "a"}, unknown) is None


def test_the_iteration_is_the_one_that_began_with_these_parameters() -> None:
    updated = Record(0, 7, UPDATE, 0, {"parameters": "c"}, counted=True)
    past = Past([begun(5, "a"), begun(6, "b"), updated])
    assert past.counted
    assert past.iteration_of({"parameters": "b", "data": "y"}, unknown) == 6
    assert past.iteration_of({"parameters": "c", "data": "x"}, unknown) is None


def test_a_process_that_saved_and_left_has_not_begun_the_next_iteration() -> None:
    updated = Record(0, 7, UPDATE, 0, {"parameters": "u"}, counted=True)
    past = Past([begun(6, "a"), begun(7, "b"), updated])
    assert past.iteration_of({"parameters": "c"}, lambda: "u") == 8
    assert past.iteration_of({"parameters": "b"}, lambda: "u") == 7


def test_further_models_of_an_iteration_do_not_tell() -> None:
    further = Record(0, 7, FORWARD, 1, {"parameters": "c"}, counted=True)
    assert Past([begun(7, "b"), further]).iteration_of({"parameters": "c"}, unknown) is None


def test_of_several_it_is_the_one_most_alike_and_the_latest() -> None:
    past = Past([begun(0, "a", "x"), begun(1, "a", "y"), begun(2, "a", "z")])
    assert past.iteration_of({"parameters": "a", "data": "x"}, unknown) == 0
    assert past.iteration_of({"parameters": "a", "data": "other"}, unknown) == 2


def test_a_script_that_counts_is_known_to() -> None:
    told = Record(0, 3, STEP, 0, {"rng": "r"})
    assert not Past([begun(1, "a"), begun(2, "b"), told]).counted
    assert not Past([begun(1, "a", counted=False)]).counted
