"""Which rank this process is."""

from __future__ import annotations

import os
import sys

from undaunted.fault_tolerance.data import RankInfo


def who_am_i() -> RankInfo:
    """Ask torch.distributed if the program has set it up, else the environment."""
    local_rank = _number("LOCAL_RANK")
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        global_rank = int(distributed.get_rank())
    else:
        global_rank = _number("RANK")
    return RankInfo(global_rank, local_rank, os.uname().nodename, os.getpid())


def _number(variable: str) -> int:
    value = os.environ.get(variable, "")
    return int(value) if value.isascii() and value.isdigit() else 0
