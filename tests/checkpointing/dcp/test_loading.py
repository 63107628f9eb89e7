from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch

from tests.checkpointing.dcp.saved import BLOCK_BYTES, Folder, alone, manifest_of, save
from tests.checkpointing.dcp.test_saving import assert_same, like, state
from undaunted.agreement.agreement import Alone
from undaunted.checkpointing.dcp.loading import load
from undaunted.checkpointing.errors import (
    CheckpointError,
    DamagedCheckpointError,
    StructureError,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from undaunted.checkpointing.format.manifest import Manifest

pytestmark = pytest.mark.torch


def read(state_dict: dict[str, Any], folder: Path, manifest: Manifest | None = None) -> None:
    manifest = manifest or manifest_of(folder)
    storage: Any = Folder(folder)
    load(state_dict, storage, manifest, agreement=alone(), threads=2, timeout_s=10)


def test_everything_comes_back(tmp_path: Path) -> None:
    expected = state()
    save(tmp_path, expected)
    loaded = like(expected)
    read(loaded, tmp_path)
    assert_same(expected, loaded)


def test_tensors_are_filled_in_place(tmp_path: Path) -> None:
    save(tmp_path, {"a": torch.arange(6.0).view(2, 3), "n": {"b": torch.ones(2)}, "step": 5})
    wide = torch.zeros(3, 4)
    mine = {"a": wide[:, :2].t(), "n": {"b": torch.zeros(2, dtype=torch.float64)}, "step": 0}
    inner = mine["n"]["b"]
    read(mine, tmp_path)
    assert wide[:, :2].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert wide[:, 2:].tolist() == [[0, 0]] * 3
    assert inner.tolist() == [1, 1]
    assert inner.dtype == torch.float64
    assert mine["step"] == 5


def test_a_part_can_be_loaded(tmp_path: Path) -> None:
    save(tmp_path, {"a": torch.ones(2), "b": torch.ones(3), "n": {"x": 1, "y": 2}})
    mine: dict[str, Any] = {"b": torch.zeros(3), "n": {"y": 0}}
    read(mine, tmp_path)
    assert mine.keys() == {"b", "n"}
    assert mine["b"].tolist() == [1, 1, 1]
    assert mine["n"] == {"x": 1, "y": 2}


def test_keys_that_are_numbers(tmp_path: Path) -> None:
    numbered: Any = {"s": {0: {"x": 1.5, "t": torch.ones(1)}, 1: {"x": 2.5}}, 7: 1, 8: [2]}
    save(tmp_path, numbered)
    mine: Any = {"s": {0: {"x": 0, "t": torch.zeros(1)}, 1: {"x": 0}}, 8: None, 7: None}
    read(mine, tmp_path)
    assert mine == {"s": {0: {"x": 1.5, "t": torch.ones(1)}, 1: {"x": 2.5}}, 7: 1, 8: [2]}


def trained(optimizer: Callable[..., torch.optim.Optimizer], steps: int = 2) -> tuple[Any, Any]:
    torch.manual_seed(steps)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    chosen = optimizer(model.parameters())
    for _ in range(steps):
        model(torch.randn(5, 3)).square().sum().backward()
        chosen.step()
    return model, chosen


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.AdamW(p, lr=0.5),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.SGD(p, lr=0.1),
    ],
)
@pytest.mark.parametrize("steps", [0, 1])
def test_a_model_and_an_optimizer_go_on_as_they_were(
    optimizer: Any, steps: int, tmp_path: Path
) -> None:
    model, chosen = trained(optimizer)
    save(tmp_path, {"model": model, "optimizer": chosen})
    fresh = trained(optimizer, steps)
    read({"model": fresh[0], "optimizer": fresh[1]}, tmp_path)
    assert_same(dict(model.state_dict()), dict(fresh[0].state_dict()))
    assert_same(chosen.state_dict(), fresh[1].state_dict())
    torch.manual_seed(7)
    batch = torch.randn(5, 3)
    for one, its in ((model, chosen), fresh):
        its.zero_grad()
        one(batch).square().sum().backward()
        its.step()
    assert_same(dict(model.state_dict()), dict(fresh[0].state_dict()))


def test_an_optimizer_that_had_no_state_loses_it(tmp_path: Path) -> None:
    _, chosen = trained(torch.optim.AdamW, 0)
    save(tmp_path, {"optimizer": chosen})
    _, other = trained(torch.optim.AdamW, 1)
    read({"optimizer": other}, tmp_path)
    assert other.state_dict()["state"] == {}


@pytest.mark.parametrize(
    ("mine", "message"),
    [
        ({"a": torch.zeros(2), "c": 1, "d": 1}, "has no c, d: the model"),
        ({"a": torch.zeros(3)}, r"a was saved as \(2,\), the state has \(3,\) there"),
        ({"a": [torch.zeros(2)], "b": torch.zeros(2)}, "has no b"),
        ({str(n): n for n in range(30)}, r"and 20 more"),
    ],
)
def test_what_does_not_fit_is_named(mine: dict[str, Any], message: str, tmp_path: Path) -> None:
    save(tmp_path, {"a": torch.ones(2)})
    with pytest.raises(StructureError, match=message):
        read(mine, tmp_path)


class Own:
    """A type nobody has allowed."""


@pytest.mark.parametrize("value", [Own(), [Own()], {"deep": (Own(), 1)}])
def test_types_that_are_not_allowed_are_named(value: Any, tmp_path: Path) -> None:
    with torch.serialization.safe_globals([Own]):
        save(tmp_path, {"a": torch.ones(2), "own": {"x": value}})
    with pytest.raises(CheckpointError, match=r"own\.x.*Own") as caught:
        read({"own": {"x": None}}, tmp_path)
    assert "torch.serialization.add_safe_globals" in str(caught.value)


