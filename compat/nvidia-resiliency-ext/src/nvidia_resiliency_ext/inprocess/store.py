"""Stores that ranks of in-process restart may share."""

from __future__ import annotations

from typing import Any

from undaunted.inprocess import store
from undaunted.inprocess.store import BarrierError as BarrierError
from undaunted.inprocess.store import BarrierOverflow as BarrierOverflow
from undaunted.inprocess.store import BarrierTimeout as BarrierTimeout
from undaunted.inprocess.store import FileStore as FileStore
from undaunted.inprocess.store import StoreMixin as StoreMixin
from undaunted.inprocess.store import TCPStore as TCPStore


class PrefixStore(store.PrefixStore):
    """The part of a store that belongs to one iteration.

    Args:
        iteration: number of it; a text is the prefix itself, as in undaunted.
        store: the whole.
    """

    STORE_PREFIX = "_inprocess_{iteration}"

    def __init__(self, iteration: int | str, store: Any) -> None:
        is_number = isinstance(iteration, int)
        prefix = self.STORE_PREFIX.format(iteration=iteration) if is_number else str(iteration)
        super().__init__(prefix, store)
