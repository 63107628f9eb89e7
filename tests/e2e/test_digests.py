"""Ranks of a script that knows nothing of undaunted record their state; so do resumed ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.launcher import launched
from undaunted.digests.record import FORWARD, UPDATE, Record, read_records

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300), pytest.mark.usefixtures("no_compiler")]

DEADLINE_S = 120.0
STEPS = 12
SAVED = 6  # the checkpoint that the killed rank leaves holds this many iterations
KILLED = 8

# Saves once, so that where it resumes does not depend on when the rank is killed.
SCRIPT = """
    import os
    import random
    import sys
    from pathlib import Path

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    STEPS, SAVED = {steps}, {saved}
    RESTORES = "restore" in sys.argv

    torch.manual_seed(7)
    random.seed(7)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    place = Path(f"checkpoint-{{rank}}.pt")
    net = nn.Sequential(nn.Linear(4, 16), nn.Dropout(), nn.Linear(16, 1))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters())
    first = 0
    if place.exists():
        saved = torch.load(place, weights_only=False)
        first = saved["next"]
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        if RESTORES:
            torch.set_rng_state(saved["torch"])
            random.setstate(saved["random"])
    for iteration in range(first, STEPS):
        batch = torch.full((3, 4), float(iteration)) + rank
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(batch), batch[:, :1])
        loss.backward()
        optimizer.step()
        random.random()
        if iteration + 1 == SAVED:
            state = dict(
                next=iteration + 1,
                net=net.state_dict(),
                optimizer=optimizer.state_dict(),
                torch=torch.get_rng_state(),
                random=random.getstate(),
            )
            torch.save(state, f"{{place}}.new")
            os.replace(f"{{place}}.new", place)
            dist.barrier()
    dist.destroy_process_group()
"""


def run(directory: Path, *options: str, restore: bool = True) -> dict[int, list[Record]]:
    directory.mkdir()
    digests = directory / "digests"
    with launched(
        directory,
        SCRIPT.format(steps=STEPS, saved=SAVED),
        "--nproc-per-node",
        "2",
        "--max-restarts",
        "1",
        *options,
        args=("restore",) if restore else (),
        UNDAUNTED_DIGESTS=str(digests),
    ) as launcher:
        assert launcher.finish(DEADLINE_S) == 0, launcher.text
        assert "not recorded" not in launcher.text
    records = read_records(digests)
    assert records.unreadable == 0
    assert sorted(records.by_rank) == [0, 1]
    return records.by_rank


def content(records: list[Record]) -> dict[tuple[int, str], dict[str, str]]:
    assert all(one.counted and one.n == 0 and one.finite == "" for one in records)
    return {(one.iteration, one.at): one.parts for one in records}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Record]]:
    return run(tmp_path_factory.mktemp("digests") / "undisturbed")


def test_two_undisturbed_runs_are_equal(
    undisturbed: dict[int, list[Record]], tmp_path: Path
) -> None:
    again = run(tmp_path / "again")
    for rank in (0, 1):
        expected = content(undisturbed[rank])
        assert list(expected) == [(i, at) for i in range(STEPS) for at in (FORWARD, UPDATE)]
        assert content(again[rank]) == expected
    # Ranks have data of their own and parameters in common.
    mine, other = (content(undisturbed[rank])[3, FORWARD] for rank in (0, 1))
    assert mine["data"] != other["data"]
    assert mine["parameters"] == other["parameters"]


@pytest.mark.parametrize("restore", [True, False])
def test_a_killed_and_resumed_run_is_equal_if_all_is_restored(
    undisturbed: dict[int, list[Record]], tmp_path: Path, restore: bool
) -> None:
    killed = run(
        tmp_path / "killed",
        "--inject-fault",
        f"sigkill:rank=1,iteration={KILLED},round=0",
        restore=restore,
    )
    for rank in (0, 1):
        expected = content(undisturbed[rank])
        before = content([one for one in killed[rank] if one.round == 0])
        assert before == {key: expected[key] for key in before}
        # The other rank may be one update behind when it is told to stop.
        assert (KILLED - 2 + rank, UPDATE) in before
        # The process that resumes finds by its parameters which iteration it begins with.
        after = content([one for one in killed[rank] if one.round == 1])
        assert list(after) == [key for key in expected if key[0] >= SAVED]
        if restore:
            assert after == {key: expected[key] for key in after}
        else:
            first, reference = after[SAVED, FORWARD], expected[SAVED, FORWARD]
            differing = [part for part in first if first[part] != reference[part]]
            assert differing == ["rng", "random.rng"]
            assert first["rng"] == expected[0, FORWARD]["rng"]  # as at the very beginning
