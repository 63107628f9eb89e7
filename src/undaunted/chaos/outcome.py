"""The notes of the nemesis about one run: ``outcome.json`` in the run's directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FILE = "outcome.json"


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something the nemesis did, or could not do.

    Attributes:
        fault: id of the planned fault.
        what: ``terminated``, ``restarted``, ``damaged``, ``filled``, ``emptied``, ``slowed``,
            ``lifted``, ``failed``.
        wall: Unix time, seconds.
        mono_ns: CLOCK_MONOTONIC.
        rank: the rank that called, -1 if none did.
        iteration: at which it called, -1 if none did.
        text: details for people, such as the name of the damaged file.
    """

    fault: str
    what: str
    wall: float
    mono_ns: int
    rank: int = -1
    iteration: int = -1
    text: str = ""


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of one run, as seen from outside.

    Attributes:
        exit_codes: of the launchers of this run, in order; negative = ended by that signal.
        started_wall: when the first one was started, Unix time in seconds.
        ended_wall: when the last one had ended.
        seconds: between the two, by the monotonic clock.
        deadline_s: how long the run was allowed to take.
        in_time: False = it was ended because the time was up.
        interrupted: the user ended it.
        notes: what the nemesis did.
        skipped: id of each fault that this machine does not allow, and why.
    """

    exit_codes: list[int] = []
    started_wall: float = 0.0
    ended_wall: float = 0.0
    seconds: float = 0.0
    deadline_s: float = 0.0
    in_time: bool = True
    interrupted: bool = False
    notes: list[Note] = []
    skipped: dict[str, str] = {}

    @property
    def exit_code(self) -> int | None:
        """Exit code of the last launcher, None if none has ended."""
        return self.exit_codes[-1] if self.exit_codes else None


def disk_filled_by(notes: Sequence[Note], mono_ns: int) -> str:
    """Return the fault that had the disk full at a moment, "" = it was not full.

    Args:
        notes: of the run.
        mono_ns: CLOCK_MONOTONIC.
    """
    by = ""
    for note in notes:
        if note.what in ("filled", "emptied") and note.mono_ns <= mono_ns:
            by = note.fault if note.what == "filled" else ""
    return by


def write_outcome(directory: Path, outcome: Outcome) -> None:
    """Write ``outcome.json``, whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    new = directory / f".{FILE}"
    new.touch(0o600)
    new.write_bytes(msgspec.json.format(msgspec.json.encode(outcome), indent=1) + b"\n")
    new.replace(directory / FILE)


def read_outcome(directory: Path) -> Outcome:
    """Read ``outcome.json``.

    Raises:
        OSError: it is not there, or cannot be read.
        ValueError: it is not one of ours.
    """
    return msgspec.json.decode((directory / FILE).read_bytes(), type=Outcome)
