"""A layer of a `Tree`: how ranks are grouped, and what a group needs and may do."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.inprocess.state import State


class LayerFlag(enum.Flag):
    """How the groups of a layer make up for lost ranks."""

    RESERVE = enum.auto()  # inactive ranks of the group take the place of active ones
    BACKFILL = enum.auto()  # the last active ranks of the group do


@dataclasses.dataclass
class Layer:
    """One layer.

    Attributes:
        min_ranks: a group with fewer ranks left is terminated as a whole.
        max_ranks: so many ranks of a group may be active; None = all.
        key_or_fn: the key of this rank, or a function that makes it from the state. Within a group
            of the layer above, ranks with the same key are a group.
        flag: how groups make up for lost ranks; None = not at all.
    """

    min_ranks: int = 1
    max_ranks: int | None = None
    key_or_fn: str | Callable[[State], str] = ""
    flag: LayerFlag | None = None
