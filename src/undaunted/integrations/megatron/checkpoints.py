"""The checkpoint from which Megatron goes on: an older one if the newest leads to failures."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

from undaunted.integrations.resuming import older_step

_NAME = re.compile(r"iter_([0-9]{7,20})")
_TRACKER = "latest_checkpointed_iteration.txt"  # of Megatron-LM
_TRAIN_STATE = "train_state.pt"  # of Megatron Bridge: in each checkpoint that is complete
# What was set here, beside what it was set in: another start in this process chooses anew.
_MARK = "_undaunted_ckpt_step"


def choose_checkpoint(config: Any) -> int | None:
    """Have Megatron load an older checkpoint if the newest one leads to failures.

    All ranks call it before they load, and come to the same. `fault_tolerance.setup` does so.

    Args:
        config: of Megatron Bridge, whose ``checkpoint`` has ``load`` and ``ckpt_step``; or the
            arguments of Megatron-LM, which have both. Where ``ckpt_step`` is None it is set.

    Returns:
        The iteration that is loaded; None = that is left to Megatron, which takes the newest.
    """
    saving = getattr(config, "checkpoint", config)
    folder, step = getattr(saving, "load", None), getattr(saving, "ckpt_step", None)
    if not folder or "://" in str(folder) or step not in (None, getattr(saving, _MARK, None)):
        return None
    wanted = older_step(_complete(Path(folder)))
    if wanted != step:
        saving.ckpt_step = wanted
        setattr(saving, _MARK, wanted)
    return wanted


def _complete(folder: Path) -> dict[Path, int]:
    """Return the checkpoints that were written to their end, with their iterations."""
    last = -1
    found: dict[Path, int] = {}
    with contextlib.suppress(OSError, ValueError):  # "release" is no number
        last = int((folder / _TRACKER).read_text(encoding="ascii"))
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            match = _NAME.fullmatch(path.name)
            if match and (int(match[1]) <= last or (path / _TRAIN_STATE).exists()):
                found[path] = int(match[1])
    return found
