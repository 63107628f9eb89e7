from __future__ import annotations

import itertools
import math
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

from tests.checkpointing.dcp.saved import save
from tests.checkpointing.dcp.test_loading import read

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.*torch.distributed is")]


class Parts(torch.Tensor):
    """A tensor in pieces, by the protocol through which torch's checkpoints see a DTensor."""

    cuts: list[list[int]]

    def boxes(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        ranges = []
        for length, inner in zip(self.shape, self.cuts, strict=True):
            ends = sorted({0, *(cut for cut in inner if cut < length), length})
            ranges.append(list(itertools.pairwise(ends)))
        return [
            (tuple(a for a, _ in box), tuple(b - a for a, b in box))
            for box in itertools.product(*ranges)
        ]

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
