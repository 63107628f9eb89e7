"""A local checkpoint of two ranks that is bad on one disk, or in all its parts."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.launcher import launched
from undaunted.checkpointing.format import ledger

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.usefixtures("no_compiler")]

# Each rank has a part of its own: the moments of an optimizer, and its position in its data. What
# is saved at step 90 of the first round is bad, and that round ends soon after.
TRAINING = """
    import hashlib, json, os, pathlib, signal, sys
    import torch, torch.distributed as dist
    import undaunted
    from undaunted.chaos.nemesis.planting import plant
    from undaunted.checkpointing.local.basic_state_dict import BasicTensorAwareStateDict
    from undaunted.checkpointing.local.ckpt_managers.local_manager import LocalCheckpointManager
    from undaunted.checkpointing.local.replication.strategies import CliqueReplicationStrategy

    how, copies = sys.argv[1:]
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    strategy = CliqueReplicationStrategy.from_replication_params(1, 2) if copies == "2" else None
    manager = LocalCheckpointManager(f"disks/node{rank}", repl_strategy=strategy, keep=3)
    part = torch.full((64,), float(rank))
    generator = torch.Generator().manual_seed(rank)
    start = 0
    if manager.find_latest() != -1:
        loaded, _ = manager.load()
        part, start = loaded.state_dict["part"], loaded.state_dict["step"]
        generator.set_state(loaded.state_dict["generator"])
    print(f"rank {rank} begins after step {start}", flush=True)
    for step in range(start + 1, 121):
        undaunted.step(step)
        mine = torch.randn(64, generator=generator)
        total = mine + part
        dist.all_reduce(total)
        if not torch.isfinite(total).all():
            raise FloatingPointError(f"the sum of step {step} is not finite")
        part = part * 0.9 + total * 0.1
        if step % 30 == 0:
            saved = part.clone()
            if first and step == 90 and how == "nan" and rank == 1:
                saved[3] = float("nan")
            state = {"part": saved, "step": step, "generator": generator.get_state()}
            manager.save(BasicTensorAwareStateDict(state), step)
        if first and step == 95 and how != "whole":
            if rank == 0 and how != "nan":
                # Of the disk of rank 1, which was written last, or is the last by name.
                print("planted", plant(pathlib.Path("disks"), how), flush=True)
            dist.barrier()
            os.kill(os.getpid(), signal.SIGKILL)
    digest = hashlib.sha256(part.numpy().tobytes()).hexdigest()
    with open(f"result-{rank}.json", "w") as file:
        json.dump(digest, file)
    manager.close()
    dist.destroy_process_group()
"""
TWO = ("--nproc-per-node", "2", "--max-restarts", "5")
slow = partial(pytest.param, marks=pytest.mark.slow)


@pytest.fixture(autouse=True)
def _needs_torch() -> None:
    pytest.importorskip("torch")


def trained(folder: Path, how: str, copies: int = 1) -> tuple[list[Any], str]:
    """The digests of the ranks' results, and what was printed."""
    folder.mkdir()
    with launched(folder, TRAINING, *TWO, args=(how, str(copies))) as launcher:
        assert launcher.finish() == 0, launcher.text
        text = launcher.text
    return [json.loads((folder / f"result-{rank}.json").read_text()) for rank in (0, 1)], text


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return trained(tmp_path_factory.mktemp("job") / "whole", "whole")[0]


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize(
    "how", ["disk", slow("torn"), slow("other-rank"), slow("stale"), "wrong-step"]
)
def test_a_bad_part_costs_no_restart(
    tmp_path: Path, whole: list[Any], how: str, copies: int
) -> None:
    digests, text = trained(tmp_path / how, how, copies)
    assert digests == whole, text
    assert "planted node" in text
    begun = [line for line in text.splitlines() if "begins after step" in line]
    # With copies there is a whole one on the other disk.
    step = 90 if copies == 2 and how != "wrong-step" else 60
    assert sorted(line[-2:].strip() for line in begun) == ["0", "0", str(step), str(step)]


def test_a_bad_state_is_passed_over(tmp_path: Path, whole: list[Any]) -> None:
    digests, text = trained(tmp_path / "nan", "nan")
    assert digests == whole, text
    assert text.count("rank 0 begins after step 90") == 1
    assert text.count("rank 0 begins after step 60") == 1
    entries = ledger.decode((tmp_path / "nan/disks/node0/.ledger").read_bytes())
    assert [type(one).__name__ for one in entries] == ["Loaded", "Failed", "Loaded"]
