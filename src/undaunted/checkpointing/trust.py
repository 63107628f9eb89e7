"""Which checkpoint training goes on from after a round that failed; rank 0 keeps the ledger.

The launcher says how the last round failed (`FAILURE_VARIABLE`). The first search for a checkpoint
writes that into the ledger beside the checkpoints; what is chosen is written there, too. A ledger
that cannot be read or written is no reason to stop: then the newest checkpoint is loaded.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import msgspec

from undaunted.checkpointing import announce
from undaunted.checkpointing.format import ledger
from undaunted.checkpointing.format.ledger import Candidate, Choice, Failure, Loaded

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    class Place(Protocol):
        """Where a ledger is: a folder or an object store with checkpoints."""

        place: str

        def read_ledger(self) -> bytes:
            """Return its content, empty when there is none."""

        def write_ledger(self, content: bytes) -> None:
            """Replace it."""


# Set by the launcher for its ranks: how the last round failed, and what is too soon after a load.
FAILURE_VARIABLE = "UNDAUNTED_FAILURE"
WITHIN_VARIABLE = "UNDAUNTED_SUSPECT_STEPS"


class Trust:
    """The ledger of one place.

    Attributes:
        doubts: why checkpoints are not trusted, by their names.
        steps: of these, as long as they have not been saved again.

    Args:
        place: where the checkpoints are.
        session: of what loads and saves here.
    """

    def __init__(self, place: Place, session: str) -> None:
        self._place = place
        self._session = session
        self._run = os.environ.get("TORCHELASTIC_RUN_ID", "")
        self._round = _whole(os.environ.get("TORCHELASTIC_RESTART_COUNT", ""), -1)
        self._within = _whole(os.environ.get(WITHIN_VARIABLE, ""), 0)
        self._entries: list[ledger.Entry] | None = None
        self.doubts: dict[str, str] = {}
        self.steps: set[int] = set()

    def choose(self, candidates: Sequence[Candidate]) -> Choice:
        """Return in which order to try checkpoints; the newest first without a launcher.

        Args:
            candidates: the newest first.
        """
        if not self._within:
            return Choice(list(candidates), {})
        choice = ledger.choose(candidates, self._read(), self._within)
        self.doubts = choice.doubts
        self.steps = {one.step for one in candidates if one.name in choice.doubts}
        return choice

    def loaded(self, candidate: Candidate, doubted: Sequence[Candidate] = ()) -> None:
        """Write down, and say, what is loaded.

        Args:
            candidate: what is loaded.
            doubted: newer ones that are not.
        """
        if not self._within:
            return
        for one in doubted:
            announce.doubted(one.step, candidate.step, self.doubts[one.name])
        self._add(
            Loaded(
                at=time.time(),
                name=candidate.name,
                step=candidate.step,
                session=self._session,
                run=self._run,
                round=self._round,
                passed_over=tuple(one.name for one in doubted),
            )
        )

    def _read(self) -> list[ledger.Entry]:
        """Return the entries; the first time with what the launcher knows of the last round."""
        if self._entries is None:
            try:
                self._entries = ledger.decode(self._place.read_ledger())
            except OSError as error:
                announce.log.warning("the ledger of checkpoints cannot be read: %s", error)
                self._entries = []
            failure = last_failure()
            about = failure and ledger.attributed(self._entries, failure, self._run, time.time())
            if about:
                self._add(about)
        return self._entries

    def _add(self, entry: ledger.Entry) -> None:
        entries = self._read()
        entries.append(entry)
        try:
            self._place.write_ledger(ledger.encode(entries))
        except OSError as error:
            announce.log.warning("the ledger of checkpoints cannot be written: %s", error)


def last_failure() -> Failure | None:
    """Return how the last round failed, as the launcher says; None = it did not, or who knows."""
    text = os.environ.get(FAILURE_VARIABLE, "")
    try:
        return msgspec.json.decode(text, type=Failure) if text else None
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def _whole(text: str, otherwise: int) -> int:
    return int(text) if text.isascii() and text.isdigit() else otherwise
