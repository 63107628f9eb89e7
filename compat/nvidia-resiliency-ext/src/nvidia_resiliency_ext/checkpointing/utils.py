"""Helpers for states of training: copying and comparing them, and taking the time."""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from undaunted.base.garbage import collection_paused

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_default_logger = logging.getLogger("undaunted")
_stack: ContextVar[tuple[tuple[str, logging.Logger], ...]] = ContextVar("stack", default=())
_disable_gc = collection_paused


def preload_tensors(state_dict: Any, non_blocking: bool = True) -> Any:
    """Return the state with copies of all its tensors in memory of the CPU.

    CPU tensors are copied too, so that training may change them at once.

    Args:
        state_dict: any nesting of dicts, lists and tuples; left alone.
        non_blocking: accepted for compatibility: all copies are started before the first is waited
            for, and are whole when this returns.
    """
    from undaunted.checkpointing.memory.copy import host_copy  # torch

    del non_blocking
    return host_copy(state_dict)


def dict_list_map_outplace(f: Callable[[Any], Any], x: Any) -> Any:
    """Return a nesting of dicts and lists with ``f`` applied to everything that is neither."""
    if isinstance(x, dict):
        return {key: dict_list_map_outplace(f, value) for key, value in x.items()}
    if isinstance(x, list):
        return [dict_list_map_outplace(f, value) for value in x]
    return f(x)


def diff(
    x1: Any, x2: Any, prefix: tuple[Any, ...] = ()
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Compare two nestings of dicts, lists and tuples.

    Returns:
        The paths that only the left one has, those that only the right one has, and, for what
        differs, the path and both types.
    """
    left, right = _children(x1), _children(x2)
    if left is None or right is None or isinstance(x1, dict) != isinstance(x2, dict):
        return [], [], [] if _same(x1, x2) else [(prefix, type(x1), type(x2))]
    only_left = [(*prefix, key) for key in left if key not in right]
    only_right = [(*prefix, key) for key in right if key not in left]
    mismatch: list[tuple[Any, ...]] = []
    for key in left:
        if key in right:
            deeper = diff(left[key], right[key], (*prefix, key))
            only_left += deeper[0]
            only_right += deeper[1]
            mismatch += deeper[2]
    return only_left, only_right, mismatch


def wrap_for_async(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``fn`` with the garbage collector switched off while it runs."""

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with _disable_gc():
            return fn(*args, **kwargs)

    return wrapped


@contextlib.contextmanager
def logger_stack(
    name: str | None = None, current_logger: logging.Logger | None = None
) -> Generator[tuple[str, logging.Logger], None, None]:
    """Name what is being done, below what was named around it.

    Args:
        name: of this part; None = no further name.
        current_logger: for messages inside; None = the one around it, or ``nvrx``.

    Yields:
        All names, joined by dots, and the logger.
    """
    around = _stack.get()
    logger = current_logger or (around[-1][1] if around else _default_logger)
    token = _stack.set((*around, (name, logger)) if name is not None else around)
    try:
        yield ".".join(part for part, _ in _stack.get()), logger
    finally:
        _stack.reset(token)


@contextlib.contextmanager
def debug_time(
    name: str,
    logger: logging.Logger | None = None,
    threshold: float = float("-inf"),
    level: int | None = None,
) -> Generator[None, None, None]:
    """Log how long the block took.

    Args:
        name: of the block; see `logger_stack`.
        logger: None = the one around it.
        threshold: in seconds; blocks that are shorter are not logged.
        level: of the message; None = ``logging.DEBUG``.
    """
    with logger_stack(name, logger) as (names, chosen):
        begun = time.perf_counter()
        try:
            yield
        finally:
            taken = time.perf_counter() - begun
            if taken > threshold:
                chosen.log(
                    logging.DEBUG if level is None else level, "%s took %.3f s", names, taken
                )


def debug_msg(msg: str) -> None:
    """Log a message with the names of `logger_stack` before it."""
    with logger_stack() as (names, logger):
        logger.debug("%s %s", names, msg)


def _children(value: Any) -> dict[Any, Any] | None:
    if isinstance(value, dict):
        return value
    if isinstance(value, (list, tuple)):
        return dict(enumerate(value))
    return None


def _same(x1: Any, x2: Any) -> bool:
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(x1, torch.Tensor):
        return isinstance(x2, torch.Tensor) and bool(
            x1.shape == x2.shape and x1.dtype == x2.dtype and torch.all(x1.cpu() == x2.cpu())
        )
    if numpy is not None and isinstance(x1, numpy.ndarray):
        return bool(numpy.array_equal(x1, x2))
    return bool(x1 == x2)
