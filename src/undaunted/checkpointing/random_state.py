"""The random generators of a rank, as something that can be saved and loaded."""

from __future__ import annotations

import os
import random
import sys
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Collection


class RandomState:
    """State of the default generators of Python, NumPy, torch and this rank's CUDA device.

    Put one into the state that is saved; each rank saves its own. A rank that was not there when
    the checkpoint was saved keeps the generators it has.
    """

    def __init__(self, rank: int | None = None) -> None:
        """Say whose generators these are.

        Args:
            rank: in the job; None means the one of ``torch.distributed``, or RANK, or 0.
        """
        self._rank = rank

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all generators, under this rank's name."""
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
        return {self._name(): state}

    def saved_part(self, prefix: str, names: Collection[str]) -> dict[str, Any]:
        """Return what of the state is in a checkpoint.

        Args:
            prefix: of the names of this state in the checkpoint.
            names: all names in the checkpoint.
        """
        (mine, state), *_ = self.state_dict().items()
        there = {key: value for key, value in state.items() if f"{prefix}{mine}.{key}" in names}
        return {mine: there} if there else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Set the generators; what is not in the checkpoint stays as it is."""
        state = state_dict.get(self._name(), {})
        if "torch" in state:
            torch.set_rng_state(state["torch"])
        if "python" in state:
            version, internal, gauss = state["python"]
            random.setstate((version, tuple(internal), gauss))
        if "numpy" in state and (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.set_state(tuple(state["numpy"]))
        if "cuda" in state and torch.cuda.is_available():
            torch.cuda.set_rng_state(state["cuda"])

    def _name(self) -> str:
        if self._rank is not None:
            return f"rank {self._rank}"
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            return f"rank {distributed.get_rank()}"
        return f"rank {os.environ.get('RANK', '0')}"
