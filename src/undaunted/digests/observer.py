"""Takes a rank's records: what, and to which iteration it belongs. Never raises into training."""

from __future__ import annotations

import os
import sys
from collections import Counter, defaultdict
from enum import Enum
from typing import TYPE_CHECKING

from undaunted.digests import state, tensors
from undaunted.digests.record import FORWARD, PARAMETERS, STEP, UPDATE, Record

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.nn import Module
    from torch.optim import Optimizer

    from undaunted.digests.generators import Generators
    from undaunted.digests.record import Recorder

    Taken = tuple[state.Parts, bool]  # parts, finite
    from collections.abc import Iterable, Mapping


class Observer:
    """One rank's. Nothing of this is called in its children.

    Attributes:
        returns: how often the script has gone back to an earlier iteration, in this process.
    """

    def __init__(
        self,
        recorder: Recorder,
        generators: Generators,
        *,
        rank: int,
        round_: int,
        announce: Callable[[int], object],
        past: Callable[[], Past] = lambda: Past(()),
    ) -> None:
        """Record nothing yet.

        Args:
            recorder: gets the records.
            generators: of this process.
            rank: the global one, for messages.
            round_: restart count of this process.
            announce: called with each iteration that we counted, as it begins; may raise.
            past: returns what earlier processes of the rank have recorded.
        """
        self._recorder = recorder
        self._generators = generators
        self._rank = rank
        self._round = round_
        self._announce = announce
        self._read_past = past
        self._past: Past | None = None  # until the first iteration counted has its number
        self._position = Position()
        self._held: list[Record] = []
        self._complained = False
        self.returns = 0

    def step(self, iteration: object, digest: object) -> None:
        """The script has called ``undaunted.step``."""
        try:
            number = int(iteration)  # type: ignore[call-overload]
        except Exception:  # noqa: BLE001 - a number of the user's making may raise anything
            return  # the writer of the page says so
        self._held.clear()
        self._past = None
        self.returns += number <= self._position.iteration
        self._position.told(number)
        if digest is not None:
            self._record(STEP, lambda: self._at_step(digest))

    def update_begins(self) -> None:
        """The rank begins with what will be one update of its parameters."""
        if not self._position.known:
            self._remember()
        self._position.update_begins()
        if not self._position.held:
            self._release()

    def forward(
        self,
        module: Module,
        inputs: object,
        *,
        first: bool,
        beside: Callable[[], state.Parts] = dict,
    ) -> None:
        """An outermost forward pass begins.

        Args:
            module: what it is of.
            inputs: its arguments.
            first: it is the module's first one of an update.
            beside: returns the digests of further state with which it begins.
        """
        self._record(FORWARD, lambda: self._at_forward(module, inputs, first, beside))

    def announce(self) -> None:
        """Tell of the iterations that have begun, if the script does not.

        Raises:
            BaseException: what announcing an iteration raises, such as a fault.
        """
        for iteration in self._position.news():
            self._announce(iteration)

    def update(self, optimizer: Optimizer) -> None:
        """An optimizer has made its step."""
        self._record(UPDATE, lambda: self._at_update(optimizer))

    def _at_step(self, digest: object) -> Taken:
        parts = self._generators.parts()
        try:
            parts = state.parts_of(digest) | parts
        except ValueError as error:
            self._complain(f"undaunted.step(digest=...): {error}")
            return parts, True
        return parts, tensors.finite(state.tensors_of(digest))

    def _at_forward(
        self, module: Module, inputs: object, first: bool, beside: Callable[[], state.Parts]
    ) -> Taken:
        parts = {"data": state.digest_of(inputs, strict=False), **self._generators.parts()}
        parts |= beside()
        if first:
            parts |= state.module_parts(module)
            self._place(module, parts)
        return parts, True

    def _at_update(self, optimizer: Optimizer) -> Taken:
        parameters = state.parameters_of(optimizer)
        gradients = [one.grad for one in parameters]
        parts = {
            "gradients": state.digest_of(gradients),
            "parameters": state.digest_of(parameters),
            "optimizer": state.optimizer_digest(optimizer),
        }
        known = [one for one in gradients if one is not None]
        return parts, tensors.finite([*parameters, *known])

    def _remember(self) -> None:
        try:
            self._past = self._read_past()
        except OSError as error:
            self._complain(f"iterations are counted from 0: {error}")
            return
        if self._past.counted:
            self._position.nobody_counts()

    def _place(self, module: Module, parts: state.Parts) -> None:
        past, self._past = self._past, None
        if past is None:
            return
        iteration = past.iteration_of(parts, lambda: state.digest_of(list(module.parameters())))
        if iteration is not None:
            self._position.begins_at(iteration)

    def _record(self, at: str, take: Callable[[], Taken]) -> None:
        number = self._position.number(at)
        try:
            parts, finite = take()
            one = Record(
                round=self._round,
                iteration=self._position.iteration,
                at=at,
                n=number,
                parts=parts,
                counted=self._position.counted,
                finite="" if finite else "no",
                pid=os.getpid(),
            )
            if self._position.held:
                self._held.append(one)
            else:
                self._recorder.write(one)
        except Exception as error:  # noqa: BLE001 - training goes on whatever this is
            self._complain(f"{type(error).__name__}: {error}")

    def _release(self) -> None:
        held, self._held = self._held, []
        try:
            for one in held:
                self._recorder.write(one)
        except OSError as error:
            self._complain(str(error))

    def _complain(self, problem: str) -> None:
        if not self._complained:
            self._complained = True
            print(
                f"undaunted: rank {self._rank}: some of its state is not recorded, so it cannot "
                f"be compared there: {problem}",
                file=sys.stderr,
                flush=True,
            )


