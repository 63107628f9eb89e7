"""The part of one rank in the store for one round.

Keys of a round: each rank's contribution (``3``), ``count``, the number of them, ``go``, which
wakes rank 0, and ``verdict``, which is written once; who ends a round early sets ``go`` as well.
Where each rank gets something else, that is in a key for each (``part-3``), written before the
verdict. What is too long for one value is in keys besides (``3.0`` and so on), written before it.

A rank deletes its contribution and its part when it has the verdict. Rank 0 deletes the rest when
every rank has contributed to a later round: by then nobody reads it any more.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from undaunted.agreement.failures import Failure
from undaunted.base.text import format_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# A store may say a little early that time is up.
_EARLY_S = 0.1
# A TCPStore takes values of up to 8 MiB.
PIECE_BYTES = 4 << 20


# How a value begins: its content follows, or the keys that have it in pieces.
_WHOLE, _IN_PIECES = b"=", b"+"


class Contribution(msgspec.Struct, frozen=True, array_like=True):
    """Of one rank to one round.

    Attributes:
        name: of the round, the same on all ranks.
        content: what it contributes.
    """

    name: str
    content: bytes


class Verdict(msgspec.Struct, frozen=True, array_like=True):
    """The end of a round: the first that is written holds for all ranks.

    Attributes:
        content: what was decided.
        failure: why nothing was.
        ranks: whose failure that is.
        name: of the round that failed, as who wrote this calls it; "" = whatever it is called.
        scattered: whether each rank has another part in place of the content.
        undecided: whether rank 0 was never asked to decide: see `AgreedError`.
    """

    content: bytes = b""
    failure: Failure | None = None
    ranks: tuple[int, ...] = ()
    name: str = ""
    scattered: bool = False
    undecided: bool = False

    def is_of(self, name: str) -> bool:
        """Return whether this is about the round that a rank calls so."""
        return self.name in ("", name)


class Member:
    """A rank of the group, with the only reference to its store.

    Closing drops the store that way although the traceback of an old error lives.

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

    def __init__(self, member: Member, prefix: str, name: str, timeout_s: float) -> None:
        """Args: see `Agreement`."""
        self.name = name
        self.prefix = prefix
        self._member = member
        self._rank = member.rank
        self._world_size = member.world_size
        self._keys: list[str] = []  # of its contribution
        self.timeout_s = timeout_s
        margin_s = min(5.0, 0.2 + timeout_s / 10)
        # Who does not decide waits a little longer than who does. Not all equally long: a client of
        # a TCPStore whose wait is over just when the key appears may wait for ever (torch 2.13).
        self._longer_s = timeout_s + margin_s * (2 - 1 / max(1, member.rank))
        self.limit_s = timeout_s + 3 * margin_s

    @property
    def _store(self) -> Any:
        return self._member.store

    def failed(self, failure: Failure) -> Verdict:
        """Return the end of the round by a failure of this rank, which the message names."""
        rank = self._job_rank(self._rank)
        told = msgspec.structs.replace(
            failure, message=f"{self.name}: rank {rank}: {failure.message}"
        )
        return Verdict(failure=told, ranks=(rank,), name=self.name)

    def is_over(self) -> bool:
        """Return whether the others have ended the round before this rank came."""
        return bool(self._store.check([self._key("verdict")]))

    def gather(self, contribution: bytes | Failure) -> list[bytes] | Verdict:
        """On rank 0: return all contributions, or why they are not there."""
        self._contribute(contribution)
        if not self._wait("go", self.timeout_s):
            return msgspec.structs.replace(self._given_up(self._missing()), undecided=True)
        if self._store.check([self._key("verdict")]):
            return self._verdict()
        found = [
            msgspec.msgpack.decode(self._content(one), type=Contribution)
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
            return Verdict(failure=Failure(message), ranks=ranks, undecided=True)
        return [one.content for one in found]

    def close(
        self, verdict: Verdict, over: Sequence[str] = (), parts: Sequence[bytes] = ()
    ) -> Verdict:
        """On rank 0: write the verdict unless there is one; return which holds.

        Args:
            verdict: what rank 0 thinks.
            over: prefixes of rounds whose keys are deleted.
            parts: of all ranks, if the verdict is scattered.
        """
        others = range(1, len(parts))
        keys = [key for rank in others for key in self._write(self._part(rank), parts[rank])]
        final = self._decide(verdict)
        if final.scattered:
            final = Verdict(parts[0])
        else:  # nobody reads them
            self._delete(keys)
        for prefix in over:
            self._delete(f"{prefix}/{what}" for what in ("count", "go", "verdict"))
            piece = 0
            while self._store.delete_key(f"{prefix}/verdict.{piece}"):
                piece += 1
        self._delete(self._keys)
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
        mine = Contribution(self.name, b"" if isinstance(contribution, Failure) else contribution)
        self._keys = self._write(self._of(self._rank), msgspec.msgpack.encode(mine))
        if isinstance(contribution, Failure):
            # Rank 0 decides only when all have contributed, and this rank never does.
            self._give_up(msgspec.structs.replace(self.failed(contribution), undecided=True))
        elif self._store.add(self._key("count"), 1) == self._world_size:
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
        key = self._key("verdict")
        mine, _ = self._value(key, msgspec.msgpack.encode(verdict))
        written = self._store.compare_set(key, "", mine)
        return verdict if written == mine else self._decoded(written)

    def _read_and_leave(self) -> Verdict:
        """Return the verdict, with the part of this rank; delete what no other rank reads."""
        verdict = self._verdict()
        if verdict.scattered:
            key = self._part(self._rank)
            part = self._store.get(key)
            self._keys += [key, *_pieces(part)]
            verdict = Verdict(self._content(part))
        self._delete(self._keys)
        return verdict

    def _verdict(self) -> Verdict:
        return self._decoded(self._store.get(self._key("verdict")))

    def _decoded(self, value: bytes) -> Verdict:
        return msgspec.msgpack.decode(self._content(value), type=Verdict)

    def _write(self, key: str, content: bytes) -> list[str]:
        """Write a content of any length; return the keys that have it now."""
        value, pieces = self._value(key, content)
        self._store.set(key, value)
        return [key, *pieces]

    def _value(self, key: str, content: bytes) -> tuple[bytes, list[str]]:
        """Return what is to be written under a key, and the keys with pieces of it, if it is long.

        Those are written here.
        """
        if len(content) <= PIECE_BYTES:
            return _WHOLE + content, []
        starts = range(0, len(content), PIECE_BYTES)
        pieces = [f"{key}.{piece}" for piece in range(len(starts))]
        for piece, start in zip(pieces, starts, strict=True):
            self._store.set(piece, content[start : start + PIECE_BYTES])
        return _IN_PIECES + msgspec.msgpack.encode(pieces), pieces

    def _content(self, value: bytes) -> bytes:
        pieces = _pieces(value)
        return b"".join(self._get(pieces)) if pieces else value[len(_WHOLE) :]

    def _delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._store.delete_key(key)

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

    def _of(self, rank: int) -> str:
        return f"{self.prefix}/{rank}"

    def _part(self, rank: int) -> str:
        return self._key(f"part-{rank}")

    def _job_rank(self, rank: int) -> int:
        return self._member.job_ranks[rank]

    def _key(self, what: str) -> str:
        return f"{self.prefix}/{what}"


def _pieces(value: bytes) -> list[str]:
    """Return the keys with the pieces of a value; none if it is whole."""
    if value.startswith(_WHOLE):
        return []
    return msgspec.msgpack.decode(value[len(_IN_PIECES) :], type=list[str])
