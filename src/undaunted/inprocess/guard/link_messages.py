"""What is said on the connection of a guard and the controller, beside the messages of the core."""

from __future__ import annotations

import msgspec

from undaunted.inprocess.core.messages import FromGuard, ToRank


class Lease(msgspec.Struct, frozen=True, tag=True):
    """A guard is there; the answer is the same."""


class Bye(msgspec.Struct, frozen=True, tag=True):
    """The last word of a guard on a connection; without it, the guard has probably died.

    Attributes:
        back: it is going to connect again. Otherwise its ranks have ended, and it has said all.
    """

    back: bool = False


class Told(msgspec.Struct, frozen=True, tag=True):
    """The controller to some of a guard's ranks."""

    job_ranks: tuple[int, ...]
    message: ToRank


class Telling(msgspec.Struct, frozen=True, tag="Told"):
    """The same, with a message that was encoded once for all guards."""

    job_ranks: tuple[int, ...]
    message: msgspec.Raw


ToController = FromGuard | Lease | Bye
ToGuard = Told | Lease
