"""What a run has of its own besides its directory: a small disk, a network, a disk's limit."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

from undaunted.chaos.trials.nemesis.slow_disk import SlowDisk
from undaunted.chaos.trials.nemesis.slow_network import SlowNetwork
from undaunted.chaos.trials.nemesis.small_disk import SmallDisk

if TYPE_CHECKING:
    from pathlib import Path


class CanBeSlow(Protocol):
    """Something that a fault makes slow."""

    def slow(self) -> str:
        """Make it slow; return in words how."""

    def lift(self) -> None:
        """Make it as fast as before."""


class Surroundings:
    """What one run has of its own. The owner calls `close` after its last launcher.

    Attributes:
        disk: the small disk, None = there is none.
        namespaces: descriptors of the namespaces that launchers enter, in order.
        group: directory of the control group that they join, None = ours.
        slow: what can be made slow, by the kind of fault.
    """

    def __init__(
        self,
        place: Path,
        *,
        small_disk_bytes: int = 0,
        slow_network: bool = False,
        slow_disk_bytes_per_s: int = 0,
    ) -> None:
        """Make them.

        Args:
            place: where the checkpoints are.
            small_disk_bytes: size of the small disk; 0 = none.
            slow_network: whether there is a network of its own.
            slow_disk_bytes_per_s: what a slow disk lets through; 0 = the disk is never slow.

        Raises:
            NotPossibleError: the machine does not allow it.
        """
        self.disk: SmallDisk | None = None
        self.namespaces: tuple[int, ...] = ()
        self.group: Path | None = None
        self.slow: dict[str, CanBeSlow] = {}
        with contextlib.ExitStack() as opened:
            if small_disk_bytes:
                self.disk = SmallDisk(place, small_disk_bytes)
                opened.callback(self.disk.close)
                self.namespaces = self.disk.namespaces
            if slow_network:
                network = SlowNetwork(self.namespaces)
                opened.callback(network.close)
                self.namespaces = network.namespaces
                self.slow["slow-network"] = network
            if slow_disk_bytes_per_s:
                limited = SlowDisk(place, slow_disk_bytes_per_s)
                opened.callback(limited.close)
                self.group = limited.group
                self.slow["slow-disk"] = limited
            self._opened = opened.pop_all()

    def close(self) -> None:
        """Give everything back."""
        self._opened.close()
