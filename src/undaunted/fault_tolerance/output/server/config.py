"""The settings of the log server of a job. Pure."""

from __future__ import annotations

from pathlib import PurePosixPath

import msgspec


class LogServerConfig(msgspec.Struct, kw_only=True, frozen=True):
    """Settings of the log server.

    Attributes:
        root: absolute path of the directory on the server's host that all logs are in.
        port: of the server.
        queue_bytes: what may wait in the server's memory, in all.
        log_prefix: the file that the server writes its own lines to begins so, "" = standard error.
        grace_s: how long the end of the job waits for logs that are still on their way.
        settle_s: how long a server that was just started waits for launchers at the end of the job.
    """

    root: str
    port: int = 50051
    queue_bytes: int = 256 * 1024 * 1024
    log_prefix: str = ""
    grace_s: float = 60.0
    settle_s: float = 6.0

    def relative(self, path: str) -> str:
        """Return ``path``, which lies below the directory, as the server is told of it.

        Raises:
            ValueError: it does not lie there.
        """
        return str(PurePosixPath(path).relative_to(self.root))
