"""A chain of three steps, of which each may be a function or a coroutine function."""

from __future__ import annotations

import asyncio
import enum
import functools
import inspect
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Executor


class AttributionState(enum.Enum):
    """The verdict of a step on the steps after it."""

    STOP = enum.auto()
    CONTINUE = enum.auto()


class NVRxAttribution:
    """Prepares an input, finds who it was, and hands the answer out.

    A step returns its result, or a pair of the result and an `AttributionState`. With STOP the
    pair is what `run` returns, and the steps after it are left out. The last step's value is
    returned as it is.

    Args:
        preprocess_input: first step, called with the input.
        attribution: second step, called with the result of the first.
        output_handler: last step, called with the result of the second. None = there is none.
        attribution_kwargs: further arguments of the second step, by name.
        thread_pool: where steps that are no coroutines run. None = the loop's own.
    """

    def __init__(
        self,
        preprocess_input: Callable[..., Any],
        attribution: Callable[..., Any],
        output_handler: Callable[..., Any] | None = None,
        attribution_kwargs: Mapping[str, Any] | None = None,
        thread_pool: Executor | None = None,
    ) -> None:
        self._before = (
            preprocess_input,
            functools.partial(attribution, **(attribution_kwargs or {})),
        )
        self._output_handler = output_handler
        self._thread_pool = thread_pool

    async def run(self, input_data: Any) -> Any:
        """Run the steps one after the other.

        Args:
            input_data: an object, or a list. It, or what is in the list, may be the pair that
                another attribution has returned, or something to await.

        Raises:
            Exception: the one that a step raised.
        """
        given = await _awaited(input_data)
        parts = [await _awaited(one) for one in given] if isinstance(given, list) else [given]
        for one in parts:
            if _stops(one):
                return one
        values = [_result(one) for one in parts]
        value = values if isinstance(given, list) else values[0]
        for step in self._before:
            found = await self._call(step, value)
            if _stops(found):
                return found
            value = _result(found)
        return (
            found if self._output_handler is None else await self._call(self._output_handler, value)
        )

    def run_sync(self, input_data: Any) -> Any:
        """Do the same as `run`, and wait for it; also where a loop runs in this thread.

        Raises:
            Exception: the one that a step raised.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="attribution") as own:
            return own.submit(asyncio.run, self.run(input_data)).result()

    async def _call(self, step: Callable[..., Any], value: Any) -> Any:
        if inspect.iscoroutinefunction(step):
            return await step(value)
        loop = asyncio.get_running_loop()
        return await _awaited(await loop.run_in_executor(self._thread_pool, step, value))


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], AttributionState)


def _stops(value: Any) -> bool:
    return _is_pair(value) and value[1] is AttributionState.STOP


def _result(value: Any) -> Any:
    return value[0] if _is_pair(value) else value
