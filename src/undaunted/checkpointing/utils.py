"""Helpers for states of training: copying and comparing them, and taking the time."""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import sys
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from undaunted.checkpointing.dcp.garbage import collection_paused

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

# Its name in NVIDIA Resiliency Extension.
disable_gc = collection_paused

_default_logger = logging.getLogger("undaunted")
_stack: ContextVar[tuple[tuple[str, logging.Logger], ...]] = ContextVar("stack", default=())


def snapshot(value: Any, deep: bool = False) -> Any:
    """Return a copy whose content is fixed: tensors of all devices are in new memory of the CPU.

    Dicts, lists, tuples and sets are built anew. What is the same tensor in several places, also as
    different views of the same elements, is the same copy.

    Args:
        value: any nesting; left alone.
        deep: whether other objects are copied too (`copy.deepcopy`), or handed on.
    """
    memo: dict[Any, Any] = {}
    fixed = _fixed(value, memo, deep)
    _synchronize(memo)
    return fixed


def preload_tensors(state_dict: Any, non_blocking: bool = True) -> Any:
    """Return the state with copies of all its tensors in memory of the CPU.

    CPU tensors are copied too, so that training may change them at once.

    Args:
        state_dict: any nesting of dicts, lists and tuples; left alone.
        non_blocking: accepted for compatibility: all copies are started before the first is waited
            for, and are whole when this returns.
    """
    del non_blocking
    return snapshot(state_dict)


def dict_list_map_outplace(f: Callable[[Any], Any], x: Any) -> Any:
    """Return a nesting of dicts and lists with ``f`` applied to everything that is neither."""
    if isinstance(x, dict):
        return {key: dict_list_map_outplace(f, value) for key, value in x.items()}
    if isinstance(x, list):
        return [dict_list_map_outplace(f, value) for value in x]
    return f(x)


def diff(
    x1: Any, x2: Any, prefix: tuple[Any, ...] = ()
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Compare two nestings of dicts, lists and tuples.

    Returns:
        The paths that only the left one has, those that only the right one has, and, for what
        differs, the path and both types.
    """
    left, right = _children(x1), _children(x2)
    if left is None or right is None or isinstance(x1, dict) != isinstance(x2, dict):
        return [], [], [] if _same(x1, x2) else [(prefix, type(x1), type(x2))]
    only_left = [(*prefix, key) for key in left if key not in right]
    only_right = [(*prefix, key) for key in right if key not in left]
    mismatch: list[tuple[Any, ...]] = []
    for key in left:
        if key in right:
            deeper = diff(left[key], right[key], (*prefix, key))
            only_left += deeper[0]
            only_right += deeper[1]
            mismatch += deeper[2]
    return only_left, only_right, mismatch


def wrap_for_async(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``fn`` with the garbage collector switched off while it runs."""

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with disable_gc():
            return fn(*args, **kwargs)

    return wrapped


@contextlib.contextmanager
def logger_stack(
    name: str | None = None, current_logger: logging.Logger | None = None
) -> Generator[tuple[str, logging.Logger], None, None]:
    """Name what is being done, below what was named around it.

    Args:
        name: of this part; None = no further name.
        current_logger: for messages inside; None = the one around it, or ``nvrx``.

    Yields:
        All names, joined by dots, and the logger.
    """
    around = _stack.get()
    logger = current_logger or (around[-1][1] if around else _default_logger)
    token = _stack.set((*around, (name, logger)) if name is not None else around)
    try:
        yield ".".join(part for part, _ in _stack.get()), logger
    finally:
        _stack.reset(token)


@contextlib.contextmanager
def debug_time(
    name: str,
    logger: logging.Logger | None = None,
    threshold: float = float("-inf"),
    level: int | None = None,
) -> Generator[None, None, None]:
    """Log how long the block took.

    Args:
        name: of the block; see `logger_stack`.
        logger: None = the one around it.
        threshold: in seconds; blocks that are shorter are not logged.
        level: of the message; None = ``logging.DEBUG``.
    """
    with logger_stack(name, logger) as (names, chosen):
        begun = time.perf_counter()
        try:
            yield
        finally:
            taken = time.perf_counter() - begun
            if taken > threshold:
                chosen.log(
                    logging.DEBUG if level is None else level, "%s took %.3f s", names, taken
                )


def debug_msg(msg: str) -> None:
    """Log a message with the names of `logger_stack` before it."""
    with logger_stack() as (names, logger):
        logger.debug("%s %s", names, msg)


def _fixed(value: Any, memo: dict[Any, Any], deep: bool) -> Any:
    if isinstance(value, dict):
        return _like(value, [(k, _fixed(v, memo, deep)) for k, v in value.items()], deep)
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(_fixed(v, memo, deep) for v in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_fixed(v, memo, deep) for v in value))
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        return _fixed_tensor(value, memo)
    if numpy is not None and isinstance(value, numpy.ndarray):
        return copy.deepcopy(value)
    if isinstance(value, bytearray):
        return bytearray(value)
    return copy.deepcopy(value) if deep else value


def _like(value: dict[Any, Any], items: list[tuple[Any, Any]], deep: bool) -> dict[Any, Any]:
    if type(value) is dict:
        return dict(items)
    other = copy.copy(value)  # keeps what the class adds: the factory of a defaultdict, _metadata
    other.clear()
    for key, item in items:
        other[key] = item
    if deep and hasattr(other, "__dict__"):
        other.__dict__.update(copy.deepcopy(value.__dict__))
    return other


def _fixed_tensor(tensor: Any, memo: dict[Any, Any]) -> Any:
    key = _elements(tensor)
    if key not in memo:
        from undaunted.checkpointing.dcp import packed  # needs torch, which is there

        if tensor.device.type != "cpu":
            memo.setdefault("devices", set()).add(tensor.device)
        detached = tensor.detach()
        of_parts = packed.is_packed(tensor)
        fixed = packed.copied(detached, _on_cpu) if of_parts else _on_cpu(detached)
        # The tensor is kept: its storage may not be given to another one before the end.
        memo[key] = (tensor, fixed.requires_grad_(tensor.requires_grad and tensor.is_leaf))
    return memo[key][1]


def _on_cpu(tensor: Any) -> Any:
    if tensor.device.type == "cpu":
        return tensor.clone()
    return tensor.to("cpu", non_blocking=True)


def _elements(tensor: Any) -> Any:
    """What tells tensors of the same elements; tensors without plain memory are all different."""
    if tensor.layout is not sys.modules["torch"].strided or tensor.numel() == 0:
        return id(tensor)
    try:
        address = tensor.data_ptr()
    except RuntimeError:  # a subclass without a storage of its own
        address = 0
    if address == 0:
        return id(tensor)
    place = (type(tensor), tensor.device, address, tensor.dtype, tensor.requires_grad)
    return (*place, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg())


def _synchronize(memo: dict[Any, Any]) -> None:
    torch: Any = sys.modules.get("torch")
    for device in memo.get("devices", ()):
        torch.accelerator.synchronize(device)


def _children(value: Any) -> dict[Any, Any] | None:
    if isinstance(value, dict):
        return value
    if isinstance(value, (list, tuple)):
        return dict(enumerate(value))
    return None


def _same(x1: Any, x2: Any) -> bool:
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(x1, torch.Tensor):
        return isinstance(x2, torch.Tensor) and bool(
            x1.shape == x2.shape and x1.dtype == x2.dtype and torch.all(x1.cpu() == x2.cpu())
        )
    if numpy is not None and isinstance(x1, numpy.ndarray):
        return bool(numpy.array_equal(x1, x2))
    return bool(x1 == x2)
