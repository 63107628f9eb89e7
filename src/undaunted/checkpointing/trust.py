"""The checkpoint to go on from after a round that failed, by the ledger beside them.

The launcher says how the last round failed (`FAILURE_VARIABLE`). The first search for a checkpoint
writes that into the ledger; what is chosen is written there, too. One rank does that, or one rank
of each node; others that ask come to the same. A ledger that cannot be read or written is no
reason to stop: then the newest checkpoint is loaded.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from undaunted.base import reentry
from undaunted.checkpointing import announce
from undaunted.checkpointing.files.folder import FolderStorage
from undaunted.checkpointing.format import ledger
from undaunted.checkpointing.format.ledger import (
    FAILURE_VARIABLE,
    WITHIN_STEPS,
    WITHIN_VARIABLE,
    Candidate,
    Choice,
    Failure,
    Loaded,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    class Place(Protocol):
        """The place of a ledger: a folder or an object store with checkpoints."""

        place: str

        def read_ledger(self) -> bytes:
            """Return its content, empty when there is none."""

        def write_ledger(self, content: bytes) -> None:
            """Replace it."""


# Which doubts this process has told of: where, in which round of which run, of what.
_SAID: set[tuple[str, str, int, str]] = set()


class Trust:
    """The ledger of one place.

    Attributes:
        doubts: why checkpoints are not trusted, by their names.
        steps: of these, as long as they have not been saved again.

    Args:
        place: where the checkpoints are.
        session: of what loads and saves here; "" = not known.
        writes: whether it is this process that writes the ledger.
    """

    def __init__(self, place: Place, session: str = "", *, writes: bool = True) -> None:
        self._place = place
        self._session = session
        self._writes = writes
        self._run = os.environ.get("TORCHELASTIC_RUN_ID", "")
        self._round = _whole(os.environ.get("TORCHELASTIC_RESTART_COUNT", ""), -1)
        self._entry = reentry.current.name
        self._program = _program()
        self._within = _whole(os.environ.get(WITHIN_VARIABLE, ""), 0)
        self._failure = last_failure()
        self._entries: list[ledger.Entry] | None = None
        self._candidates: list[Candidate] = []
        self.doubts: dict[str, str] = {}
        self.steps: set[int] = set()

    def choose(self, candidates: Sequence[Candidate]) -> Choice:
        """Return in which order to try checkpoints; the newest first without a launcher.

        Args:
            candidates: the newest first.
        """
        self._candidates = list(candidates)
        if not self._within:
            return Choice(self._candidates, {})
        choice = ledger.choose(candidates, self._before(), self._within, self._run, self._program)
        self.doubts = {} if choice.is_none_trusted else choice.doubts
        self.steps = {one.step for one in candidates if one.name in self.doubts}
        return choice

    def loaded(self, candidate: Candidate) -> None:
        """Write down, and say, which one is loaded of those among which was chosen last."""
        if not self._within or not self._writes:
            return
        there = candidate in self._candidates  # unless another job has just saved the step again
        newer = self._candidates[: self._candidates.index(candidate)] if there else []
        doubted = [one for one in newer if one.name in self.doubts]
        for one in doubted:
            about = (self._place.place, self._run, self._round, one.name)
            if about not in _SAID:
                _SAID.add(about)
                announce.doubted(one.step, candidate.step, self.doubts[one.name])
        self._add(
            Loaded(
                at=time.time(),
                name=candidate.name,
                step=candidate.step,
                session=self._session,
                run=self._run,
                round=self._round,
                entry=self._entry,
                program=self._program,
                passed_over=tuple(one.name for one in doubted),
            )
        )

    def _before(self) -> list[ledger.Entry]:
        """Return the entries of the rounds before this one: a rank may look later than another."""
        entries = self._read()
        now = (self._run, self._round, self._entry)
        # An earlier start of the job has had a round of the same number.
        began = self._failure.at if self._failure is not None else 0.0
        return [
            e
            for e in entries
            if not isinstance(e, Loaded) or (e.run, e.round, e.entry) != now or e.at < began
        ]

    def _read(self) -> list[ledger.Entry]:
        """Return the entries; the first time with what the launcher knows of the last round."""
        if self._entries is None:
            try:
                self._entries = ledger.decode(self._place.read_ledger())
            except OSError as error:
                announce.log.warning("the ledger of checkpoints cannot be read: %s", error)
                self._entries = []
            for failure in (self._failure, failure_inside(self._round)):
                before = self._before()
                about = failure and ledger.attributed(before, failure, self._run, time.time())
                if about:
                    self._add(about)
        return self._entries

    def _add(self, entry: ledger.Entry) -> None:
        entries = self._read()
        entries.append(entry)
        if not self._writes:
            return
        try:
            self._place.write_ledger(ledger.encode(entries))
        except OSError as error:
            announce.log.warning("the ledger of checkpoints cannot be written: %s", error)


class TrustedPaths:
    """Checkpoints of programs that save themselves: files or folders in one folder.

    The first rank of each node writes the ledger: nodes may have folders of their own.

    Attributes:
        order: in which they are tried.

    Args:
        paths: the newest first; of URLs the newest is always the first.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._candidates = {path: _candidate(path, -at) for at, path in enumerate(paths)}
        self.order = list(paths)
        self._trust: Trust | None = None
        if paths and "://" not in paths[0]:
            writes = os.environ.get("LOCAL_RANK", "0") == "0"
            storage = FolderStorage(str(Path(paths[0]).absolute().parent))
            self._trust = Trust(storage, writes=writes)
            by_name = {one.name: path for path, one in self._candidates.items()}
            chosen = self._trust.choose(list(self._candidates.values()))
            self.order = [by_name[one.name] for one in chosen.order]

    def loaded(self, path: str) -> None:
        """Write down which one is loaded."""
        if self._trust is not None:
            self._trust.loaded(self._candidates[path])


