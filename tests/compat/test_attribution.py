"""`attribution.base` and `attribution.utils` under NVRx's names."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from nvidia_resiliency_ext.attribution.base import AttributionState, NVRxAttribution
from nvidia_resiliency_ext.attribution.utils import capture_logs, capture_stdout

STOP, CONTINUE = AttributionState.STOP, AttributionState.CONTINUE


async def double(value: Any) -> Any:
    return value * 2


def add(value: Any, number: int = 1) -> Any:
    return value + number


def never(value: Any) -> Any:
    raise AssertionError(value)


async def late(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


def test_steps_are_functions_or_coroutines() -> None:
    chain = NVRxAttribution(double, add, str, attribution_kwargs={"number": 5})
    assert chain.run_sync(4) == "13"
    assert asyncio.run(chain.run(4)) == "13"


def test_functions_run_in_the_pool_that_is_given() -> None:
    with ThreadPoolExecutor(1, thread_name_prefix="mine") as pool:
        chain = NVRxAttribution(double, lambda _: threading.current_thread().name, thread_pool=pool)
        assert chain.run_sync(4).startswith("mine")


def test_it_can_be_waited_for_inside_of_a_loop() -> None:
    async def main() -> Any:
        return NVRxAttribution(double, add).run_sync(1)

    assert asyncio.run(main()) == 3


def test_states_are_taken_off_between_steps_and_kept_at_the_end() -> None:
    chain = NVRxAttribution(lambda x: (x, CONTINUE), add, lambda x: (x, CONTINUE))
    assert chain.run_sync((1, CONTINUE)) == (2, CONTINUE)
    assert NVRxAttribution(add, lambda x: (x, CONTINUE)).run_sync(1) == (2, CONTINUE)


def test_stop_ends_the_chain() -> None:
    assert NVRxAttribution(lambda _: ("why", STOP), never, never).run_sync(1) == ("why", STOP)
    assert NVRxAttribution(double, lambda x: (x, STOP), never).run_sync(1) == (2, STOP)
    chain = NVRxAttribution(never, never, never)
    assert chain.run_sync(("why", STOP)) == ("why", STOP)
    assert chain.run_sync(["log", ("why", STOP)]) == ("why", STOP)


def test_inputs_are_awaited() -> None:
    async def main() -> list[Any]:
        chain = NVRxAttribution(lambda x: x, lambda x: x)
        return [await chain.run(late(3)), await chain.run([late((1, CONTINUE)), late(2), 3])]

    assert asyncio.run(main()) == [3, [1, 2, 3]]


def test_errors_of_steps_are_raised() -> None:
    with pytest.raises(AssertionError, match="1"):
        NVRxAttribution(never, add).run_sync(1)


def test_what_is_logged_and_printed_is_collected(capsys: pytest.CaptureFixture[str]) -> None:
    with capture_logs("a") as logged, capture_stdout() as printed:
        logging.getLogger("a").warning("hot")
        logging.getLogger("b").warning("not this")
        print("GPU 0")
    logging.getLogger("a").warning("late")
    assert (logged.getvalue(), printed.getvalue()) == ("hot\n", "GPU 0\n")
    assert capsys.readouterr().out == ""


def test_what_is_printed_can_go_to_a_logger(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "c")
    with capture_logs("c") as logged, capture_stdout("c"):
        print("GPU 1")
    assert logged.getvalue() == "GPU 1\n"
