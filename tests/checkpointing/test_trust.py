"""Rounds that load checkpoints, as the launcher starts them: each test plays several of them."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from undaunted.checkpointing import choose
from undaunted.checkpointing.format import ledger
from undaunted.checkpointing.format.ledger import Failure

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NOT_FINITE = {"cause": "not_finite", "error": "FloatingPointError: loss is nan", "steps": 2}


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Begin a round, with what the launcher says of the one before."""

    def begun(number: int, rank: int = 0, **failure: Any) -> None:
        monkeypatch.setenv("UNDAUNTED_SUSPECT_STEPS", "20")
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run")
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(number))
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        monkeypatch.setenv("UNDAUNTED_FAILURE", "")
        if failure:
            about = Failure(round=number - 1, **failure)
            monkeypatch.setenv("UNDAUNTED_FAILURE", msgspec.json.encode(about).decode())

    return begun


def paths(folder: Path, *steps: int) -> list[str]:
    """Checkpoints of a script that saves by itself, the newest first."""
    found = [folder / f"step-{step}.pt" for step in sorted(steps, reverse=True)]
    for path in found:
        path.touch()
    return [str(path) for path in found]


def test_a_script_that_saves_by_itself(tmp_path: Path, begin: Callable[..., None]) -> None:
    three = paths(tmp_path, 30, 60, 90)
    assert choose(three) == three[0]
    assert not (tmp_path / ".ledger").exists()  # without a launcher
    begin(0)
    assert choose(three) == three[0]
    begin(1, **NOT_FINITE)
    assert choose(three) == three[1]
    begin(2, cause="killed", steps=1)
    assert choose(three) == three[1]
    os.utime(three[0], ns=(1, 1))  # saved again
    begin(3, cause="killed", steps=1)
    assert choose(three) == three[0]


def test_ranks_come_to_the_same_in_any_order(tmp_path: Path, begin: Callable[..., None]) -> None:
    three = paths(tmp_path, 30, 60, 90)
    begin(0)
    choose(three)
    for number, order in enumerate([(0, 1, 2), (2, 0, 1), (1, 2, 0)], start=1):
        taken = set()
        for rank in order:
            begin(number, rank, **NOT_FINITE)
            taken.add(choose(three))
        assert taken == {three[number] if number < 3 else three[0]}


def test_nothing_there(begin: Callable[..., None]) -> None:
    begin(0)
    assert choose([]) is None


@pytest.mark.parametrize("content", [b"garbage", b"\xff" * 2000])
def test_a_ledger_of_garbage(tmp_path: Path, begin: Callable[..., None], content: bytes) -> None:
    two = paths(tmp_path, 1, 2)
    (tmp_path / ".ledger").write_bytes(content)
    begin(1, **NOT_FINITE)
    assert choose(two) == two[0]
    entries = ledger.decode((tmp_path / ".ledger").read_bytes())
    assert [type(one).__name__ for one in entries] == ["Loaded"]


def test_a_ledger_that_cannot_be_written(tmp_path: Path, begin: Callable[..., None]) -> None:
    two = paths(tmp_path, 1, 2)
    (tmp_path / ".ledger").mkdir()
    begin(1, **NOT_FINITE)
    assert choose(two) == two[0]


