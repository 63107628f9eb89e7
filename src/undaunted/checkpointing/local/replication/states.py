"""One state from one rank to another: its size, then its flat form in one message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from undaunted.checkpointing.local import flat, shard

if TYPE_CHECKING:
    from undaunted.checkpointing.local.base_state_dict import TensorAwareStateDict

_NOBODY = flat.Identity(0, 0, 1, "", "", 0.0)  # it is not saved


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
    """Return the flat form of a state, in memory of its own.

    Raises:
        PlainError: it has something that is neither plain data nor a tensor.
    """
    prepared = flat.prepare(state, _NOBODY)
    image = torch.empty(prepared.size, dtype=torch.uint8)
    flat.copy_into(prepared, image)
    return image
