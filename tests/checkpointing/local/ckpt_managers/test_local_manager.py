"""Local checkpoints of a world of one."""

from __future__ import annotations

import errno
import pickle
import threading
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from undaunted.checkpointing.async_ckpt.core import AsyncCallsQueue  # noqa: E402
from undaunted.checkpointing.errors import NoCheckpointError  # noqa: E402
from undaunted.checkpointing.local import folder  # noqa: E402
from undaunted.checkpointing.local.basic_state_dict import (  # noqa: E402
    BasicTensorAwareStateDict,
)
from undaunted.checkpointing.local.ckpt_managers.local_manager import (  # noqa: E402  # noqa: E402
    CheckpointingException,
    CkptID,
    LocalCheckpointManager,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.torch


def state(value: float = 1.0) -> BasicTensorAwareStateDict:
    return BasicTensorAwareStateDict({"t": torch.full((1000,), value), "n": value})


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalCheckpointManager]:
    manager = LocalCheckpointManager(tmp_path, "s", timeout_s=20)
    yield manager
    manager.close()


def loaded(path: Path, **kwargs: Any) -> tuple[float, CkptID]:
    manager = LocalCheckpointManager(path, "s", **kwargs)
    try:
        found, ckpt_id = manager.load()
        assert found.state_dict["t"].unique().item() == found.state_dict["n"]
        return found.state_dict["n"], ckpt_id
    finally:
        manager.close()


def files(path: Path) -> list[str]:
    return sorted(file.name for file in (path / "s/0").iterdir())


def test_where_it_keeps_shards(local: LocalCheckpointManager, tmp_path: Path) -> None:
    assert (local.rank, local.local_ckpt_dir) == (0, tmp_path / "s" / "0")


def test_saves_and_loads(local: LocalCheckpointManager, tmp_path: Path) -> None:
    assert local.find_latest() == -1
    local.warm_up(state())
    for iteration in (1, 2, 12345678):
        assert local.save(state(iteration), iteration) is None
        assert local.latest_iteration == iteration
    assert local.find_latest() == 12345678
    assert files(tmp_path) == ["iter_0000002_0_local.pt", "iter_12345678_0_local.pt"]
    assert loaded(tmp_path) == (12345678, CkptID(12345678, 0, "s"))


def test_nothing_to_load(local: LocalCheckpointManager) -> None:
    with pytest.raises(NoCheckpointError, match="no local checkpoint can be loaded: there is none"):
        local.load()


def test_two_saves_on_their_way(local: LocalCheckpointManager, tmp_path: Path) -> None:
    queue = AsyncCallsQueue()
    for iteration in (1, 2, 3):
        current = state(iteration)
        queue.schedule_async_request(local.save(current, iteration, is_async=True))
        current.state_dict["t"].zero_()
    assert queue.maybe_finalize_async_calls(blocking=True) == [0, 1, 2]
    queue.close()
    local.close()
    assert files(tmp_path) == ["iter_0000002_0_local.pt", "iter_0000003_0_local.pt"]
    assert loaded(tmp_path)[0] == 3


def test_a_save_that_is_dropped_blocks_nothing(local: LocalCheckpointManager) -> None:
    for _ in range(3):
        request = local.save(state(), 1, is_async=True)
        with pytest.raises(ValueError, match="iteration 1 is not newer"):
            local.save(state(), 1)
        with pytest.raises(TypeError, match="runs in the process that has the state"):
            pickle.dumps(request.async_fn)
        del request


def test_a_save_that_is_given_up_fails(local: LocalCheckpointManager, tmp_path: Path) -> None:
    local.save(state(1), 1)
    request = local.save(state(2), 2, is_async=True)
    local.abort()
    request.async_fn()
    with pytest.raises(CheckpointingException, match="the save was given up"):
        request.finalize_fns[0]()
    assert files(tmp_path) == ["iter_0000001_0_local.pt"]
    local.save(state(3), 2)
    assert loaded(tmp_path)[0] == 3


def test_a_full_disk_is_named_and_the_next_save_works(
    local: LocalCheckpointManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local.save(state(1), 1)
    options = local._folder()._options

    class Full(type(options.files)):
        def allocate(self, fd: int, size: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(local._folder(), "_options", options._replace(files=Full()))
        with pytest.raises(CheckpointingException, match="No space left on device") as failed:
            local.save(state(2), 2)
    assert failed.value.errno == errno.ENOSPC
    assert failed.value.ranks == (0,)
    assert files(tmp_path) == ["iter_0000001_0_local.pt"]
    local.save(state(2), 2)
    assert loaded(tmp_path)[0] == 2


@pytest.mark.parametrize("at", [0, 30, 4096 + 100, -1])
def test_a_flipped_bit_anywhere_leaves_the_older_one(
    local: LocalCheckpointManager, tmp_path: Path, at: int
) -> None:
    local.save(state(1), 1)
    local.save(state(2), 2)
    path = tmp_path / "s/0/iter_0000002_0_local.pt"
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    assert loaded(tmp_path)[0] == 1


def test_objects_need_permission(tmp_path: Path) -> None:
    manager = LocalCheckpointManager(tmp_path, "s", allow_pickle=True)
    whole = BasicTensorAwareStateDict({"t": torch.ones(1), "n": 1, "o": pytest.approx})
    manager.save(whole, 1)
    manager.close()
    assert loaded(tmp_path, allow_pickle=True)[0] == 1
    with pytest.raises(NoCheckpointError, match="give allow_pickle=True only if"):
        loaded(tmp_path)


@pytest.mark.parametrize("arguments", [{"keep": 1}, {"keep": 0}, {"session_id": "a/b"}])
def test_settings_that_are_not_possible(tmp_path: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"at least 2|name of a folder"):
        LocalCheckpointManager(tmp_path, **arguments)


def test_a_save_that_hangs_keeps_its_buffer(local: LocalCheckpointManager) -> None:
    job = local.save(state(1), 1, is_async=True).async_fn
    job._running = True  # as if it hung
    job.release()
    assert job.shard is not None
    job()
    assert "given up" in job.failure.message
    assert job.shard is None


def test_a_slow_deletion_holds_up_no_save_and_takes_none_of_them(
    local: LocalCheckpointManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing, release = threading.Event(), threading.Event()
    scan = folder._entries

    def slow(path: os.PathLike[str]) -> list[os.DirEntry[str]]:
        if threading.current_thread().name == "undaunted-local-clean":
            listing.set()
            assert release.wait(20)
        return scan(path)

    monkeypatch.setattr(folder, "_entries", slow)
    queue = AsyncCallsQueue()
    for iteration in range(1, 6):
        queue.schedule_async_request(local.save(state(iteration), iteration, is_async=True))
        assert queue.maybe_finalize_async_calls(blocking=True) == [iteration - 1]
        if iteration == 2:
            assert listing.wait(20)
    release.set()
    queue.close()
    local.close()
    assert files(tmp_path) == ["iter_0000004_0_local.pt", "iter_0000005_0_local.pt"]
