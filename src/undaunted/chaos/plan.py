"""Plans of chaos runs: which fault happens in which run, on which rank, at which iteration."""

from __future__ import annotations

import msgspec


class PlanError(ValueError):
    """A plan that cannot be made or read; the message names the bad part and what is allowed."""


class Planned(msgspec.Struct, frozen=True, omit_defaults=True):
    """One planned fault.

    Attributes:
        id: its name in the plan, unique; 1 to 24 letters, digits, dots, dashes, underscores.
        kind: one of ``kinds.KINDS``.
        rank: global rank on which it happens, or which tells the nemesis that it is time.
        iteration: it happens in the call ``undaunted.step(i)`` that reaches this iteration.
        run: in which run, from 1; run 0 is the undisturbed one.
        seconds: how long it lasts, for kinds that last; None = the default of the kind.
        how: in which way it happens, of a kind with several; see ``KindOf.hows``.
    """

    id: str
    kind: str
    rank: int
    iteration: int
    run: int
    seconds: float | None = None
    how: str = ""


class Plan(msgspec.Struct, frozen=True):
    """The faults of a chaos run.

    Attributes:
        seed: what they were drawn with.
        faults: by run, and in a run by ascending iteration.
    """

    seed: int
    faults: tuple[Planned, ...] = ()

    def runs(self) -> dict[int, tuple[Planned, ...]]:
        """The faults of each run, by its number, ascending."""
        numbers = sorted({fault.run for fault in self.faults})
        return {number: tuple(f for f in self.faults if f.run == number) for number in numbers}
