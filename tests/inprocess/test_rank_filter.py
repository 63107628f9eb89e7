from __future__ import annotations

from undaunted.inprocess.compose import Compose
from undaunted.inprocess.rank_filter import (
    ActiveWorldSizeDivisibleBy,
    MaxActiveWorldSize,
    RankFilter,
)
from undaunted.inprocess.state import Mode, State


def test_filters() -> None:
    both = Compose(ActiveWorldSizeDivisibleBy(2), MaxActiveWorldSize(5))
    assert isinstance(both, RankFilter)
    state = both(State(4, 8))
    assert (state.mode, state.active_rank, state.active_world_size) == (Mode.INACTIVE, None, 4)
    state = both(State(3, 8))
    assert (state.mode, state.active_rank, state.active_world_size) == (Mode.ACTIVE, 3, 4)
