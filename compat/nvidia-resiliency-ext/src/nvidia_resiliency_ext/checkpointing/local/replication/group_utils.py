"""Groups of ranks that keep copies for each other, and what they send."""

from __future__ import annotations

from typing import Any, TypeAlias

from undaunted.checkpointing.local.replication.group_utils import ExchangePlan as ExchangePlan
from undaunted.checkpointing.local.replication.group_utils import (
    ExchangePlanEntry as ExchangePlanEntry,
)
from undaunted.checkpointing.local.replication.group_utils import GroupWrapper as GroupWrapper
from undaunted.checkpointing.local.replication.group_utils import (
    parse_group_sequence as parse_group_sequence,
)
from undaunted.checkpointing.local.replication.utils import batched as batched

ProcessGroupLike: TypeAlias = Any  # a group of torch, or a wrapper of one
