"""A state dictionary as users have it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from undaunted.checkpointing.local.basic_state_dict import (
    BasicTensorAwareStateDict as BasicTensorAwareStateDict,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def nested_values(x: Any) -> Iterator[Any]:
    """Yield what is in dicts and lists, whatever their nesting."""
    if not isinstance(x, dict | list):
        yield x
        return
    for part in x.values() if isinstance(x, dict) else x:
        yield from nested_values(part)


def dict_list_map_inplace(f: Callable[[Any], Any], x: Any) -> Any:
    """Replace what is in dicts and lists by ``f`` of it, and return them."""
    if not isinstance(x, dict | list):
        return f(x)
    for key, part in x.items() if isinstance(x, dict) else enumerate(x):
        x[key] = dict_list_map_inplace(f, part)
    return x
