"""The place of checkpoints: one interface for folders and object stores."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from undaunted.base.deadline import in_time

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from contextlib import AbstractContextManager

    from undaunted.checkpointing.files.living import Session
    from undaunted.checkpointing.format.image import Image
    from undaunted.checkpointing.format.manifest import Manifest


NO_GATE: AbstractContextManager[object] = nullcontext()


class Leftover(NamedTuple):
    """A file or folder beside the committed checkpoints that is none.

    Attributes:
        name: relative to the place.
        step: that it was, or was to become.
        kind: an attempt that is not committed, the former content of a step, or what is deleted.
        size: bytes.
        alive: whether the session that has made it still lives; None = this cannot be known.
    """

    name: str
    step: int
    kind: Literal["unfinished", "replaced", "deleted"]
    size: int
    alive: bool | None


class Stray(NamedTuple):
    """A file or folder that is called like a committed checkpoint and is none.

    Attributes:
        path: of it.
        why: it is none, to follow the path in a message.
    """

    path: str
    why: str


class KeptAside(NamedTuple):
    """A checkpoint that was not trusted, after another one took its step.

    Attributes:
        name: of its folder or manifest, relative to the place.
        step: that it was.
        size: bytes.
    """

    name: str
    step: int
    size: int


class FileReader(Protocol):
    """One open file of a checkpoint."""

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from ``offset``; an OSError or EOFError when that is not possible."""

    def close(self) -> None:
        """Close it; again and again without harm."""


class Readable(Protocol):
    """The place from which checkpoints are read."""

    def open(self, step: int, name: str, *, shared: bool = False) -> FileReader:
        """Open a file of a committed checkpoint.

        Args:
            step: of the checkpoint.
            name: of the file.
            shared: other processes of this machine are going to read it as well.
        """

    def locate(self, step: int) -> str:
        """Return the folder or URL that ``dcp.load`` would be given."""


class Storage(Readable, Protocol):
    """The place of all checkpoints of a run. Errors are OSErrors that name the path.

    Attributes:
        place: the folder or URL, for messages.
    """

    place: str

    def target(self, step: int, session: str, attempt: int) -> str:
        """Return where the files of an attempt are written: what the writer process gets."""

    def write(
        self, target: str, image: Image, memory: memoryview, wrote: Callable[[int], None]
    ) -> str:
        """Write a file from its image and make it durable; return the checksums of its blocks.

        Args:
            target: see :meth:`target`.
            image: the file.
            memory: the arena.
            wrote: called with the number of bytes after each block, by any thread; what it raises
                ends the write.
        """

    def write_small(self, target: str, name: str, content: bytes) -> None:
        """Write a small file next to them and make it durable."""

    def discard(self, target: str, files: Collection[str] | None = None) -> None:
        """Remove files of an attempt that is no checkpoint, and never will be.

        Args:
            target: see :meth:`target`.
            files: their names; None = all that is there. Those that are not there do no harm.
        """

    def commit(
        self,
        target: str,
        manifest: Manifest,
        gate: AbstractContextManager[object] = NO_GATE,
        *,
        aside: bool = False,
    ) -> None:
        """Make the attempt the checkpoint of its step, at once or not at all.

        Args:
            target: see :meth:`target`.
            manifest: of the checkpoint.
            gate: entered for the one call that makes it exist; what it raises prevents that.
            aside: what was the checkpoint of the step is kept, under another name.

        Raises:
            StaleEpochError: a newer round has been here.
        """

    def raise_epoch(self, epoch: int) -> None:
        """Remember that this round has begun: commits of older ones are refused from now on.

        Raises:
            StaleEpochError: a newer one has begun.
        """

    def steps(self) -> list[int]:
        """Return the steps of committed checkpoints, ascending; none of them is read."""

    def strays(self) -> Mapping[int, Stray]:
        """Return what is called like a committed checkpoint and is none, by step."""

    def kept_aside(self) -> list[KeptAside]:
        """Return what `commit` has kept under another name, sorted by it."""

    def leftovers(self) -> list[Leftover]:
        """Return what else is here of saves and deletions; nothing is changed."""

    def sessions(self) -> list[Session] | None:
        """Return the sessions that have this place open; None = this cannot be known."""

    def manifest(self, step: int, *, check_files: bool = True) -> Manifest:
        """Read the manifest of a committed checkpoint.

        Args:
            step: of the checkpoint.
            check_files: see that all its files are there with their sizes.

        Raises:
            DamagedCheckpointError: it cannot be used.
        """

    def read_ledger(self) -> bytes:
        """Return the content of the ledger, see `format.ledger`; empty when there is none."""

    def write_ledger(self, content: bytes) -> None:
        """Replace it, durably, at once or not at all."""

    def delete(self, step: int) -> None:
        """Delete a committed checkpoint: from the first moment it is no longer found."""

    def sweep(self, session: str) -> Sequence[str]:
        """Remove what sessions that are over have left unfinished; return its names.

        A warning names what cannot be removed; it harms no checkpoint.

        From now on this session counts as alive, as long as its process lives and until `close`.
        """

    def begin_last(self, session: str) -> None:
        """Let others leave alone what this session writes: the last copy of a job that has ended.

        It does not count as a process of the job, which may have been started again.
        """

    def close(self) -> None:
        """Give back what it holds; again and again without harm."""


def warn(text: str, *arguments: object) -> None:
    """Write a warning to the log."""
    import logging  # the writer starts without it

    logging.getLogger("undaunted.checkpointing").warning(text, *arguments)


_LIMIT_S = 30.0  # for a place that does not answer


def discard(storage: Storage, target: str, files: Collection[str] | None = None) -> None:
    """Remove files of an attempt that is no checkpoint, and never will be. Raises nothing.

    What cannot be removed is left to the sweep of the next start.

    Args:
        storage: where.
        target: see `Storage.target`.
        files: their names; None = all.
    """
    try:
        in_time(_LIMIT_S, lambda: storage.discard(target, files))
    except Exception as error:  # noqa: BLE001 - the save has failed already
        warn(
            "%s is part of no checkpoint and cannot be removed now; the next start tries again: %s",
            target,
            error,
        )
