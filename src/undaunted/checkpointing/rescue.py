"""A copy in memory that outlived its trainers becomes a checkpoint.

When ranks were killed after their state was copied, but before the checkpoint was committed, the
agents of their nodes still have the copies. The ranks of the next round ask for them, agree on the
newest state of which every rank's copy is there, write it out and commit it. From there it is a
checkpoint like any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from undaunted.agreement.failures import Failure
from undaunted.checkpointing import announce
from undaunted.checkpointing.finding import find
from undaunted.checkpointing.format.manifest import MAX_ATTEMPTS, File
from undaunted.checkpointing.keeping.copies import Snapshot  # noqa: TC001 - a type of a field
from undaunted.checkpointing.snapshot import Report

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from undaunted.agreement.agreement import Agreeing
    from undaunted.checkpointing.files.storage import Storage
    from undaunted.checkpointing.format.manifest import Manifest
    from undaunted.checkpointing.keeping.copies import Copies

    # With what is rescued, the reports of its ranks in their order, and the blueprint of its
    # metadata.
    Commit = Callable[[Snapshot, Sequence[Report], bytes], None]

# Saves have numbers from 1 within their session.
ATTEMPT = 0


class _Have(msgspec.Struct, array_like=True, frozen=True):
    """What a rank can get at: copies, the ranks that made them, and when."""

    copies: list[tuple[Snapshot, int, float]]


class Choice(NamedTuple):
    """What is rescued.

    Attributes:
        snapshot: the state, None when there is nothing to rescue.
        writers: by rank of the round that copied it, the rank of this round that writes its copy.
    """

    snapshot: Snapshot | None
    writers: list[int]


class _Task(msgspec.Struct, array_like=True, frozen=True):
    """What one rank has to do.

    Attributes:
        snapshot: the state, None when there is nothing to rescue.
        copies: the ranks of the round that copied it whose copies are written here.
    """

    snapshot: Snapshot | None
    copies: list[int]


class _Part(msgspec.Struct, array_like=True, frozen=True):
    """A copy that was written out."""

    rank: int
    report: Report
    blueprint: bytes


def rescue(
    copies: Copies,
    storage: Storage,
    agreement: Agreeing,
    commit: Commit,
    timeout_s: float,
    begins: Callable[[Snapshot], None] = lambda _: None,
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
    snapshot = _rescue(copies, storage, agreement, commit, timeout_s, begins)
    if snapshot is None:
        return None
    copies.note_rescue(snapshot)
    announce.rescued(snapshot.step)
    return snapshot.step


def _rescue(
    copies: Copies,
    storage: Storage,
    agreement: Agreeing,
    commit: Commit,
    timeout_s: float,
    begins: Callable[[Snapshot], None],
) -> Snapshot | None:
    def choose_now(contributions: Sequence[bytes]) -> list[bytes]:
        have = [msgspec.msgpack.decode(one, type=_Have).copies for one in contributions]
        # Whoever loads looks for it anyway: here only if there is something to compare with.
        newest = find(storage).manifest if any(have) else None
        choice = choose(have, newest)
        copies: list[list[int]] = [[] for _ in contributions]
        for rank, writer in enumerate(choice.writers):
            copies[writer].append(rank)
        return [msgspec.msgpack.encode(_Task(choice.snapshot, ranks)) for ranks in copies]

    mine = _Have([(copy.snapshot, copy.rank, copy.description.saved_at) for copy in copies.all])
    answer = agreement.scatter("copies", msgspec.msgpack.encode(mine), choose_now, timeout_s)
    task = msgspec.msgpack.decode(answer, type=_Task)
    snapshot = task.snapshot
    if snapshot is None:
        return None
    begins(snapshot)
    target = storage.target(snapshot.step, agreement.session, ATTEMPT)

    def commit_now(contributions: Sequence[bytes]) -> bytes:
        parts = [msgspec.msgpack.decode(one, type=list[_Part]) for one in contributions]
        of_ranks = sorted((part for of in parts for part in of), key=lambda part: part.rank)
        commit(snapshot, [part.report for part in of_ranks], of_ranks[0].blueprint)
        return b""

    written = _write(copies, task, storage, target)
    agreement.round(f"rescue of step {snapshot.step}", written, commit_now, timeout_s)
    return snapshot


def choose(
    have: Sequence[Sequence[tuple[Snapshot, int, float]]], newest: Manifest | None
) -> Choice:
    """Return what is rescued: the newest state of which the copies of all ranks are there.

    Its step says nothing of its age, as training may have gone back to an older one.

    Args:
        have: by rank of this round, what it can get at.
        newest: the newest committed checkpoint; only later states count.
    """
    holders: dict[Snapshot, dict[int, int]] = {}
    times: dict[str, float] = {}  # of sessions
    for holder, copies in enumerate(have):
        for snapshot, rank, saved_at in copies:
            holders.setdefault(snapshot, {}).setdefault(rank, holder)
            times[snapshot.session] = max(saved_at, times.get(snapshot.session, 0.0))

    def age(snapshot: Snapshot) -> tuple[int, float, int, int]:
        """Within a session the numbers of saves tell, and between sessions of a round clocks."""
        return snapshot.epoch, times[snapshot.session], snapshot.number, snapshot.step

    def is_newer(snapshot: Snapshot) -> bool:
        if newest is None:
            return True
        if snapshot.session == newest.session:
            return snapshot.number > newest.attempt // MAX_ATTEMPTS
        return (snapshot.epoch, times[snapshot.session]) > (newest.epoch, newest.saved_at)

    whole = [
        snapshot
        for snapshot, ranks in holders.items()
        if is_newer(snapshot) and sorted(ranks) == list(range(snapshot.world_size))
    ]
    if not whole:
        return Choice(None, [])
    best = max(whole, key=age)
    return Choice(best, [holders[best][rank] for rank in range(best.world_size)])


def _write(copies: Copies, task: _Task, storage: Storage, target: str) -> bytes | Failure:
    """Write out what is this rank's to write; nothing is raised, as the others wait."""
    parts = []
    try:
        for copy in copies.all:
            if copy.snapshot != task.snapshot or copy.rank not in task.copies:
                continue
            files = {}
            for image in copy.description.files:
                crc32 = storage.write(target, image, copy.arena.memory, lambda _: None)
                files[image.name] = File(size=image.size, crc32=crc32)
            report = Report(files, copy.description.report)
            parts.append(_Part(copy.rank, report, copy.description.metadata))
    except Exception as error:  # noqa: BLE001 - told to all ranks
        return Failure.of(error)
    return msgspec.msgpack.encode(parts)
