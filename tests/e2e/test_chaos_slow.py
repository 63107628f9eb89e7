"""`undaunted chaos` while the network is slow: nothing fails, nothing differs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.test_chaos import SCRIPT, TWO, Ended, chaos
from undaunted.chaos.nemesis import slow_network
from undaunted.chaos.outcome import read_outcome

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.torch,
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("no_compiler"),
]


@pytest.fixture(autouse=True)
def _needs_torch() -> None:
    pytest.importorskip("torch")


def planned(tmp_path: Path, kind: str, script: str = SCRIPT, *words: str) -> Ended:
    plan = tmp_path / "faults.yaml"
    plan.write_text(f"faults:\n  - {{kind: {kind}, rank: 1, iteration: 10, run: 1}}\n")
    return chaos(tmp_path, *TWO, "--plan", str(plan), script, *(words or ("--dir", "{dir}")))


def is_harmless(tmp_path: Path, ended: Ended) -> list[str]:
    """Check it; return what the nemesis did."""
    (verdict,) = ended.result["verdicts"]
    assert verdict["colour"] == "green", ended.text
    assert verdict["blame"]["kind"] == ""
    assert verdict["identical_from"] is not None
    outcome = read_outcome(tmp_path / "chaos" / "run-1")
    assert outcome.exit_codes == [0]
    return [note.what for note in outcome.notes]


@pytest.mark.slow
def test_a_slow_network(tmp_path: Path) -> None:
    if reason := slow_network.not_possible():
        pytest.skip(reason)

    made = is_harmless(tmp_path, planned(tmp_path, "slow-network"))

    # Without the fault, the program would have been over before it was lifted.
    assert made == ["slowed", "lifted"]
