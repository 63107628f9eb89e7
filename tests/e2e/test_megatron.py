"""The names of Megatron under a real launcher."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.launcher import launched

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.e2e

SCRIPT = """
    import os, time
    from types import SimpleNamespace
    from undaunted.integrations.megatron import fault_tolerance as ft

    ft.setup(SimpleNamespace(save="saved", async_save=False, calc_ft_timeouts=True,
                             ft_num_warmup_iters=1))
    ft.maybe_setup_simulated_fault()
    time.sleep(1.2)
    ft.on_checkpoint_loaded(False)
    for iteration in range(20):
        ft.on_training_step_start()
        time.sleep(1.2 if iteration == 3 else 0.01)
        ft.on_training_step_end()
    time.sleep(1.2)
    ft.on_checkpointing_start()
    ft.on_checkpointing_end(False)
    ft.shutdown()
    time.sleep(1.2)
    print("rank", os.environ["RANK"], "is done")
"""


def test_a_job_of_sections_alone_never_dies_of_a_limit_of_heartbeats(tmp_path: Path) -> None:
    """Each of its stretches is longer than the limits, which a plug-in has set for it."""
    options = ["--nproc-per-node", "2"]
    options += ["--ft-initial-rank-heartbeat-timeout", "1", "--ft-rank-heartbeat-timeout", "1"]
    with launched(tmp_path, SCRIPT, *options) as launcher:
        assert launcher.finish() == 0, launcher.text
        text = launcher.text
    assert "rank 0 is done" in text
    assert "rank 1 is done" in text
    assert "hang" not in text
    assert "FT: updated timeouts saved to saved/ft_state.json." in text
