"""Which rank this process is."""

from __future__ import annotations

import os
import sys
from typing import Any

from undaunted.fault_tolerance.data import RankInfo


def who_am_i() -> RankInfo:
    """Ask torch.distributed if the program has set it up, else the environment."""
    local_rank = _number("LOCAL_RANK")
    distributed = _distributed()
    global_rank = _number("RANK") if distributed is None else int(distributed.get_rank())
    return RankInfo(global_rank, local_rank, os.uname().nodename, os.getpid())


def knows_rank() -> bool:
    """Whether anything says which rank this is; if not, it counts as rank 0."""
    return _distributed() is not None or bool(os.environ.get("RANK"))


def _distributed() -> Any:
    """Return torch.distributed if the program has set it up."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed
    return None


def _number(variable: str) -> int:
    value = os.environ.get(variable, "")
    return int(value) if value.isascii() and value.isdigit() else 0
