"""What all outputs say of a verdict, in the same words; text of users' programs is printable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.base.text import count, format_duration, printable
from undaunted.chaos.trials.kinds import KINDS
from undaunted.digests.record import RNG

if TYPE_CHECKING:
    from collections.abc import Iterable

    from undaunted.chaos.trials.checker.values import Colour, Verdict
    from undaunted.chaos.trials.result import Result

COLOURS: tuple[Colour, ...] = ("red", "yellow", "green", "skipped")

PARTS = ("notice", "stop", "start", "load")
"""What the time to get over a fault is divided into, for people."""

_PART_OF = {
    "limit": "notice",
    "detect": "notice",
    "evidence": "notice",
    "verdict": "",  # is found while the ranks are being stopped
    "decide": "notice",
    "stop": "stop",
    "abort": "stop",
    "finalize": "stop",
    "health": "start",
    "collect": "start",
    "agree": "start",
    "spawn": "start",
    "first_line": "start",
    "start": "start",
    "first_step": "load",
}


def title(verdict: Verdict) -> str:
    """``kill-1: rank 1 is killed at step 57``."""
    fault = verdict.fault
    kind = KINDS.get(fault.kind)
    text = kind.text if kind is not None else fault.kind
    when = f"rank {fault.rank} at step {fault.iteration}"
    if kind is not None and kind.outside:
        return f"{fault.id}: {text} ({when})"
    return f"{fault.id}: rank {fault.rank} {text} at step {fault.iteration}"


def place(verdict: Verdict) -> str:
    """``1 @ 57``: rank and step."""
    return f"{verdict.fault.rank} @ {verdict.fault.iteration}"


def blamed(verdict: Verdict) -> str:
    """``rank 1, crash``; ``nobody``; ``-`` if it did not happen."""
    if verdict.round < 0:
        return "-"
    blame = verdict.blame
    if blame.rank < 0:
        return "nobody" if blame.right else "nobody: wrong"
    return f"rank {blame.rank}, {blame.kind}" + ("" if blame.right else ": wrong")


def back(verdict: Verdict) -> str:
    """``3.1 s``, or ``-``."""
    return "-" if verdict.back_s is None else format_duration(verdict.back_s)


def parts(verdict: Verdict) -> dict[str, float]:
    """The seconds of each of ``PARTS``; what the journal does not tell is left out."""
    sums: dict[str, float] = {}
    for name, seconds in verdict.phases.items():
        part = _PART_OF.get(name, "start")
        if part:
            sums[part] = sums.get(part, 0.0) + seconds
    return {name: sums[name] for name in PARTS if name in sums}


def part(verdict: Verdict, name: str) -> str:
    """Seconds of one of ``PARTS``, ``0.9``, or ``-``."""
    seconds = parts(verdict).get(name)
    return "-" if seconds is None else f"{seconds:.1f}"


def number(value: int | None) -> str:
    """The number, or ``-``."""
    return "-" if value is None else str(value)


def identical(verdict: Verdict) -> str:
    """``from 50``, ``no: data``, ``all but rng``, ``not known`` or ``-``."""
    if verdict.round < 0:
        return "-"
    if verdict.identical_from is not None:
        return f"from {verdict.identical_from}"
    found = verdict.findings
    keys = {finding.key for finding in found}
    if verdict.difference is not None and not keys & {"not-deterministic", "differed-before"}:
        parts = ", ".join(verdict.difference.parts)
        # Red where something follows from the random state.
        harmless = any(f.severity == "yellow" and f.key.startswith("rng-") for f in found)
        random = all(part.endswith(RNG) for part in verdict.difference.parts)
        return printable(f"all but {parts}" if harmless and random else f"no: {parts}")
    return "not known"


def size(count: int) -> str:
    """``1,234.5 MiB``, ``12 KiB``."""
    if count < 1 << 20:
        return f"{-(-count // 1024)} KiB"
    return f"{count / (1 << 20):,.1f} MiB"


def counts(verdicts: Iterable[Verdict]) -> dict[Colour, int]:
    """How many verdicts there are of each colour that occurs, the worst first."""
    found = [verdict.colour for verdict in verdicts]
    return {colour: found.count(colour) for colour in COLOURS if colour in found}


def summary(result: Result) -> str:
    """``6 faults: 1 red, 5 green``."""
    total = len(result.verdicts)
    told = ", ".join(f"{number} {colour}" for colour, number in counts(result.verdicts).items())
    text = count(total, "fault") + (f": {told}" if told else "")
    return f"{text}; interrupted before the end" if result.interrupted else text
