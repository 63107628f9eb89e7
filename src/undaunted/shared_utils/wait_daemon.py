"""``python -m undaunted.shared_utils.wait_daemon PIDFILE``: waits until processes have ended.

A scheduler that ends a job's step when its last process ends would end the guards of ranks with
it; so the script of a step waits for those named in ``monitor_process_pidfile``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.base.process import open_pidfd, wait_for_any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_MOST = 2**31 - 1  # what the kernel can say


def read_pids(pidfile: str) -> list[int]:
    """Return the process ids in a file, one a line; lines that are none are left out.

    Raises:
        OSError: the file cannot be read.
    """
    lines = (line.strip() for line in Path(pidfile).read_text(encoding="ascii").splitlines())
    return [pid for line in lines if line.isdigit() and 0 < (pid := int(line)) <= _MOST]


def wait_for_pids(pids: Iterable[int]) -> None:
    """Return when all these processes have ended; they need not be children of this one."""
    waiting = {}
    try:
        for pid in pids:
            if (pidfd := open_pidfd(pid)) is not None:
                waiting[pidfd] = pid
        while waiting:
            for pidfd in wait_for_any(list(waiting)):
                del waiting[pidfd]
                os.close(pidfd)
    finally:
        for pidfd in waiting:
            os.close(pidfd)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code: 0, or 1 if the file cannot be read."""
    given = sys.argv[1:] if arguments is None else arguments
    if len(given) != 1:
        print("usage: python -m undaunted.shared_utils.wait_daemon PIDFILE", file=sys.stderr)
        return 2
    try:
        pids = read_pids(given[0])
    except (OSError, UnicodeDecodeError) as error:
        print(f"{given[0]}: {error}; it is written if the rank has begun", file=sys.stderr)
        return 1
    wait_for_pids(pids)
    return 0


if __name__ == "__main__":
    sys.exit(main())
