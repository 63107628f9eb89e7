"""Reads stacks: what faulthandler writes about all threads, and tracebacks of exceptions. Pure.

Everything is text of a process that may be broken: cut off, mixed up or garbage. What cannot be
read is left out; nothing here raises.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_THREAD = re.compile(
    r"(?P<current>Current thread|Thread) (?P<id>0x[0-9a-fA-F]{1,32})"
    r"(?: \[(?P<name>[^\]\n]{0,64})\])?[^\n]{0,64}\(most recent call first\):"
)
_FRAME = re.compile(
    r'  File "(?P<file>[^"\n]{1,1000})", line (?P<line>[0-9]{1,9}|\?\?\?)'
    r"(?: in (?P<function>[^\n]{1,600}))?"
)
_TRACEBACK_FRAME = re.compile(
    r'\s{0,40}(?:\[rank\d+\]:)?\s{0,40}File "(?P<file>[^"\n]{1,1000})", '
    r"line (?P<line>[0-9]{1,9})(?:, in (?P<function>[^\n]{1,600}))?"
)
_CUT = "..."  # faulthandler's own mark for "more than 100 threads"
_MAX_LINES = 200_000

_STDLIB = re.compile(
    r"/(?:lib|lib64)/python3(?:\.\d+t?)?/(?!site-packages/|dist-packages/)|/python3\d+\.zip/"
)
_SITE = re.compile(r"/(?:site|dist)-packages/")
# Also where torch is used from a source tree, outside of site-packages.
_TORCH = re.compile(
    r"/torch/(?:nn|autograd|distributed|utils|optim|cuda|multiprocessing|_[a-z]\w*)\b"
)
_OURS = str(PurePosixPath(__file__).parent.parent) + "/"


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a stack. ``line`` is 0 where it is not known."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        place = f"{PurePosixPath(self.file).name}:{self.line}" if self.line else self.file
        return f"{self.function} ({place})"


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread; ``frames`` begin with the innermost. ``current`` is the one that wrote."""

    id: str
    frames: tuple[Frame, ...]
    current: bool = False
    name: str = ""


@dataclass(frozen=True, slots=True)
class Dump:
    """All threads of a process at one moment; ``complete`` is False if some are missing."""

    threads: tuple[Thread, ...]
    complete: bool = True

    @property
    def main(self) -> Thread | None:
        """The main thread: faulthandler begins with the youngest and ends with it."""
        if not self.threads:
            return None
        current = next((thread for thread in self.threads if thread.current), None)
        return self.threads[-1] if self.complete or current is None else current


def parse_dumps(text: str) -> list[Dump]:
    """Read everything faulthandler wrote, one dump or several, oldest first."""
    dumps: list[Dump] = []
    threads: list[Thread] = []
    seen: set[str] = set()
    complete = True
    for thread in _threads(text):
        if thread is None:
            complete = False
            continue
        if thread.id in seen:  # a thread appears once in a dump: here begins the next one
            dumps.append(Dump(tuple(threads), complete))
            threads, seen, complete = [], set(), True
        threads.append(thread)
        seen.add(thread.id)
    if threads:
        dumps.append(Dump(tuple(threads), complete))
    return dumps


def parse_last_dump(text: str) -> Dump | None:
    """The newest dump in ``text``, if there is any."""
    dumps = parse_dumps(text)
    return dumps[-1] if dumps else None


def users_first(text: str) -> str:
    """Return a dump for people: the main thread first, and threads of this package last."""
    lines = text.splitlines()
    heads = [at for at, line in enumerate(lines) if _THREAD.match(line)]
    ends = [*heads[1:], len(lines)]
    blocks = [lines[head:end] for head, end in zip(heads, ends, strict=False)]
    main, others = blocks[-1:], blocks[-2::-1]
    parts = [lines[: heads[0] if heads else None], *main, *sorted(others, key=_is_of_ours)]
    return "\n\n".join("\n".join(part).strip("\n") for part in parts if part)


def _is_of_ours(thread: Sequence[str]) -> bool:
    """Whether a thread was begun by this package."""
    frames = [_frame(match) for match in map(_FRAME.match, thread) if match]
    begun = next((frame for frame in reversed(frames) if not is_stdlib(frame)), None)
    return begun is not None and is_ours(begun)


def parse_traceback(text: str) -> tuple[Frame, ...]:
    """Frames of a Python traceback, the innermost first; of the last one in a chain."""
    last = text[text.rfind("Traceback (most recent call last)") :] if text else ""
    found = (_TRACEBACK_FRAME.match(line) for line in last.splitlines()[:_MAX_LINES])
    return tuple(reversed([_frame(match) for match in found if match]))


def innermost_user_frame(frames: Sequence[Frame]) -> Frame | None:
    """The place in the user's own code a stack is at.

    That is the innermost frame outside of the standard library, installed packages, torch and
    undaunted, if possible one of a file: ``<string>`` is also the ``__init__`` of dataclasses. A
    program that is itself installed has none: then it is the innermost frame of a package other
    than torch, else the innermost outside of the standard library, else of all.

    Args:
        frames: innermost first.
    """
    wanted = (
        lambda frame: is_user_code(frame) and frame.file != "<string>",
        is_user_code,
        lambda frame: not (is_stdlib(frame) or is_torch(frame) or is_ours(frame)),
        lambda frame: not (is_stdlib(frame) or is_ours(frame)),
        lambda _: True,
    )
    for test in wanted:
        for frame in frames:
            if test(frame):
                return frame
    return None


def is_user_code(frame: Frame) -> bool:
    """Return whether a frame is of the user's program, as far as its path tells."""
    library = is_stdlib(frame) or is_torch(frame) or is_ours(frame)
    return not library and not _SITE.search(frame.file)


def is_stdlib(frame: Frame) -> bool:
    """Return whether a frame is of Python's own library."""
    return frame.file.startswith("<frozen ") or bool(_STDLIB.search(frame.file))


def is_torch(frame: Frame) -> bool:
    """Return whether a frame is of torch, installed or used from its source tree."""
    return "-packages/torch/" in frame.file or bool(_TORCH.search(frame.file))


def is_ours(frame: Frame) -> bool:
    """Return whether a frame is of this package."""
    return frame.file.startswith(_OURS) or "-packages/undaunted/" in frame.file


def _threads(text: str) -> list[Thread | None]:
    """Threads in the order written; None where faulthandler left some out."""
    found: list[Thread | None] = []
    frames: list[Frame] = []
    header: re.Match[str] | None = None

    def finish() -> None:
        if header is not None:
            current = header["current"] != "Thread"
            found.append(Thread(header["id"], tuple(frames), current, header["name"] or ""))

    for line in text.splitlines()[:_MAX_LINES]:
        if starts := _THREAD.match(line):
            finish()
            header, frames = starts, []
        elif header is not None and (frame := _FRAME.match(line)):
            frames.append(_frame(frame))
        elif line == _CUT:
            finish()
            header = None
            found.append(None)
    finish()
    return found


def _frame(match: re.Match[str]) -> Frame:
    line = match["line"]
    return Frame(match["file"], int(line) if line.isdigit() else 0, match["function"] or "?")
