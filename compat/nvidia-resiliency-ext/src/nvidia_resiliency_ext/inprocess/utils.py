"""Texts for log lines, and the version of torch."""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import re
from typing import TYPE_CHECKING, Any, TypeVar

from undaunted.inprocess.utils import format_exc as format_exc
from undaunted.inprocess.utils import format_rank_set as format_rank_set
from undaunted.inprocess.utils import format_rank_set_brief as format_rank_set_brief
from undaunted.inprocess.utils import format_rank_set_verbose as format_rank_set_verbose

if TYPE_CHECKING:
    from collections.abc import Iterator

    from undaunted.inprocess.state import FrozenState, State

_logger = logging.getLogger("nvrx")
_Handler = TypeVar("_Handler", bound=logging.Handler)


def log_exc(rank_or_state: int | State | FrozenState, exc: BaseException, name: str) -> str:
    """Return the line of a log that tells of an exception.

    Args:
        rank_or_state: who has raised.
        exc: what.
        name: where, for example ``fn_ex``.
    """
    rank = rank_or_state if isinstance(rank_or_state, int) else rank_or_state.rank
    now = dt.datetime.now(dt.UTC).isoformat(sep=" ", timespec="milliseconds")
    return f"[{now}] rank={rank} {name}: {format_exc(exc)}"


def log_exec(target: Any) -> Any:
    """Log at DEBUG when a function, or a ``with`` block, begins and ends.

    Args:
        target: the function, which `log_exec` decorates; or a name for the block.
    """
    if not callable(target):
        return _logged(str(target))
    return _logged(getattr(target, "__qualname__", repr(target)))(target)


@contextlib.contextmanager
def _logged(name: str) -> Iterator[None]:
    _logger.debug("%s begins", name)
    try:
        yield
    except BaseException as error:
        _logger.debug("%s ends: %s", name, format_exc(error))
        raise
    _logger.debug("%s ends", name)


def torch_older_than(version: str) -> bool:
    """Return whether torch is older than a release, ``2.8`` or ``2.8.0`` say."""
    import torch

    return _release(torch.__version__) < _release(version)


def find_nearest_handler(logger: logging.Logger, handler_cls: type[_Handler]) -> _Handler | None:
    """Return the first handler of a class that gets what the logger logs; None = there is none."""
    found = (each for each in _handlers(logger) if isinstance(each, handler_cls))
    return next(found, None)


def _handlers(logger: logging.Logger) -> Iterator[logging.Handler]:
    at: logging.Logger | None = logger
    while at is not None:
        yield from at.handlers
        at = at.parent if at.propagate else None


def _release(version: str) -> tuple[int, int, int]:
    numbers = [int(number) for number in re.findall(r"\d+", version)[:3]]
    major, minor, patch = (*numbers, 0, 0, 0)[:3]
    return major, minor, patch
