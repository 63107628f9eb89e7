"""What an exception tells by itself: where it was raised, and whether it is a consequence."""

from __future__ import annotations

import os
import re
import traceback
from pathlib import Path, PurePath

_OURS = f"{Path(__file__).parents[2]}/"
_STDLIB = f"{Path(os.__file__).parent}/"
_PACKAGES = ("/site-packages/", "/dist-packages/")

# What gloo, NCCL and torch's store say when a peer is gone.
_PEER_LOST = re.compile(
    r"[Cc]onnection (?:closed|reset) by peer|[Cc]onnection was likely closed|Connection refused"
    r"|Broken pipe|Socket closed|pair closure|ncclRemoteError|remote process exited"
    r"|communicator was aborted|[Ff]ailed to recv, got 0 bytes"
)

_CHECKPOINTING = "undaunted.checkpointing."


def where(error: BaseException) -> str:
    """Return the innermost place in the user's code, ``step (train.py:23)``; "" = there is none.

    A program that is itself an installed package has none: then it is the innermost place outside
    of Python's own library, torch and this package.
    """
    frames = list(traceback.walk_tb(error.__traceback__))[::-1]
    for is_library in (_is_installed, _is_known):
        for frame, line in frames:
            if not is_library(frame.f_code.co_filename):
                return f"{frame.f_code.co_name} ({PurePath(frame.f_code.co_filename).name}:{line})"
    return ""


def names_lost_peer(error: BaseException) -> bool:
    """Whether it is what communication raises in the peers of a rank that is gone.

    The same words of Python's own sockets (a download, say) are the rank's own failure.
    """
    from_torch = type(error) is RuntimeError or type(error).__module__.startswith("torch")
    return from_torch and bool(_PEER_LOST.search(str(error)))


def names_failed_peer(error: BaseException, rank: int) -> bool:
    """Whether it is an error of a save that another rank has failed with: all ranks raise it.

    Args:
        error: the exception.
        rank: of this process.
    """
    ranks = getattr(error, "ranks", ())
    return type(error).__module__.startswith(_CHECKPOINTING) and bool(ranks) and rank not in ranks


def _is_installed(file: str) -> bool:
    return _is_known(file) or any(part in file for part in _PACKAGES)


def _is_known(file: str) -> bool:
    if file.startswith((_OURS, "<")) or "-packages/torch/" in file:
        return True
    return file.startswith(_STDLIB) and not any(part in file for part in _PACKAGES)
