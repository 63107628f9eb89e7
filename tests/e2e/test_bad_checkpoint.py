"""A checkpoint that leads to failures is passed over for the one before it."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.launcher import launched
from undaunted.chaos.nemesis.planting import plant
from undaunted.checkpointing.format import ledger
from undaunted.checkpointing.format import manifest as manifests

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.usefixtures("no_compiler")]

# A model with loader workers; what is saved at step 90 of the first round is bad, in the way that
# the argument says, and that round ends soon after. The result is that of a run that was not hit.
TRAINING = """
    import hashlib, json, os, pathlib, signal, sys
    import torch, torch.distributed as dist
    import undaunted
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset
    from undaunted.chaos.nemesis.planting import plant
    from undaunted.checkpointing import Checkpointer, snapshot

    how, first = sys.argv[1], os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    first = first and not os.path.exists("begun")  # an earlier start of the job has
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    inputs = torch.randn(400, 16)
    samples = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    width = 64 if how == "wide" else 32
    model = torch.nn.Sequential(
        torch.nn.Linear(16, width), torch.nn.ReLU(), torch.nn.Linear(width, 1)
    )
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    state = {"model": model, "optimizer": optimizer, "order": list(range(400))}
    take = snapshot.Taker.take
    def take_wrong(self, step, number, planned, lease):
        staged = take(self, step, number, planned, lease)
        if first and step == 90:  # after replicas were compared
            memory = lease.arena.memory
            at = bytes(memory).find(model[0].weight.detach().numpy().tobytes())
            if at >= 0:  # the rank that writes it
                memory[at + 1] ^= 0x40  # the number stays finite: training would go on with it
        return staged
    if how == "copy":
        snapshot.Taker.take = take_wrong
    with Checkpointer("checkpoints", timeout=60, certify=1) as checkpoints:
        start = checkpoints.load(state) or 0
        print(f"rank {rank} begins after step {start}", flush=True)
        if how == "option":
            raise ValueError("no such option")
        batches = DataLoader(samples, 4, sampler=state["order"][start * 4:], num_workers=1)
        for step, (x, y) in enumerate(batches, start + 1):
            undaunted.step(step)
            loss = (wrapped(x) - y).square().mean()
            if not torch.isfinite(loss):
                raise FloatingPointError(f"the loss of step {step} is {loss.item()}")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if first and step == 85 and how == "bit" and rank == 1:
                model[0].weight.data.view(torch.int32)[3, 5] ^= 1
            if step % 30 == 0:
                good = model[0].weight.detach().clone()
                if first and step == 90 and how == "nan":
                    model[0].weight.data[3, 5] = float("nan")  # on all ranks
                if first and step == 90 and how == "index":
                    state["order"] = [900] * 400
                checkpoints.save(step, state)
                model[0].weight.data.copy_(good)
            if first and step == 95 and how not in ("whole", "bit", "copy"):
                checkpoints.wait()
                if rank == 0 and how == "stale":
                    assert plant(pathlib.Path("checkpoints"), how)
                dist.barrier()
                os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        digest = hashlib.sha256()
        for value in model.state_dict().values():
            digest.update(value.numpy().tobytes())
        open("result.json", "w").write(json.dumps(digest.hexdigest()))
    dist.destroy_process_group()
"""
TWO = ("--nproc-per-node", "2", "--max-restarts", "5")


@pytest.fixture(autouse=True)
def _needs_torch() -> None:
    pytest.importorskip("torch")


def trained(folder: Path, how: str, *options: str, code: int = 0) -> tuple[Any, str, int]:
    """The digest of the result, what was printed, and how many rounds there were."""
    folder.mkdir(exist_ok=True)
    with launched(folder, TRAINING, *TWO, *options, args=(how,)) as launcher:
        assert launcher.finish() == code, launcher.text
        text = launcher.text
    rounds = text.count("rank 0 begins after step")
    result = folder / "result.json"
    return (json.loads(result.read_text()) if result.exists() else None), text, rounds


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The result of a job that nothing happens to."""
    return trained(tmp_path_factory.mktemp("job") / "whole", "whole")[0]


