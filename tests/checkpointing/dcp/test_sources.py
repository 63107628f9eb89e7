from __future__ import annotations

import contextlib
import os
import pickle
import random
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorProperties

from tests.checkpointing.dcp.saved import alone
from tests.checkpointing.dcp.test_saving import assert_same, like, state
from undaunted.checkpointing.dcp.loading import fill
from undaunted.checkpointing.dcp.metadata import decode
from undaunted.checkpointing.dcp.reader import Foreign
from undaunted.checkpointing.errors import CheckpointError, DamagedCheckpointError, StructureError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.*torch.distributed is")]


def read(state_dict: dict[str, Any], folder: Path) -> None:
    fill(state_dict, Foreign(str(folder)), alone(), 10)


def test_what_dcp_has_saved_is_read(tmp_path: Path) -> None:
    expected = state()
    dcp.save(expected, checkpoint_id=tmp_path)
    loaded = like(expected)
    read(loaded, tmp_path)
    assert_same(expected, loaded)


def test_what_dcp_of_another_version_has_saved_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch 2.15 writes a sixth property of each tensor, which 2.14 cannot read."""
    expected = {"a": torch.arange(6.0).view(2, 3)}
    of_this_version = TensorProperties.__getstate__
    for number, more in enumerate([(), ((3, 1),)]):
        with monkeypatch.context() as patch:
            patch.setattr(
                TensorProperties,
                "__getstate__",
                lambda self, more=more: (*of_this_version(self)[:5], *more),
            )
            dcp.save(expected, checkpoint_id=tmp_path / str(number))
        loaded = like(expected)
        read(loaded, tmp_path / str(number))
        assert_same(expected, loaded)


def test_a_file_that_is_cut_short_or_gone_is_found(tmp_path: Path) -> None:
    dcp.save({"a": torch.ones(1000)}, checkpoint_id=tmp_path)
    for name in ("__0_0.distcp", ".metadata"):
        path = tmp_path / name
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        with pytest.raises(CheckpointError, match=name):
            read({"a": torch.zeros(1000)}, tmp_path)
        path.unlink()
        with pytest.raises(DamagedCheckpointError, match=name):
            read({"a": torch.zeros(1000)}, tmp_path)
        path.write_bytes(content)


def test_what_torch_cannot_read_is_named(tmp_path: Path) -> None:
    dcp.save({"a": torch.ones(1000)}, checkpoint_id=tmp_path)
    path = tmp_path / "__0_0.distcp"
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(CheckpointError, match=r"__0_0\.distcp: a "):
        read({"a": torch.zeros(1000)}, tmp_path)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    dcp.save({"a": torch.ones(2)}, checkpoint_id=tmp_path)
    with pytest.raises(StructureError, match="has no b"):
        read({"b": torch.zeros(2)}, tmp_path)


class Attack:
    """Would run a command where it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


def test_metadata_and_objects_do_not_run_code(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    with pytest.raises(DamagedCheckpointError, match=r"mkdir, which does not belong"):
        decode(pickle.dumps(Attack(marker)), "path")
    dcp.save({"a": torch.ones(2), "o": Attack(marker)}, checkpoint_id=tmp_path / "c")
    with pytest.raises(CheckpointError, match=r"o has objects of types .*mkdir"):
        read({"o": None}, tmp_path / "c")
    assert not marker.exists()


@pytest.mark.parametrize("content", [b"", b"abc", pickle.dumps([1]), pickle.dumps({})])
def test_what_is_no_metadata_is_refused(content: bytes) -> None:
    with pytest.raises(DamagedCheckpointError, match="path: "):
        decode(content, "path")


def test_files_elsewhere_are_not_read(tmp_path: Path) -> None:
    dcp.save({"a": torch.ones(2)}, checkpoint_id=tmp_path / "c")
    metadata = dcp.FileSystemReader(tmp_path / "c").read_metadata()
    for info in metadata.storage_data.values():
        info.relative_path = "../other"
    (tmp_path / "c" / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(DamagedCheckpointError, match="not in the checkpoint's folder"):
        read({"a": torch.zeros(2)}, tmp_path / "c")


def test_changed_metadata_never_do_more_than_fail(tmp_path: Path) -> None:
    """Without checksums a changed bit may go unnoticed, but nothing else happens."""
    dcp.save({"a": torch.ones(10), "n": {"b": 1}}, checkpoint_id=tmp_path)
    path = tmp_path / ".metadata"
    whole = path.read_bytes()
    chosen = random.Random(5)
    for _ in range(150):
        changed = bytearray(whole)
        changed[chosen.randrange(len(whole))] ^= 1 << chosen.randrange(8)
        path.write_bytes(changed[: chosen.choice([len(whole), chosen.randrange(len(whole))])])
        with contextlib.suppress(CheckpointError):
            read({"a": torch.zeros(10), "n": {"b": None}}, tmp_path)
