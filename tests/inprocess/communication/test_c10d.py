"""The adapter to torch.distributed, against a stand-in and against torch."""

from __future__ import annotations

import sys
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from undaunted.base import threads
from undaunted.inprocess.communication import c10d

NAME = "torch.distributed.distributed_c10d"
BOOKS = [
    "pg_map",
    "pg_names",
    "pg_group_ranks",
    "pg_backend_config",
    "pg_to_tag",
    "tags_to_pg",
    "pg_coalesce_state",
]
NEWER_BOOKS = ["pg_flight_recorder_hooks"]  # of torch 2.15


class Group:
    def __init__(self, name: str, aborted: list[str]) -> None:
        self.name, self.aborted = name, aborted

    def abort(self) -> None:
        self.aborted.append(self.name)


def stand_in(monkeypatch: pytest.MonkeyPatch, *, initialized: bool = True, **more: Any) -> Any:
    world = SimpleNamespace(group_count=3, **{name: {} for name in BOOKS + NEWER_BOOKS})
    module = SimpleNamespace(_world=world, is_initialized=lambda: initialized, **more)
    monkeypatch.setitem(sys.modules, NAME, module)  # type: ignore[arg-type]
    return module


@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        ([], set()),
        (["gloo"], {"gloo"}),
        (["cpu:gloo,cuda:nccl", "cuda:NCCL"], {"gloo", "nccl"}),
        (["cpu:gloo, xpu:xccl,"], {"gloo", "xccl"}),
    ],
)
def test_backends_of_composites(configs: list[str], expected: set[str]) -> None:
    assert c10d.parse_backends(configs) == expected


def test_the_grouped_abort_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    stand_in(monkeypatch, _abort_process_group=lambda: calls.append("all"))
    c10d.abort_groups()
    assert calls == ["all"]


def test_a_torch_without_it_aborts_the_youngest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    module = stand_in(monkeypatch)
    module._world.pg_names = {Group(name, calls): name for name in ("0", "2", "1")}
    c10d.abort_groups()
    assert calls == ["2", "1", "0"]


def test_what_an_unfinished_group_has_left_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    unregistered: list[bool] = []
    module = stand_in(
        monkeypatch,
        initialized=False,
        _unregister_all_process_groups=lambda: unregistered.append(True),
    )
    for name in BOOKS + NEWER_BOOKS:
        getattr(module._world, name)["group"] = "0"
    c10d.destroy_groups()
    assert all(getattr(module._world, name) == {} for name in BOOKS + NEWER_BOOKS)
    assert module._world.group_count == 0
    assert unregistered == [True]


def test_a_destroyed_group_is_kept_until_the_functions_frames_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """DistributedDataParallel must not be the last that lets go of it."""
    module = stand_in(monkeypatch, initialized=False)
    group = Group("0", [])
    kept = weakref.ref(group)
    module._world.pg_map[group] = ("gloo", None)
    del group
    c10d.destroy_groups()
    assert module._world.pg_map == {}
    assert kept() is not None
    c10d.release()
    threads.settle()
    assert kept() is None
    c10d.release()


def test_nothing_is_dropped_of_groups_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    module = stand_in(monkeypatch)
    c10d.forget_unfinished()
    assert module._world.group_count == 3


@pytest.mark.torch
def test_a_default_group_that_is_not_in_the_books_is_dropped() -> None:
    """As it is when the books are cleared while `init_process_group` is about to return."""
    dist = pytest.importorskip("torch.distributed")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    c10d.module()._world.pg_map.clear()
    c10d.destroy_groups()
    assert not dist.is_initialized()
    assert c10d.module()._world.group_count == 0


@pytest.mark.torch
def test_torch_has_what_is_used() -> None:
    torch_c10d = pytest.importorskip(NAME)
    assert callable(torch_c10d._abort_process_group)
    assert callable(torch_c10d._update_default_pg)
    assert all(hasattr(torch_c10d._world, name) for name in (*BOOKS, "group_count"))
    assert c10d.module() is torch_c10d


@pytest.mark.torch
def test_groups_of_torch_are_destroyed_and_made_again() -> None:
    dist = pytest.importorskip("torch.distributed")
    for _ in range(2):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        dist.new_group()
        assert c10d.backends() == {"gloo"}
        assert [size for size, _ in c10d.groups()] == [1, 1]
        c10d.destroy_groups()
        assert not dist.is_initialized()
        assert c10d.groups() == []
