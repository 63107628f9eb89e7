"""Tasks that have an owner, and events that wait for their turn."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from undaunted.fault_tolerance.agent import tasks as module
from undaunted.fault_tolerance.agent.tasks import Tasks, Turns


def test_a_task_that_fails_is_reported() -> None:
    async def bug() -> None:
        raise ZeroDivisionError

    async def main() -> list[BaseException]:
        failures: list[BaseException] = []
        tasks = Tasks(failures.append)
        tasks.start(bug())
        await tasks.wait()
        await asyncio.sleep(0)
        return failures

    assert [type(error) for error in asyncio.run(main())] == [ZeroDivisionError]


def test_a_task_that_loses_the_request_to_end_is_asked_again() -> None:
    async def deaf() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()

    async def main() -> None:
        tasks = Tasks(lambda error: None)
        tasks.start(deaf())
        await asyncio.sleep(0)
        await asyncio.wait_for(tasks.cancel(), 30)

    asyncio.run(main())


def test_a_task_that_does_not_end_is_left_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CANCEL_S", 0.3)
    failures: list[BaseException] = []
    over = False

    async def deaf() -> None:
        while not over:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    async def main() -> None:
        nonlocal over
        tasks = Tasks(failures.append)
        tasks.start(deaf())
        await asyncio.sleep(0)
        await asyncio.wait_for(tasks.cancel(), 30)
        over = True
        await tasks.cancel()

    asyncio.run(main())
    assert len(failures) == 1
    assert "deaf" in str(failures[0])


def test_cancelled_tasks_have_ended_and_are_no_failure() -> None:
    async def main() -> None:
        tasks = Tasks(lambda error: None)
        ended = asyncio.Event()

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        tasks.start(work())
        await asyncio.sleep(0)
        await tasks.cancel()
        assert ended.is_set()

    asyncio.run(main())


def test_what_a_call_causes_comes_after_it() -> None:
    turns = Turns()
    seen: list[str] = []

    def first() -> None:
        turns.take(lambda: seen.append("second"))
        seen.append("first")

    turns.take(first)
    assert seen == ["first", "second"]


def test_an_exception_does_not_block_the_next_call() -> None:
    turns = Turns()
    seen: list[str] = []

    def bug() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        turns.take(bug)
    turns.take(lambda: seen.append("next"))
    assert seen == ["next"]
