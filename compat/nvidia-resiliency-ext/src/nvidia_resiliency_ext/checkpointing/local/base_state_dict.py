# Made from names/*.yaml by `make generated`.
"""States whose tensors can be taken out and put back."""

from __future__ import annotations

from undaunted.checkpointing.local.base_state_dict import (
    TensorAwareStateDict as TensorAwareStateDict,
)