@pytest.mark.parametrize("text", ["{", "[]", '{"round": "x"}', "\udc80"])
def test_a_failure_of_garbage(
    tmp_path: Path, begin: Callable[..., None], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    two = paths(tmp_path, 1, 2)
    begin(0)
    choose(two)
    begin(1)
    monkeypatch.setenv("UNDAUNTED_FAILURE", text)
    assert choose(two) == two[0]


def test_torchtitan(tmp_path: Path, begin: Callable[..., None]) -> None:
    """Its manager is told another step only where the newest is not trusted."""
    from undaunted.integrations.torchtitan import _loading

    class Manager:
        folder = str(tmp_path)

        def load(self, step: int = -1) -> int:
            return step

    begin(0)
    load = _loading(Manager())
    assert load() == -1  # there is none
    for step in (30, 60, 90):
        (tmp_path / f"step-{step}").mkdir()
        if step < 90:  # the last one is not finished
            (tmp_path / f"step-{step}/.metadata").touch()
    assert [load(), load(step=30), load(-1)] == [-1, 30, -1]
    begin(1, **NOT_FINITE)
    assert load(step=-1) == 30


@pytest.mark.parametrize("of_bridge", [False, True])
def test_megatron(
    tmp_path: Path, begin: Callable[..., None], monkeypatch: pytest.MonkeyPatch, of_bridge: bool
) -> None:
    """What it loads is told by the configuration; a step that the user has given stays."""
    from undaunted.integrations.megatron.checkpoints import choose_checkpoint

    def config(**more: Any) -> Any:
        saving = SimpleNamespace(**{"load": str(tmp_path), "ckpt_step": None, **more})
        return SimpleNamespace(checkpoint=saving) if of_bridge else saving

    begin(0)
    assert choose_checkpoint(config()) is None  # there is none
    assert choose_checkpoint(config(load=None)) is None
    for step in (30, 60, 90):
        folder = tmp_path / f"iter_{step:07d}"
        folder.mkdir()
        if of_bridge and step < 90:  # the last one is not complete
            (folder / "train_state.pt").touch()
    if not of_bridge:
        (tmp_path / "latest_checkpointed_iteration.txt").write_text("60")
    one = config()
    saving = one.checkpoint if of_bridge else one
    assert (choose_checkpoint(one), saving.ckpt_step) == (None, None)
    begin(1, **NOT_FINITE)
    assert (choose_checkpoint(one), saving.ckpt_step) == (30, 30)
    assert choose_checkpoint(one) == 30
    named = config(ckpt_step=60)
    assert choose_checkpoint(named) is None
    begin(2)
    monkeypatch.setenv("UNDAUNTED_SUSPECT_STEPS", "0")  # as if it had been saved again
    assert (choose_checkpoint(one), saving.ckpt_step) == (None, None)


@pytest.mark.torch
def test_local_checkpoints(tmp_path: Path, begin: Callable[..., None]) -> None:
    torch = pytest.importorskip("torch")
    from undaunted.checkpointing.local.basic_state_dict import BasicTensorAwareStateDict
    from undaunted.checkpointing.local.ckpt_managers.local_manager import LocalCheckpointManager

    def round_of(number: int, **failure: Any) -> tuple[int, int]:
        """What is the latest, and what is loaded, -1 = nothing."""
        begin(number, **failure)
        manager = LocalCheckpointManager(tmp_path)
        try:
            latest = manager.find_latest()
            return latest, manager.load()[1].iteration if latest != -1 else -1
        finally:
            manager.close()

    begin(0)
    manager = LocalCheckpointManager(tmp_path)
    for iteration in (30, 60):
        manager.save(BasicTensorAwareStateDict({"w": torch.ones(9)}), iteration)
    manager.close()
    assert round_of(1) == (60, 60)
    assert round_of(2, **NOT_FINITE) == (30, 30)
    assert round_of(3, **NOT_FINITE) == (60, 60)  # both lead to it
    begin(4, **NOT_FINITE)
    manager = LocalCheckpointManager(tmp_path, other_tier=True)
    assert manager.find_latest() == -1
    manager.close()


@pytest.mark.torch
def test_local_checkpoints_that_are_not_trusted_stay_until_training_is_beyond(
    tmp_path: Path, begin: Callable[..., None]
) -> None:
    torch = pytest.importorskip("torch")
    from undaunted.checkpointing.local.basic_state_dict import BasicTensorAwareStateDict
    from undaunted.checkpointing.local.ckpt_managers.local_manager import LocalCheckpointManager

    def train(start: int, end: int, every: int = 5) -> None:
        """Save, each time with a content of its own, by a manager that has loaded what is there."""
        manager = LocalCheckpointManager(tmp_path)
        try:
            assert manager.find_latest() == start
            if start != -1:
                manager.load()
            for iteration in range(start + every if start > 0 else 30, end + 1, every):
                state = {"w": torch.full((9,), float(len(contents())))}
                manager.save(BasicTensorAwareStateDict(state), iteration)
        finally:
            manager.close()

    def contents() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in tmp_path.glob("0/*iter_*")}

    begin(0)
    train(-1, 60, every=30)
    bad = contents()["iter_0000060_0_local.pt"]
    begin(1)
    train(60, 60)
    begin(2, **NOT_FINITE)
    train(30, 50)  # two newer ones are there, and it is not one of them
    assert contents()["iter_0000060_0_local.pt"] == bad
    begin(3)
    train(50, 50)
    manager = LocalCheckpointManager(tmp_path)
    assert manager.find_latest() == 50
    manager.close()
    train(50, 75)
    assert contents()["doubted-iter_0000060_0_local.pt"] == bad
    assert "iter_0000060_0_local.pt" not in contents()
    train(75, 80)  # as far beyond it as a failure may be due to it
    assert {*contents()} == {"iter_0000075_0_local.pt", "iter_0000080_0_local.pt"}


def test_a_failure_of_an_earlier_start_with_the_same_number(
    tmp_path: Path, begin: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each start of the job begins with round 0; ranks come to the same, whoever looks first."""
    three = paths(tmp_path, 30, 60, 90)
    begin(0)
    assert choose(three) == three[0]
    before = Failure(round=0, run="run", at=time.time(), **NOT_FINITE)
    taken = []
    for rank in (1, 0, 0, 2):
        begin(0, rank)
        monkeypatch.setenv("UNDAUNTED_FAILURE", msgspec.json.encode(before).decode())
        taken.append(choose(three))
    assert taken == [three[1]] * 4
    # Of another run nothing is known here.
    other = msgspec.structs.replace(before, run="another", at=time.time())
    begin(1)
    monkeypatch.setenv("UNDAUNTED_FAILURE", msgspec.json.encode(other).decode())
    assert choose(three) == three[1]
    entries = ledger.decode((tmp_path / ".ledger").read_bytes())
    assert sum(isinstance(one, ledger.Failed) for one in entries) == 1


def test_a_doubt_is_told_once_in_a_round(
    tmp_path: Path, begin: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setenv("UNDAUNTED_PAGE", "x")
    monkeypatch.setattr(
        "undaunted.progress.api.event", lambda name, text: told.append(f"{name} {text}")
    )
    three = paths(tmp_path, 30, 60, 90)
    begin(0)
    choose(three)
    for number, failure in ((1, NOT_FINITE), (2, {})):
        begin(number, **failure)
        for _ in range(3):
            assert choose(three) == three[1]
    assert [line.split()[:2] for line in told] == [["checkpoint", "doubted"]] * 2
