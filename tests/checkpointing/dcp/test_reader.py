from __future__ import annotations

import itertools
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from tests.checkpointing.dcp.saved import Folder, manifest_of, save
from tests.checkpointing.dcp.test_loading import Many, read
from undaunted.checkpointing.dcp.loading import load
from undaunted.checkpointing.dcp.reader import Reader, Verified
from undaunted.checkpointing.errors import CheckpointError, DamagedCheckpointError

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.*torch.distributed is")]


class Parts(torch.Tensor):
    """A tensor in pieces, by the protocol through which torch's checkpoints see a DTensor."""

    cuts: list[list[int]]
    here: int | None = None  # this many of the parts

    def boxes(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        ranges = []
        for length, inner in zip(self.shape, self.cuts, strict=True):
            ends = sorted({0, *(cut for cut in inner if cut < length), length})
            ranges.append(list(itertools.pairwise(ends)))
        return [
            (tuple(a for a, _ in box), tuple(b - a for a, b in box))
            for box in itertools.product(*ranges)
        ][: self.here]

    def chunks(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(torch.Size(o), torch.Size(s)) for o, s in self.boxes()]

    def __create_write_items__(self, fqn: str, value: Any) -> list[WriteItem]:
        return [
            WriteItem(
                index=MetadataIndex(fqn, chunk.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=chunk,
                    properties=TensorProperties(dtype=self.dtype),
                    size=torch.Size(self.shape),
                ),
            )
            for chunk in self.chunks()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return self.chunks()

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        whole = self.as_subclass(torch.Tensor)
        for offsets, sizes in self.boxes():
            if offsets == tuple(index.offset or ()):
                return whole[tuple(slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))]
        raise AssertionError(index)


def in_parts(tensor: torch.Tensor, cuts: list[list[int]]) -> Parts:
    parts = tensor.as_subclass(Parts)
    parts.cuts = cuts[: tensor.ndim] + [[] for _ in range(tensor.ndim - len(cuts))]
    return parts


cuts = st.lists(st.lists(st.integers(1, 6), max_size=2), min_size=3, max_size=3)
shapes = st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple)


@settings(max_examples=25)
@given(shapes, cuts, cuts, st.sampled_from([torch.float32, torch.bfloat16, torch.int8]))
def test_what_was_saved_in_some_parts_is_loaded_in_others(
    shape: tuple[int, ...], before: list[list[int]], after: list[list[int]], dtype: torch.dtype
) -> None:
    tensor = torch.arange(math.prod(shape)).remainder(100).to(dtype).view(shape)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        save(folder, {"a": in_parts(tensor.clone(), before)})
        loaded = torch.zeros(shape, dtype=dtype)
        read({"a": in_parts(loaded, after)}, folder)
        assert torch.equal(loaded, tensor)
        whole = torch.zeros(shape, dtype=torch.float64)
        read({"a": whole}, folder)
        assert torch.equal(whole, tensor.double())


def test_dcp_loads_parts(tmp_path: Path) -> None:
    tensor = torch.arange(30.0).view(5, 6)
    save(tmp_path, {"a": in_parts(tensor.clone(), [[2], [1, 5]])})
    loaded = torch.zeros(5, 6)
    dcp.load({"a": loaded}, checkpoint_id=tmp_path)
    assert torch.equal(loaded, tensor)


@pytest.mark.parametrize(("whole", "part", "shared"), [(500, 400, True), (400, 500, False)])
def test_a_file_counts_as_shared_if_most_of_what_is_read_of_it_is(
    tmp_path: Path, whole: int, part: int, shared: bool
) -> None:
    """Here the half of a tensor is loaded, as by one of two ranks."""
    save(tmp_path, {"whole": torch.ones(whole), "part": torch.ones(2 * part)})
    storage: Any = Folder(tmp_path)
    half = in_parts(torch.zeros(2 * part), [[part]])
    half.here = 1
    mine = {"whole": torch.zeros(whole), "part": half}
    manifest = manifest_of(tmp_path)
    load(mine, storage, manifest, agreement=Many("s"), threads=1, timeout_s=10)
    assert half.as_subclass(torch.Tensor).sum() == part
    assert storage.shared["__0_0.distcp"] is shared


def reader_of(folder: Path) -> Reader:
    storage: Any = Folder(folder)
    return Reader(Verified(storage, manifest_of(folder), 2, lambda _: None))


def test_dcp_loads_through_it(tmp_path: Path) -> None:
    save(tmp_path, {"a": torch.arange(30.0).view(5, 6), "n": {"step": 7}})
    loaded = {"a": torch.zeros(5, 6, dtype=torch.float64), "n": {"step": 0}}
    dcp.load(loaded, storage_reader=reader_of(tmp_path))
    assert torch.equal(loaded["a"], torch.arange(30.0).view(5, 6).double())
    assert loaded["n"] == {"step": 7}


def test_planners_are_told_of_each_tensor(tmp_path: Path) -> None:
    class Noting(dcp.DefaultLoadPlanner):
        def commit_tensor(self, read_item: Any, tensor: torch.Tensor) -> None:
            told.append((read_item.dest_index.fqn, tensor.sum().item()))

    told: list[tuple[str, float]] = []
    save(tmp_path, {"a": torch.ones(5), "b": torch.ones(3)})
    state = {"a": torch.zeros(5), "b": torch.zeros(3, dtype=torch.float64)}
    dcp.load(state, storage_reader=reader_of(tmp_path), planner=Noting())
    assert sorted(told) == [("a", 5), ("b", 3)]


def test_damage_is_named_to_dcp(tmp_path: Path) -> None:
    save(tmp_path, {"a": torch.ones(5)})
    reader = reader_of(tmp_path)
    path = tmp_path / "__0_0.distcp"
    content = bytearray(path.read_bytes())
    content[70] ^= 1
    path.write_bytes(content)
    with pytest.raises(dcp.api.CheckpointException) as caught:
        dcp.load({"a": torch.zeros(5)}, storage_reader=reader)
    (error,) = (error for error, _ in caught.value.failures.values())
    assert isinstance(error, DamagedCheckpointError)
    assert (error.names, error.block) == (("a",), 0)


class Attack:
    """Would run a command where it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


def test_dcp_makes_no_object_that_could_run_code(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    dcp.save({"o": [Attack(marker)]}, checkpoint_id=tmp_path / "c")
    with pytest.raises(dcp.api.CheckpointException) as caught:
        dcp.load({"o": None}, storage_reader=reader_of(tmp_path / "c"))
    (error,) = (error for error, _ in caught.value.failures.values())
    assert isinstance(error, CheckpointError)
    assert not marker.exists()