@pytest.mark.slow
@pytest.mark.timeout(360)  # four jobs
def test_no_finished_run_stands_on_a_bad_checkpoint(tmp_path: Path, whole: Any) -> None:
    for how, restarts in [("nan", 2), ("index", 3)]:
        digest, text, rounds = trained(tmp_path / how, how)
        assert digest == whole, how
        assert rounds == restarts + 1, text
        assert "the checkpoint of step 90 is not trusted" in text
        assert "the ranks go on from step 60" in text
        entries = ledger.decode((tmp_path / how / "checkpoints/.ledger").read_bytes())
        loads = [one for one in entries if isinstance(one, ledger.Loaded)]
        assert [one.step for one in loads] == [*[90] * (restarts - 1), 60]
        assert len(loads[-1].passed_over) == 1
        (aside,) = (tmp_path / how / "checkpoints").glob("doubted-step-00000090.*")
        assert (aside / "undaunted.json").exists()
    # A replica with a wrong bit, or a damaged copy in memory, is not even saved.
    for how, message in [
        ("bit", "model.0.weight differs between rank 0 and rank 1"),
        ("copy", "model.0.weight was damaged in the copy in memory"),
    ]:
        digest, text, rounds = trained(tmp_path / how, how)
        assert (digest, rounds) == (whole, 2), text
        assert message in text
        assert "is not trusted" not in text
        for manifest in (tmp_path / how / "checkpoints").glob("step-*/undaunted.json"):
            assert manifests.decode(manifest.read_bytes(), "").certified


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a job whose ranks were killed after the save of step 90."""
    place = tmp_path_factory.mktemp("job") / "killed"
    trained(place, "kill", "--max-restarts", "0", code=1)
    return place


@pytest.mark.parametrize("how", ["torn", "other-rank", "stale", "wrong-step"])
def test_what_was_changed_on_the_disk_costs_no_restart(
    tmp_path: Path, whole: Any, killed: Path, how: str
) -> None:
    place = tmp_path / how
    shutil.copytree(killed, place)
    assert plant(place / "checkpoints", how)
    (place / "begun").touch()
    digest, text, rounds = trained(place, "kill", "--max-restarts", "0")
    assert (digest, rounds) == (whole, 1), text
    assert "rank 0 begins after step 60" in text
    entries = ledger.decode((place / "checkpoints/.ledger").read_bytes())
    assert {one.step for one in entries if isinstance(one, ledger.Loaded)} <= {90, 60}
    assert not any(isinstance(one, ledger.Failed) for one in entries)


@pytest.mark.slow
@pytest.mark.timeout(360)  # up to four jobs
@pytest.mark.parametrize(
    ("how", "restarts", "doubted"), [("wide", 2, False), ("option", 2, True), ("option", 1, False)]
)
def test_a_wrong_program_leaves_good_checkpoints_to_the_corrected_one(
    tmp_path: Path, whole: Any, killed: Path, how: str, restarts: int, doubted: bool
) -> None:
    """After two failures the newest is doubted, after the third, with an older one, none is."""
    place = tmp_path / how
    shutil.copytree(killed, place)
    (place / "begun").touch()
    _, text, _ = trained(place, how, "--max-restarts", f"{restarts}", code=1)
    assert ("is not trusted" in text) == doubted
    digest, text, rounds = trained(place, "kill", "--max-restarts", "0")
    assert (digest, rounds) == (whole, 1), text
    assert "rank 0 begins after step 90" in text
    assert "is not trusted" not in text


def test_a_copy_in_memory_makes_up_for_a_stale_file(tmp_path: Path, whole: Any) -> None:
    digest, text, rounds = trained(tmp_path / "stale", "stale")
    assert (digest, rounds) == (whole, 2), text
    assert "rank 0 begins after step 90" in text


@pytest.mark.slow
def test_how_the_last_round_failed_is_known_at_the_next_start(tmp_path: Path, whole: Any) -> None:
    """Each start has one round, with the same number; the second one ends by the bad checkpoint."""
    place = tmp_path / "nan"
    options = ("--max-restarts", "0", "--rdzv-id", "7")
    trained(place, "nan", *options, code=1)
    (place / "begun").touch()
    _, text, _ = trained(place, "nan", *options, code=1)
    assert "FloatingPointError" in text
    digest, text, rounds = trained(place, "nan", *options)
    assert (digest, rounds) == (whole, 1), text
    assert text.count("the checkpoint of step 90 is not trusted") == 1
    entries = ledger.decode((place / "checkpoints/.ledger").read_bytes())
    assert [type(one).__name__ for one in entries] == ["Loaded", "Failed", "Loaded"]


@pytest.mark.slow
def test_without_a_fallback_the_newest_is_loaded(tmp_path: Path) -> None:
    options = ("--no-checkpoint-fallback",)
    _, text, rounds = trained(tmp_path / "nan", "nan", *options, code=93)
    assert rounds == 4, text  # until no progress was made three times
    assert "is not trusted" not in text
    assert not (tmp_path / "nan/checkpoints/.ledger").exists()


# One process per rank all the time: the function is called again. What is saved at step 20 is bad.
INSIDE = """
    import os, sys
    import torch, torch.distributed as dist
    import undaunted
    from undaunted import inprocess
    from undaunted.checkpointing import Checkpointer

    @inprocess.Wrapper()
    def train(call: inprocess.CallWrapper):
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group("gloo", store=call.store, rank=rank, world_size=size)
        x, order = torch.ones(8), list(range(50))
        state = {"x": x, "order": order}
        with Checkpointer("checkpoints", keep=None, timeout=60) as checkpoints:
            start = checkpoints.load(state) or 0
            print(f"rank {rank} begins after step {start}", flush=True)
            for step in range(start + 1, 31):
                undaunted.step(step)
                total = x * order[step]
                dist.all_reduce(total)
                if not torch.isfinite(total).all():
                    raise FloatingPointError(f"the loss of step {step} is not finite")
                if step % 10 == 0:
                    bad = step == 20 and call.iteration == 0
                    first = torch.full((8,), float("nan")) if bad and sys.argv[1] == "nan" else x
                    short = order[:10] if bad and sys.argv[1] == "index" else order
                    checkpoints.save(step, {"x": first, "order": short})
                if step == 23 and call.iteration == 0:
                    checkpoints.wait()
                    raise RuntimeError("the first fault, which is not to blame on a checkpoint")
        dist.destroy_process_group()

    train()
"""


@pytest.mark.parametrize(("how", "loads"), [("nan", [0, 20, 10]), ("index", [0, 20, 20, 10])])
def test_a_function_that_is_restarted_inside_its_process(
    tmp_path: Path, how: str, loads: list[int]
) -> None:
    with launched(tmp_path, INSIDE, "--nproc-per-node", "2", args=(how,)) as launcher:
        assert launcher.finish() == 0, launcher.text
    begun = [line.rpartition(" ")[2] for line in launcher.text.splitlines() if "rank 0 beg" in line]
    assert list(map(int, begun)) == loads, launcher.text
    assert launcher.text.count("the checkpoint of step 20 is not trusted") == 1
    entries = ledger.decode((tmp_path / "checkpoints/.ledger").read_bytes())
    assert [one.step for one in entries if isinstance(one, ledger.Loaded)] == loads[1:]
    assert len({one.entry for one in entries if isinstance(one, ledger.Loaded)}) == len(loads) - 1
