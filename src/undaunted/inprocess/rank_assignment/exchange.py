"""What rank assignments know of every rank: from the wrapper, or exchanged over the store."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from undaunted.inprocess.barriers import barrier

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from undaunted.inprocess.rank_assignment.context import RankAssignmentCtx
    from undaunted.inprocess.state import State

TIMEOUT = timedelta(seconds=60)
_KEYS_AT_ONCE = 4096
_NEEDED = ("add", "set", "multi_get", "wait")  # of a store


def key_of(key_or_fn: str | Callable[[State], str], state: State) -> str:
    """Return the key itself, or what the function makes of the state, as text."""
    return str(key_or_fn(state)) if callable(key_or_fn) else key_or_fn


def known_of_all(
    ctx: RankAssignmentCtx, name: str, ours: Any, timeout: timedelta = TIMEOUT
) -> dict[int, Any]:
    """Return what every rank that is left says of itself, by rank.

    Outside of the wrapper, this is a collective over ``ctx.store``.

    Args:
        ctx: holds it already within the wrapper.
        name: of the kind of exchange; all ranks make the same ones, in the same order.
        ours: what this rank says; JSON-able.
        timeout: for the others to come.

    Raises:
        ValueError: there is neither information nor a store.
        TypeError: the store is not like one of torch's.
        BarrierError: ranks did not come.
    """
    ranks = [r for r in range(ctx.state.world_size) if r not in ctx.terminated_ranks]
    if ctx.info is not None:
        return {rank: ctx.info[rank] for rank in ranks if rank in ctx.info}
    if ctx.store is None:
        raise ValueError("a store is needed, for ranks to tell each other their keys")
    missing = [name for name in _NEEDED if not hasattr(ctx.store, name)]
    if missing:
        raise TypeError(
            f"{type(ctx.store).__name__} has no {', '.join(missing)}: for ranks to tell each other "
            "their keys, give a store of torch's, such as undaunted.inprocess.store.TCPStore, or "
            "what they would tell as RankAssignmentCtx(..., info={rank: keys})"
        )
    return _exchange(ctx, f"{name}:{len(ranks)}", ranks, ours, timeout)


def _exchange(
    ctx: RankAssignmentCtx, name: str, ranks: Sequence[int], ours: Any, timeout: timedelta
) -> dict[int, Any]:
    store, rank = ctx.store, ctx.state.rank
    if rank in ctx.terminated_ranks:
        return {}
    # Nobody is in the next exchange before all are through with this one: see the second barrier.
    name = f"{name}:{(store.add(f'inprocess_{name}', 1) - 1) // len(ranks)}"
    store.set(_key(name, rank), json.dumps(ours))
    barrier(store, [rank], f"{name}:told", len(ranks), timeout)
    told: dict[int, Any] = {}
    for at in range(0, len(ranks), _KEYS_AT_ONCE):
        some = ranks[at : at + _KEYS_AT_ONCE]
        values = store.multi_get([_key(name, each) for each in some])
        told |= {each: json.loads(value) for each, value in zip(some, values, strict=True)}
    barrier(store, [rank], f"{name}:read", len(ranks), timeout)
    return told


def _key(name: str, rank: int) -> str:
    return f"inprocess_{name}_{rank}"
