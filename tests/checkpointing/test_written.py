"""Checkpoints that earlier versions have written still load."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed.checkpoint as dcp  # noqa: E402

from tests.checkpointing.dcp.test_saving import assert_same  # noqa: E402
from tests.checkpointing.written import write as written  # noqa: E402
from undaunted.checkpointing import Checkpointer  # noqa: E402
from undaunted.checkpointing.async_ckpt.cached_metadata_filesystem_reader import (  # noqa: E402
    CachedMetadataFileSystemReader,
)
from undaunted.checkpointing.local.ckpt_managers.local_manager import (  # noqa: E402
    LocalCheckpointManager,
)

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.filterwarnings("ignore:Validating sparse tensor invariants:UserWarning"),
]
ARCHIVES = sorted(Path(written.__file__).parent.glob("*.tar.xz"))


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.partition(".")[0])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def numbers(tensor: torch.Tensor) -> torch.Tensor:
    """The values in a type that has all operations."""
    return tensor.to_dense().to(torch.complex128)


def test_there_are_some() -> None:
    assert len(ARCHIVES) >= 3


def test_a_model_its_optimizer_tensors_and_plain_values(folder: Path) -> None:
    model = written.model()[0]
    with torch.no_grad():
        for one in model.state_dict().values():
            one.zero_()
    fresh = torch.optim.AdamW(model.parameters(), lr=0.1)
    tensors = {name: torch.zeros_like(one) for name, one in written.tensors().items()}
    state: dict[str, Any] = {"model": model, "optimizer": fresh, "tensors": tensors}
    state |= dict.fromkeys(written.plain())
    with Checkpointer(folder / "single") as checkpoints:
        assert checkpoints.load(state) == 1
    expected, its = written.model()
    assert_same(dict(expected.state_dict()), dict(model.state_dict()))
    assert_same(its.state_dict(), fresh.state_dict())
    for name, one in written.tensors().items():
        assert tensors[name].dtype == one.dtype
        assert torch.equal(numbers(tensors[name]), numbers(one)), name
    for name, value in written.plain().items():
        assert repr(state[name]) == repr(value)


def test_parts_of_two_ranks(folder: Path) -> None:
    state = {"sharded": torch.zeros(5, 4), "whole": torch.zeros(4, dtype=torch.int64), "step": 0}
    with Checkpointer(folder / "sharded") as checkpoints:
        assert checkpoints.load(state) == 1
    assert torch.equal(state["sharded"], written.sharded())
    assert torch.equal(state["whole"], torch.arange(4))
    assert state["step"] == 7


def test_what_dcp_reads(folder: Path) -> None:
    loaded: dict[str, Any] = {"weight": torch.zeros(300), "bias": torch.zeros(7), "step": 0}
    dcp.load(loaded, storage_reader=CachedMetadataFileSystemReader(folder / "async"))
    assert torch.equal(loaded["weight"], torch.arange(300.0))
    assert loaded["step"] == 5


def test_a_local_checkpoint(folder: Path) -> None:
    manager = LocalCheckpointManager(folder / "local", "s")
    assert manager.find_latest() == 1
    loaded, _ = manager.load()
    assert_same(written.local(), loaded.state_dict)
    manager.close()