class _Counting(Enum):
    UNKNOWN = "no update has begun"
    HELD = "one update has begun, nobody has counted"
    OURS = "we count"
    SCRIPT = "the script counts"


class Position:
    """The iteration that a record of one rank belongs to. Pure.

    A script that calls ``undaunted.step`` says so itself. For one that does not, iterations are
    counted: one for each update of the parameters. Which of them a script is shows when its second
    update begins. What was recorded before that is held back, and forgotten if the script counts
    after all: it belongs to an iteration whose number nobody knows.

    Attributes:
        iteration: the one under way, -1 before the first.
    """

    def __init__(self) -> None:
        """Begin before the first iteration."""
        self.iteration = -1
        self._counting = _Counting.UNKNOWN
        self._numbers: Counter[str] = Counter()
        self._announced = -1

    @property
    def known(self) -> bool:
        """Something has begun, or it is known who counts."""
        return self._counting is not _Counting.UNKNOWN

    @property
    def counted(self) -> bool:
        """The iteration is counted by us."""
        return self._counting in (_Counting.HELD, _Counting.OURS)

    @property
    def held(self) -> bool:
        """Return whether records have to wait now."""
        return self._counting is _Counting.HELD

    def told(self, iteration: int) -> None:
        """Take over what the script says."""
        self._counting = _Counting.SCRIPT
        # One that goes back repeats iterations in the same process: their records are first again.
        self._go_to(iteration)

    def nobody_counts(self) -> None:
        """Count from the first update on: the script does not, as is known of it."""
        self._counting = _Counting.OURS

    def update_begins(self) -> None:
        """Count, if that is ours."""
        if self._counting is _Counting.SCRIPT:
            return
        self._counting = _Counting.OURS if self.known else _Counting.HELD
        self._go_to(self.iteration + 1)

    def begins_at(self, iteration: int) -> None:
        """Take over what the first iteration counted is, where a process goes on."""
        self.iteration = iteration
        self._announced = iteration - 1

    def news(self) -> range:
        """Return the iterations that have begun and that nobody has told of; each one once."""
        if self._counting is not _Counting.OURS:
            return range(0)
        new = range(self._announced + 1, self.iteration + 1)
        self._announced = self.iteration
        return new

    def number(self, at: str) -> int:
        """Return how many records of this kind the iteration has had before this one."""
        self._numbers[at] += 1
        return self._numbers[at] - 1

    def _go_to(self, iteration: int) -> None:
        if iteration != self.iteration:
            self._numbers.clear()
        self.iteration = iteration


class Past:
    """Finds the iteration that a process begins with where its script does not tell.

    Attributes:
        counted: only this module has counted the iterations of this rank.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        """Take records of earlier processes, in the order in which they were written."""
        self.counted = False
        self._begun: defaultdict[str, list[Record]] = defaultdict(list)
        self._updated: dict[str, int] = {}
        for record in records:
            self.counted = record.counted
            if record.at == FORWARD and record.n == 0 and PARAMETERS in record.parts:
                self._begun[record.parts[PARAMETERS]].append(record)
            elif record.at == UPDATE and PARAMETERS in record.parts:
                self._updated[record.parts[PARAMETERS]] = record.iteration

    def iteration_of(self, parts: Mapping[str, str], updated: Callable[[], str]) -> int | None:
        """Return the iteration that began with these parameters, or is the next; None if none is.

        Of several, as with a learning rate of 0, it is the one that is most alike, and the latest.
        A process that saves and leaves has updated the parameters and not begun with them.

        Args:
            parts: of the record before a forward pass.
            updated: returns the digest of the parameters as an optimizer of them all has it.
        """
        begun = self._begun.get(parts[PARAMETERS], ())
        alike = [
            (sum(one.parts.get(name) == parts[name] for name in parts), one.iteration)
            for one in begun
        ]
        if alike:
            return max(alike)[1]
        last = self._updated.get(updated()) if self._updated else None
        return None if last is None else last + 1
