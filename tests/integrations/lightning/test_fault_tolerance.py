"""What limits are calculated from, and when training is complete. Needs no Lightning."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from nvidia_resiliency_ext.ptl_resiliency._watched import is_graceful, is_training_completed
from nvidia_resiliency_ext.ptl_resiliency.fault_tolerance_callback import Heartbeats
from nvidia_resiliency_ext.ptl_resiliency.fault_tolerance_sections_callback import Sections
from undaunted.fault_tolerance.rank_monitor_client import RankMonitorClient


@pytest.mark.parametrize(
    ("events", "enough"),
    [
        ("load beat save beat", True),
        ("beat load save beat beat", True),
        ("beat save beat", False),
        ("load save beat", False),
        ("load beat save", False),
        ("load beat beat", False),
        ("load save beat save beat", True),
    ],
)
def test_heartbeats_are_needed_before_and_after_a_save(events: str, enough: bool) -> None:
    seen = Heartbeats()
    for event in events.split():
        if event == "load":
            seen.loaded = True
        else:
            {"beat": seen.heartbeat, "save": seen.save}[event]()
    assert seen.enough is enough
    seen.used = True
    assert not seen.enough


@pytest.mark.parametrize(
    ("error", "graceful"),
    [
        (None, True),
        (SystemExit(), True),
        (SystemExit(0), True),
        (SystemExit(1), False),
        (SystemExit("a text"), False),
        (KeyboardInterrupt(), False),
        (ValueError(), False),
    ],
)
def test_a_program_that_leaves_with_0_means_it(error: BaseException | None, graceful: bool) -> None:
    assert is_graceful(error) is graceful


@pytest.mark.parametrize(
    ("limits", "at", "iterations", "error", "complete"),
    [
        ((-1, 4), (32, 4), 32, None, True),
        ((-1, 4), (31, 3), 31, None, False),
        ((20, -1), (20, 2), 20, None, True),
        ((20, None), (19, 2), 19, None, False),
        ((-1, 4), (20, 2), 1, None, True),
        ((-1, 4), (20, 2), 0, None, True),
        ((-1, 4), (20, 2), 0, ValueError(), False),
        ((-1, 4), (20, 2), 1, SystemExit(0), False),
        ((20, -1), (20, 2), 20, ValueError(), True),
        ((-1, -1), (20, 2), 20, None, False),
    ],
)
def test_when_training_is_complete(
    limits: tuple[int, int | None],
    at: tuple[int, int],
    iterations: int,
    error: BaseException | None,
    complete: bool,
) -> None:
    trainer = SimpleNamespace(
        max_steps=limits[0], max_epochs=limits[1], global_step=at[0], current_epoch=at[1]
    )
    assert is_training_completed(trainer, iterations, error) is complete


def test_sections_that_nest_are_open_once_and_others_may_not() -> None:
    client = RankMonitorClient()
    client.init_workload_monitoring()
    sections = Sections(client)
    with sections.inside("checkpointing", nests=True):
        with sections.inside("checkpointing", nests=True):
            pass
        assert [*client.timeouts_calc.open_sections] == ["checkpointing"]  # type: ignore[union-attr]
    with sections.inside("step"), pytest.raises(RuntimeError, match="'step' is open already"):  # noqa: SIM117
        with sections.inside("step"):
            pass
    with pytest.raises(ZeroDivisionError), sections.inside("step"):
        _ = 1 // 0
    assert not client.timeouts_calc.open_sections  # type: ignore[union-attr]
    client.shutdown_workload_monitoring()
