"""Ranks talk about a save, over their process group and with a deadline.

Plain tensors only, on the CPU where the group has gloo, else on the current device. All ranks of
the group call the same method at the same place of their program.
"""

from __future__ import annotations

import ctypes
import enum
import socket
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from undaunted.checkpointing.errors import SaveError

if TYPE_CHECKING:
    from collections.abc import Sequence

TIMEOUT_S = 1800.0  # for a whole checkpoint
_MESSAGE_BYTES = 4096
_LENGTH_BYTES = 8


class State(enum.IntEnum):
    """The progress of a save; the least of all ranks' is the job's."""

    FAILED = 0
    RUNNING = 1
    DONE = 2


class RankFailure(msgspec.Struct, frozen=True):
    """The failure of a rank, as the others are told.

    Attributes:
        text: for people.
        errno: of the operating system's error, or None.
    """

    text: str
    errno: int | None = None

    @classmethod
    def of(cls, error: BaseException) -> RankFailure:
        """Describe an exception; SaveErrors and OSErrors say it themselves."""
        errno = getattr(error, "errno", None)
        text = str(error) if isinstance(error, SaveError) else f"{type(error).__name__}: {error}"
        return cls(text, errno if isinstance(errno, int) else None)


class Ranks:
    """The ranks that save together.

    Args:
        group: a process group; None = the default one, or this process alone where
            ``torch.distributed`` is not initialised.
        coordinator_rank: the rank (in the group) that decides for all.
        timeout_s: for every wait, in seconds.
        alone: ask no other rank.
    """

    def __init__(
        self,
        group: Any = None,
        coordinator_rank: int = 0,
        timeout_s: float = TIMEOUT_S,
        *,
        alone: bool = False,
    ) -> None:
        self.group = group
        self.coordinator_rank = coordinator_rank
        self.timeout_s = timeout_s
        self.use_dist = _is_initialised() and not alone
        self.rank = _torch()[1].get_rank(group) if _is_initialised() else 0
        self.world_size = _torch()[1].get_world_size(group) if self.use_dist else 1

    @property
    def is_coordinator(self) -> bool:
        """Return whether this rank decides."""
        return self.rank == self.coordinator_rank or not self.use_dist

    @property
    def global_coordinator_rank(self) -> int:
        """The coordinator's rank in the default group."""
        return self._of_all(self.coordinator_rank)

    @property
    def place(self) -> tuple[int, ...]:
        """This rank's place among these ranks: what was agreed on holds as long as it is the same.

        Its rank in the group, the coordinator, and the ranks of the group in the default one.
        """
        if not self.use_dist:
            return (self.rank,)
        ranks = map(self._of_all, range(self.world_size))
        return (self.rank, self.coordinator_rank, *ranks)

    def get_rank(self) -> int:
        """Return the rank in the group."""
        return self.rank

    def get_world_size(self) -> int:
        """Return the number of ranks."""
        return self.world_size

    def least(self, numbers: Sequence[int]) -> list[int]:
        """Return the least of all ranks' numbers, place by place."""
        return self._reduced(numbers, "MIN")

    def total(self, number: int) -> int:
        """Return the sum of all ranks' numbers."""
        return self._reduced([number], "SUM")[0]

    def raise_failures(
        self, failure: RankFailure | None, what: str, cause: BaseException | None = None
    ) -> None:
        """Raise the same error on all ranks when any of them has one.

        Args:
            failure: of this rank.
            what: has failed.
            cause: of the failure of this rank.

        Raises:
            SaveError: with the text of the first rank that has failed, and the ranks that have.
        """
        if self.least([failure is None])[0] == 0:
            raise self.error(failure, what) from cause

    def error(self, failure: RankFailure | None, what: str) -> SaveError:
        """Return what all ranks raise; at least one of them gives a failure."""
        if not self.use_dist:
            assert failure is not None
            text = f"{what}: {self._here()}: {failure.text}"
            return SaveError(text, [self.rank], failure.errno)
        mine = [int(rank == self.rank and failure is not None) for rank in range(self.world_size)]
        failed = [rank for rank, is_one in enumerate(self._reduced(mine, "MAX")) if is_one]
        told = b""
        if failure is not None and failed[0] == self.rank:
            here = f"{self._here()}: {failure.text}"
            text = here.encode()[: _MESSAGE_BYTES // 2].decode(errors="ignore")
            told = msgspec.msgpack.encode(RankFailure(text, failure.errno))
        first = msgspec.msgpack.decode(self._broadcast(told, failed[0]), type=RankFailure)
        others = f"; ranks {failed[1:]} have failed too" if failed[1:] else ""
        return SaveError(f"{what}: {first.text}{others}", failed, first.errno)

    def gather(self, content: bytes) -> list[bytes] | None:
        """Return what all ranks have given, in the order of ranks, to the coordinator."""
        if not self.use_dist:
            return [content]
        torch, dist = _torch()
        mine = self._framed(content, self._reduced([len(content)], "MAX")[0])
        theirs = None
        if self.is_coordinator:
            theirs = [torch.empty_like(mine) for _ in range(self.world_size)]
        dst = self.global_coordinator_rank
        self._wait(dist.gather(mine, theirs, dst=dst, group=self.group, async_op=True))
        return None if theirs is None else [_content(one) for one in theirs]

    def scatter(self, contents: Sequence[bytes] | None) -> bytes:
        """Return what the coordinator gives this rank; no rank is sent what is for another.

        Args:
            contents: on the coordinator, as many as there are ranks, in their order.
        """
        mine = contents if contents is not None and self.is_coordinator else []
        if not self.use_dist:
            return mine[0]
        _, dist = _torch()
        room = self._reduced([max(map(len, mine), default=0)], "MAX")[0]
        there = self._framed(b"", room)
        parts = [self._framed(one, room) for one in mine] or None
        src = self.global_coordinator_rank
        self._wait(dist.scatter(there, parts, src=src, group=self.group, async_op=True))
        return _content(there)

    def _broadcast(self, content: bytes, source: int) -> bytes:
        """Return what one rank gives, `_MESSAGE_BYTES` at the most."""
        _, dist = _torch()
        tensor = self._framed(content, _MESSAGE_BYTES)
        src = self._of_all(source)
        self._wait(dist.broadcast(tensor, src=src, group=self.group, async_op=True))
        return _content(tensor)

    def _framed(self, content: bytes, room: int) -> Any:
        """Return a tensor of the same size on all ranks, from which `_content` reads."""
        torch, _ = _torch()
        framed = len(content).to_bytes(_LENGTH_BYTES, "little") + content
        padded = bytearray(framed.ljust(_LENGTH_BYTES + room, b"\0"))
        return torch.frombuffer(padded, dtype=torch.uint8).to(self._device())

    def _reduced(self, numbers: Sequence[int], operation: str) -> list[int]:
        if not self.use_dist:
            return [int(number) for number in numbers]
        torch, dist = _torch()
        tensor = torch.tensor(numbers, dtype=torch.int64, device=self._device())
        op = getattr(dist.ReduceOp, operation)
        self._wait(dist.all_reduce(tensor, op=op, group=self.group, async_op=True))
        reduced: list[int] = tensor.tolist()
        return reduced

    def _wait(self, work: Any) -> None:
        try:
            if work is not None:
                work.wait(timedelta(seconds=self.timeout_s))
        except RuntimeError as error:
            raise SaveError(
                f"{self._here()}: the other ranks did not answer within {self.timeout_s:g} s, or "
                f"have ended, or do not call this, as all ranks have to: {error}"
            ) from error

    def _here(self) -> str:
        return f"rank {self._of_all(self.rank)} ({socket.gethostname()})"

    def _of_all(self, rank: int) -> int:
        _, dist = _torch()
        return rank if self.group is None else int(dist.get_global_rank(self.group, rank))

    def _device(self) -> Any:
        torch, dist = _torch()
        backend = dist.get_backend(self.group)
        if any(name in backend for name in ("gloo", "mpi", "ucc", "undefined", "fake")):
            return torch.device("cpu")
        return torch.accelerator.current_accelerator(check_available=True)


def agree(ranks: Ranks, state: State, call_idx: int, error: BaseException | None) -> State:
    """Return how far the save ``call_idx`` is on all ranks.

    Raises:
        SaveError: it has failed on a rank, or the ranks mean different saves.
    """
    least, lowest, highest = ranks.least([state, call_idx, -call_idx])
    if lowest != -highest:
        raise SaveError(
            f"ranks finalize different saves, {lowest} and {-highest}: all ranks must schedule and"
            " finalize their saves in the same order"
        )
    if least == State.FAILED:
        failure = RankFailure.of(error) if error is not None else None
        raise ranks.error(failure, f"asynchronous save {call_idx} has failed") from error
    return State(least)


def _content(framed: Any) -> bytes:
    tensor = framed.cpu()
    whole = ctypes.string_at(tensor.data_ptr(), tensor.numel())
    length = int.from_bytes(whole[:_LENGTH_BYTES], "little")
    return whole[_LENGTH_BYTES : _LENGTH_BYTES + length]


def _is_initialised() -> bool:
    _, dist = _torch()
    return bool(dist.is_available() and dist.is_initialized())


def _torch() -> tuple[Any, Any]:
    import torch
    import torch.distributed

    return torch, torch.distributed
