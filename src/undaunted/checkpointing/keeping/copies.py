"""Copies of states in this node's memory that processes of earlier rounds have left."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from undaunted.checkpointing.files.reading import MemoryReader
from undaunted.checkpointing.format.manifest import MAX_ATTEMPTS
from undaunted.checkpointing.memory.arena import Arena

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from undaunted.checkpointing.files.storage import FileReader, Readable
    from undaunted.checkpointing.format.manifest import Manifest
    from undaunted.checkpointing.keeping.client import Left
    from undaunted.checkpointing.memory.arena import Description


class Snapshot(msgspec.Struct, array_like=True, frozen=True):
    """A state that was copied by all ranks of a round.

    Attributes:
        epoch: of the round.
        step: of training.
        world_size: how many ranks have copied it.
        session: of the run.
        structure: fingerprint of its structure.
        number: of the save in its session.
    """

    epoch: int
    step: int
    world_size: int
    session: str
    structure: str
    number: int = 0


@dataclass(frozen=True, eq=False)
class Copy:
    """What one rank has copied.

    Attributes:
        snapshot: of which state.
        rank: which rank.
        description: what lies where.
        arena: the memory.
    """

    snapshot: Snapshot
    rank: int
    description: Description
    arena: Arena


class Copies:
    """All complete copies of one place on this node. Owns their memory.

    Attributes:
        all: what there is.
    """

    def __init__(self, left: Sequence[Left], drop: Callable[[], None] = lambda: None) -> None:
        """Look at what was left; arenas that are not complete are given back.

        Args:
            left: the arenas, which belong to this object from now on.
            drop: called when the copies are needed no more; it may raise an OSError.
        """
        self._drop = drop
        self._rescued: Snapshot | None = None
        self.all: list[Copy] = []
        for one in left:
            try:
                arena = Arena.open(one.fd)
            except (OSError, ValueError):
                continue
            if (of := arena.description()) is None:
                arena.close()  # its process was ended while it copied
                continue
            snapshot = Snapshot(
                of.epoch, of.step, of.world_size, of.session, of.structure, of.number
            )
            self.all.append(Copy(snapshot, of.rank, of, arena))

    def keep(self) -> None:
        """Say that what is here could not be saved: the agent keeps it for the next round."""
        self._drop = lambda: None

    def note_rescue(self, snapshot: Snapshot) -> None:
        """Say that this state is a checkpoint now, under the name of another session."""
        self._rescued = snapshot

    def before(self, source: Readable, manifest: Manifest) -> Readable:
        """Return a source of a checkpoint that looks into this memory first."""
        return _MemoryFirst(source, {name: c for c in self.all for name in self._of(c, manifest)})

    def _of(self, copy: Copy, manifest: Manifest) -> list[str]:
        """Return the files of a checkpoint that lie in a copy; their checksums are compared."""
        of = copy.snapshot
        same = of.step == manifest.step and of.structure == manifest.structure
        # A step may have been saved twice.
        saved = (of.session, of.number) == (manifest.session, manifest.attempt // MAX_ATTEMPTS)
        if not same or not (saved or of == self._rescued):
            return []
        return [
            image.name
            for image in copy.description.files
            if image.name in manifest.files and manifest.files[image.name].size == image.size
        ]

    def close(self) -> None:
        """Give the memory back, here and (but for :meth:`keep`) at the agent."""
        for copy in self.all:
            copy.arena.close()
        self.all.clear()
        with contextlib.suppress(OSError):
            self._drop()


class _MemoryFirst:
    def __init__(self, source: Readable, copies: dict[str, Copy]) -> None:
        self._source = source
        self._copies = copies

    def locate(self, step: int) -> str:
        return self._source.locate(step)

    def open(self, step: int, name: str, *, shared: bool = False) -> FileReader:
        copy = self._copies.get(name)
        if copy is None:
            return self._source.open(step, name, shared=shared)
        (image,) = (image for image in copy.description.files if image.name == name)
        return MemoryReader(copy.arena.memory[image.offset : image.offset + image.size])
