"""`undaunted chaos` while the network or the disk is slow: nothing fails, nothing differs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.test_chaos import SCRIPT, TWO, Ended, chaos
from undaunted.chaos.trials.nemesis import slow_disk, slow_network
from undaunted.chaos.trials.outcome import read_outcome

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.timeout(400)]


@pytest.fixture(autouse=True)
def _needs_torch() -> None:
    pytest.importorskip("torch")


def planned(tmp_path: Path, *kinds: str) -> Ended:
    lines = [f"  - {{kind: {kind}, rank: 1, iteration: 10, run: 1}}\n" for kind in kinds]
    plan = tmp_path / "faults.yaml"
    plan.write_text("faults:\n" + "".join(lines))
    return chaos(tmp_path, *TWO, "--plan", str(plan), SCRIPT, "--dir", "{dir}")


def is_harmless(tmp_path: Path, ended: Ended) -> list[str]:
    """Check it; return what the nemesis did."""
    (verdict,) = ended.result["verdicts"]
    assert verdict["colour"] == "green", ended.text
    assert verdict["blame"]["kind"] == ""
    assert verdict["identical_from"] is not None
    outcome = read_outcome(tmp_path / "chaos" / "run-1")
    assert outcome.exit_codes == [0]
    return [note.what for note in outcome.notes]


def test_a_slow_network(tmp_path: Path) -> None:
    if reason := slow_network.not_possible():
        pytest.skip(reason)

    made = is_harmless(tmp_path, planned(tmp_path, "slow-network"))

    # Without the fault, the program would have been over before it was lifted.
    assert made == ["slowed", "lifted"]


def test_a_slow_disk(tmp_path: Path) -> None:
    if reason := slow_disk.not_possible(tmp_path):
        pytest.skip(reason)

    made = is_harmless(tmp_path, planned(tmp_path, "slow-disk"))

    assert made[0] == "slowed"  # what is left in memory may be written after the program's end
    assert "failed" not in made


def test_a_slow_disk_where_none_can_be_made(tmp_path: Path) -> None:
    reason = slow_disk.not_possible(tmp_path)
    if not reason:
        pytest.skip("this machine can make a slow disk")

    ended = planned(tmp_path, "slow-disk")

    (verdict,) = ended.result["verdicts"]
    assert verdict["colour"] == "skipped"
    assert reason in verdict["skipped"]
    assert ended.code == 0
