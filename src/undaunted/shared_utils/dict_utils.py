"""Nested dictionaries and lists: filter, map, merge, compare."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterable, Iterator

Nested = dict[Any, Any] | list[Any]


def extract_matching_values(
    x: Nested, predicate: Callable[[Any], bool], return_lists_as_dicts: bool = False
) -> tuple[Nested, Nested]:
    """Divide the leaves of ``x`` by a predicate, each half with the structure that leads to them.

    Args:
        x: dictionaries and lists in each other.
        predicate: of a leaf.
        return_lists_as_dicts: lists become dictionaries by index, so that positions are kept.

    Returns:
        What matches, and what does not; containers that are empty in ``x`` are in the latter.
    """
    _check(x)
    as_list = isinstance(x, list) and not return_lists_as_dicts
    matching: dict[Any, Any] = {}
    others: dict[Any, Any] = {}
    for key, value in _items(x):
        if not isinstance(value, dict | list):
            (matching if predicate(value) else others)[key] = value
            continue
        yes, no = extract_matching_values(value, predicate, return_lists_as_dicts)
        if yes:
            matching[key] = yes
        if no or not value:
            others[key] = no
    if as_list:
        return list(matching.values()), list(others.values())
    return matching, others


def nested_values(x: Nested) -> Iterator[Any]:
    """Yield the leaves."""
    for _, _, value in nested_items_iter(x):
        yield value


def nested_items_iter(x: Nested) -> Iterator[tuple[Nested, Any, Any]]:
    """Yield each leaf with the container it is in and its key or index there."""
    _check(x)
    for key, value in _items(x):
        if isinstance(value, dict | list):
            yield from nested_items_iter(value)
        else:
            yield x, key, value


def dict_map(f: Callable[[Any], Any], d: dict[Any, Any]) -> None:
    """Replace each value of ``d`` by ``f(value)``."""
    for key in list(d):
        d[key] = f(d[key])


def dict_map_with_key(f: Callable[[Any, Any], Any], d: dict[Any, Any]) -> None:
    """Replace each value of ``d`` by ``f(key, value)``."""
    for key in list(d):
        d[key] = f(key, d[key])


def dict_list_map_inplace(f: Callable[[Any], Any], x: Any) -> Any:
    """Replace each leaf by ``f(leaf)`` in the containers themselves; return ``x``, or ``f(x)``."""
    if not isinstance(x, dict | list):
        return f(x)
    for key, value in list(_items(x)):
        x[key] = dict_list_map_inplace(f, value)
    return x


def merge(x1: Any, x2: Any, key: tuple[Any, ...] = ()) -> Any:
    """Put ``x2`` into ``x1`` and return it; lists are merged by position.

    Args:
        x1: changed.
        x2: what is put in.
        key: where these two are, for messages.

    Raises:
        ValueError: both have a leaf at the same place, or lists of different lengths.
    """
    if isinstance(x1, dict) and isinstance(x2, dict):
        for name, value in x2.items():
            x1[name] = merge(x1[name], value, (*key, name)) if name in x1 else value
    elif isinstance(x1, list) and isinstance(x2, list):
        if len(x1) != len(x2):
            raise ValueError(f"lists of {len(x1)} and {len(x2)} items cannot be merged (at {key})")
        for index, value in enumerate(x2):
            x1[index] = merge(x1[index], value, (*key, index))
    else:
        raise ValueError(  # noqa: TRY004 - the types are right
            f"both have a value at {key}: {x1!r} and {x2!r}"
        )
    return x1


def map_reduce(
    xs: Iterable[Any],
    key_fn: Callable[[Any], Any] = lambda x: x,
    value_fn: Callable[[Any], Any] = lambda x: x,
    reduce_fn: Callable[[list[Any]], Any] = lambda x: x,
) -> dict[Any, Any]:
    """Group ``xs`` by ``key_fn``, and return ``reduce_fn`` of each group's ``value_fn``."""
    groups: dict[Any, list[Any]] = {}
    for x in xs:
        groups.setdefault(key_fn(x), []).append(value_fn(x))
    return {key: reduce_fn(values) for key, values in groups.items()}


def merge_state_dicts_(current: dict[Any, Any], incoming: dict[Any, Any]) -> None:
    """Put ``incoming`` into ``current``; where both have a value, the incoming one counts."""
    for key, value in incoming.items():
        if isinstance(value, dict) and isinstance(current.get(key), dict):
            merge_state_dicts_(current[key], value)
        else:
            current[key] = value


def merge_namespaces_(ns1: Namespace, ns2: Namespace) -> None:
    """Set the attributes of ``ns2`` in ``ns1``."""
    vars(ns1).update(vars(ns2))


def compare_namespaces(ns1: Namespace, ns2: Namespace) -> Namespace:
    """Return what ``ns2`` has that ``ns1`` has not, or with another value."""
    old = vars(ns1)
    new = {k: v for k, v in vars(ns2).items() if k not in old or old[k] != v}
    return type(ns2)(**new)


def merge_namespace_changes(original_ns: Namespace, changes: dict[str, Any]) -> None:
    """Set attributes."""
    vars(original_ns).update(changes)


def compare_state_dicts_and_get_new_values(
    curr_state: dict[Any, Any], new_state: dict[Any, Any]
) -> dict[Any, Any]:
    """Return what the new one has that the current one has not, or with another value."""
    found: dict[Any, Any] = {}
    for key, value in new_state.items():
        if key not in curr_state:
            found[key] = value
        elif isinstance(value, dict) and isinstance(curr_state[key], dict):
            if inner := compare_state_dicts_and_get_new_values(curr_state[key], value):
                found[key] = inner
        elif curr_state[key] != value:
            found[key] = value
    return found


def inspect_types(x: Any, prefix: tuple[Any, ...] = (), indent: int = 4) -> None:
    """Print the structure: each leaf with its type, indented by depth."""
    margin = " " * indent * len(prefix)
    if not isinstance(x, dict | list):
        print(f"{margin}- {prefix[-1] if prefix else ''}: [{type(x)}]: {x}")
        return
    if prefix:
        print(f"{margin}> {prefix[-1]}:")
    for key, value in _items(x):
        inspect_types(value, (*prefix, key), indent)


def _items(x: Nested) -> Iterable[tuple[Any, Any]]:
    return x.items() if isinstance(x, dict) else enumerate(x)


def _check(x: object) -> None:
    if not isinstance(x, dict | list):
        raise TypeError(f"expected a dict or a list, got {type(x).__name__}")
