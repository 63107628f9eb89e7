"""Where the launcher finds, and puts, messages of the `nvrx` logger."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def message_directory(environ: Mapping[str, str], cwd: str) -> str:
    """Return ``NVRX_NODE_LOCAL_TMPDIR`` as an absolute path, "" = not set."""
    directory = environ.get("NVRX_NODE_LOCAL_TMPDIR", "").strip()
    return os.path.abspath(os.path.join(cwd, directory)) if directory else ""  # noqa: PTH100, PTH118


def launcher_messages(directory: str) -> str:
    """Return the file in ``directory`` for this launcher's own lines, "" without a directory."""
    if not directory:
        return ""
    return f"{directory}/launcher_rank_none_{os.getpid()}.msg.{int(time.time() * 1000)}"
