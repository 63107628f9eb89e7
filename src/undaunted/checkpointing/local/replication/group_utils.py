"""Groups of ranks that send each other tensors and plain data, with a deadline on every wait."""

from __future__ import annotations

import hashlib
import itertools
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from undaunted.checkpointing.dcp.torch_private import default_store
from undaunted.checkpointing.errors import SaveError
from undaunted.checkpointing.local import values
from undaunted.checkpointing.local.replication.plans import (
    ExchangePlan,
    ExchangePlanEntry,
    parse_group_sequence,
)
from undaunted.checkpointing.local.replication.states import Receiving, Sending

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from undaunted.checkpointing.local.base_state_dict import TensorAwareStateDict

__all__ = [
    "ExchangePlan",
    "ExchangePlanEntry",
    "GroupWrapper",
    "PeerError",
    "open_group",
    "parse_group_sequence",
]

MAX_OBJECT_BYTES = 1 << 30
TIMEOUT_S = 300.0

_opened = itertools.count()
_PLACE_IN_SOURCE = re.compile(r"^\[[^\]]*\] *")  # of gloo, at the start of its messages


class PeerError(SaveError):
    """A rank of the group ended, stopped, or sent what cannot be."""


def open_group(store: Any, name: str, ranks: Sequence[int], me: int, timeout_s: float) -> Any:
    """Connect some ranks over gloo; nobody else takes part, and `torch.distributed` is not told.

    Args:
        store: a torch store all of them reach.
        name: new for each group, the same on all its ranks.
        ranks: global ranks, in the order of the group.
        me: this one.
        timeout_s: for connecting, and for every operation.

    Raises:
        PeerError: not all of them came.
    """
    try:
        return dist.ProcessGroupGloo(
            dist.PrefixStore(f"undaunted/local/{name}", store),
            ranks.index(me),
            len(ranks),
            timeout=timedelta(seconds=timeout_s),
        )
    except RuntimeError as error:
        raise PeerError(
            f"ranks {', '.join(map(str, ranks))} could not be connected within {timeout_s:g} s: "
            f"{error}",
            [rank for rank in ranks if rank != me],
        ) from error


