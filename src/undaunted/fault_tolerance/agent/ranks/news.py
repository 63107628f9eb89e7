"""What ranks put into their pages, told to the journal and to the node's state machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from undaunted.progress.snapshot import ErrorRecord, PageSnapshot, Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.fault_tolerance.agent.round.round import Round, RoundFactory
    from undaunted.fault_tolerance.agent.telling.scribe import Scribe
    from undaunted.progress.reader import RingEvent

_CHECKPOINT = "checkpoint"  # as `checkpointing.announce` names its events; it imports logging


@dataclass(frozen=True)
class News:
    """Takes what `watch.PageWatch` has read."""

    rounds: RoundFactory
    scribe: Scribe
    errored: Callable[[int, str], None]  # with a local rank, and what it has raised

    def page(self, current: Round, local_rank: int, page: PageSnapshot) -> None:
        """The page of a rank has changed."""
        self.scribe.milestones(current, local_rank, page)
        if page.phase is Phase.FAILED and page.error is not None:
            self.errored(local_rank, _what(page.error))

    def ring(self, current: Round, local_rank: int, events: list[RingEvent], lost: int) -> None:
        """A rank has noted events; ``lost`` more were overwritten."""
        for event in events:
            if event.name == "fault":
                self.rounds.fault_fired(event.text)
                current.faults[local_rank] = event.text
            current.announced |= event.name == _CHECKPOINT
        self.scribe.ring_events(current.rank(local_rank), events, lost)


def _what(error: ErrorRecord) -> str:
    code = error.message or "1"
    if error.type == "SystemExit" and code.removeprefix("-").isdecimal():
        return f"exits with {code}"
    return f"raised {error.type}"
