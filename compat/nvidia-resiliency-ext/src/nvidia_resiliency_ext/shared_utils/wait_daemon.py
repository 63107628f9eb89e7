"""``python -m nvidia_resiliency_ext.shared_utils.wait_daemon PIDFILE`` waits for processes."""

from __future__ import annotations

import sys

from undaunted.shared_utils.wait_daemon import main, wait_for_pids
from undaunted.shared_utils.wait_daemon import read_pids as read_pids_from_file


def wait_daemon(pidfile: str) -> None:
    """Wait until the processes named in a file have ended.

    Raises:
        SystemExit: the file cannot be read; the exit code is 1.
    """
    if code := main([pidfile]):
        raise SystemExit(code)


__all__ = ["main", "read_pids_from_file", "wait_daemon", "wait_for_pids"]

if __name__ == "__main__":
    sys.exit(main())
