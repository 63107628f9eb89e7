"""The state that a user gives: whether it can be saved at all, said with the name of the entry."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.tensor import DTensor
from torch.nn.parameter import is_lazy

from undaunted.checkpointing.dcp.containers import PARAMETER, TUPLE, Noted
from undaunted.checkpointing.errors import CheckpointError, SaveError, StateError, StructureError
from undaunted.checkpointing.format.image import DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from undaunted.checkpointing.dcp.containers import Path

# To look at these would be slow, as there may be thousands.
_NEVER = (torch.Tensor, list, tuple, str, int, float, type(None))


def is_stateful(value: Any) -> bool:
    """Return whether a value has ``state_dict`` and ``load_state_dict``."""
    return type(value) is not dict and not isinstance(value, _NEVER) and isinstance(value, Stateful)


_Result = TypeVar("_Result")

# Of these there may be thousands.
_ATOMS = (str, int, float, type(None))
_LEAVES = (*_ATOMS, torch.Tensor)
_LAYOUTS = (torch.strided, torch.sparse_coo)


def check_mapping(state: Any, error: type[CheckpointError] = StructureError) -> None:
    """Raise an error if a state is no dictionary."""
    if not isinstance(state, Mapping):
        raise error(
            "the state has to be a dictionary of names and objects, such as {'model': model, "
            f"'optimizer': optimizer}}; it is {type(state).__name__}"
        )


@dataclass
class Plain:
    """A state of dictionaries, lists and values, with the state of each object in it.

    Attributes:
        content: the state.
        noted: what the names in it do not tell.
        owners: each object that was asked for its state, and that, by path.
        nested: whether there are tensors that may have shards of shards.
    """

    content: dict[str, Any]
    noted: Noted
    owners: dict[Path, tuple[Any, Any]]
    nested: bool = False


def plain(state: Any) -> Plain:
    """Return a state with the ``state_dict`` of each object that has one, at any depth.

    Raises:
        StateError: it is no dictionary, or an entry does not give its state.
    """
    check_mapping(state, StateError)
    made = Plain({}, Noted(), {})
    made.content = {key: _of_root(key, value, made) for key, value in state.items()}
    return made


def _of_root(key: Any, value: Any, made: Plain) -> Any:
    try:
        return _plain((str(key),), value, made)
    except RecursionError as error:
        raise StateError(f"{key} is nested too deeply, or contains itself") from error


def _plain(path: Path, value: Any, made: Plain, *, owned: bool = False) -> Any:
    """Return a value without objects; what ``state_dict`` has given has none that are asked."""
    if isinstance(value, _LEAVES):
        if type(value) is not torch.Tensor and isinstance(value, torch.Tensor):
            _note_tensor(path, value, made)
        return value
    if not owned and is_stateful(value):
        state = _state_of(path, value)
        made.owners[path] = value, state
        made.noted.versions(path, state)
        return _plain(path, state, made, owned=True)
    if isinstance(value, Mapping):
        made.noted.mapping(path, value)
        return {k: _plain((*path, str(k)), v, made, owned=owned) for k, v in value.items()}
    if isinstance(value, list) or (isinstance(value, tuple) and _is_taken_apart(value, owned)):
        inner = [
            one if isinstance(one, _ATOMS) else _plain((*path, at), one, made, owned=owned)
            for at, one in enumerate(value)
        ]
        if isinstance(value, tuple):
            made.noted.add(path, TUPLE, "")
            return inner
        return value if all(map(operator.is_, inner, value)) else inner
    return value


def _note_tensor(path: Path, value: torch.Tensor, made: Plain) -> None:
    if isinstance(value, torch.nn.Parameter):
        made.noted.add(path, PARAMETER, "")
    elif type(value) is not DTensor and hasattr(value, "local_shards"):
        made.nested = True


def _is_taken_apart(value: Any, owned: bool) -> bool:
    """Return whether a tuple has something that cannot be saved as a part of an object."""
    if type(value) in (tuple, list):
        return any(not isinstance(one, _ATOMS) and _is_taken_apart(one, owned) for one in value)
    if isinstance(value, dict):
        return any(_is_taken_apart(one, owned) for one in value.values())
    return isinstance(value, DTensor) or (not owned and is_stateful(value))


def _state_of(path: Path, value: Any) -> Any:
    name = ".".join(map(str, path))
    if isinstance(value, type):
        raise StateError(f"{name} is the class {value.__name__}, not an object of it")
    try:
        state = value.state_dict()
    except CheckpointError:
        raise
    except Exception as error:
        raise SaveError(
            f"{name}: state_dict() of {type(value).__name__} has failed: "
            f"{type(error).__name__}: {error}"
        ) from error
    if isinstance(path[-1], int) and not isinstance(state, Mapping):
        raise StateError(
            f"{name}: state_dict() of {type(value).__name__} gives {type(state).__name__}: an "
            "object in a list needs a dictionary as its state"
        )
    return state


@contextmanager
def collisions_named() -> Iterator[None]:
    """Say what torch means by a key that is there twice."""
    try:
        yield
    except ValueError as error:
        if "duplicated flatten key" not in str(error):
            raise
        raise StateError(
            f"{error}: entries are named by the keys on the way to them, joined with dots, so that "
            "{'a': {'b': 1}} and {'a.b': 2}, or the keys 1 and '1', have the same name: rename one"
        ) from error


def named(
    work: Callable[[Any], _Result],
    flat: Mapping[str, Any],
    alone: Callable[[Any], object] | None = None,
) -> _Result:
    """Return what a function makes of a flat state; an error names the entry that causes it.

    Args:
        work: to be done.
        flat: the state.
        alone: the same for a state of one entry, by default ``work``.

    Raises:
        StateError: the work has failed because of one entry.
    """
    try:
        return work(flat)
    except CheckpointError:
        raise
    except Exception:
        for name, value in flat.items():
            _try_alone(alone or work, name, value)
        raise


def _try_alone(work: Callable[[Any], object], name: str, value: Any) -> None:
    try:
        work({name: value})
    except Exception as error:
        if isinstance(value, torch.Tensor) and is_lazy(value):
            why = "has no values yet, as its module is lazy: run the model once before the save"
        else:
            why = f"cannot be saved: {type(value).__name__}: {type(error).__name__}: {error}"
        raise StateError(f"{ascii(name)[1:-1]} {why}") from error


def check_tensors(flat: Mapping[str, Any]) -> None:
    """Raise a StateError if there is a tensor that cannot be saved, or not be loaded again."""
    for name, value in flat.items():
        if type(value) is not torch.Tensor:
            continue
        if value.layout not in _LAYOUTS:
            raise StateError(
                f"{name} is a tensor of layout {str(value.layout).removeprefix('torch.')}, which "
                "cannot be saved: save its parts, such as values() and indices, or to_dense()"
            )
        dtype = str(value.dtype).removeprefix("torch.")
        if dtype not in DTYPES and not (value.is_quantized or value.dtype.is_floating_point):
            raise StateError(
                f"{name} is a tensor of {dtype}, which cannot be saved: save its view(torch.uint8)"
            )
