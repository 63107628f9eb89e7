"""What the launcher is told of slow ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from undaunted.attribution.straggler import (
    Detector,
    NVRxStragglerDetectionConfig,
    StragglerId,
)
from undaunted.base import torch_ranks
from undaunted.integrations.megatron.straggler import NVRxStragglerDetectionManager
from undaunted.progress import writer as writer_module
from undaunted.progress.area import PageArea
from undaunted.progress.layout import STOPPED_ALONE

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def area(monkeypatch: pytest.MonkeyPatch) -> Iterator[PageArea]:
    with PageArea.create(1) as area:
        monkeypatch.setenv("UNDAUNTED_PAGE", area.env_value(0))
        area.stop_after(0, "straggler")  # the launcher knows already
        yield area
        if isinstance(writer_module.current, writer_module.PageWriter):
            writer_module.current.detach()
        writer_module.current = writer_module._NotYet()


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("stops", [True, False])
def test_the_launcher_knows_of_a_stop_for_a_slow_rank(
    area: PageArea, monkeypatch: pytest.MonkeyPatch, rank: int, stops: bool
) -> None:
    """Ranks end with 0 then, but have not finished. Rank 0 has the report."""
    slow = {StragglerId(3, "node")}
    report = SimpleNamespace(
        identify_stragglers=lambda **_: {
            "straggler_gpus_relative": slow,
            "straggler_gpus_individual": set(),
        },
        gpu_relative_perf_scores={3: 0.2},
        gpu_individual_perf_scores={3: 1.0},
        rank_to_node={3: "node"},
    )
    monkeypatch.setattr(
        Detector,
        "generate_report_if_interval_elapsed",
        lambda: report if rank == 0 else None,
    )
    monkeypatch.setattr(Detector, "is_interval_elapsed", lambda: True)
    monkeypatch.setattr(torch_ranks, "gather", lambda _: [True])
    manager = NVRxStragglerDetectionManager(
        NVRxStragglerDetectionConfig(enabled=True, stop_if_detected=stops)
    )
    manager.initialized = True
    assert manager.check_stragglers(rank) is stops
    wish = area.snapshot(0).wish
    said = None if wish is None else (wish.why, wish.rank)
    assert said == (("straggler", 3) if stops and rank == 0 else None)
    assert (area.asked() == [STOPPED_ALONE]) is stops
