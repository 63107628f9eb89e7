"""Rank assignments: the rank of each process after a fault, and which ranks call the function."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from undaunted.inprocess.rank_assignment.assignments import ActivateAllRanks as ActivateAllRanks
    from undaunted.inprocess.rank_assignment.assignments import (
        ActiveWorldSizeDivisibleBy as ActiveWorldSizeDivisibleBy,
    )
    from undaunted.inprocess.rank_assignment.assignments import FillGaps as FillGaps
    from undaunted.inprocess.rank_assignment.assignments import (
        FilterCountGroupedByKey as FilterCountGroupedByKey,
    )
    from undaunted.inprocess.rank_assignment.assignments import (
        MaxActiveWorldSize as MaxActiveWorldSize,
    )
    from undaunted.inprocess.rank_assignment.assignments import RankAssignment as RankAssignment
    from undaunted.inprocess.rank_assignment.assignments import (
        RankAssignmentCtx as RankAssignmentCtx,
    )
    from undaunted.inprocess.rank_assignment.assignments import RankDiscarded as RankDiscarded
    from undaunted.inprocess.rank_assignment.assignments import RankFilter as RankFilter
    from undaunted.inprocess.rank_assignment.assignments import ShiftRanks as ShiftRanks
    from undaunted.inprocess.rank_assignment.tree import Layer as Layer
    from undaunted.inprocess.rank_assignment.tree import LayerFlag as LayerFlag
    from undaunted.inprocess.rank_assignment.tree import Tree as Tree

_MODULE_OF = {
    "ActivateAllRanks": "assignments",
    "ActiveWorldSizeDivisibleBy": "assignments",
    "FillGaps": "assignments",
    "FilterCountGroupedByKey": "assignments",
    "Layer": "tree",
    "LayerFlag": "tree",
    "MaxActiveWorldSize": "assignments",
    "RankAssignment": "assignments",
    "RankAssignmentCtx": "assignments",
    "RankDiscarded": "assignments",
    "RankFilter": "assignments",
    "ShiftRanks": "assignments",
    "Tree": "tree",
}

__all__ = [
    "ActivateAllRanks",
    "ActiveWorldSizeDivisibleBy",
    "FillGaps",
    "FilterCountGroupedByKey",
    "Layer",
    "LayerFlag",
    "MaxActiveWorldSize",
    "RankAssignment",
    "RankAssignmentCtx",
    "RankDiscarded",
    "RankFilter",
    "ShiftRanks",
    "Tree",
]


def __getattr__(name: str) -> object:
    if name in _MODULE_OF:
        from importlib import import_module

        value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
