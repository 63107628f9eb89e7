"""Answers about a log, in the words of NVRx's service. Pure."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from undaunted.attribution.explain.page import Page, in_words, lines_of, no_failure
from undaunted.services.results import COMPLETED
from undaunted.services.slurm.core import ENDED

if TYPE_CHECKING:
    from undaunted.services.results import Log, LogResult, Progress, Results

MODES = ("PENDING", "SINGLE", "SPLITLOG")
_SOURCE = "rules"
_MODULE = "log_analyzer"
_FAILED = frozenset({"FAILED", "OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL"})
_ACTIONS = {"restart": "RESTART", "exclude": "RESTART", "stop": "STOP"}


def mode(log: Log) -> str:
    """Return ``SPLITLOG`` if ranks write elsewhere, ``PENDING`` if nobody wants to know yet."""
    if log.told is not None and log.told.logs_dir:
        return "SPLITLOG"
    return "SINGLE" if log.wanted or log.told is not None else "PENDING"


def sched_restarts(log: Log) -> int:
    """Return how often the scheduler has started the job again, as its log says."""
    return max(0, log.told.starts - 1) if log.told is not None else 0


def row(log: Log) -> dict[str, Any]:
    """Return a log as one of a list."""
    return {
        "log_path": log.path,
        "user": log.user,
        "job_id": log.job or None,
        "cycle_id": log.cycle,
        "mode": mode(log),
        "submitted_t": log.t,
        "wanted": log.wanted,
    }


def submission(log: Log, analyzed: int) -> dict[str, Any]:
    """Return the answer to who has submitted a log.

    Args:
        log: as it is known then.
        analyzed: how many files have been read for it.
    """
    return {
        "submitted": True,
        "normalized_path": log.path,
        "mode": mode(log),
        "logs_dir": log.told.logs_dir if log.told is not None else "",
        "sched_restarts": sched_restarts(log),
        "files_analyzed": analyzed,
    }


def no_result(path: str, progress: Progress) -> dict[str, Any]:
    """Return the answer while there is no result of a log."""
    return {
        "status": progress,
        "mode": "PENDING",
        "log_file": path,
        "wl_restart": 0,
        "wl_restart_count": 1,
        "sched_restarts": 0,
        "recommendation": {"action": "UNKNOWN", "source": _SOURCE},
    }


def result(results: Results, log: Log, restart: int | None = None) -> dict[str, Any]:
    """Return what a log that was read tells of.

    Args:
        results: has the log, and earlier rounds of its job.
        log: the log.
        restart: which round in it; None = the last one.

    Raises:
        IndexError: there is no such round.
    """
    assert log.told is not None
    rounds = log.told.rounds
    number = len(rounds) - 1 if restart is None else restart
    if not 0 <= number < len(rounds):
        raise IndexError(f"{log.path} has wl_restart 0 to {len(rounds) - 1}, and no {number}")
    told = rounds[number]
    action, text = _verdict(results, log, number)
    advice = {"action": action, "source": _SOURCE}
    found: dict[str, Any] = {"module": _MODULE, "result": text, "recommendation": advice}
    if told.problem:
        found |= {"state": "timeout" if told.late else "error", "error": told.problem}
    found["findings"] = msgspec.to_builtins(told.findings)
    if told.dumps:
        found |= {"fr_dump_path": told.dumps, "hanging_ranks": list(told.hanging)}
    return {
        "status": "completed",
        "mode": mode(log),
        "log_file": log.path,
        "wl_restart": number,
        "wl_restart_count": len(rounds),
        "sched_restarts": sched_restarts(log),
        "result": found,
        "recommendation": advice,
    }


def _verdict(results: Results, log: Log, number: int) -> tuple[str, str]:
    """Return what is recommended, and what was found, in a few lines."""
    assert log.told is not None
    told = log.told.rounds[number]
    state = log.state if number == len(log.told.rounds) - 1 else ""
    if told.problem:
        return ("TIMEOUT" if told.late else "UNKNOWN"), told.problem
    found = results.explained(log, number)
    if found is None:
        return _no_failure(told, state)
    page = Page(path=Path(log.path), rounds=[found])
    text = "\n".join(takewhile(bool, lines_of(page)))
    if told.stop and found.advice.action != "stop":
        return "STOP", f"{text}\nevery start would end so: all ranks say so before a step"
    return _ACTIONS[found.advice.action], text


def _no_failure(told: LogResult, state: str) -> tuple[str, str]:
    """Return what is recommended where a log, its launcher and its scheduler tell of no cause."""
    ended = told.ended or state == COMPLETED
    if state not in ENDED:
        return "CONTINUE", no_failure("the log", told.step, ended=ended)
    line = f"{state}, by its scheduler"
    if ended and state in _FAILED and told.last is None:  # the launcher knows better
        return "RESTART", f"{line}; {no_failure('the log', told.step, ended=True)}"
    if ended:
        line = f"{line}; {no_failure('the log', told.step, ended=True)}"
        if told.findings:
            line = f"{state}, by its scheduler; survived: {in_words(told.findings[0])}"
        return "CONTINUE", line
    last = "" if told.step is None else f" (the last step is {told.step:g})"
    return "RESTART", f"{line}; the log says nothing about why{last}"
