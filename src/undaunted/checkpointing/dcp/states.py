"""The state that a user gives: whether it can be saved at all, said with the name of the entry."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from undaunted.checkpointing.dcp.stateful import is_stateful
from undaunted.checkpointing.errors import CheckpointError, SaveError, StructureError

if TYPE_CHECKING:
    from collections.abc import Iterator

_LAYOUTS = (torch.strided, torch.sparse_coo)


def check_mapping(state: Any, error: type[CheckpointError] = StructureError) -> None:
    """Raise an error if a state is no dictionary."""
    if not isinstance(state, Mapping):
        raise error(
            "the state has to be a dictionary of names and objects, such as {'model': model, "
            f"'optimizer': optimizer}}; it is {type(state).__name__}"
        )


def plain(state: Any) -> dict[str, Any]:
    """Return a state with the ``state_dict`` of each object that has one.

    Raises:
        SaveError: it is no dictionary, or an entry does not give its state.
    """
    check_mapping(state, SaveError)
    return {key: _plain(key, value) for key, value in state.items()}


def _plain(key: Any, value: Any) -> Any:
    if not is_stateful(value):
        return value
    if isinstance(value, type):
        raise SaveError(f"{key} is the class {value.__name__}, not an object of it")
    try:
        return value.state_dict()
    except CheckpointError:
        raise
    except Exception as error:
        raise SaveError(
            f"{key}: state_dict() of {type(value).__name__} has failed: "
            f"{type(error).__name__}: {error}"
        ) from error


@contextmanager
def collisions_named() -> Iterator[None]:
    """Say what torch means by a key that is there twice."""
    try:
        yield
    except ValueError as error:
        if "duplicated flatten key" not in str(error):
            raise
        raise SaveError(
            f"{error}: entries are named by the keys on the way to them, joined with dots, so that "
            "{'a': {'b': 1}} and {'a.b': 2}, or the keys 1 and '1', have the same name: rename one"
        ) from error


def check_layouts(flat: Mapping[str, Any]) -> None:
    """Raise a SaveError if there is a tensor of a layout that cannot be loaded again."""
    for name, value in flat.items():
        if type(value) is torch.Tensor and value.layout not in _LAYOUTS:
            raise SaveError(
                f"{name} is a tensor of layout {str(value.layout).removeprefix('torch.')}, which "
                "cannot be saved: save its parts, such as values() and indices, or to_dense()"
            )
