"""Groups of ranks that keep copies for each other, and what they send."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import torch
import torch.distributed as dist

from undaunted.checkpointing.dcp.objects import dump_loadable, load_object
from undaunted.checkpointing.dcp.torch_private import default_store
from undaunted.checkpointing.local import flat, shard
from undaunted.checkpointing.local.replication.exchange import Group, PeerError
from undaunted.checkpointing.local.replication.strategies import (
    parse_group_sequence as parse_group_sequence,
)
from undaunted.checkpointing.local.replication.strategies import ranks_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

    from undaunted.checkpointing.local.base_state_dict import TensorAwareStateDict

T = TypeVar("T")
ProcessGroupLike: TypeAlias = Any  # a group of torch, or a wrapper of one

MAX_OBJECT_BYTES = 1 << 30
TIMEOUT_S = 300.0

_opened = itertools.count()
_NOT_SAVED = flat.Identity(0, 0, 1, "", "", 0.0)


def batched(iterable: Iterable[T], n: int) -> Iterator[tuple[T, ...]]:
    """Yield tuples of ``n`` items; the last may be shorter.

    Raises:
        ValueError: ``n`` is less than 1.
    """
    if n < 1:
        raise ValueError(f"batches of {n}")
    items = iter(iterable)
    while batch := tuple(itertools.islice(items, n)):
        yield batch


@dataclass(frozen=True)
class ExchangePlanEntry(Generic[T]):
    """One transfer.

    Attributes:
        sender: global rank that has it.
        receiver: global rank that needs it.
        id_: what is sent.
    """

    sender: int
    receiver: int
    id_: T


class ExchangePlan(Generic[T]):
    """Transfers, in the order in which all ranks of a group carry them out.

    Args:
        group: a `GroupWrapper`; None where only the entries matter.
    """

    def __init__(self, group: Any = None) -> None:
        self.group = group
        self._entries: list[ExchangePlanEntry[T]] = []

    def plan(self, *, sender: int, receiver: int, id_: T) -> None:
        """Add a transfer between two global ranks."""
        self._entries.append(ExchangePlanEntry(sender, receiver, id_))

    @property
    def entries(self) -> list[ExchangePlanEntry[T]]:
        """All transfers."""
        return list(self._entries)

    def required_ids(self, rank: int | None = None) -> list[T]:
        """Return what a rank has to send.

        Args:
            rank: global rank; None = this one.
        """
        if rank is None:
            rank = self.group.my_global_rank
        return [entry.id_ for entry in self._entries if entry.sender == rank]


class GroupWrapper(Group):
    """A process group, or some ranks that are connected when they are first needed.

    All ranks of the group call the same methods in the same order. Ranks are global where nothing
    else is said. Objects are plain data: no pickle is sent.

    Attributes:
        ranks: global ranks, in the order of the group.
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
        self._connect = connect
        if group is None and connect is None:
            group = dist.group.WORLD
        known = dist.get_process_group_ranks(group) if ranks is None else ranks
        super().__init__(group, known, dist.get_rank(), timeout_s)

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
        groups = [(ranks_of(group), group) for group in list_of_groups]
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
            connect=lambda: Group.connect(default_store(), name, mine, me, timeout_s).group,
        )

    @property
    def group(self) -> Any:
        """The group of torch."""
        if self._group is None:
            assert self._connect is not None
            self._group = self._connect()
        return self._group

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return len(self.ranks)

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
        if global_rank not in self.ranks:
            raise ValueError(f"rank {global_rank} is not in the group of {self.ranks}")
        return int(self.ranks.index(global_rank))

    def get_global_rank(self, group_rank: int | None = None) -> int:
        """Return the rank in the world; None = of this rank."""
        return self.my_global_rank if group_rank is None else self.ranks[group_rank]

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
        for rank, described in zip(self.ranks, forms, strict=True):
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
            StateError: it is not plain data.
            PeerError: a rank did not answer, or sent what cannot be.
        """
        content = dump_loadable(my_object)
        sizes = self._all_gather(torch.tensor([len(content)]))
        longest = max(int(size) for size in sizes)
        if longest > MAX_OBJECT_BYTES:
            raise PeerError(f"an object of {longest} bytes, at most {MAX_OBJECT_BYTES} are sent")
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(content)] = _bytes_tensor(content)
        contents = self._all_gather(padded)
        return [
            load_object(bytes(one[: int(size)].tolist()), "an object", f"rank {rank}")
            for rank, one, size in zip(self.ranks, contents, sizes, strict=True)
        ]

    def _all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        mine = tensor.to(self.get_device())
        results = [torch.empty_like(mine) for _ in self.ranks]
        self.wait(self.group.allgather([results], [mine]), None)
        return [one.cpu() for one in results]

    def send_object(self, obj: Any, dst: int) -> None:
        """Send plain data to a global rank."""
        content = dump_loadable(obj)
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
        return load_object(bytes(content.tolist()), "an object", f"rank {src}")

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


class Sending:
    """A state on its way to a global rank of a group, see `GroupWrapper.isend_state_dict`."""

    def __init__(self, group: Any, state: TensorAwareStateDict, dst: int) -> None:
        self._group = group
        self._dst = dst
        image = flatten(state).to(group.get_device())
        self._size = torch.tensor([image.numel()], device=group.get_device())
        self._image = image
        self._works = [group.isend(self._size, dst), group.isend(image, dst)]

    def wait(self) -> None:
        """Return when it was sent.

        Raises:
            PeerError: it was not.
        """
        for work in self._works:
            self._group.wait(work, self._dst)


class Receiving:
    """A state on its way from a global rank of a group, see `GroupWrapper.irecv_state_dict`."""

    def __init__(self, group: Any, src: int) -> None:
        self._group = group
        self._src = src
        self._size = torch.zeros(1, dtype=torch.int64, device=group.get_device())
        self._work = group.irecv(self._size, src)

    def wait(self) -> TensorAwareStateDict:
        """Return it, with its tensors on their devices.

        Raises:
            PeerError: nothing came.
            DamagedCheckpointError: what came is not a state.
        """
        self._group.wait(self._work, self._src)
        size = int(self._size)
        where = f"the state from rank {self._src}"
        if not 0 < size <= shard.MAX_IMAGE_BYTES:
            raise shard.damaged(where, f"{size} bytes were announced")
        image = torch.empty(size, dtype=torch.uint8, device=self._group.get_device())
        self._group.wait(self._group.irecv(image, self._src), self._src)
        return flat.rebuild_from(image.cpu(), where)


def flatten(state: TensorAwareStateDict) -> torch.Tensor:
    """Return the flat form of a state, in new memory.

    Raises:
        PlainError: it has something that could not be read again.
    """
    prepared = flat.prepare(state, _NOT_SAVED)
    image = torch.empty(prepared.size, dtype=torch.uint8)
    flat.copy_into(prepared, image)
    return image


def _bytes_tensor(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)
