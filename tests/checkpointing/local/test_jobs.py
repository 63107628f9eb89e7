"""Local checkpoints of real ranks: every kind of loss, and deaths in the middle of a save."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from undaunted.checkpointing.local.ckpt_managers.local_manager import (  # noqa: E402
    LocalCheckpointManager,
)

_spec = importlib.util.spec_from_file_location("local_jobs", Path(__file__).with_name("jobs.py"))
assert _spec is not None
assert _spec.loader is not None
jobs: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(jobs)

pytestmark = [pytest.mark.e2e, pytest.mark.torch]


def test_every_kind_of_loss_is_found_and_survived_where_a_copy_is_left(tmp_path: Path) -> None:
    for rank, told in enumerate(jobs.run(tmp_path, 2, "damage")):
        assert told["none"] == -1
        assert told["finalized"] == [0]
        assert told["files"] == [
            f"s/{rank}/iter_000000{iteration}_{shard}_local.pt"
            for iteration in (1, 2)
            for shard in (0, 1)
        ]
        assert told["whole"] == [2, 2, True]  # as it was when save returned
        assert told["disk lost"] == [2, 2, True]
        assert told["flipped"] == [2, 1, True]  # the last copy of the newest: the older one
        assert told["truncated"] == [1, 1, True]
        assert told["from peer"] == [3, 3, True]


def test_ranks_that_changed_places_and_what_is_refused(tmp_path: Path) -> None:
    for rank, told in enumerate(jobs.run(tmp_path, 2, "places")):
        kind, why = told["refused"]
        assert kind == "CheckpointingException"
        assert "rank 1: PlainError: x: an object of type builtins.function" in why
        assert "not newer than the last one that was saved, 2" in told["again"]
        assert told["kept"] == [f"iter_000000{it}_{rank}_local.pt" for it in (2, 3)]
        assert told["swapped"] == [3, 3, True]
        assert told["own"] == [3, 3, True]
        assert told["swept"]
        kind, why = told["gone"]
        assert kind == "NoCheckpointError"
        assert "iteration 3: no whole shard is left of rank 1" in why
        kind, why = told["shared"]
        assert kind == "SameMachineReplicationException"
        assert "in the same folder of this machine" in why
    # The state of one rank is the whole one: a world of one goes on with it.
    local = LocalCheckpointManager(tmp_path / "node1", "ddp", same_on_all_ranks=True)
    assert local.find_latest() == 5
    assert local.load()[0].state_dict["w"].tolist() == [0, 1, 2]
    local.close()
    local = LocalCheckpointManager(tmp_path / "node1", "ddp")
    assert local.find_latest() == -1
    local.close()


def test_two_ranks_take_over_the_states_of_four(tmp_path: Path) -> None:
    jobs.run(tmp_path, 4, "four_save")
    for rank, told in enumerate(jobs.run(tmp_path, 2, "two_load")):
        own, others = ([0, 1], [2, 3]) if rank == 0 else ([2, 3], [0, 1])
        assert told["own"] == -1
        kind, why = told["refused"]
        assert kind == "NoCheckpointError"
        assert "iteration 2: it was saved by 4 ranks and there are 2 now" in why
        assert "ranks 2-3" in why
        assert told["other"] == [2, others, True]
        assert (told["latest"], told["parts"]) == (2, [2, own, True])
        assert told["damaged"] == [1, own, True]
        assert "nobody would load what ranks 2-3 had" in told["left"][1]


def test_one_disk_of_four_is_left(tmp_path: Path) -> None:
    assert jobs.run(tmp_path, 4, "one_left") == [[1, 1, True]] * 4


@pytest.mark.parametrize(
    "scenario", ["killed_in_save", "killed_in_replication", "killed_with_copy"]
)
def test_a_rank_dies_while_it_saves(tmp_path: Path, scenario: str) -> None:
    survivor, _ = jobs.run(tmp_path, 2, scenario, {1: -signal.SIGKILL})
    kind, why = survivor["error"]
    assert kind == "CheckpointingException"
    # In the replication gloo may see the connection break before anybody says who has gone.
    assert "rank 1" in why or (scenario == "killed_in_replication" and "Connection" in why)
    assert survivor["seconds"] < 30
    assert survivor["latest"] == 1
    for told in jobs.run(tmp_path, 2, "after"):
        assert told["loaded"] == [1, 1, True]
    left = [name for node in (0, 1) for name in os.listdir(tmp_path / f"node{node}/s/{node}")]
    assert not [name for name in left if "tmp" in name]


def test_a_save_works_after_one_that_a_peer_was_too_slow_for(tmp_path: Path) -> None:
    for told in jobs.run(tmp_path, 2, "slow_peer"):
        assert "rank 1: the save was given up before it began" in told["error"]
        assert told["loaded"] == [3, 3, True]
