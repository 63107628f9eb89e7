"""Copies in memory that outlived their trainers, and how they become a checkpoint.

When ranks were killed after their state was copied, but before the checkpoint was committed, the
agents of their nodes still have the copies. The ranks of the next round ask for them, agree on the
newest state of which every rank's copy is there, write it out and commit it. From there it is a
checkpoint like any other.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from undaunted.agreement.failures import AgreedError, Failure
from undaunted.checkpointing import announce
from undaunted.checkpointing.files.reading import MemoryReader
from undaunted.checkpointing.files.storage import discard
from undaunted.checkpointing.finding import find
from undaunted.checkpointing.format.manifest import MAX_ATTEMPTS, File
from undaunted.checkpointing.memory.arena import Arena
from undaunted.checkpointing.snapshot import Report
from undaunted.coordinator.epoch import round_epoch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from undaunted.agreement.agreement import Agreeing
    from undaunted.checkpointing.files.storage import FileReader, Readable, Storage
    from undaunted.checkpointing.format.manifest import Manifest
    from undaunted.checkpointing.keeping.client import Left
    from undaunted.checkpointing.memory.arena import Description


class CopiedState(msgspec.Struct, array_like=True, frozen=True):
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
    """The copy that one rank has made.

    Attributes:
        state: of which state.
        rank: which rank.
        description: what lies where.
        arena: the memory.
    """

    state: CopiedState
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
        self._rescued: CopiedState | None = None
        self.all: list[Copy] = []
        for one in left:
            try:
                arena = Arena.open(one.fd)
            except (OSError, ValueError):
                continue
            if (of := arena.description()) is None:
                arena.close()  # its process was ended while it copied
                continue
            state = CopiedState(
                of.epoch, of.step, of.world_size, of.session, of.structure, of.number
            )
            self.all.append(Copy(state, of.rank, of, arena))

    def keep(self) -> None:
        """Say that what is here could not be saved: the agent keeps it for the next round."""
        self._drop = lambda: None

    def note_rescue(self, state: CopiedState) -> None:
        """Say that this state is a checkpoint now, under the name of another session."""
        self._rescued = state

    def overlay(self, source: Readable, manifest: Manifest) -> Readable:
        """Return what reads files from this memory where a copy has them, else from a source."""
        return _MemoryFirst(source, {name: c for c in self.all for name in self._of(c, manifest)})

    def _of(self, copy: Copy, manifest: Manifest) -> list[str]:
        """Return the files of a checkpoint that lie in a copy; their checksums are compared."""
        of = copy.state
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


# Saves have numbers from 1 within their session.
ATTEMPT = 0


class _Have(msgspec.Struct, array_like=True, frozen=True):
    """What a rank can get at: copies, the ranks that made them, and when."""

    copies: list[tuple[CopiedState, int, float]]


class RescueChoice(NamedTuple):
    """The copies that are rescued.

    Attributes:
        state: the state, None when there is nothing to rescue.
        writers: by rank of the round that copied it, the rank of this round that writes its copy.
    """

    state: CopiedState | None
    writers: list[int]


class _Task(msgspec.Struct, array_like=True, frozen=True):
    """What one rank has to do.

    Attributes:
        state: the state, None when there is nothing to rescue.
        copies: the ranks of the round that copied it whose copies are written here.
    """

    state: CopiedState | None
    copies: list[int]


class _WrittenCopy(msgspec.Struct, array_like=True, frozen=True):
    """A copy that was written out."""

    rank: int
    report: Report
    blueprint: bytes


if TYPE_CHECKING:
    Commit = Callable[[CopiedState, Sequence[Report], bytes], None]


def rescue(
    copies: Copies,
    storage: Storage,
    agreement: Agreeing,
    commit: Commit,
    timeout_s: float,
    begins: Callable[[CopiedState], None] = lambda _: None,
) -> int | None:
    """Make a checkpoint of what earlier rounds have left in memory; all ranks together.

    Nothing is done when a committed checkpoint is as new.

    Args:
        copies: on this node.
        storage: where checkpoints are.
        agreement: of all ranks of this round.
        commit: called on rank 0.
        timeout_s: for each agreement.
        begins: called with what is going to be written.

    Returns:
        The step that was rescued, or None.

    Raises:
        CheckpointError: on all ranks: it could not be written or committed, or a rank did not
            answer. The copies are as they were.
    """
    state = _rescue(copies, storage, agreement, commit, timeout_s, begins)
    if state is None:
        return None
    copies.note_rescue(state)
    announce.rescued(state.step)
    return state.step


def _rescue(
    copies: Copies,
    storage: Storage,
    agreement: Agreeing,
    commit: Commit,
    timeout_s: float,
    begins: Callable[[CopiedState], None],
) -> CopiedState | None:
    def choose_now(contributions: Sequence[bytes]) -> list[bytes]:
        have = [msgspec.msgpack.decode(one, type=_Have).copies for one in contributions]
        # A load looks for it anyway: here only if there is something to compare with.
        newest = find(storage).manifest if any(have) else None
        choice = choose(have, newest, round_epoch())
        copies: list[list[int]] = [[] for _ in contributions]
        for rank, writer in enumerate(choice.writers):
            copies[writer].append(rank)
        return [msgspec.msgpack.encode(_Task(choice.state, ranks)) for ranks in copies]

    mine = _Have([(copy.state, copy.rank, copy.description.saved_at) for copy in copies.all])
    answer = agreement.scatter("copies", msgspec.msgpack.encode(mine), choose_now, timeout_s)
    task = msgspec.msgpack.decode(answer, type=_Task)
    state = task.state
    if state is None:
        return None
    begins(state)
    target = storage.target(state.step, agreement.session, ATTEMPT)

    def commit_now(contributions: Sequence[bytes]) -> bytes:
        parts = [msgspec.msgpack.decode(one, type=list[_WrittenCopy]) for one in contributions]
        of_ranks = sorted((part for of in parts for part in of), key=lambda part: part.rank)
        commit(state, [part.report for part in of_ranks], of_ranks[0].blueprint)
        return b""

    written = _write(copies, task, storage, target)
    try:
        agreement.round(f"rescue of step {state.step}", written, commit_now, timeout_s)
    except AgreedError as error:
        if error.undecided:
            parts = _to_write(copies, task)
            discard(storage, target, [one.name for copy in parts for one in copy.description.files])
        raise
    return state


def choose(
    have: Sequence[Sequence[tuple[CopiedState, int, float]]],
    newest: Manifest | None,
    epoch: int,
) -> RescueChoice:
    """Return what is rescued: the newest state of which the copies of all ranks are there.

    Its step says nothing of its age, as training may have gone back to an older one.

    Args:
        have: by rank of this round, what it can get at.
        newest: the newest committed checkpoint; only later states count.
        epoch: of this round. One of a checkpoint is no later, or it is of another start of the job,
            perhaps with other nodes: then only clocks tell.
    """
    holders: dict[CopiedState, dict[int, int]] = {}
    times: dict[str, float] = {}  # of sessions
    for holder, copies in enumerate(have):
        for state, rank, saved_at in copies:
            holders.setdefault(state, {}).setdefault(rank, holder)
            times[state.session] = max(saved_at, times.get(state.session, 0.0))

    def age(state: CopiedState) -> tuple[int, float, int, int]:
        """Within a session the numbers of saves tell, and between sessions of a round clocks."""
        return state.epoch, times[state.session], state.number, state.step

    def is_newer(state: CopiedState) -> bool:
        if newest is None:
            return True
        if state.session == newest.session:
            return state.number > newest.attempt // MAX_ATTEMPTS
        if newest.epoch > epoch:
            return times[state.session] > newest.saved_at
        return (state.epoch, times[state.session]) > (newest.epoch, newest.saved_at)

    whole = [
        state
        for state, ranks in holders.items()
        if is_newer(state) and sorted(ranks) == list(range(state.world_size))
    ]
    if not whole:
        return RescueChoice(None, [])
    best = max(whole, key=age)
    return RescueChoice(best, [holders[best][rank] for rank in range(best.world_size)])


def _to_write(copies: Copies, task: _Task) -> list[Copy]:
    return [c for c in copies.all if c.state == task.state and c.rank in task.copies]


def _write(copies: Copies, task: _Task, storage: Storage, target: str) -> bytes | Failure:
    """Write out what is this rank's to write; nothing is raised, as the others wait."""
    parts = []
    try:
        for copy in _to_write(copies, task):
            files = {}
            for image in copy.description.files:
                crc32 = storage.write(target, image, copy.arena.memory, lambda _: None)
                files[image.name] = File(size=image.size, crc32=crc32)
            report = Report(files, copy.description.report)
            parts.append(_WrittenCopy(copy.rank, report, copy.description.metadata))
    except Exception as error:  # noqa: BLE001 - told to all ranks
        return Failure.of(error)
    return msgspec.msgpack.encode(parts)
