"""The process that watches a rank from outside, and what is done with such processes."""

from __future__ import annotations

import os
import traceback
from typing import TYPE_CHECKING, Any

from nvidia_resiliency_ext._ending import end
from undaunted.base.process import ENDED, state
from undaunted.inprocess.monitor_process import MonitorProcess as MonitorProcess

if TYPE_CHECKING:
    import datetime as dt
    import logging
    from collections.abc import Callable, Mapping, Sequence


def is_process_active(process: Any) -> bool:
    """Return whether a process runs; one that has ended and was not waited for does not.

    Args:
        process: has ``pid``, and may have ``is_running()``, as those of psutil do.
    """
    is_running = getattr(process, "is_running", lambda: True)
    return bool(is_running()) and state(process.pid) not in ENDED


def terminate_process(
    process: Any, termination_grace_time: dt.timedelta, log: logging.Logger
) -> None:
    """End a process by SIGTERM, and by SIGKILL if it runs on.

    Args:
        process: see `is_process_active`.
        termination_grace_time: between the two signals.
        log: called with the second one.
    """
    if is_process_active(process) and end([process.pid], termination_grace_time.total_seconds()):
        log.warning("process %d ran on after SIGTERM and was killed", process.pid)


def daemonize_fn(
    fn: Callable[..., object],
    fn_args: Sequence[Any] = (),
    fn_kwargs: Mapping[str, Any] | None = None,
) -> None:
    """Call a function in a process that outlives this one, and return at once.

    The process is a fork, in another session, and no child of ours; it ends with the function.
    Its exceptions go to standard error. As after any fork, it must leave CUDA alone.

    Args:
        fn: the function.
        fn_args: its arguments.
        fn_kwargs: its arguments by name.
    """
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if not os.fork():
            fn(*fn_args, **(fn_kwargs or {}))
    except BaseException:  # noqa: BLE001 - nothing of the parent's code may run here
        traceback.print_exc()
    finally:
        os._exit(0)
