"""What one rank does in the store for one round.

Keys of a round: each rank's contribution, ``count``, the number of them, ``go``, which wakes rank
0, and ``verdict``, which is written once; who ends a round early sets ``go`` as well. What was
decided is in ``piece-0`` and so on, before the verdict, where it is long; so is what rank 3
contributes, in ``3-piece-0``. A rank deletes its contribution when it has the verdict. Rank 0
deletes the rest when every rank has contributed to a later round: by then nobody reads it any more.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from undaunted.base.text import format_ranks
from undaunted.checkpointing.agreement.messages import Contribution, Failure, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

# A store may say a little early that time is up.
_EARLY_S = 0.1
# A TCPStore takes values of up to 8 MiB.
PIECE_BYTES = 4 << 20


class Place:
    """Of one rank among the others.

    It has the store, so that nothing else keeps that alive: frames of exceptions, for example.

    Attributes:
        store: a torch store; None after the end.
        rank: of this process, in the group.
        world_size: how many take part.
        job_ranks: those of the group, in its order: messages and errors name them.
    """

    def __init__(
        self, store: Any, rank: int, world_size: int, job_ranks: Sequence[int] = ()
    ) -> None:
        self.store = store
        self.rank = rank
        self.world_size = world_size
        self.job_ranks = job_ranks or range(world_size)


class Turn:
    """One rank in one round. Methods wait in the store; the caller bounds them by `limit_s`.

    Attributes:
        name: what the round is about.
        prefix: of its keys.
        timeout_s: of the round.
        limit_s: seconds after which a method has returned, unless the store's server stands still.
    """

    def __init__(self, place: Place, prefix: str, name: str, timeout_s: float) -> None:
        """Args: see `Agreement`."""
        self.name = name
        self.prefix = prefix
        self._place = place
        self._rank = place.rank
        self._world_size = place.world_size
        self._pieces = 0  # of its contribution
        self.timeout_s = timeout_s
        margin_s = min(5.0, 0.2 + timeout_s / 10)
        # Who does not decide waits a little longer than who does. Not all equally long: a client of
        # a TCPStore whose wait is over just when the key appears may wait for ever (torch 2.13).
        self._longer_s = timeout_s + margin_s * (2 - 1 / max(1, place.rank))
        self.limit_s = timeout_s + 3 * margin_s

    @property
    def _store(self) -> Any:
        return self._place.store

    def failed(self, failure: Failure) -> Verdict:
        """Return the end of the round by a failure of this rank, which the message names."""
        rank = self._job_rank(self._rank)
        told = msgspec.structs.replace(
            failure, message=f"{self.name}: rank {rank}: {failure.message}"
        )
        return Verdict(failure=told, ranks=(rank,), name=self.name)

    def is_over(self) -> bool:
        """Whether the others have ended the round before this rank came."""
        return bool(self._store.check([self._key("verdict")]))

    def gather(self, contribution: bytes | Failure) -> list[bytes] | Verdict:
        """On rank 0: return all contributions, or why they are not there."""
        self._contribute(contribution)
        if not self._wait("go", self.timeout_s):
            return self._given_up(self._missing())
        if self._store.check([self._key("verdict")]):
            return self._verdict()
        found = [
            msgspec.msgpack.decode(one, type=Contribution)
            for one in self._get([self._of(rank) for rank in range(self._world_size)])
        ]
        strangers = tuple(rank for rank, one in enumerate(found) if one.name != self.name)
        if strangers:
            ranks = tuple(map(self._job_rank, strangers))
            message = (
                f"rank {self._job_rank(0)} is at {self.name!r}, but rank {format_ranks(ranks)} at "
                f"{found[strangers[0]].name!r}: all ranks have to make the same calls in the same "
                "order"
            )
            return Verdict(failure=Failure(message), ranks=ranks)
        return [
            self._joined(f"{rank}-", one.pieces) if one.pieces else one.content
            for rank, one in enumerate(found)
        ]

    def close(self, verdict: Verdict, over: Sequence[str] = ()) -> Verdict:
        """On rank 0: write the verdict unless there is one; return which holds.

        Args:
            verdict: what rank 0 thinks.
            over: prefixes of rounds whose keys are deleted.
        """
        final = self._decide(verdict)
        for prefix in over:
            for what in ("count", "go", "verdict"):
                self._store.delete_key(f"{prefix}/{what}")
            piece = 0
            while self._store.delete_key(f"{prefix}/piece-{piece}"):
                piece += 1
        self._withdraw()
        return final

    def take_part(self, contribution: bytes | Failure) -> Verdict | None:
        """On another rank: return the verdict; None = rank 0 has all it needs to decide."""
        self._contribute(contribution)
        if not self._wait("verdict", self._longer_s):
            missing = self._missing()
            if not missing:
                return None
            self._give_up(self._given_up(missing))
        return self._read_and_leave()

    def await_decision(self) -> Verdict:
        """On another rank: return the verdict, or give up."""
        if not self._wait("verdict", self._longer_s):
            leader = self._job_rank(0)
            failure = Failure(
                f"{self.name}: all ranks have answered, but rank {leader} has not decided within "
                f"another {self.timeout_s:g} s: it is hung, stopped or gone; its log and stack say "
                "where. Or it never calls this: all ranks have to call save and load"
            )
            self._give_up(Verdict(failure=failure, ranks=(leader,), name=self.name))
        return self._read_and_leave()

    def leave(self) -> None:
        """Say that this rank reads nothing more; rank 0 waits for all others to say so."""
        if self._rank == 0:
            self._wait("go", self.timeout_s)
        elif self._store.add(self._key("count"), 1) == self._world_size - 1:
            self._store.set(self._key("go"), b"")

    def _contribute(self, contribution: bytes | Failure) -> None:
        if isinstance(contribution, Failure):
            self._store.set(self._of(self._rank), self._encoded(b"", 0))
            self._give_up(self.failed(contribution))
            return
        self._pieces = self._cut(f"{self._rank}-", contribution)
        content = b"" if self._pieces else contribution
        self._store.set(self._of(self._rank), self._encoded(content, self._pieces))
        if self._store.add(self._key("count"), 1) == self._world_size:
            self._store.set(self._key("go"), b"")

    def _given_up(self, missing: Sequence[int]) -> Verdict:
        ranks = tuple(map(self._job_rank, missing))
        many = "ranks" if len(ranks) > 1 else "rank"
        failure = Failure(
            f"{self.name}: {many} {format_ranks(ranks)} of {self._world_size} did not answer "
            f"within {self.timeout_s:g} s, says rank {self._job_rank(self._rank)}: hung, stopped, "
            "gone, or much slower than the others; their logs and stacks say where they are. Or "
            "they never call this: all ranks have to call save and load, and not one rank alone"
        )
        return Verdict(failure=failure, ranks=ranks, name=self.name)

    def _give_up(self, verdict: Verdict) -> None:
        """End the round unless it has ended, and tell rank 0, which waits for something else."""
        self._decide(verdict)
        self._store.set(self._key("go"), b"")

    def _missing(self) -> list[int]:
        ranks = range(self._world_size)
        return [rank for rank in ranks if not self._store.check([self._of(rank)])]

    def _decide(self, verdict: Verdict) -> Verdict:
        mine = msgspec.msgpack.encode(self._in_pieces(verdict))
        written = self._store.compare_set(self._key("verdict"), "", mine)
        return verdict if written == mine else self._whole(written)

    def _in_pieces(self, verdict: Verdict) -> Verdict:
        """Write down what was decided if that is too long for one value."""
        pieces = self._cut("", verdict.content)
        return Verdict(pieces=pieces) if pieces else verdict

    def _whole(self, written: bytes) -> Verdict:
        verdict = msgspec.msgpack.decode(written, type=Verdict)
        if not verdict.pieces:
            return verdict
        return Verdict(self._joined("", verdict.pieces))

    def _cut(self, whose: str, content: bytes) -> int:
        """Write what is too long for one value in pieces; return how many, 0 = it is not."""
        if len(content) <= PIECE_BYTES:
            return 0
        starts = range(0, len(content), PIECE_BYTES)
        for piece, start in enumerate(starts):
            key = self._key(f"{whose}piece-{piece}")
            self._store.set(key, content[start : start + PIECE_BYTES])
        return len(starts)

    def _joined(self, whose: str, pieces: int) -> bytes:
        return b"".join(self._get([self._key(f"{whose}piece-{piece}") for piece in range(pieces)]))

    def _read_and_leave(self) -> Verdict:
        verdict = self._verdict()
        self._withdraw()
        return verdict

    def _withdraw(self) -> None:
        """Delete what this rank has contributed."""
        self._store.delete_key(self._of(self._rank))
        for piece in range(self._pieces):
            self._store.delete_key(self._key(f"{self._rank}-piece-{piece}"))

    def _verdict(self) -> Verdict:
        return self._whole(self._store.get(self._key("verdict")))

    def _wait(self, what: str, timeout_s: float) -> bool:
        """Wait for a key; False when time is up."""
        began = time.monotonic()
        key = self._key(what)
        try:
            self._store.wait([key], timedelta(seconds=timeout_s))
        except RuntimeError:  # which one it is, is not the same for all stores
            if time.monotonic() - began < timeout_s - _EARLY_S:
                raise
            return bool(self._store.check([key]))
        return True

    def _get(self, keys: list[str]) -> list[bytes]:
        if self._store.has_extended_api():
            found: list[bytes] = self._store.multi_get(keys)
            return found
        return [self._store.get(key) for key in keys]

    def _encoded(self, content: bytes, pieces: int) -> bytes:
        return msgspec.msgpack.encode(Contribution(self.name, content, pieces))

    def _of(self, rank: int) -> str:
        return f"{self.prefix}/{rank}"

    def _job_rank(self, rank: int) -> int:
        return self._place.job_ranks[rank]

    def _key(self, what: str) -> str:
        return f"{self.prefix}/{what}"
