"""The register has one history, and a bug planted in it shows within a few hundred runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from simulator.register.run import Counts, run
from tests.simulator.register.bugs import BUGS

if TYPE_CHECKING:
    from collections.abc import Callable

SEEDS = 400


def test_there_is_one_history() -> None:
    counts = Counts()
    assert not [seed for seed in range(SEEDS) if run(seed, counts)]
    assert counts.leaders > SEEDS
    assert counts.held > SEEDS
    assert counts.committees > SEEDS / 2


@pytest.mark.parametrize("bug", BUGS.values(), ids=list(BUGS))
def test_there_are_two_where_a_rule_is_left_out(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    assert any(run(seed) for seed in range(SEEDS))
