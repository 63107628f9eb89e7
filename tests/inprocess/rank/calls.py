"""Calls of wrapped functions in the test's own process."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from undaunted.inprocess.wrap import CallWrapper, Wrapper

if TYPE_CHECKING:
    from collections.abc import Callable

_SECOND = timedelta(seconds=1)


def call(fn: Callable[..., Any], *args: Any, check: Any = None, **changes: Any) -> Any:
    """Call ``fn`` as a wrapper with these arguments would."""
    quick = {"progress_watchdog_interval": _SECOND / 10, "termination_grace_time": _SECOND}
    wrapper = Wrapper(**{"abort": None, **quick, **changes})  # type: ignore[arg-type]
    wrapper.restart_health_check = check
    with CallWrapper(wrapper) as wrapped:
        return wrapped(fn, args, {})
