"""What must hold for a job, checked line by line as its ranks say where they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


class DeviationError(Exception):
    """Something is not as it must be."""


@dataclass
class Iteration:
    """One iteration, as far as it is known."""

    entered: dict[int, dict[str, Any]] = field(default_factory=dict)
    ready: dict[int, int] = field(default_factory=dict)  # since when
    first_entered_at: int = 0
    last_left_at: int = 0

    @property
    def active(self) -> list[int]:
        return sorted(n for n, said in self.entered.items() if said["active"] is not None)

    @property
    def reserves(self) -> list[int]:
        return sorted(n for n, said in self.entered.items() if said["active"] is None)

    def is_complete(self, alive: set[int]) -> bool:
        """Whether all who live, and nobody else, are in it and ready for orders."""
        sizes = {said["world"] for said in self.entered.values()}
        return (
            set(self.entered) == alive
            and sizes == {len(alive)}
            and set(self.active) <= set(self.ready)
        )


class Watch:
    """Of one job.

    Attributes:
        iterations: by number.
        codes: by job rank, how its process may end; who is not in here ends with 0.
        faults: when each fault happened that was said, nanoseconds.
        done: what ranks have said at their end.
        pids: of all ranks that have entered.
        replaced: how many processes have joined in the place of lost ones.
    """

    def __init__(self, ranks: int, most_active: int | None) -> None:
        self.ranks = ranks
        self.iterations: dict[int, Iteration] = {}
        self.codes: dict[int, tuple[int, ...]] = {}
        self.faults: list[int] = []
        self.done: dict[int, dict[str, Any]] = {}
        self.pids: dict[int, int] = {}
        self.replaced = 0
        self._most_active = most_active
        self._latest: dict[int, int] = {}

    @property
    def alive(self) -> set[int]:
        return set(range(self.ranks)) - set(self.codes)

    def complete_after(self, iteration: int) -> int | None:
        """Return the latest iteration that is complete."""
        known = [number for number in self.iterations if number > iteration]
        latest = max(known, default=None)
        if latest is not None and self.iterations[latest].is_complete(self.alive):
            return latest
        return None

    def take(self, said: dict[str, Any]) -> None:
        """Take in a line.

        Raises:
            DeviationError: what it says must not be.
        """
        handlers = {
            "entered": self._entered,
            "running": self._running,
            "ready": self._ready,
            "left": self._left,
            "fault": self._fault,
            "wrong": self._wrong,
            "done": self._done,
        }
        handlers[said["what"]](said)

    def ended(self, number: int, code: int) -> None:
        """A process has ended."""
        allowed = self.codes.get(number, (0,))
        _require(code in allowed, f"job rank {number} has ended with {code}, not with {allowed}")
        _require(code != 0 or number in self.done, f"job rank {number} has ended in between")

    def launcher_ended(self, code: int) -> None:
        """The launcher of all ranks has ended."""
        _require(code == 0, f"the launcher has ended with {code}")
        _require(set(self.done) == self.alive, f"{set(self.done)} are done, not {self.alive}")

    # --- lines ------------------------------------------------------------------------------------

    def _entered(self, said: dict[str, Any]) -> None:
        number, iteration = said["number"], said["iteration"]
        now = self.iterations.setdefault(iteration, Iteration())
        before = self._latest.get(number, -1)
        _require(iteration > before, f"job rank {number} goes from {before} to {iteration}")
        self._latest[number] = iteration
        if number in self.codes and self.pids.get(number, said["pid"]) != said["pid"]:
            del self.codes[number]
            self.replaced += 1
        _require(0 <= said["rank"] < said["world"] <= self.ranks, f"no such rank: {said}")
        for other in now.entered.values():
            same = other["world"] == said["world"] and other["actives"] == said["actives"]
            _require(same, f"ranks disagree about sizes: {other}, {said}")
            _require(other["rank"] != said["rank"], f"two have the same rank: {other}, {said}")
            clash = said["active"] is not None and other["active"] == said["active"]
            _require(not clash, f"two have the same active rank: {other}, {said}")
        wanted = min(said["world"], self._most_active or self.ranks)
        _require(said["actives"] == wanted, f"not {wanted} are active: {said}")
        should_run = said["rank"] < wanted
        _require(should_run == (said["active"] is not None), f"the wrong ones are active: {said}")
        now.entered[number] = said
        self.pids[number] = said["pid"]
        now.first_entered_at = min(now.first_entered_at or said["at"], said["at"])
        for before in range(iteration):
            self._no_overlap(before, iteration)

    def _running(self, said: dict[str, Any]) -> None:
        entered = self.iterations[said["iteration"]].entered[said["number"]]
        same = (said["rank"], said["world"]) == (entered["active"], entered["actives"])
        _require(same, f"RANK and WORLD_SIZE do not fit: {said}, {entered}")

    def _ready(self, said: dict[str, Any]) -> None:
        self.iterations[said["iteration"]].ready[said["number"]] = said["at"]

    def _left(self, said: dict[str, Any]) -> None:
        left = self.iterations.setdefault(said["iteration"], Iteration())
        left.last_left_at = max(left.last_left_at, said["at"])
        for after in range(said["iteration"] + 1, max(self.iterations) + 1):
            self._no_overlap(said["iteration"], after)

    def _no_overlap(self, before: int, after: int) -> None:
        """Nobody is in an iteration any more when anybody enters one that comes later."""
        nothing = Iteration()
        left = self.iterations.get(before, nothing).last_left_at
        entered = self.iterations.get(after, nothing).first_entered_at
        _require(not (entered and left > entered), f"{before} still ran when {after} had begun")

    def _fault(self, said: dict[str, Any]) -> None:
        self.faults.append(said["at"])
        if said["codes"]:
            self.codes[said["number"]] = tuple(said["codes"])

    def _wrong(self, said: dict[str, Any]) -> None:
        raise DeviationError(f"a rank has found: {said}")

    def _done(self, said: dict[str, Any]) -> None:
        last = max(self.iterations)
        _require(said["iteration"] == last, f"the call has ended in {said}, the last was {last}")
        for what in ("fds", "threads"):
            before, after = said[what]
            _require(after <= before, f"{what} are left: {before} before, {after} after: {said}")
        self.done[said["number"]] = said


def _require(holds: bool, text: str) -> None:
    if not holds:
        raise DeviationError(text)
