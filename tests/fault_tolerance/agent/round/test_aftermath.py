"""What is done for a round that is over, beside the next one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.coordinator.wire.talk import on_loop
from undaunted.fault_tolerance.agent.round import leftovers
from undaunted.fault_tolerance.agent.round.aftermath import Aftermath

if TYPE_CHECKING:
    from collections.abc import Callable


class Told:
    """Scribe and attribution in one, and who hears of bugs."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.over: list[int] = []
        self.bugs: list[BaseException] = []

    def say(self, line: str) -> None:
        self.said.append(line)

    def round_over(self, number: int) -> None:
        self.over.append(number)


def aftermath(told: Told, *, check_remaining_processes: bool = True) -> Aftermath:
    config: Any = SimpleNamespace(
        check_remaining_processes=check_remaining_processes, run_dir="/run"
    )
    this: Any = told
    return Aftermath(config, this, this, told.bugs.append)


def closed_round(finish_output: Callable[[], list[str]]) -> Any:
    return SimpleNamespace(number=3, finish_output=finish_output)


@on_loop
async def test_the_log_is_complete_when_the_last_output_is_copied() -> None:
    told = Told()
    work = aftermath(told)
    work.finish_output(closed_round(lambda: ["the disk is full"]))
    assert told.over == []
    await work.wait()
    assert (told.said, told.over, told.bugs) == (["the disk is full"], [3], [])


@on_loop
async def test_a_bug_is_told() -> None:
    told = Told()
    work = aftermath(told)

    def bug() -> list[str]:
        raise ZeroDivisionError

    work.finish_output(closed_round(bug))
    await work.wait()
    (error,) = told.bugs
    assert isinstance(error, ZeroDivisionError)
    assert told.over == []


@pytest.mark.parametrize(("asked", "said"), [(True, ["/run 3"]), (False, [])])
def test_leftovers_are_named_if_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, *, asked: bool, said: list[str]
) -> None:
    monkeypatch.setattr(leftovers, "line", lambda run_dir, number: f"{run_dir} {number}")
    told = Told()

    @on_loop
    async def run() -> None:
        work = aftermath(told, check_remaining_processes=asked)
        work.name_leftovers(3)
        await work.wait()

    run()
    assert told.said == said


@on_loop
async def test_nothing_left_behind_is_not_worth_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "line", lambda run_dir, number: "")
    told = Told()
    work = aftermath(told)
    work.name_leftovers(3)
    await work.wait()
    assert told.said == []
