from __future__ import annotations

import io
import zipfile
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.checkpointing.format.image import (
    DTYPES,
    FRAME_ALIGNMENT,
    HEAD_BYTES,
    end_of,
    frame,
    is_framed,
    place_frames,
    place_others,
)

torch = pytest.importorskip("torch")


if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


lengths = st.lists(st.integers(0, 300), max_size=12)


@given(lengths, lengths)
def test_items_do_not_overlap_and_their_place_tells_what_they_are(
    framed: list[int], others: list[int]
) -> None:
    first = place_frames(framed)
    then = place_others(first, others)
    assert [place.length for place in first + then] == framed + others
    at = 0
    for place in first + then:
        assert at <= place.offset < at + 64 + 8
        at = place.offset + place.length
    assert all(is_framed(place.offset) for place in first)
    assert not any(is_framed(place.offset) for place in then)


def test_the_end() -> None:
    assert end_of([]) == 0
    assert end_of(place_frames([70, 10])) == 128 + 10


def framed(tensor: torch.Tensor) -> bytes:
    parts = frame(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
    body = bytes(tensor.contiguous().view(-1).view(torch.uint8).tolist()) if tensor.numel() else b""
    assert len(parts.head) == HEAD_BYTES == FRAME_ALIGNMENT
    return parts.head + body + parts.tail


def sample(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    size = torch.empty(shape, dtype=dtype).nbytes
    raw = torch.arange(size, dtype=torch.int64).remainder(2 if dtype == torch.bool else 61)
    return raw.to(torch.uint8).view(dtype).view(shape)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (4, 0, 2), (300, 2)])
@pytest.mark.parametrize("name", DTYPES)
def test_torch_load_reads_it(name: str, shape: tuple[int, ...]) -> None:
    dtype = getattr(torch, name, None)
    if dtype is None:
        pytest.skip(f"this torch has no {name}")
    assert dtype.itemsize == DTYPES[name][0]
    tensor = sample(dtype, shape)
    loaded = torch.load(io.BytesIO(framed(tensor)), weights_only=True, map_location="cpu")
    assert loaded.dtype == dtype
    assert loaded.shape == tensor.shape
    assert loaded.stride() == tensor.stride()
    assert not loaded.requires_grad
    assert loaded.view(-1).view(torch.uint8).tolist() == tensor.view(-1).view(torch.uint8).tolist()


@given(st.lists(st.integers(0, 5), max_size=5).map(tuple))
def test_strides_are_those_of_contiguous_tensors(shape: tuple[int, ...]) -> None:
    tensor = torch.zeros(shape)
    loaded = torch.load(io.BytesIO(framed(tensor)), weights_only=True)
    assert (loaded.shape, loaded.stride()) == (tensor.shape, tensor.stride())


def test_every_name_is_a_record_of_a_zip_archive() -> None:
    archive = zipfile.ZipFile(io.BytesIO(framed(torch.ones(5, 7))))
    assert archive.namelist() == [
        "archive/data/0",
        "archive/data.pkl",
        "archive/byteorder",
        "archive/version",
    ]


def test_torch_load_reads_more_than_4_gib(tmp_path: Path) -> None:
    """The file has holes where the tensor's bytes are."""
    elements = (1 << 32) + (3 << 20)
    parts = frame("uint8", (elements,))
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.write(parts.head)
        file.seek(HEAD_BYTES + elements - 2)
        file.write(b"\x01\x02" + parts.tail)
    assert path.stat().st_size == parts.length
    tensor = torch.load(path, weights_only=True, mmap=True)
    assert tensor.shape == (elements,)
    assert tensor[-3:].tolist() == [0, 1, 2]
    with zipfile.ZipFile(path) as archive:
        assert archive.getinfo("archive/data/0").file_size == elements
        assert archive.getinfo("archive/version").header_offset > 1 << 32


@pytest.mark.parametrize(
    "elements", [0xFFFFFFFE, 0xFFFFFFFF, 0xFFFFFFFE - 64, 0xFFFFFFFF - 64 - 300]
)
def test_sizes_around_the_limit_of_32_bits(elements: int, tmp_path: Path) -> None:
    """Directory, small records and tensor pass the limit one after the other."""
    parts = frame("uint8", (elements,))
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.write(parts.head)
        file.seek(HEAD_BYTES + elements)
        file.write(parts.tail)
    assert torch.load(path, weights_only=True, mmap=True).shape == (elements,)
    with zipfile.ZipFile(path) as archive:
        assert archive.infolist()[0].file_size == elements
