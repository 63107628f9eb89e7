"""The findings of the checker as values; their fields are the schema of the JSON output."""

from __future__ import annotations

from typing import Literal

import msgspec

from undaunted.chaos.plan import Planned  # noqa: TC001 - msgspec looks it up

Colour = Literal["green", "yellow", "red", "skipped"]
Severity = Literal["note", "yellow", "red"]
# Findings that say that nothing was tested, or that it is not known what came of it.
_NOT_JUDGED = frozenset(
    (
        *("did-not-happen", "not-made", "nothing-torn"),
        *("sigterm-too-late", "identity-unknown", "interrupted"),
    )
)


class Defect(msgspec.Struct, frozen=True):
    """Something worth saying about a fault.

    Attributes:
        key: names the kind of finding, for programs: ``rng-not-restored``.
        severity: what it makes of the verdict; a ``note`` changes nothing.
        text: what was found, in one or two sentences.
        remedy: the usual repair, "" if nothing needs one. May hold lines of code.
    """

    key: str
    severity: Severity
    text: str
    remedy: str = ""


class Difference(msgspec.Struct, frozen=True):
    """The first difference of a run from the undisturbed one.

    Attributes:
        rank: the rank that differs first.
        iteration: of the undisturbed run; -1 = a rank went on with parameters that it never had
            in that run, so that it is not known with which iteration.
        at: ``step``, ``forward`` or ``update``, as in ``digests.record``.
        parts: what differs there, causes before consequences.
        ranks: all ranks that differ at this moment; others may later, as a consequence.
        equals: for each of ``parts`` that is equal to another moment of the undisturbed run, the
            iteration of that moment.
    """

    rank: int
    iteration: int
    at: str
    parts: tuple[str, ...]
    ranks: tuple[int, ...] = ()
    equals: dict[str, int] = {}


class Blame(msgspec.Struct, frozen=True):
    """The verdict of the launcher about a fault.

    Attributes:
        kind: ``crash``, ``hang``, or "" for nobody.
        rank: the rank, -1 for nobody.
        line: the launcher's own words.
        right: whether that is the fault's rank and kind, and its cause is named.
    """

    kind: str = ""
    rank: int = -1
    line: str = ""
    right: bool = True


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one planned fault.

    Attributes:
        fault: the plan.
        colour: ``red``: not recovered from, blamed on somebody else, or the result differs;
            ``yellow``: something is worth saying and nothing is lost; ``green``; ``skipped``.
        skipped: why it was not made, "" if it was.
        launch: the launcher of the run in which it happened, from 0; -1 = it did not happen.
        round: the round of that launch.
        iteration: the iteration it interrupted; None = not known, or it did not happen.
        recovered: whether the run went on to where the undisturbed one ended; None = not known.
        blame: whom the launcher blamed.
        back_s: seconds from the fault until every rank stepped again; None = it did not come to
            that, nothing was interrupted, or the journal does not tell.
        phases: what these seconds were spent on, by the names of the report; those known.
        resumed_at: the iteration that ranks went on with.
        steps_lost: iterations that had to be done again.
        identical_from: from this iteration on everything equals the undisturbed run, up to the end
            or the next fault; None = it does not, or it is not known.
        difference: the first difference from the undisturbed run that this fault has left.
        findings: what is worth saying, the most severe first.
    """

    fault: Planned
    colour: Colour
    skipped: str = ""
    launch: int = -1
    round: int = -1
    iteration: int | None = None
    recovered: bool | None = None
    blame: Blame = msgspec.field(default_factory=Blame)
    back_s: float | None = None
    phases: dict[str, float] = {}
    resumed_at: int | None = None
    steps_lost: int | None = None
    identical_from: int | None = None
    difference: Difference | None = None
    findings: tuple[Defect, ...] = ()

    @property
    def judged(self) -> bool:
        """Return whether it is known that the script survives this fault, or that it does not."""
        unknown = any(finding.key in _NOT_JUDGED for finding in self.findings)
        return self.colour == "red" or not (unknown or self.colour == "skipped")
