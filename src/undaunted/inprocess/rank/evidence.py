"""The work of this rank when its epoch was stopped for a hang, for `core.hang`.

Used by the watcher: it looks at the stack of the user's thread, and waits for nobody.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from undaunted.attribution.evidence import place_in
from undaunted.attribution.flight import recorder
from undaunted.attribution.flight.recording import encode
from undaunted.attribution.hang import RankObservation, Standing
from undaunted.attribution.stacks import Frame
from undaunted.base import process, threads
from undaunted.inprocess import abort
from undaunted.inprocess.core.hang import expired
from undaunted.inprocess.core.messages import Evidence
from undaunted.inprocess.core.reading import Phase
from undaunted.inprocess.rank.guard_link import GuardLinkError
from undaunted.progress.writer import last_iteration

if TYPE_CHECKING:
    from types import FrameType

    from undaunted.inprocess.rank.guard_link import GuardLink

_NS = 1_000_000_000
_MOST_FRAMES = 200
_LONGEST_RECORDING = 16 * 1024
# Longest wait for the Flight Recorder before communication is aborted.
_RECORDING_S = 0.5
_LEFT = "it has left the function"


class Witness:
    """Tells the guard what the rank does. Of one call; made in the user's thread.

    Args:
        link: to the guard.
        soft_timeout_s: of the call, in seconds.
    """

    def __init__(self, link: GuardLink, soft_timeout_s: float) -> None:
        self.reserve = False  # the rank does not call the function in this epoch
        self._link = link
        self._soft_timeout_s = soft_timeout_s
        self._user_thread = threading.get_ident()
        self._node = socket.gethostname()
        self._telling: threading.Thread | None = None

    def tell(self, call: int, epoch: int) -> None:
        """The epoch is stopped for a hang: look now, and say it from another thread."""
        seen, rank = self._look(), self._link.rank
        self._telling = threads.start(lambda: self._tell(call, epoch, rank, seen), "evidence")

    def wait(self) -> None:
        """Wait until the recording was sent, as an abort destroys that; 0.5 s at most."""
        telling, self._telling = self._telling, None
        if telling is not None:
            telling.join(_RECORDING_S)

    def _tell(self, call: int, epoch: int, rank: int, seen: RankObservation) -> None:
        recording = None if abort.aborted.is_set() else recorder.record()
        if recording is not None and len(encode(recording)) <= _LONGEST_RECORDING:
            seen = msgspec.structs.replace(seen, recording=recording)
        nothing = self.reserve and seen.standing is Standing.ENDED
        found = b"" if nothing else msgspec.msgpack.encode(seen)
        evidence = Evidence(call, seen.rank, epoch, rank, found)
        try:
            self._link.send(evidence)
        except GuardLinkError:
            return  # the watcher notices it as well

    def _look(self) -> RankObservation:
        page, state = self._link.page, process.state(os.getpid())
        seen = RankObservation(
            rank=self._link.job_rank,
            node=self._node,
            pid=os.getpid(),
            standing=Standing.ENDED,
            state=state,
            activity=_LEFT,
            iteration=last_iteration(),
        )
        if page.phase is Phase.WAITING:
            return seen
        frames = frames_of(sys._current_frames().get(self._user_thread))  # noqa: SLF001
        place, age_s = place_in(frames, state), self._age_s()
        return msgspec.structs.replace(
            seen,
            standing=Standing.WAITING if place.waits_in else Standing.BUSY,
            frame=str(place.frame) if place.frame else "",
            waits_in=place.waits_in,
            activity=place.activity,
            heard_s=age_s,
            expired=expired(age_s, self._soft_timeout_s),
            late_s=max(0.0, age_s - self._soft_timeout_s),
        )

    def _age_s(self) -> float:
        now = time.monotonic_ns()
        return max(now - each for each in self._link.page.progress_ns if each) / _NS


def frames_of(frame: FrameType | None) -> tuple[Frame, ...]:
    """Return a stack as the readers of stacks want it, the innermost frame first."""
    frames: list[Frame] = []
    while frame is not None and len(frames) < _MOST_FRAMES:
        code = frame.f_code
        frames.append(Frame(code.co_filename, frame.f_lineno or 0, code.co_name))
        frame = frame.f_back
    return tuple(frames)
