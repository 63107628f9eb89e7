"""What ranks say to each other about a save, over their process group and with a deadline.

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


class State(enum.IntEnum):
    """How far a save is; the least of all ranks' is the job's."""

    FAILED = 0
    RUNNING = 1
    DONE = 2


class Failure(msgspec.Struct, frozen=True):
    """Why a rank has failed, as the others are told.

    Attributes:
        text: for people.
        errno: of the operating system's error, or None.
    """

    text: str
    errno: int | None = None

    @classmethod
    def of(cls, error: BaseException) -> Failure:
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
        """Whether this rank decides."""
        return self.rank == self.coordinator_rank or not self.use_dist

    @property
    def global_coordinator_rank(self) -> int:
        """The coordinator's rank in the default group."""
        return self._of_all(self.coordinator_rank)

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
        self, failure: Failure | None, what: str, cause: BaseException | None = None
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

    def error(self, failure: Failure | None, what: str) -> SaveError:
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
            told = msgspec.msgpack.encode(Failure(text, failure.errno))
        first = msgspec.msgpack.decode(self._broadcast(told, failed[0]), type=Failure)
        others = f"; ranks {failed[1:]} have failed too" if failed[1:] else ""
        return SaveError(f"{what}: {first.text}{others}", failed, first.errno)

    def gather(self, content: bytes) -> list[bytes] | None:
        """Return what all ranks have given, in the order of ranks, to the coordinator."""
        if not self.use_dist:
            return [content]
        torch, dist = _torch()
        sizes = self._sizes(len(content))
        longest = max(sizes)
        here = torch.zeros(longest, dtype=torch.uint8)
        if content:
            here[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        here = here.to(self._device())
        there = [torch.empty_like(here) for _ in sizes] if self.is_coordinator else None
        dst = self._of_all(self.coordinator_rank)
        self._wait(dist.gather(here, there, dst=dst, group=self.group, async_op=True))
        if there is None:
            return None
        return [_bytes(one)[:size] for one, size in zip(there, sizes, strict=True)]

    def broadcast(self, content: bytes | None) -> bytes:
        """Return what the coordinator gives, to all ranks."""
        return self._broadcast(content or b"", self.coordinator_rank)

    def _broadcast(self, content: bytes, source: int) -> bytes:
        if not self.use_dist:
            return content
        torch, dist = _torch()
        size = self._reduced([len(content) if self.rank == source else 0], "MAX")[0]
        if size == 0:
            return b""
        tensor = torch.zeros(size, dtype=torch.uint8)
        if self.rank == source:
            tensor = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        tensor = tensor.to(self._device())
        self._wait(
            dist.broadcast(tensor, src=self._of_all(source), group=self.group, async_op=True)
        )
        return _bytes(tensor)

    def _sizes(self, size: int) -> list[int]:
        return self._reduced(
            [size if rank == self.rank else 0 for rank in range(self.world_size)], "MAX"
        )

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
        failure = Failure.of(error) if error is not None else None
        raise ranks.error(failure, f"asynchronous save {call_idx} has failed") from error
    return State(least)


def _bytes(tensor: Any) -> bytes:
    tensor = tensor.cpu()
    return ctypes.string_at(tensor.data_ptr(), tensor.numel())


def _is_initialised() -> bool:
    _, dist = _torch()
    return bool(dist.is_available() and dist.is_initialized())


def _torch() -> tuple[Any, Any]:
    import torch
    import torch.distributed

    return torch, torch.distributed
