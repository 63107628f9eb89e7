"""Reading what is not a tensor: with ``weights_only``, so that a file cannot run code."""

from __future__ import annotations

import functools
import io
import pickle
from typing import Any

import torch

from undaunted.checkpointing.errors import CheckpointError, DamagedCheckpointError


def load_object(content: bytes | bytearray, name: str, path: str) -> Any:
    """Return what ``torch.save`` has written; tensors in it come to the CPU.

    Plain Python data, tensors and numpy arrays can be read, and what the program has allowed with
    ``torch.serialization.add_safe_globals``.

    Args:
        content: of the item.
        name: of the item, for messages.
        path: of its file, for messages.

    Raises:
        CheckpointError: it has an object of another type; the message names it.
        DamagedCheckpointError: it is something else than what was written.
    """
    try:
        with torch.serialization.safe_globals(_of_numpy()):
            return torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    except pickle.UnpicklingError as error:
        raise CheckpointError(_not_allowed(content, name, path)) from error
    except Exception as error:
        raise DamagedCheckpointError(
            f"{path}: {name} cannot be read ({type(error).__name__}: {error})", path, [name]
        ) from error


def refused_types(content: bytes | bytearray | memoryview) -> list[str]:
    """Return the types for which ``load_object`` refuses what ``torch.save`` has written."""
    try:
        with torch.serialization.safe_globals(_of_numpy()):
            return list(torch.serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(content)))
    except Exception:  # noqa: BLE001 - what is made of it is only a message
        return []


def _not_allowed(content: bytes | bytearray, name: str, path: str) -> str:
    types = refused_types(content)
    return (
        f"{path}: {name} has objects of types that are not read from a file without your consent: "
        f"{', '.join(types) or 'unknown'}. If you trust the checkpoint, allow them with "
        "torch.serialization.add_safe_globals([...]); better save plain data"
    )


@functools.lru_cache(maxsize=1)
def _of_numpy() -> list[Any]:
    """What arrays and scalars of numpy are made of."""
    try:
        import numpy as np
    except ImportError:
        return []
    core = getattr(np, "_core", None) or np.core
    kinds = {type(np.dtype(code)) for code in np.typecodes["All"]}
    makes = [getattr(core.multiarray, name) for name in ("_reconstruct", "scalar")]
    return [np.ndarray, np.dtype, *makes, *kinds]
