"""A snapshot: the state at one step, copied into an arena, on its way to storage."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from undaunted.checkpointing import announce
from undaunted.checkpointing.format.manifest import File  # noqa: TC001 - a type of a field
from undaunted.checkpointing.memory.arena import ArenaTooSmallError, Description

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from undaunted.agreement.failures import Failure
    from undaunted.checkpointing.dcp.saving import Planned, Staged
    from undaunted.checkpointing.keeping.client import ShelfClient
    from undaunted.checkpointing.memory.arena import Arena
    from undaunted.checkpointing.memory.pool import Lease


class Report(msgspec.Struct, frozen=True):
    """The report of a rank after it has written.

    Attributes:
        files: what it has written.
        objects: where in them the objects lie that are not tensors.
    """

    files: dict[str, File]
    objects: bytes


@dataclass(frozen=True)
class Snapshot:
    """A state at one step, on its way to storage.

    Attributes:
        step: of training.
        number: of the save, from 1; the same on all ranks.
        lease: where it lies.
        planned: its structure, None when this rank could not even plan.
        staged: what lies there, None when it could not be copied.
        problem: why not.
        stall_s: how long training was stopped for it, in seconds.
        began: when, on the monotonic clock.
    """

    step: int
    number: int
    lease: Lease | None
    planned: Planned | None
    staged: Staged | None
    problem: Failure | None
    stall_s: float
    began: float

    def name(self, attempt: int) -> str:
        """Return what messages call an attempt to save it, from 0; the same on all ranks."""
        again = f", attempt {attempt + 1}" if attempt else ""
        return f"save {self.number} (step {self.step}){again}"

    @property
    def bytes(self) -> int:
        """The size of this rank's files."""
        return 0 if self.staged is None else sum(file.size for file in self.staged.files)


def merged(reports: Sequence[Report]) -> dict[str, File]:
    """Return the files of all ranks."""
    return {name: file for report in reports for name, file in report.files.items()}


def _arrive(events: list[Any], arena: Arena, description: Description) -> None:
    for event in events:
        event.synchronize()
    arena.complete(description)


class Taker:
    """Takes the snapshots of a rank."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        session: str,
        epoch: int,
        shelf: ShelfClient | None,
        has_saved: Callable[[], bool],
    ) -> None:
        """Take part.

        Args:
            rank: who takes them.
            world_size: with how many.
            session: in which run.
            epoch: in which round.
            shelf: who keeps the memory; None = nobody.
            has_saved: whether a checkpoint was committed in this session.
        """
        self._rank = rank
        self._world_size = world_size
        self._session = session
        self._epoch = epoch
        self._shelf = shelf
        self._has_saved = has_saved
        self._kept: dict[int, Arena] = {}  # by place in the pool
        self._refused = ""  # why the agent has not kept the last one, as the log has said

    def take(self, step: int, number: int, planned: Planned, lease: Lease) -> Staged:
        """Copy the state; when this returns, the content is fixed.

        What comes from a GPU may still be on its way: ``Staged.arrive``. Until then the arena
        counts as one that is being copied to.

        Args:
            step: of training.
            number: of the save.
            planned: what is copied.
            lease: where to.

        Raises:
            OSError: there is not enough memory.
            CheckpointError: the state cannot be copied.
        """
        # Nobody else needs the blueprint while this process lives.
        blueprint = planned.blueprint() if self._shelf is not None else b""
        beside = len(blueprint)
        # An arena that is there is replaced only if the content has no room in it.
        arena = self._room(lease, planned.arena_bytes(beside) if lease.arena is None else 0)
        arriving: list[Any] = []
        try:
            staged = planned.stage(arena, beside, arriving)
        except ArenaTooSmallError as error:  # objects have grown
            arena = self._room(lease, error.needed)
            staged = planned.stage(arena, beside, arriving)
        description = Description(
            step=step,
            epoch=self._epoch,
            session=self._session,
            rank=self._rank,
            world_size=self._world_size,
            structure=planned.structure,
            files=staged.files,
            report=staged.report,
            number=number,
            saved_at=time.time(),
            metadata=blueprint,
        )
        if not arriving:
            arena.complete(description)
            return staged
        return replace(staged, arrive=partial(_arrive, arriving, arena, description))

    def warm_up(self, planned: Planned, lease: Lease) -> None:
        """Allocate and touch the memory that a snapshot will need.

        Raises:
            OSError: there is not enough.
        """
        blueprint = planned.blueprint() if self._shelf is not None else b""
        planned.warm_up(self._room(lease, planned.arena_bytes(len(blueprint))))

    def _room(self, lease: Lease, size: int) -> Arena:
        """Return the lease's arena; one that the agent does not have is given to it to keep."""
        arena = lease.at_least(size)
        if self._shelf is not None and self._kept.get(lease.index) is not arena:
            self._keep(self._shelf, lease.index, arena)
        return arena

    def _keep(self, shelf: ShelfClient, index: int, arena: Arena) -> None:
        if shelf.unsaved and not self._has_saved():
            return  # it would take the place of what is worth more
        try:
            shelf.keep(index, arena.fd)
            if shelf.unsaved:  # not before: what is there stays if the agent does not answer
                shelf.drop()
        except OSError as error:  # the next save tries again
            if str(error) != self._refused:
                announce.log.warning("copies are not kept over a restart: %s", error)
            self._refused = str(error)
        else:
            self._kept[index] = arena
            self._refused = ""
