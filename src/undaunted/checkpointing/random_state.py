"""The random generators of a rank, as something that can be saved and loaded."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

from undaunted.checkpointing.per_rank import PerRank


class _Generators:
    """The default generators of this process."""

    def state_dict(self) -> dict[str, Any]:
        version, internal, gauss = random.getstate()
        state: dict[str, Any] = {
            "torch": torch.get_rng_state(),
            "python": [version, list(internal), gauss],
        }
        if (numpy := sys.modules.get("numpy")) is not None:
            name, keys, at, has_gauss, gauss = numpy.random.get_state()
            state["numpy"] = [str(name), keys.tolist(), int(at), int(has_gauss), float(gauss)]
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "torch" in state:
            torch.set_rng_state(state["torch"])
        if "python" in state:
            version, internal, gauss = state["python"]
            random.setstate((version, tuple(internal), gauss))
        if "numpy" in state and (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.set_state(tuple(state["numpy"]))
        if "cuda" in state and torch.cuda.is_available():
            torch.cuda.set_rng_state(state["cuda"])


class RandomState(PerRank):
    """State of the default generators of Python, NumPy, torch and this rank's CUDA device.

    Put one into the state that is saved; each rank saves its own. A rank that was not there when
    the checkpoint was saved keeps the generators it has.
    """

    def __init__(self, rank: int | None = None) -> None:
        """Say whose generators these are.

        Args:
            rank: in the job; None means the one of ``torch.distributed``, or RANK, or 0.
        """
        super().__init__(_Generators(), rank)

    # As checkpoints have had it before there was `PerRank`.
    def _to_save(self, state: Any) -> Any:
        return state

    def _as_saved(self, parts: Any) -> Any:
        return parts
