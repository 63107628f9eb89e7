# Made from names/*.yaml by `make generated`.
"""The ranks after a fault, and those that call the function."""

from __future__ import annotations

from undaunted.inprocess.rank_assignment import ActivateAllRanks as ActivateAllRanks
from undaunted.inprocess.rank_assignment import (
    ActiveWorldSizeDivisibleBy as ActiveWorldSizeDivisibleBy,
)
from undaunted.inprocess.rank_assignment import FillGaps as FillGaps
from undaunted.inprocess.rank_assignment import FilterCountGroupedByKey as FilterCountGroupedByKey
from undaunted.inprocess.rank_assignment import Layer as Layer
from undaunted.inprocess.rank_assignment import LayerFlag as LayerFlag
from undaunted.inprocess.rank_assignment import MaxActiveWorldSize as MaxActiveWorldSize
from undaunted.inprocess.rank_assignment import RankAssignment as RankAssignment
from undaunted.inprocess.rank_assignment import RankAssignmentCtx as RankAssignmentCtx
from undaunted.inprocess.rank_assignment import RankDiscarded as RankDiscarded
from undaunted.inprocess.rank_assignment import RankFilter as RankFilter
from undaunted.inprocess.rank_assignment import ShiftRanks as ShiftRanks
from undaunted.inprocess.rank_assignment import Tree as Tree
