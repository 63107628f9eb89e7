"""State that each rank has for itself, as something that can be saved and loaded."""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor

from undaunted.base import random_generators
from undaunted.base.text import name_ranks
from undaunted.checkpointing.dcp.packed import is_packed
from undaunted.checkpointing.dcp.states import is_stateful

if TYPE_CHECKING:
    from collections.abc import Collection

_log = logging.getLogger("undaunted.checkpointing")

# How many ranges of ranks a message lists.
_NAMED = 5
# Each larger tensor is an entry in the checkpoint, and is filled in place.
_SMALL_BYTES = 64 << 10
_DICTS = (dict, OrderedDict)


class PerRank:
    """A value that each rank has for itself; a load gives it to the rank of the same number.

    Put one into the state that is saved, around what differs from rank to rank, such as a data
    loader: ``{"model": model, "data": PerRank(loader)}``. A rank that was not there when the
    checkpoint was saved keeps what it has, and the log says so.

    Attributes:
        value: what is wrapped; after a load, what was loaded.
    """

    def __init__(self, value: Any, rank: int | None = None) -> None:
        """Wrap a value.

        Args:
            value: an object with ``state_dict`` and ``load_state_dict``, or plain data. A
                dictionary or list, which may have such objects in it, is filled in place; other
                plain data are replaced in ``value``.
            rank: in the job; None means the one of ``torch.distributed``, or RANK, or 0.
        """
        self.value = value
        self._rank = rank

    def state_dict(self) -> dict[str, Any]:
        """Return the state under this rank's name."""
        return {self._name(): self._to_save(_state_of(self.value))}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back this rank's state; what is not in the checkpoint stays as it is."""
        name = self._name()
        if name in state_dict:
            self.value = _given(self.value, self._as_saved(state_dict[name]))

    def saved_part(self, prefix: str, names: Collection[str]) -> list[str]:
        """Return the part of this rank if a checkpoint has one, else nothing; says what is lost.

        Args:
            prefix: of the names of this object in the checkpoint.
            names: all names in the checkpoint.
        """
        mine, start = self._name(), len(prefix)
        saved = {n[start:].partition(".")[0] for n in names if n.startswith(prefix)}
        self._tell(prefix[:-1], mine, saved)
        return [mine] if mine in saved else []

    def _to_save(self, state: Any) -> Any:
        """Take the large tensors out; the rest, a tuple, is one entry that keeps types of keys."""
        tensors: dict[str, torch.Tensor] = {}
        places: dict[str, list[Any]] = {}

        def rest(value: Any, path: list[Any]) -> Any:
            if isinstance(value, torch.Tensor) and _is_large(value):
                name = ".".join(map(str, path)) or "value"
                while name in tensors:
                    name += "+"
                tensors[name], places[name] = value, path
                return None
            if type(value) is list:
                return [rest(one, [*path, at]) for at, one in enumerate(value)]
            if type(value) in _DICTS:
                return {key: rest(one, [*path, key]) for key, one in value.items()}
            return value

        return {"values": (rest(state, []), places), "tensors": tensors}

    def _as_saved(self, parts: Any) -> Any:
        state, places = parts["values"]
        root = [state]
        for name, path in places.items():
            container: Any = root
            keys = [0, *path]
            for key in keys[:-1]:
                container = container[key]
            container[keys[-1]] = parts["tensors"][name]
        return root[0]

    def _tell(self, what: str, name: str, saved: set[str]) -> None:
        numbers = sorted(int(one[5:]) for one in saved if one[5:].isdecimal())
        if name not in saved:
            of = f"; it has those of {name_ranks(numbers, _NAMED)}" if numbers else ""
            _log.warning(
                "%s: the checkpoint has no state of %s%s. This rank keeps what it has",
                *(what, name, of),
            )
        gone = [number for number in numbers if number >= _world_size()]
        if gone and name == "rank 0" and self._rank is None:
            _log.warning(
                "%s: the states of %s are not loaded, as there are fewer ranks than at the save",
                *(what, name_ranks(gone, _NAMED)),
            )

    def _name(self) -> str:
        if self._rank is not None:
            return f"rank {self._rank}"
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            return f"rank {distributed.get_rank()}"
        return f"rank {os.environ.get('RANK', '0')}"


def _world_size() -> int:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    return int(os.environ.get("WORLD_SIZE", "1"))


def _state_of(value: Any) -> Any:
    if is_stateful(value):
        return value.state_dict()
    if type(value) is dict:
        return {key: _state_of(one) for key, one in value.items()}
    if type(value) is list:
        return [_state_of(one) for one in value]
    return value


def _is_large(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, DTensor) or (
        not is_packed(tensor) and tensor.layout == torch.strided and tensor.nbytes >= _SMALL_BYTES
    )


def _given(value: Any, state: Any) -> Any:
    """Return a value with a state; objects and containers stay the same ones."""
    if is_stateful(value):
        value.load_state_dict(state)
        return value
    if type(value) is dict and isinstance(state, dict):
        new = {key: _given(value.get(key), one) for key, one in state.items()}
        value.clear()
        value.update(new)
        return value
    if type(value) is list and isinstance(state, list):
        value[:] = [_given(v, s) for v, s in zip(value + [None] * len(state), state, strict=False)]
        return value
    return state


class _Generators:
    """The default generators of this process."""

    def state_dict(self) -> dict[str, Any]:
        states = random_generators.states(devices=False)
        state = random_generators.to_plain(states)
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        random_generators.set_states(random_generators.from_plain(state))
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
