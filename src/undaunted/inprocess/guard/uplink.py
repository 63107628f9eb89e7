"""What guards talk to the controller through, wherever it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from undaunted.inprocess.core.messages import FromGuard, ToRank


class Downlink(Protocol):
    """Who serves ranks. Called on the loop, never from inside of a call to its uplink."""

    def up(self) -> None:
        """There is a controller, perhaps another one than before."""

    def down(self) -> None:
        """There is none; what was sent last may not have arrived."""

    def told(self, job_ranks: tuple[int, ...], message: ToRank) -> None:
        """The controller tells some of the ranks that are served here something."""


class Uplink(Protocol):
    """A way to the controller."""

    def attach(self, downlink: Downlink) -> None:
        """Begin to call ``downlink``, with `Downlink.up` if there is a controller already."""

    def send(self, message: FromGuard) -> None:
        """Send a message; lost while the link is down."""
