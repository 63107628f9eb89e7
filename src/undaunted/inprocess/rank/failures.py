"""Exceptions of the user's code: their lines in the log, their reasons for other ranks.

Finds out from an exception where it was raised, and whether it is a consequence of another rank's
failure. Also clears the frames that an exception keeps alive.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.attribution import peers
from undaunted.attribution.decision import fingerprint
from undaunted.attribution.verdicts import cause_of_exception
from undaunted.base.reentry import Fault, Reentry
from undaunted.base.text import count
from undaunted.inprocess.attribution import (
    Interruption,
)
from undaunted.inprocess.core.messages import Reason
from undaunted.inprocess.guard.start import VARIABLE
from undaunted.inprocess.utils import format_exc
from undaunted.progress.writer import steps_since

if TYPE_CHECKING:
    from collections.abc import Iterator

    from undaunted.inprocess.core.messages import Record

_TEXT = 1000  # characters
# Who tells no steps and fails so soon cannot have done much.
_EARLY_NS = 60_000_000_000
_OURS = f"{Path(__file__).parents[2]}/"
_STDLIB = f"{Path(os.__file__).parent}/"
_PACKAGES = ("/site-packages/", "/dist-packages/")
_CHECKPOINTING = "undaunted.checkpointing."

_log = logging.getLogger("undaunted")


def log_failure(
    level: int, rank: int, tag: str, error: BaseException, place: str | None = None
) -> None:
    """Write the line of an exception.

    Args:
        level: of the logging module.
        rank: of this process.
        tag: of the code that has raised, for example ``fn_ex`` for the function.
        error: the exception.
        place: where it was raised, None = to be found out.
    """
    if not _log.isEnabledFor(level):
        return
    now = dt.datetime.now(dt.UTC).isoformat(sep=" ", timespec="milliseconds")
    place = where(error) if place is None else place
    text = f"{format_exc(error)}, in {place}" if place else format_exc(error)
    _log.log(level, "[%s] rank=%s %s: %s", now, rank, tag, text)


def log_restart(record: Record, rank: int) -> None:
    """Log in the new rank 0 why the function runs again. Under `undaunted run`, the launcher does.

    Args:
        record: of the iteration that begins.
        rank: of this process.
    """
    if not record.reasons or rank != 0 or os.environ.get(VARIABLE):
        return
    first, others = record.reasons[0], len(record.reasons) - 1
    who = f"rank {first.rank if first.rank >= 0 else first.job_rank} of the one before"
    _log.warning(
        "[undaunted] iteration %d begins with %s; %s%s%s%s",
        record.epoch,
        count(len(record.members), "rank"),
        "" if first.named else f"{who}: {first.kind}: ",
        first.text or "no more is known",
        f", in {first.where}" if first.where else "",
        f", and {others} more" if others else "",
    )


def reentry_of(record: Record, called_ns: int) -> Reentry:
    """Return the facts by which others choose a saved state to go on from.

    Args:
        record: of the iteration that begins.
        called_ns: when the function was called before, CLOCK_MONOTONIC in nanoseconds.
    """
    name = f"{record.call}.{record.epoch}"
    if not record.epoch:
        return Reentry(name)
    before = f"{record.call}.{record.epoch - 1}"
    raised = [one for one in record.reasons if one.kind == Interruption.EXCEPTION.name]
    first = next((one for one in raised if not one.consequence), None)
    if first is None:
        return Reentry(name, before)
    kind, _, text = first.text.partition(" <- ")[0].partition("(")
    message = text.removesuffix(")").strip("'\"")
    steps = steps_since(called_ns)
    if steps is None and time.monotonic_ns() - called_ns <= _EARLY_NS:
        steps = 0
    fault = Fault(
        cause=cause_of_exception(kind, message),
        error=fingerprint(f"{kind}: {message}"),
        ranks=(first.rank,) if first.rank >= 0 else (),
        steps=steps,
    )
    return Reentry(name, before, fault)


def log_too_late(job_rank: int) -> None:
    """Log that a process in the place of a lost one has nothing to do, and ends with 0."""
    _log.warning(
        "[undaunted] rank %d was started again, but the others had finished before it could join "
        "them: it ends with exit code 0",
        job_rank,
    )


def reason_of(error: BaseException, kind: Interruption, job_rank: int, rank: int) -> Reason:
    """Return the reason that the other ranks get for an exception of this rank."""
    return Reason(
        kind=kind.name,
        job_rank=job_rank,
        rank=rank,
        text=format_exc(error)[:_TEXT],
        fingerprint=_fingerprint(error),
        where=where(error)[:_TEXT],
        consequence=names_lost_peer(error) or names_failed_peer(error, rank),
    )


def _fingerprint(error: BaseException) -> str:
    """Return type and line: equal for two failures that are probably the same."""
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    last = None
    for last in traceback.walk_tb(error.__traceback__):  # noqa: B007 - the innermost is wanted
        pass
    return name if last is None else f"{name} {last[0].f_code.co_filename}:{last[1]}"


def clear(error: BaseException | None, outer: BaseException | None) -> None:
    """Clear the frames of an exception, and of all exceptions that it was raised from.

    Args:
        error: the exception.
        outer: the exception that was being handled when the user's code was called; it is left.
    """
    for one in _chain(error, outer):
        if one.__traceback__ is not None:
            traceback.clear_frames(one.__traceback__)


def _chain(error: BaseException | None, outer: BaseException | None) -> Iterator[BaseException]:
    seen = {id(outer)}
    left = [error]
    while left:
        one = left.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            yield one
            left += [one.__cause__, one.__context__]


def where(error: BaseException) -> str:
    """Return the innermost place in the user's code, ``step (train.py:23)``; "" = there is none.

    If all code is in installed packages, it is the innermost place outside of Python's own library,
    torch and this package.
    """
    frames = list(traceback.walk_tb(error.__traceback__))[::-1]
    for is_library in (_is_installed, _is_known):
        for frame, line in frames:
            if not is_library(frame.f_code.co_filename):
                file = frame.f_code.co_filename.rpartition("/")[2]
                return f"{frame.f_code.co_name} ({file}:{line})"
    return ""


def names_lost_peer(error: BaseException) -> bool:
    """Return whether it is an error of communication with a rank that is gone.

    The same words from Python's own sockets (a download, say) are the rank's own failure.
    """
    from_torch = type(error) is RuntimeError or type(error).__module__.startswith("torch")
    return from_torch and peers.names_lost_peer(str(error))


def names_failed_peer(error: BaseException, rank: int) -> bool:
    """Return whether it is the error of a save that has failed in another rank; all ranks raise it.

    Args:
        error: the exception.
        rank: of this process.
    """
    ranks = getattr(error, "ranks", ())
    return type(error).__module__.startswith(_CHECKPOINTING) and bool(ranks) and rank not in ranks


def _is_installed(file: str) -> bool:
    return _is_known(file) or any(part in file for part in _PACKAGES)


def _is_known(file: str) -> bool:
    if file.startswith((_OURS, "<")) or "-packages/torch/" in file:
        return True
    return file.startswith(_STDLIB) and not any(part in file for part in _PACKAGES)
