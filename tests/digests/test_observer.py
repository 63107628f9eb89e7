"""What is recorded when, and that nothing of it gets into training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from undaunted.digests.generators import Generators
from undaunted.digests.observer import Observer
from undaunted.digests.record import STEP, Record, read_records
from undaunted.digests.recorder import Recorder
from undaunted.digests.state import digest_of

if TYPE_CHECKING:
    from pathlib import Path

    from undaunted.digests.past import Past


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
