"""Objects that are asked for their state, such as modules and optimizers."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.checkpoint.stateful import Stateful

# To look at these would be slow, as there may be thousands.
_NEVER = (torch.Tensor, list, tuple, str, int, float, type(None))


def is_stateful(value: Any) -> bool:
    """Whether a value has ``state_dict`` and ``load_state_dict``."""
    return type(value) is not dict and not isinstance(value, _NEVER) and isinstance(value, Stateful)
