from __future__ import annotations

import pytest

from undaunted.inprocess.exception import RestartAbort
from undaunted.inprocess.initialize import Initialize, RetryController
from undaunted.inprocess.state import FrozenState

STATE = FrozenState(rank=0, world_size=4, active_rank=0, active_world_size=2, iteration=3)


@pytest.mark.parametrize(
    "controller",
    [
        RetryController(),
        RetryController(max_iterations=4),
        RetryController(min_world_size=4, min_active_world_size=2),
    ],
)
def test_goes_on(controller: RetryController) -> None:
    assert isinstance(controller, Initialize)
    assert controller(STATE) is STATE


@pytest.mark.parametrize(
    "controller",
    [
        RetryController(max_iterations=3),
        RetryController(max_iterations=1),
        RetryController(min_world_size=5),
        RetryController(min_active_world_size=3),
    ],
)
def test_ends_the_job(controller: RetryController) -> None:
    with pytest.raises(RestartAbort, match=r"state.iteration=3, .*state.active_world_size=2"):
        controller(STATE)


def test_nobody_is_active() -> None:
    with pytest.raises(RestartAbort):
        RetryController()(FrozenState(rank=0, world_size=1, active_world_size=0))