class GroupWrapper:
    """A process group, or some ranks that are connected when they are first needed.

    All ranks of the group call the same methods in the same order. Ranks are global where nothing
    else is said. Objects are plain data: no pickle is sent.

    Attributes:
        timeout_s: for every wait, in seconds.
    """

    def __init__(
        self,
        group: Any = None,
        *,
        ranks: Sequence[int] | None = None,
        timeout_s: float = TIMEOUT_S,
        connect: Callable[[], Any] | None = None,
    ) -> None:
        """Wrap a group.

        Args:
            group: a process group of `torch.distributed`; None = the default one.
            ranks: of the group, global; None = what `torch.distributed` says.
            timeout_s: see the class.
            connect: called at first need in place of ``group``.
        """
        self.timeout_s = timeout_s
        self._connect = connect
        self._group: Any = group
        if group is None and connect is None:
            self._group = dist.group.WORLD
        self._ranks: list[int] = list(
            dist.get_process_group_ranks(self._group) if ranks is None else ranks
        )

    @classmethod
    def wrap(cls, group: Any) -> GroupWrapper:
        """Return a wrapper of a process group; one that is wrapped already is returned as it is."""
        return group if isinstance(group, cls) else cls(group)

    @classmethod
    def from_list_of_groups(
        cls, list_of_groups: Iterable[Any], timeout_s: float = TIMEOUT_S
    ) -> GroupWrapper:
        """Return the group of this rank; it is connected, over gloo, at first need.

        Args:
            list_of_groups: global ranks of each group, or a process group of `torch.distributed`,
                which is then used; this rank is in one of them.
            timeout_s: for every wait, in seconds.

        Raises:
            ValueError: this rank is in none of them.
        """
        me = dist.get_rank()
        groups = [(_ranks_of(group), group) for group in list_of_groups]
        mine, group = next(((ranks, of) for ranks, of in groups if me in ranks), (None, None))
        if mine is None:
            raise ValueError(f"rank {me} is in none of the groups")
        if isinstance(group, dist.ProcessGroup):
            return cls(group, timeout_s=timeout_s)
        known = hashlib.sha256(repr(mine).encode()).hexdigest()[:16]
        name = f"group/{known}/{next(_opened)}"
        return cls(
            ranks=mine,
            timeout_s=timeout_s,
            connect=lambda: open_group(default_store(), name, mine, me, timeout_s),
        )

    @property
    def group(self) -> Any:
        """The group of torch."""
        if self._group is None:
            assert self._connect is not None
            self._group = self._connect()
        return self._group

    @property
    def ranks(self) -> list[int]:
        """Global ranks, in the order of the group."""
        return list(self._ranks)

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return len(self._ranks)

    @property
    def my_global_rank(self) -> int:
        """This rank in the world."""
        return int(dist.get_rank())

    @property
    def my_group_rank(self) -> int:
        """This rank in the group."""
        return self.get_group_rank(self.my_global_rank)

    def get_group_rank(self, global_rank: int | None = None) -> int:
        """Return the rank in the group; None = of this rank.

        Raises:
            ValueError: it is not in the group.
        """
        if global_rank is None:
            global_rank = self.my_global_rank
        if global_rank not in self._ranks:
            raise ValueError(f"rank {global_rank} is not in the group of {self._ranks}")
        return int(self._ranks.index(global_rank))

    def get_global_rank(self, group_rank: int | None = None) -> int:
        """Return the rank in the world; None = of this rank."""
        return self.my_global_rank if group_rank is None else self._ranks[group_rank]

    @property
    def backend(self) -> str:
        """Name of the backend, of the first one where there are several."""
        return str(dist.get_backend(self._group)) if self._connect is None else "gloo"

    @property
    def supported_devices(self) -> list[torch.device]:
        """Types of devices whose tensors can be sent."""
        if self._connect is not None:
            return [torch.device("cpu")]
        config = str(dist.get_backend_config(self._group))
        return [torch.device(one.partition(":")[0]) for one in config.split(",")]

    def get_device(self) -> torch.device:
        """Return the device through which tensors are sent: the CPU where that goes."""
        devices = self.supported_devices
        if torch.device("cpu") in devices and self.backend != "nccl":
            return torch.device("cpu")
        return next((one for one in devices if one.type != "cpu"), torch.device("cpu"))

    # --- tensors ----------------------------------------------------------------------------------

    def isend(self, tensor: torch.Tensor, dst: int, tag: int = 0) -> Any:
        """Begin to send to a global rank; returns the work."""
        return self.group.send([tensor], self.get_group_rank(dst), tag)

    def irecv(self, tensor: torch.Tensor, src: int, tag: int = 0) -> Any:
        """Begin to receive from a global rank; returns the work."""
        return self.group.recv([tensor], self.get_group_rank(src), tag)

    def wait(self, work: Any, peer: int | None, timeout_s: float | None = None) -> None:
        """Wait for a work.

        Args:
            work: what was begun.
            peer: global rank, for the error; None = any.
            timeout_s: None = the group's.

        Raises:
            PeerError: it failed or was not done in time.
        """
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        try:
            work.wait(timedelta(seconds=max(limit_s, 0.001)))
        except RuntimeError as error:
            who = f"rank {peer}" if peer is not None else f"one of the ranks {self._ranks}"
            reason = _PLACE_IN_SOURCE.sub("", str(error).partition("\n")[0])
            raise PeerError(
                f"{who} has ended, or has not answered within {limit_s:g} s ({reason})",
                [peer] if peer is not None else [],
            ) from error

    def broadcast(self, tensor: torch.Tensor, src: int) -> torch.Tensor:
        """Fill a tensor with that of a global rank, and return it."""
        self.wait(self.group.broadcast(tensor, self.get_group_rank(src)), src)
        return tensor

    def all_gather_batch(
        self, my_tensors: Sequence[torch.Tensor], target_device: str | torch.device = "cpu"
    ) -> list[list[torch.Tensor]]:
        """Return the tensors of each rank, in the order of the group.

        Args:
            my_tensors: as many, and of whatever form, as each rank has.
            target_device: where the results are.
        """
        forms = self.all_gather_object([[one.dtype, one.shape] for one in my_tensors])
        device = self.get_device()
        results = []
        for rank, described in zip(self._ranks, forms, strict=True):
            tensors = []
            for at, (dtype, shape) in enumerate(described):
                if rank == self.my_global_rank:
                    tensor = my_tensors[at].detach().to(device).contiguous()
                else:
                    tensor = torch.empty(shape, dtype=dtype, device=device)
                if tensor.numel():
                    self.broadcast(tensor.reshape(-1).view(torch.uint8), rank)
                tensors.append(tensor.to(target_device))
            results.append(tensors)
        return results

    # --- objects ----------------------------------------------------------------------------------

    def all_gather_object(self, my_object: Any) -> list[Any]:
        """Return the object of each rank, in the order of the group.

        Raises:
            PlainError: it is not plain data.
            PeerError: a rank did not answer, or sent what cannot be.
        """
        content = values.encode_object(my_object)
        sizes = self._all_gather(torch.tensor([len(content)]))
        longest = max(int(size) for size in sizes)
        if longest > MAX_OBJECT_BYTES:
            raise PeerError(f"an object of {longest} bytes, at most {MAX_OBJECT_BYTES} are sent")
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(content)] = _bytes_tensor(content)
        contents = self._all_gather(padded)
        return [
            values.decode_object(bytes(one[: int(size)].tolist()))
            for one, size in zip(contents, sizes, strict=True)
        ]

    def _all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        mine = tensor.to(self.get_device())
        results = [torch.empty_like(mine) for _ in self._ranks]
        self.wait(self.group.allgather([results], [mine]), None)
        return [one.cpu() for one in results]

    def send_object(self, obj: Any, dst: int) -> None:
        """Send plain data to a global rank."""
        content = values.encode_object(obj)
        for part in (torch.tensor([len(content)]), _bytes_tensor(content)):
            self.wait(self.isend(part.to(self.get_device()), dst), dst)

    def recv_object(self, src: int) -> Any:
        """Return the plain data that a global rank sends.

        Raises:
            PeerError: nothing came, or what cannot be.
        """
        size = torch.zeros(1, dtype=torch.int64, device=self.get_device())
        self.wait(self.irecv(size, src), src)
        count = int(size)
        if not 0 < count <= MAX_OBJECT_BYTES:
            raise PeerError(f"rank {src} announced an object of {count} bytes", [src])
        content = torch.empty(count, dtype=torch.uint8, device=self.get_device())
        self.wait(self.irecv(content, src), src)
        return values.decode_object(bytes(content.tolist()))

    # --- states -----------------------------------------------------------------------------------

    def isend_state_dict(self, state_dict: TensorAwareStateDict, dst: int) -> Sending:
        """Begin to send a state to a global rank; its content is fixed when this returns.

        Returns:
            Something whose ``wait()`` returns when it was sent.
        """
        return Sending(self, state_dict, dst)

    def irecv_state_dict(self, src: int) -> Receiving:
        """Begin to receive a state from a global rank.

        Returns:
            Something whose ``wait()`` returns the state.
        """
        return Receiving(self, src)

    def execute_plan(
        self, plan: ExchangePlan[Any], my_data: Mapping[Any, TensorAwareStateDict]
    ) -> dict[Hashable, TensorAwareStateDict]:
        """Carry out the transfers of a plan, one after the other.

        Args:
            plan: the same on all ranks.
            my_data: by id: what this rank has to send.

        Returns:
            By id: what this rank has received.
        """
        me = self.my_global_rank
        received: dict[Hashable, TensorAwareStateDict] = {}
        for entry in plan.entries:
            if entry.sender == me:
                self.isend_state_dict(my_data[entry.id_], entry.receiver).wait()
            elif entry.receiver == me:
                received[entry.id_] = self.irecv_state_dict(entry.sender).wait()
        return received

    def close(self) -> None:
        """Let the connections go, if they are this object's own."""
        if self._connect is not None:
            self._group = None


def _ranks_of(group: Any) -> list[int]:
    """Return the global ranks of a process group, none if this rank is not in it."""
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        return []
    if isinstance(group, dist.ProcessGroup):
        return list(dist.get_process_group_ranks(group))
    return list(group)


def _bytes_tensor(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)
