"""The words of all outputs for a verdict; text of users' programs is printable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.base.text import count, format_duration, printable
from undaunted.chaos.kinds import KINDS
from undaunted.digests.record import RNG

if TYPE_CHECKING:
    from collections.abc import Iterable

    from undaunted.chaos.checker.values import Colour, Judgement
    from undaunted.chaos.result import Result

COLOURS: tuple[Colour, ...] = ("red", "yellow", "green", "skipped")

_SHOWN_FROM_S = 0.05  # what is shorter would be 0.0


def title(verdict: Judgement) -> str:
    """``kill-1: rank 1 is killed at step 57``."""
    fault = verdict.fault
    kind = KINDS.get(fault.kind)
    text = kind.text if kind is not None else fault.kind
    when = f"rank {fault.rank} at step {fault.iteration}"
    if kind is not None and kind.outside:
        return f"{fault.id}: {text} ({when})"
    return f"{fault.id}: rank {fault.rank} {text} at step {fault.iteration}"


def place(verdict: Judgement) -> str:
    """``1 @ 57``: rank and step."""
    return f"{verdict.fault.rank} @ {verdict.fault.iteration}"


def blamed(verdict: Judgement) -> str:
    """``rank 1, crash``; ``nobody``; ``-`` if it did not happen."""
    if verdict.round < 0:
        return "-"
    blame = verdict.blame
    if blame.rank < 0:
        return "nobody" if blame.right else "nobody: wrong"
    return f"rank {blame.rank}, {blame.kind}" + ("" if blame.right else ": wrong")


def back(verdict: Judgement) -> str:
    """``3.1 s``, or ``-``."""
    return "-" if verdict.back_s is None else format_duration(verdict.back_s)


def parts(verdict: Judgement) -> str:
    """``detect 0.2, import 1.4``: what the time until every rank stepped was spent on; or ``-``."""
    shown = (
        f"{name} {seconds:.1f}"
        for name, seconds in verdict.phases.items()
        if seconds >= _SHOWN_FROM_S
    )
    return ", ".join(shown) or "-"


def number(value: int | None) -> str:
    """The number, or ``-``."""
    return "-" if value is None else str(value)


def identical(verdict: Judgement) -> str:
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


def counts(verdicts: Iterable[Judgement]) -> dict[Colour, int]:
    """Return how many verdicts there are of each colour that occurs, the worst first."""
    found = [verdict.colour for verdict in verdicts]
    return {colour: found.count(colour) for colour in COLOURS if colour in found}


def summary(result: Result) -> str:
    """``6 faults: 1 red, 5 green``."""
    total = len(result.verdicts)
    told = ", ".join(f"{number} {colour}" for colour, number in counts(result.verdicts).items())
    text = count(total, "fault") + (f": {told}" if told else "")
    return f"{text}; interrupted before the end" if result.interrupted else text
