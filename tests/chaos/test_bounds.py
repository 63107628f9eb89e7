"""How long things may take."""

from __future__ import annotations

from undaunted.chaos import bounds
from undaunted.progress.samples import HEARTBEAT, SECTION, Knowledge, Samples

S = 1_000_000_000


def test_longest_silence_is_that_of_heartbeats_with_the_first_ones() -> None:
    samples = {
        HEARTBEAT: Samples(longest_ns=S, ever_ns=3 * S),
        SECTION + "checkpoint": Samples(longest_ns=90 * S, ever_ns=90 * S),
    }

    assert bounds.longest_silence([Knowledge(world_size=2, samples=samples)]) == 3
    assert bounds.longest_silence([]) == 0


def test_a_hang_is_ten_times_what_is_normal() -> None:
    assert bounds.hang_limit(0.01) == 5
    assert bounds.hang_limit(1.23) == 13


def test_a_run_may_take_longer_with_each_fault() -> None:
    without = bounds.run_deadline(10, 0, 5, 10)
    each = bounds.run_deadline(10, 1, 5, 10) - without

    assert without > 10
    assert each > 10 + 5 + 10
    assert bounds.run_deadline(10, 3, 5, 10) == without + 3 * each


def test_every_fault_may_need_a_restart_or_two() -> None:
    assert bounds.restarts(1) >= 2
    assert bounds.restarts(10) >= 20


def test_a_small_disk_holds_what_is_normal() -> None:
    assert bounds.small_disk_bytes(0) >= 1 << 20
    assert bounds.small_disk_bytes(1 << 30) >= 2 << 30


def test_nothing_is_slow_for_as_long_as_a_hang_takes() -> None:
    assert bounds.slow_seconds(5) == 2.5
    assert bounds.slow_seconds(600) == 5
