"""What a hollow state has beside plain data: placeholders, small values of torch and numpy."""

from __future__ import annotations

import contextlib
import pickle
from typing import TYPE_CHECKING, Any

import torch

from undaunted.checkpointing.format import plain
from undaunted.checkpointing.format.plain import PlainError
from undaunted.checkpointing.local import basic_state_dict  # noqa: F401 - becomes known
from undaunted.checkpointing.local.base_state_dict import TensorAwareStateDict, TensorPlaceholder

if TYPE_CHECKING:
    from collections.abc import Callable

with contextlib.suppress(ImportError):
    import numpy as np

_PICKLED = "pickle"
_HINT = (
    "it is neither plain data nor a tensor. Convert it, or give allow_pickle=True: reading a file "
    "then runs whatever code those who can write to the folder have put into it"
)


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a type of torch, without ``torch.``."""
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    """Return the type of torch of this name.

    Raises:
        ValueError: there is none.
    """
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"this version of torch has no type {name!r}")  # noqa: TRY004 - a bad value
    return dtype


def encode_state(hollow: TensorAwareStateDict, allow_pickle: bool) -> tuple[str, bytes]:
    """Return kind and content of a hollow state.

    Raises:
        PlainError: something in it is not plain; it is named.
    """
    try:
        state = hollow.plain_state()
    except PlainError:
        if not allow_pickle:
            raise
        return _PICKLED, pickle.dumps(hollow)

    def other(value: object) -> tuple[str, object]:
        parts = _parts(value)
        if parts is not None:
            return parts
        if not allow_pickle:
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            raise PlainError(f"an object of type {kind}: {_HINT}")
        return _PICKLED, pickle.dumps(value)

    return hollow.kind(), plain.encode(state, other)


def decode_state(kind: str, content: bytes, allow_pickle: bool) -> TensorAwareStateDict:
    """Return the hollow state.

    Raises:
        PlainError: the content is damaged, or must not be read.
    """
    if kind == _PICKLED:
        hollow = _unpickle(content) if allow_pickle else _refuse_pickle(content)
        if not isinstance(hollow, TensorAwareStateDict):
            raise PlainError(f"an object of type {type(hollow).__name__}, not a state")
        return hollow
    if kind not in TensorAwareStateDict.kinds:
        raise PlainError(f"the class {kind} is not known here: import it before loading")
    makers = _MAKERS | {_PICKLED: _unpickle if allow_pickle else _refuse_pickle}
    return TensorAwareStateDict.kinds[kind].from_plain_state(plain.decode(content, makers))


def encode_object(value: object) -> bytes:
    """Return the bytes of plain data and small values of torch and numpy; never a pickle.

    Raises:
        PlainError: something else is in it.
    """

    def other(value: object) -> tuple[str, object]:
        return _parts(value) or plain.no_others(value)

    return plain.encode(value, other)


def decode_object(content: bytes) -> Any:
    """Return what `encode_object` has encoded.

    Raises:
        PlainError: it is damaged.
    """
    return plain.decode(content, _MAKERS)


def _parts(value: object) -> tuple[str, object] | None:
    """Return name and parts of a value that is known here."""
    if isinstance(value, TensorPlaceholder):
        return "placeholder", [value.device, list(value.shape), dtype_name(value.dtype)]
    if isinstance(value, torch.dtype):
        return "dtype", dtype_name(value)
    if isinstance(value, torch.device):
        return "device", str(value)
    if isinstance(value, torch.Size):
        return "size", list(value)
    if "np" in globals():
        # Of the exact types: subclasses have more than values. Records may hold objects.
        if type(value) is np.ndarray and value.dtype.kind in "biufcSUmM":
            return "ndarray", [value.dtype.str, list(value.shape), value.tobytes()]
        if isinstance(value, np.generic) and value.dtype.kind in "biufcSUmM":
            return "scalar", [value.dtype.str, value.tobytes()]
    return None


def _placeholder(parts: Any) -> TensorPlaceholder:
    device, shape, dtype = parts
    return TensorPlaceholder(device, tuple(shape), dtype_of(dtype))


def _ndarray(parts: Any) -> Any:
    dtype, shape, content = parts
    return np.frombuffer(content, _plain_dtype(dtype)).reshape(shape).copy()


def _scalar(parts: Any) -> Any:
    dtype, content = parts
    return np.frombuffer(content, _plain_dtype(dtype))[0]


def _plain_dtype(name: str) -> Any:
    dtype = np.dtype(name)
    if dtype.hasobject:
        raise ValueError(f"an array of {name}")
    return dtype


def _unpickle(content: bytes) -> Any:
    return pickle.loads(content)  # noqa: S301 - the user has allowed it


def _refuse_pickle(_: Any) -> Any:
    raise PlainError(
        "an object that was pickled: give allow_pickle=True only if nobody else can write to the "
        "folder"
    )


_MAKERS: dict[str, Callable[[Any], object]] = {
    "placeholder": _placeholder,
    "dtype": dtype_of,
    "device": torch.device,
    "size": torch.Size,
    "ndarray": _ndarray,
    "scalar": _scalar,
}
