"""The same data and the same batch, whatever happens to the job.

    from undaunted.data import Loader

Names are imported when they are first used. Design: docs/design/data.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from undaunted.data.batches import Batches as Batches
    from undaunted.data.formats import ShardError as ShardError
    from undaunted.data.loader import Loader as Loader
    from undaunted.data.order import GlobalOrder as GlobalOrder
    from undaunted.data.order import Mixture as Mixture
    from undaunted.data.plan import DataChangedError as DataChangedError
    from undaunted.data.shard_order import ShardOrder as ShardOrder
    from undaunted.data.shards import Shards as Shards
    from undaunted.data.tokens import TokenFile as TokenFile

_MODULES = {
    "Batches": "batches",
    "DataChangedError": "plan",
    "GlobalOrder": "order",
    "Loader": "loader",
    "Mixture": "order",
    "ShardError": "formats",
    "ShardOrder": "shard_order",
    "Shards": "shards",
    "TokenFile": "tokens",
}

__all__ = [
    "Batches",
    "DataChangedError",
    "GlobalOrder",
    "Loader",
    "Mixture",
    "ShardError",
    "ShardOrder",
    "Shards",
    "TokenFile",
]


def __dir__() -> list[str]:
    return __all__


__getattr__ = lazy_names(__name__, _MODULES)
