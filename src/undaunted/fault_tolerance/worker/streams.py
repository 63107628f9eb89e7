"""Standard output and error of a worker into files."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY | os.O_NOFOLLOW


def redirect(stdout: str, stderr: str) -> None:
    """Append descriptors 1 and 2 to these files from now on; "" leaves one as it is.

    Missing directories are created (0700), and files (0600); a symbolic link is refused. Both files
    are opened before either stream is touched, so that an error still reaches the standard error of
    the launcher.

    Raises:
        SystemExit: a file cannot be opened; the text names the remedy.
    """
    opened = {path: _open(path) for path in dict.fromkeys((stdout, stderr)) if path}
    for path, target in ((stdout, 1), (stderr, 2)):
        if path:
            os.dup2(opened[path], target)
    for fd in opened.values():
        os.close(fd)


def write_whole_lines() -> None:
    """Have each line written in one piece, as on a terminal: many ranks share an output.

    Unbuffered, `print` writes text and newline one after the other, and another rank in between.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)


def _open(path: str) -> int:
    try:
        _make_directory(Path(path).parent)
        return os.open(path, _FLAGS, 0o600)
    except OSError as error:
        sys.exit(
            f"undaunted: cannot write the output of a rank to {path!r}: {error.strerror}; make "
            "room or correct its permissions, or choose another directory with --log-dir"
        )


def _make_directory(path: Path) -> None:
    """Create it and what is missing above it, all of them private (mkdir's own way is not)."""
    if not path.exists():
        _make_directory(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)  # another rank may have been faster