def choose(candidates: Sequence[str | os.PathLike[str]]) -> str | None:
    """Return which checkpoint training goes on from, for scripts that save by themselves.

    All ranks ask before they load, and come to the same. Under `undaunted run` a checkpoint that
    leads to failures is passed over for an older one; else it is the newest.

    Args:
        candidates: paths of files or folders in one folder, the newest first.

    Returns:
        One of them; None if there is none.
    """
    paths = TrustedPaths([os.fspath(one) for one in candidates])
    if not paths.order:
        return None
    paths.loaded(paths.order[0])
    return paths.order[0]


def last_failure() -> Failure | None:
    """Return how the last round failed, as the launcher says; None = it did not, or who knows."""
    text = os.environ.get(FAILURE_VARIABLE, "")
    try:
        return msgspec.json.decode(text, type=Failure) if text else None
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def suspect_steps() -> int:
    """Return how many steps after a load a failure may be due to the checkpoint."""
    return _whole(os.environ.get(WITHIN_VARIABLE, ""), 0) or WITHIN_STEPS


def failure_inside(round_: int) -> Failure | None:
    """Return how the function failed that was restarted inside of this process; None = it did not.

    Args:
        round_: number of the round.
    """
    fault = reentry.current.fault
    if fault is None:
        return None
    return Failure(
        round=round_,
        cause=fault.cause,
        error=fault.error,
        ranks=fault.ranks,
        steps=fault.steps,
        entry=reentry.current.before,
    )


def _program() -> str:
    """Return what tells this program from a corrected one: its script and its arguments."""
    script, *words = sys.argv or [""]
    content = b""
    with contextlib.suppress(OSError):
        content = Path(script).read_bytes()
    same_on_all_ranks = [word for word in words if not word.startswith("--local")]
    known = zlib.crc32("\0".join(same_on_all_ranks).encode("utf-8", "replace"), zlib.crc32(content))
    return f"{known:08x}"


def _candidate(path: str, order: int) -> Candidate:
    """Return how the ledger knows a path: what is written there again is another checkpoint."""
    name = Path(path).name
    try:
        written = Path(path).stat().st_mtime_ns
    except OSError:
        written = 0
    numbers = re.findall(r"[0-9]+", name)
    return Candidate(name=f"{name}@{written}", step=int(numbers[-1]) if numbers else order)


def _whole(text: str, otherwise: int) -> int:
    return int(text) if text.isascii() and text.isdigit() else otherwise
