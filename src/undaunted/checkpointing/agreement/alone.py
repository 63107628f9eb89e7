"""Agreement of a rank with itself: without `torch.distributed`, or in a world of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.checkpointing.agreement.agreement import Agreement
from undaunted.checkpointing.agreement.messages import Failure, Verdict
from undaunted.checkpointing.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Alone:
    """Has the interface of `Agreement`; nothing is waited for.

    Attributes:
        rank: 0.
        world_size: 1.
        session: name of this run, new for each.
    """

    rank = 0
    world_size = 1

    def __init__(self, session: str) -> None:
        self.session = session

    def round(
        self,
        name: str,  # noqa: ARG002 - the interface
        contribution: bytes | Failure,
        decide: Callable[[Sequence[bytes]], bytes],
        timeout_s: float,  # noqa: ARG002 - the interface
        *,
        join_later: bool = False,  # noqa: ARG002 - the interface
    ) -> bytes:
        """Return what is decided; see `Agreement.round`."""
        if isinstance(contribution, Failure):
            return Verdict(failure=contribution, ranks=(0,)).answer()
        try:
            return decide([contribution])
        except CheckpointError:
            raise
        except Exception as error:  # noqa: BLE001 - raised as another
            try:
                return Verdict(failure=Failure.of(error), ranks=(0,)).answer()
            except CheckpointError as known:
                raise known from error

    def abort(self) -> None:
        """Nobody waits."""

    def close(self) -> None:
        """There is nothing to give back."""


Agreeing = Agreement | Alone