def test_types_that_were_allowed(tmp_path: Path) -> None:
    mine = {"own": None}
    with torch.serialization.safe_globals([Own]):
        save(tmp_path, {"own": Own()})
        read(mine, tmp_path)
    assert isinstance(mine["own"], Own)


# New versions say so of each sparse tensor that is read.
@pytest.mark.filterwarnings("ignore:Validating sparse tensor invariants:UserWarning")
def test_tensors_that_torch_save_has_written(tmp_path: Path) -> None:
    save(tmp_path, {"sparse": torch.eye(3).to_sparse(), "packed": torch.ones(2)})
    mine = {"sparse": torch.zeros(3, 3).to_sparse(), "packed": torch.zeros(2)}
    read(mine, tmp_path)
    assert torch.equal(mine["sparse"].to_dense(), torch.eye(3))


NAMES = [f"t{number}" for number in range(8)]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    values: dict[str, Any] = {name: torch.randn(40, 20) for name in NAMES}
    save(tmp_path / "c", {**values, "text": "some text", "numbers": [1, 2]})
    return tmp_path / "c"


def damage_of(checkpoint: Path, manifest: Manifest) -> DamagedCheckpointError:
    mine: dict[str, Any] = {name: torch.zeros(40, 20) for name in NAMES}
    with pytest.raises(DamagedCheckpointError) as caught:
        read({**mine, "text": "", "numbers": []}, checkpoint, manifest)
    return caught.value


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata"])
def test_a_flipped_bit_anywhere_is_found(name: str, checkpoint: Path) -> None:
    manifest = manifest_of(checkpoint)
    whole = (checkpoint / name).read_bytes()
    chosen = random.Random(3).sample(range(len(whole)), 60)
    for at in [0, 63, 64, len(whole) - 1, *chosen]:
        changed = bytearray(whole)
        changed[at] ^= 1 << (at % 8)
        (checkpoint / name).write_bytes(changed)
        damage = damage_of(checkpoint, manifest)
        assert damage.block == at // BLOCK_BYTES
        assert damage.path.endswith(name)
        if name != ".metadata":
            assert damage.names
            assert damage.names[0] in str(damage)
    (checkpoint / name).write_bytes(whole)
    read({"t0": torch.zeros(40, 20)}, checkpoint, manifest)


def test_the_tensors_in_a_damaged_block_are_named(checkpoint: Path) -> None:
    manifest = manifest_of(checkpoint)
    path = checkpoint / "__0_0.distcp"
    content = bytearray(path.read_bytes())
    content[3 * BLOCK_BYTES + 5] ^= 1
    path.write_bytes(content)
    length = 64 + 3200 + 600  # of each, about
    first, last = 3 * BLOCK_BYTES // length, 4 * BLOCK_BYTES // length
    damage = damage_of(checkpoint, manifest)
    assert damage.names in (tuple(NAMES[first : last + 1]), tuple(NAMES[first - 1 : last + 1]))
    assert "block 3 (bytes 12288 to 16384)" in str(damage)


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata"])
def test_a_file_that_is_cut_short_or_gone_is_found(name: str, checkpoint: Path) -> None:
    manifest = manifest_of(checkpoint)
    whole = (checkpoint / name).read_bytes()
    for length in (0, 1, len(whole) // 2, len(whole) - 1):
        (checkpoint / name).write_bytes(whole[:length])
        assert damage_of(checkpoint, manifest).path.endswith(name)
    (checkpoint / name).unlink()
    assert damage_of(checkpoint, manifest).path.endswith(name)


def test_files_that_the_manifest_does_not_know(checkpoint: Path) -> None:
    for name in ("__0_0.distcp", ".metadata"):
        manifest = manifest_of(checkpoint)
        del manifest.files[name]
        assert name in str(damage_of(checkpoint, manifest))


def test_metadata_of_another_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    """All checksums are right, and yet the files do not belong together."""
    save(tmp_path / "other", {name: torch.zeros(40, 200) for name in NAMES})
    (checkpoint / ".metadata").write_bytes((tmp_path / "other" / ".metadata").read_bytes())
    mine = {name: torch.zeros(40, 200) for name in NAMES}
    with pytest.raises(DamagedCheckpointError):
        read(mine, checkpoint)


def test_progress_is_told(checkpoint: Path) -> None:
    done: list[int] = []
    manifest = manifest_of(checkpoint)
    storage: Any = Folder(checkpoint)
    mine = {name: torch.zeros(40, 20) for name in NAMES}
    load(
        mine,
        storage,
        manifest,
        agreement=alone(),
        threads=2,
        timeout_s=10,
        progress=done.append,
    )
    assert sum(done) >= sum(tensor.nbytes for tensor in mine.values())


class Many(Alone):
    """Stands for an agreement of several ranks."""

    world_size = 2


@pytest.mark.parametrize(
    ("agreement", "local_ranks", "shared"),
    [(Many, "2", True), (Many, None, True), (Many, "1", False), (Alone, None, False)],
)
def test_what_every_rank_reads_is_left_to_the_others_of_the_machine(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    agreement: type[Alone],
    local_ranks: str | None,
    shared: bool,
) -> None:
    if local_ranks is None:
        monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    else:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", local_ranks)
    save(tmp_path, {"a": torch.ones(1000), "text": "b"})
    storage: Any = Folder(tmp_path)
    mine = {"a": torch.zeros(1000), "text": ""}
    manifest = manifest_of(tmp_path)
    load(mine, storage, manifest, agreement=agreement("s"), threads=1, timeout_s=10)
    assert mine["a"].sum() == 1000
    assert storage.shared["__0_0.distcp"] is shared
