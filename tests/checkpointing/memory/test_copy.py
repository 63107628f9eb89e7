from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

import torch

from undaunted.checkpointing.memory.arena import HEADER_BYTES, Arena
from undaunted.checkpointing.memory.copy import copy_into, pin, view_of, warm_up

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.torch


@pytest.fixture
def arena() -> Iterator[Arena]:
    one = Arena.create("test", 1 << 16)
    yield one
    one.close()


def test_a_view_is_the_memory(arena: Arena) -> None:
    view = view_of(arena, HEADER_BYTES + 64, torch.int32, (2, 3))
    view.fill_(258)
    assert bytes(arena.memory[HEADER_BYTES + 64 :][:8]) == b"\2\1\0\0\2\1\0\0"
    assert view_of(arena, 0, torch.float64, (0, 3)).shape == (0, 3)
    assert view_of(arena, HEADER_BYTES, torch.float64, ()).shape == ()


@pytest.mark.parametrize("quick", [True, False])
def test_copies(arena: Arena, quick: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not quick:
        monkeypatch.delattr(torch, "_foreach_copy_")
    sources = [
        torch.arange(6.0).view(2, 3).t(),
        torch.tensor(2.0, requires_grad=True),
        torch.tensor([1.0]).expand(4),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.empty(0),
    ]
    views = [
        view_of(arena, HEADER_BYTES + 64 * at, source.dtype, source.shape)
        for at, source in enumerate(sources)
    ]
    copy_into(views, sources, arena)
    copy_into([], [], arena)
    for view, source in zip(views, sources, strict=True):
        assert torch.equal(view, source.detach().resolve_conj())


def test_without_a_device_nothing_is_pinned(arena: Arena) -> None:
    pin(arena, torch.device("cpu"))
    warm_up(arena)
    if not torch.cuda.is_initialized():
        assert arena.before_close is None


def test_pinned_memory_is_given_back(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a runtime that only remembers what it was asked."""
    asked: list[tuple[str, int]] = []

    class Runtime:
        def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802
            asked.append(("register", size))
            return 0

        def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
            asked.append(("unregister", 0))
            return 0

    monkeypatch.setattr(torch.cuda, "cudart", Runtime)
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    pin(arena, torch.device("cuda", 1))
    pin(arena, torch.device("cuda", 1))
    arena.close()
    assert asked == [("register", 1 << 16), ("unregister", 0)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_from_a_device(arena: Arena) -> None:
    sources = [torch.arange(6.0, device="cuda").view(2, 3).t(), torch.ones(3)]
    views = [
        view_of(arena, HEADER_BYTES + 64 * at, s.dtype, s.shape) for at, s in enumerate(sources)
    ]
    copy_into(views, sources, arena)
    assert torch.equal(views[0], sources[0].cpu())
    assert torch.equal(views[1], sources[1])
