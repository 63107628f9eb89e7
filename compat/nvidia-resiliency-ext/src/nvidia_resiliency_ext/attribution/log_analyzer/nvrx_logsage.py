"""`NVRxLogAnalyzer`: what `undaunted explain` reads in a log, answered as NVRx's answers are."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from nvidia_resiliency_ext.attribution.base import AttributionState, NVRxAttribution
from undaunted.attribution.findings import CAUSES, Finding
from undaunted.attribution.logs.analyse import Reading, read_logs

RESTART = "RESTART IMMEDIATE"
STOP = "STOP - DONT RESTART IMMEDIATE"
NO_ERRORS = "ERRORS NOT FOUND"
NO_LOGS = "NO LOGS"
ACTIONS = {RESTART: "RESTART", STOP: "STOP", NO_ERRORS: "CONTINUE", NO_LOGS: "UNKNOWN"}
"""The recommendation, by verdict."""

_SAVED = re.compile(
    rb"(?:successfully )?saved? (?:a )?checkpoint|checkpoint \S{0,200} ?saved", re.IGNORECASE
)
_CYCLE = re.compile(r"profiling\.py:.*\bCycle:\s*(\d+)")  # a line of NVRx's launcher


@dataclass(frozen=True)
class RawAnalysisResultItem:
    """The findings of a log about the last failure.

    Attributes:
        raw_text: all of it, as text of several lines.
        auto_resume: the verdict, a key of `ACTIONS`.
        auto_resume_explanation: why, in a sentence.
        attribution_text: the root cause, its ranks and nodes, and the line that shows it.
        checkpoint_saved_flag: whether a line says that a checkpoint was saved.
        action: RESTART, STOP, CONTINUE or UNKNOWN.
        primary_issues: name of the root cause, if there is one.
        secondary_issues: names of the other causes that were found.
    """

    raw_text: str
    auto_resume: str
    auto_resume_explanation: str
    attribution_text: str
    checkpoint_saved_flag: bool
    action: str
    primary_issues: list[str] = field(default_factory=list)
    secondary_issues: list[str] = field(default_factory=list)


class Read(NamedTuple):
    """A log that was read: what it says, whether it is empty, whether a checkpoint was saved."""

    reading: Reading
    empty: bool
    saved: bool


class NVRxLogAnalyzer(NVRxAttribution):
    """Says of a log what ended the job, and whether to start it again.

    The answer of `run` is a list with one `RawAnalysisResultItem`, of the last failure, and an
    `AttributionState`: STOP if the job is not to be started again.

    Args:
        args: a ``Namespace`` or a mapping with ``log_path``. What is given to `run` comes before
            it: one of the two, or a path. Settings of a language model (``model``, ``base_url``,
            ``temperature``, ...), ``exclude_nvrx_logs`` and ``is_per_cycle`` have no effect.

    Raises:
        ValueError: when it runs: no log was named, or it cannot be read.
    """

    def __init__(self, args: argparse.Namespace | Mapping[str, Any] | None = None) -> None:
        super().__init__(self.analyze_logs, self.attribute, self.print_output)
        self._args = args

    async def analyze_logs(self, input_data: Any = None) -> Read:
        """Read the log.

        Raises:
            ValueError: see the class.
        """
        path = _path(input_data) or _path(self._args)
        if path is None:
            raise ValueError("no log was named: give log_path, the file")
        try:
            return await asyncio.to_thread(_read, path)
        except OSError as error:
            why = error.strerror or error
            raise ValueError(f"log_path is {str(path)!r}: {why}; give a log file") from error

    async def attribute(self, read: Read) -> list[RawAnalysisResultItem]:
        """Put what was read into NVRx's words."""
        verdict, why = _verdict(read)
        findings = read.reading.findings
        text = "\n".join(_line(one) for one in findings[:1]) or why
        lines = [verdict, why, *(_line(one) for one in findings)]
        return [
            RawAnalysisResultItem(
                "\n".join(lines),
                verdict,
                why,
                text,
                read.saved,
                ACTIONS[verdict],
                [one.cause for one in findings[:1]],
                [one.cause for one in findings[1:]],
            )
        ]

    async def print_output(
        self, items: list[RawAnalysisResultItem]
    ) -> tuple[list[RawAnalysisResultItem], AttributionState]:
        """Print the answer, and return it."""
        for one in items:
            print(one.raw_text)
        stops = any(one.action == "STOP" for one in items)
        return items, AttributionState.STOP if stops else AttributionState.CONTINUE


def lines_after(lines: Sequence[str], needle: str) -> Sequence[str]:
    """Return the lines after the first one that has a text in it; all of them if none has it."""
    at = next((number for number, line in enumerate(lines) if needle in line), -1)
    return lines[at + 1 :]


def chunk_logs_strict(lines: Sequence[str]) -> dict[int, list[str]]:
    """Split a log of NVRx's launcher into its cycles.

    Args:
        lines: of the log.

    Returns:
        By the number of the cycle: its lines, from the last one that names it to the last one that
        names the next; everything is cycle 0 where no line names one.
    """
    named = {int(found[1]): at for at, line in enumerate(lines) if (found := _CYCLE.search(line))}
    starts = sorted((at, cycle) for cycle, at in named.items()) or [(0, 0)]
    ends = [at for at, _ in starts[1:]] + [len(lines)]
    return {
        cycle: list(itertools.islice(lines, at, end))
        for (at, cycle), end in zip(starts, ends, strict=True)
    }


def main() -> None:
    """Print what the log of a command line says."""
    parser = argparse.ArgumentParser(description="What ended a job, and whether to start it again")
    parser.add_argument("--log-path", "--log_path", required=True, help="the log file")
    args = parser.parse_args()
    try:
        NVRxLogAnalyzer(args).run_sync(args)
    except ValueError as error:
        parser.error(str(error))


def _path(given: Any) -> Path | None:
    if isinstance(given, argparse.Namespace):
        given = vars(given)
    if isinstance(given, Mapping):
        given = given.get("log_path") or given.get("input_data")
    if isinstance(given, list) and len(given) == 1:
        given = given[0]
    if given is None or given == "":
        return None
    if not isinstance(given, str | os.PathLike):
        raise ValueError(  # noqa: TRY004 - one error for all bad input
            f"log_path is {given!r}: give the path of one log file"
        )
    return Path(given)


def _read(path: Path) -> Read:
    empty, saved = True, False
    with path.open("rb") as file:
        for line in file:
            empty = empty and not line.strip()
            saved = saved or _SAVED.search(line) is not None
    return Read(read_logs([path]), empty, saved)


def _verdict(read: Read) -> tuple[str, str]:
    reading = read.reading
    if read.empty:
        return NO_LOGS, "The log is empty."
    if not reading.findings:
        if reading.ended:
            return STOP, "The program came to its end."
        return NO_ERRORS, "No line says that something failed."
    root = reading.findings[0]
    meaning = CAUSES[root.cause].meaning
    if root.cause == "time_limit":
        return STOP, f"The cause is: {meaning}."
    if reading.action == "stop":
        return STOP, f"The cause is: {meaning}; it would come again in every attempt."
    if reading.action == "exclude":
        return RESTART, f"The cause is: {meaning}; leave out {', '.join(root.nodes)}."
    return RESTART, f"The cause is: {meaning}; nothing says that it would come again."


def _line(one: Finding) -> str:
    ranks = f" ranks: {list(one.ranks)}" if one.ranks else ""
    nodes = f" nodes: {list(one.nodes)}" if one.nodes else ""
    return f"{one.cause}: {CAUSES[one.cause].meaning};{ranks}{nodes} {one.source}: {one.quote}"
