"""Ranks that keep copies for each other, connected over gloo, with a deadline on every wait."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from undaunted.checkpointing.errors import SaveError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

_PLACE_IN_SOURCE = re.compile(r"^\[[^\]]*\] *")  # of gloo, at the start of its messages


class PeerError(SaveError):
    """A rank of the group ended, stopped, or sent what cannot be."""


class Group:
    """Some ranks that send each other tensors of host memory; ranks are global.

    Args:
        group: of torch, with these ranks in this order.
        ranks: of all.
        me: this one.
        timeout_s: for every wait, in seconds.
    """

    def __init__(self, group: Any, ranks: Sequence[int], me: int, timeout_s: float) -> None:
        self.ranks = list(ranks)
        self.me = me
        self.timeout_s = timeout_s
        self._group = group

    @classmethod
    def connect(
        cls, store: Any, name: str, ranks: Sequence[int], me: int, timeout_s: float
    ) -> Group:
        """Connect the ranks; nobody else takes part, and `torch.distributed` is not told.

        Args:
            store: a torch store all of them reach.
            name: new for each group, the same on all its ranks.
            ranks: see the class.
            me: see the class.
            timeout_s: for connecting, too.

        Raises:
            PeerError: not all of them came.
        """
        try:
            group = dist.ProcessGroupGloo(
                dist.PrefixStore(f"undaunted/local/{name}", store),
                list(ranks).index(me),
                len(ranks),
                timeout=timedelta(seconds=timeout_s),
            )
        except RuntimeError as error:
            raise PeerError(
                f"ranks {', '.join(map(str, ranks))} could not be connected within {timeout_s:g} "
                f"s: {error}",
                [rank for rank in ranks if rank != me],
            ) from error
        return cls(group, ranks, me, timeout_s)

    @property
    def group(self) -> Any:
        """The group of torch."""
        return self._group

    def isend(self, tensor: torch.Tensor, dst: int) -> Any:
        """Begin to send to a rank; returns the work."""
        return self.group.send([tensor], self.ranks.index(dst), 0)

    def irecv(self, tensor: torch.Tensor, src: int) -> Any:
        """Begin to receive from a rank; returns the work."""
        return self.group.recv([tensor], self.ranks.index(src), 0)

    def wait(self, work: Any, peer: int | None) -> None:
        """Wait for a work.

        Args:
            work: what was begun.
            peer: rank, for the error; None = any.

        Raises:
            PeerError: it failed or was not done in time.
        """
        try:
            work.wait(timedelta(seconds=self.timeout_s))
        except RuntimeError as error:
            who = f"rank {peer}" if peer is not None else f"one of the ranks {self.ranks}"
            reason = _PLACE_IN_SOURCE.sub("", str(error).partition("\n")[0])
            raise PeerError(
                f"{who} has ended, or has not answered within {self.timeout_s:g} s ({reason})",
                [peer] if peer is not None else [],
            ) from error
