"""Taking a snapshot: the state is copied into a slot, and the slot says what it is of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.checkpointing import announce
from undaunted.checkpointing.staging.arena import ArenaTooSmallError, Description

if TYPE_CHECKING:
    from undaunted.checkpointing.dcp.saving import Planned, Staged
    from undaunted.checkpointing.keeping.client import ShelfClient
    from undaunted.checkpointing.slots import Slot
    from undaunted.checkpointing.staging.arena import Arena


class Taker:
    """Takes the snapshots of a rank."""

    def __init__(
        self, rank: int, world_size: int, session: str, epoch: int, shelf: ShelfClient | None
    ) -> None:
        """Args: who takes them, with how many, in which run and round, and who keeps the memory."""
        self._rank = rank
        self._world_size = world_size
        self._session = session
        self._epoch = epoch
        self._shelf = shelf

    def take(self, step: int, planned: Planned, slot: Slot) -> Staged:
        """Copy the state; when this returns, the content is fixed.

        Raises:
            OSError: there is not enough memory.
            CheckpointError: the state cannot be copied.
        """
        # Nobody else needs the blueprint while this process lives.
        blueprint = planned.blueprint() if self._shelf is not None else b""
        try:
            arena = self._room(slot, planned.arena_bytes + len(blueprint))
            staged = planned.stage(arena)
        except ArenaTooSmallError as error:  # objects have grown
            arena = self._room(slot, error.needed + len(blueprint))
            staged = planned.stage(arena)
        arena.complete(
            Description(
                step=step,
                epoch=self._epoch,
                session=self._session,
                rank=self._rank,
                world_size=self._world_size,
                structure=planned.structure,
                files=staged.files,
                report=staged.report,
                metadata=blueprint,
            )
        )
        return staged

    def warm_up(self, planned: Planned, slot: Slot) -> None:
        """Allocate and touch the memory that a snapshot will need.

        Raises:
            OSError: there is not enough.
        """
        blueprint = planned.blueprint() if self._shelf is not None else b""
        planned.warm_up(self._room(slot, planned.arena_bytes + len(blueprint)))

    def _room(self, slot: Slot, size: int) -> Arena:
        """Return the slot's arena; a new one is given to the agent to keep."""
        before = slot.arena
        arena = slot.room(size)
        if arena is not before and self._shelf is not None:
            try:
                self._shelf.keep(slot.index, arena.fd)
            except OSError as error:
                announce.log.warning("copies are not kept over a restart: %s", error)
        return arena
