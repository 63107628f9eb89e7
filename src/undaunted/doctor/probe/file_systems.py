"""File systems: how large, of what kind, mounted how. A path may be on a server that is away."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING, Any

from undaunted.base.deadline import within
from undaunted.doctor.facts import FileSystem
from undaunted.doctor.probe.kernel import ROOT, read_text

if TYPE_CHECKING:
    from pathlib import Path

_ANSWER_S = 5.0


def of_file_systems(root: Path = ROOT) -> dict[str, Any]:
    """Return the facts about /dev/shm and the directory for temporary files."""
    try:
        temporary = tempfile.gettempdir()
    except OSError as error:
        tmp = FileSystem(path=os.environ.get("TMPDIR", "/tmp"), problem=str(error))  # noqa: S108
    else:
        tmp = file_system(temporary, root, writable=True)
        asked = os.environ.get("TMPDIR", "")
        if asked and os.path.abspath(asked) != temporary:  # noqa: PTH100
            tmp = FileSystem(
                path=asked, problem=f"nothing can be written there, {temporary} is used instead"
            )
    return {"file_systems": {"shm": file_system("/dev/shm", root, writable=True), "tmp": tmp}}  # noqa: S108


def file_system(path: str, root: Path = ROOT, *, writable: bool = False) -> FileSystem:
    """Return what is known about the file system at ``path``, within 5 s.

    Args:
        path: a directory.
        root: where ``/proc`` is.
        writable: that this user cannot write there is a problem.
    """
    late = FileSystem(path=path, problem=f"no answer within {_ANSWER_S:.0f} s")
    return within(_ANSWER_S, lambda: _look(path, root, writable=writable), late)


def _look(path: str, root: Path, *, writable: bool) -> FileSystem:
    try:
        status = os.statvfs(path)
        real = os.path.realpath(path)
    except OSError as error:
        return FileSystem(path=path, problem=error.strerror or str(error))
    kind, options = mount_of(real, read_text(root / "proc/self/mountinfo") or "")
    problem = ""
    if writable and not os.access(path, os.W_OK | os.X_OK):
        problem = "this user may not write there"
    return FileSystem(
        path=path,
        kind=kind,
        options=options,
        size=status.f_blocks * status.f_frsize,
        free=status.f_bavail * status.f_frsize,
        free_inodes=status.f_favail if status.f_files else None,
        problem=problem,
    )


def mount_of(path: str, mountinfo: str) -> tuple[str, tuple[str, ...]]:
    """Return kind and options of the mount that holds ``path``; the last of the longest counts."""
    best: tuple[int, str, tuple[str, ...]] = (-1, "", ())
    for line in mountinfo.splitlines():
        head, dash, tail = line.partition(" - ")
        words, kinds = head.split(), tail.split()
        if not dash or len(words) < 6 or not kinds:
            continue
        point = _unescaped(words[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best[0]:
            best = (len(point), kinds[0], tuple(words[5].split(",")))
    return best[1], best[2]


def _unescaped(text: str) -> str:
    """Undo the octal of spaces, tabs, line feeds and backslashes."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text
