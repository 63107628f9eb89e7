"""Saves of torch's distributed checkpoint beside training, in one process."""

from __future__ import annotations

import collections
import contextlib
import errno
import gc
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import types
import zlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")
dcp = pytest.importorskip("torch.distributed.checkpoint")

from undaunted.checkpointing import announce  # noqa: E402
from undaunted.checkpointing.async_ckpt import filesystem_async, pool  # noqa: E402
from undaunted.checkpointing.async_ckpt.core import (  # noqa: E402
    AsyncCallsQueue,
    AsyncRequest,
    abort_nvrx_checkpoint,
)
from undaunted.checkpointing.async_ckpt.filesystem_async import (  # noqa: E402
    FileSystemWriterAsync,
    get_write_results_queue,
)
from undaunted.checkpointing.async_ckpt.state_dict_saver import (  # noqa: E402
    CheckpointMetadataCache,
    SaveFailedError,
    save_state_dict_async_finalize,
    save_state_dict_async_plan,
)
from undaunted.checkpointing.errors import SaveError  # noqa: E402
from undaunted.checkpointing.format import manifest as manifests  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
]


@pytest.fixture
def queue() -> Iterator[AsyncCallsQueue]:
    made = AsyncCallsQueue()
    yield made
    made.close(abort=True)
    pool.close(abort=True)


def schedule(
    queue: AsyncCallsQueue,
    folder: Path | str,
    state: dict[str, Any],
    cache: Any = None,
    **settings: Any,
) -> FileSystemWriterAsync:
    writer = FileSystemWriterAsync(folder, **settings)
    planned = save_state_dict_async_plan(
        state, writer, enable_cache=cache is not None, metadata_cache=cache
    )
    save, preload, arguments = writer.get_save_function_and_args()
    end = [partial(save_state_dict_async_finalize, *planned)]
    queue.schedule_async_request(AsyncRequest(save, tuple(arguments), end, preload_fn=preload))
    return writer


def load(folder: Path, like: dict[str, Any]) -> dict[str, Any]:
    filled = {k: torch.zeros_like(v) if torch.is_tensor(v) else None for k, v in like.items()}
    dcp.load(filled, checkpoint_id=folder)
    return filled


def writer_pids() -> list[int]:
    current = pool._pool
    assert current is not None
    seats = [*current._seats.values(), *(place._seat for place in current._used)]
    return [one._process.pid for one in seats if one is not None and one._process]


def test_content_is_fixed_when_planning_returns_and_torch_reads_it(
    queue: AsyncCallsQueue, tmp_path: Path
) -> None:
    base = torch.arange(64.0)
    state = {
        "plain": torch.randn(100, 30),
        "view": base[::3],
        "part": base[8:16],
        "tied": base,
        "transposed": torch.arange(6.0).reshape(2, 3).t(),
        "step": torch.tensor(7.0),
        "bf16": torch.ones(5, dtype=torch.bfloat16),
        "bool": torch.tensor([True, False]),
        "empty": torch.ones(0, 3),
        "weight": torch.nn.Parameter(torch.ones(3)),
        "array": np.arange(4.0),
        "object": [1],
    }
    expected = {k: v.detach().clone() for k, v in state.items() if torch.is_tensor(v)}
    schedule(queue, tmp_path / "c", state)
    with torch.no_grad():
        for name in expected:
            state[name].zero_()
    state["array"][:] = -1
    state["object"].append(2)
    assert queue.maybe_finalize_async_calls(blocking=True) == [0]
    loaded = load(tmp_path / "c", {k: v for k, v in state.items() if k in expected})
    assert all(torch.equal(loaded[name], value) for name, value in expected.items())
    with torch.serialization.safe_globals([np.ndarray]):
        objects = {"array": None, "object": [0]}
        dcp.load(objects, checkpoint_id=tmp_path / "c")
    assert objects["object"] == [1]
    assert list(objects["array"]) == [0, 1, 2, 3]


def test_names_of_files_and_their_manifest(queue: AsyncCallsQueue, tmp_path: Path) -> None:
    folder = tmp_path / "iter_0000300"
    state = {"model.a": torch.ones(3), "optimizer.b": torch.ones(4)}
    schedule(queue, folder, state, separation_hint="optimizer")
    queue.maybe_finalize_async_calls(blocking=True)
    names = {".metadata", "__0_0.distcp", "optimizer__0_1.distcp", "undaunted.json"}
    assert {path.name for path in folder.iterdir()} == names
    manifest = manifests.decode((folder / "undaunted.json").read_bytes(), "")
    assert (manifest.step, manifest.world_size) == (300, 1)
    assert set(manifest.files) == names - {"undaunted.json"}
    for name, file in manifest.files.items():
        content = (folder / name).read_bytes()
        assert (file.size, file.checksums()) == (len(content), [zlib.crc32(content)])
    assert torch.equal(load(folder, state)["optimizer.b"], state["optimizer.b"])


def test_ranks_without_a_process_group_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SaveFailedError, match="init_process_group"):
        save_state_dict_async_plan({"x": torch.ones(2)}, FileSystemWriterAsync(tmp_path / "c"))


def test_a_rank_without_anything_to_write(queue: AsyncCallsQueue, tmp_path: Path) -> None:
    writer = FileSystemWriterAsync(tmp_path / "c")
    planned = save_state_dict_async_plan({}, writer)
    assert writer.get_save_function_and_args() == (None, None, [])
    save_state_dict_async_finalize(*planned)
    assert (tmp_path / "c" / ".metadata").exists()


def test_memory_is_used_again_and_given_back_when_nothing_is_scheduled(
    queue: AsyncCallsQueue, tmp_path: Path
) -> None:
    state = {"a": torch.ones(1000)}
    arenas = set()
    for number in range(3):
        schedule(queue, tmp_path / str(number), state)
        queue.maybe_finalize_async_calls(blocking=True)
        place = pool.the_pool().take(0)
        arenas.add(id(place.lease.arena))
        place.release()
    assert len(arenas) == 1
    for number in range(pool.PLACES + 1):  # one more than there is memory for
        save_state_dict_async_plan(state, FileSystemWriterAsync(tmp_path / f"x{number}"))


def test_a_save_that_failed_leaves_no_files(queue: AsyncCallsQueue, tmp_path: Path) -> None:
    schedule(queue, tmp_path / "c", {"a": torch.ones(2)}, open_file=refuse_to_sync)
    with pytest.raises(SaveError):
        queue.maybe_finalize_async_calls(blocking=True)
    assert list((tmp_path / "c").iterdir()) == []


def test_files_of_a_save_that_was_dropped_go_with_the_next_one(
    queue: AsyncCallsQueue, tmp_path: Path
) -> None:
    schedule(queue, tmp_path / "c", {"a": torch.ones(2)})
    assert queue._caller._runner.join(60)  # written, and not finalized
    kept = schedule(queue, tmp_path / "c", {"a": torch.ones(2)})
    assert queue._caller._runner.join(60)
    assert len(list((tmp_path / "c").glob("*.distcp"))) == 2  # both can be finalized
    queue.close(abort=True)
    gc.collect()
    schedule(queue, tmp_path / "c", {"a": torch.ones(2)})
    assert queue._caller._runner.join(60)
    names = {path.name for path in (tmp_path / "c").glob("*.distcp")}
    assert len(names) == 2
    assert set(kept.written_files()) < names
    queue.close()
    assert (tmp_path / "c" / ".metadata").exists()


def refuse_to_sync(path: str, mode: str) -> Any:
    Path(path).write_bytes(b"half")
    raise OSError(errno.EIO, "Input/output error", path)


def test_a_former_checkpoint_is_whole_until_the_new_one_is(
    queue: AsyncCallsQueue, tmp_path: Path
) -> None:
    folder = tmp_path / "c"
    old, new = {"a": torch.ones(9)}, {"a": torch.zeros(9), "b": torch.ones(1)}
    schedule(queue, folder, old)
    queue.maybe_finalize_async_calls(blocking=True)
    schedule(queue, folder, new)
    assert torch.equal(load(folder, old)["a"], old["a"])
    abort_nvrx_checkpoint()
    assert torch.equal(load(folder, old)["a"], old["a"])
    schedule(queue, folder, new)
    queue.maybe_finalize_async_calls(blocking=True)
    assert torch.equal(load(folder, new)["a"], new["a"])
    assert not (folder / "__0_0.distcp").exists()


def test_overwriting_can_be_forbidden(queue: AsyncCallsQueue, tmp_path: Path) -> None:
    schedule(queue, tmp_path / "c", {"a": torch.ones(2)})
    queue.maybe_finalize_async_calls(blocking=True)
    with pytest.raises(SaveFailedError, match="overwrite=False"):
        schedule(queue, tmp_path / "c", {"a": torch.ones(2)}, overwrite=False)


def test_an_error_of_the_writer_names_path_and_errno_and_the_next_save_works(
    queue: AsyncCallsQueue, tmp_path: Path
) -> None:
    folder, state = tmp_path / "c", {"a": torch.ones(2)}
    writer = FileSystemWriterAsync(folder)
    planned = save_state_dict_async_plan(state, writer)
    folder.rmdir()
    folder.write_text("in the way")
    save, preload, arguments = writer.get_save_function_and_args()
    end = [partial(save_state_dict_async_finalize, *planned)]
    queue.schedule_async_request(AsyncRequest(save, tuple(arguments), end, preload_fn=preload))
    with pytest.raises(SaveError, match=f"rank 0 .*{folder}") as caught:
        queue.maybe_finalize_async_calls(blocking=True)
    assert caught.value.errno in (errno.ENOTDIR, errno.EEXIST)
    with pytest.raises(SaveFailedError, match=f"was not written: rank 0 .*{folder}"):
        save_state_dict_async_finalize(*planned)
    folder.unlink()
    schedule(queue, folder, state)
    assert queue.maybe_finalize_async_calls(blocking=True) == [1]


def test_the_death_of_the_writer_is_an_error_and_the_next_save_works(
    queue: AsyncCallsQueue, tmp_path: Path
) -> None:
    state = {"a": torch.ones(2)}
    AsyncCallsQueue.warmup_persistent_caller(0)
    (pid,) = writer_pids()
    os.kill(pid, signal.SIGSTOP)
    schedule(queue, tmp_path / "c", state)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(SaveError, match=r"rank 0 .*SIGKILL"):
        queue.maybe_finalize_async_calls(blocking=True)
    schedule(queue, tmp_path / "c", state)
    assert queue.maybe_finalize_async_calls(blocking=True) == [1]
    assert torch.equal(load(tmp_path / "c", state)["a"], state["a"])


def test_an_abort_ends_a_writer_that_stands_still(queue: AsyncCallsQueue, tmp_path: Path) -> None:
    AsyncCallsQueue.warmup_persistent_caller(0)
    os.kill(writer_pids()[0], signal.SIGSTOP)
    schedule(queue, tmp_path / "c", {"a": torch.ones(2)})
    abort_nvrx_checkpoint()
    assert queue.maybe_finalize_async_calls(blocking=True) == []
    assert not (tmp_path / "c" / ".metadata").exists()
    schedule(queue, tmp_path / "c", {"a": torch.ones(2)})
    assert queue.maybe_finalize_async_calls(blocking=True) == [0]
    # The aborted one may still be on its way: it has other names.
    (name,) = {path.name for path in (tmp_path / "c").glob("*.distcp")}
    assert name != "__0_0.distcp"


def test_results_belong_to_their_save(queue: AsyncCallsQueue, tmp_path: Path) -> None:
    other = AsyncCallsQueue()
    one = schedule(queue, tmp_path / "one", {"a": torch.ones(2)})
    two = schedule(other, tmp_path / "two", {"b": torch.ones(3)})
    assert other.maybe_finalize_async_calls(blocking=True) == [0]
    assert queue.maybe_finalize_async_calls(blocking=True) == [0]
    assert [result.index.fqn for result in one.retrieve_write_results()] == ["a"]
    assert [result.index.fqn for result in two.retrieve_write_results()] == ["b"]
    other.close()


def test_results_of_a_save_that_was_not_made(tmp_path: Path) -> None:
    error, _ = FileSystemWriterAsync(tmp_path / "c").retrieve_write_results()
    assert "nothing was written" in str(error)


def test_the_queue_other_programs_ask_for_is_there() -> None:
    given = get_write_results_queue("spawn")
    assert filesystem_async._results_queue is given
    assert given is filesystem_async._get_write_results_queue()
    assert given.empty()


def test_a_key_that_is_added_under_a_cache_is_saved(queue: AsyncCallsQueue, tmp_path: Path) -> None:
    cache = CheckpointMetadataCache()
    state = {f"key{n}": torch.full((4,), float(n)) for n in range(8)}
    reused = []
    for number in range(4):
        if number == 2:
            state["key8"] = torch.full((4,), 8.0)
        for tensor in state.values():
            tensor.add_(1)
        schedule(queue, tmp_path / str(number), state, cache)
        queue.maybe_finalize_async_calls(blocking=True)
        loaded = load(tmp_path / str(number), state)
        assert all(torch.equal(loaded[name], state[name]) for name in state)
        reused.append(cache.get_metadata_caching_status()[0])
    assert len(loaded) == 9
    assert reused == [False, True, False, True]


@pytest.mark.parametrize(
    "changed",
    [
        {"a": torch.ones(3)},
        {"a": torch.ones(2, dtype=torch.float64)},
        {"a": torch.ones(1, 2)},
        {"a": 5},
        {"b": torch.ones(2)},
    ],
)
def test_any_change_of_the_structure_ends_the_use_of_old_plans(
    queue: AsyncCallsQueue, tmp_path: Path, changed: dict[str, Any]
) -> None:
    cache = CheckpointMetadataCache()
    for number, state in enumerate(({"a": torch.ones(2)}, changed)):
        schedule(queue, tmp_path / str(number), state, cache)
    queue.maybe_finalize_async_calls(blocking=True)
    assert cache.get_metadata_caching_status() == (False, False)
    (name, value) = next(iter(changed.items()))
    assert str(load(tmp_path / "1", changed)[name]) == str(value)


def test_under_a_cache_tensors_that_have_moved_are_saved_as_they_are(
    queue: AsyncCallsQueue, tmp_path: Path
) -> None:
    cache = CheckpointMetadataCache()
    for number in range(3):
        state = {"a": torch.full((4,), float(number)), "b": torch.full((3,), float(number))}
        schedule(queue, tmp_path / str(number), state, cache)
        queue.maybe_finalize_async_calls(blocking=True)
        assert torch.equal(load(tmp_path / str(number), state)["a"], state["a"])
    assert cache.get_metadata_caching_status()[0]


EXITS = """
import os, signal, sys, torch
from undaunted.checkpointing.async_ckpt import pool
from undaunted.checkpointing.async_ckpt.core import AsyncCallsQueue, AsyncRequest
from undaunted.checkpointing.async_ckpt.filesystem_async import FileSystemWriterAsync
from undaunted.checkpointing.async_ckpt.state_dict_saver import save_state_dict_async_plan
queue = AsyncCallsQueue()
for folder in sys.argv[2:]:
    writer = FileSystemWriterAsync(folder)
    save_state_dict_async_plan({"a": torch.ones(2)}, writer)
    save, preload, arguments = writer.get_save_function_and_args()
    queue.schedule_async_request(AsyncRequest(save, tuple(arguments), [], preload_fn=preload))
    if folder == sys.argv[2]:
        queue.maybe_finalize_async_calls(blocking=True)  # the writer is there
        place = pool.the_pool().take(0)
        pid = place.warm_up()._process.pid
        place.release()
        os.kill(pid, signal.SIGSTOP)
print(pid, flush=True)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.e2e
@pytest.mark.parametrize("how", ["ends", "killed"])
def test_the_process_ends_and_its_writer_with_it(tmp_path: Path, how: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", EXITS, how, str(tmp_path / "a"), str(tmp_path / "b")],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == (0 if how == "ends" else -signal.SIGKILL), ended.stderr
    assert ("1 asynchronous saves were not finalized" in ended.stderr) == (how == "ends")
    # What is left of the writer is a zombie of this process, which adopts orphans.
    deadline = time.monotonic() + 30
    pid = int(ended.stdout)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            assert time.monotonic() < deadline
            select.select([], [], [], 0.01)


def test_files_can_be_opened_by_a_function_of_the_user(
    queue: AsyncCallsQueue, tmp_path: Path
) -> None:
    opened: list[str] = []

    def open_file(path: str, mode: str) -> Any:
        opened.append(path)
        return open(path, mode)  # noqa: PTH123 - what is replaced

    state = {"a": torch.ones(2)}
    schedule(queue, tmp_path / "c", state, open_file=open_file)
    queue.maybe_finalize_async_calls(blocking=True)
    assert opened == [f"{tmp_path}/c/__0_0.distcp"]
    assert torch.equal(load(tmp_path / "c", state)["a"], state["a"])


def test_urls_of_msc_are_written_by_its_client(
    queue: AsyncCallsQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_file(url: str, mode: str) -> Any:
        path = tmp_path / url.removeprefix("msc://profile/")
        path.parent.mkdir(exist_ok=True)
        return path.open(mode)

    client = types.SimpleNamespace(open=open_file)
    monkeypatch.setitem(sys.modules, "multistorageclient", client)
    state = {"a": torch.ones(2)}
    writer = schedule(queue, "msc://profile/c", state, use_msc=True)
    queue.maybe_finalize_async_calls(blocking=True)
    assert writer.checkpoint_id == "msc://profile/c"
    assert torch.equal(load(tmp_path / "c", state)["a"], state["a"])
    manifest = manifests.decode((tmp_path / "c" / "undaunted.json").read_bytes(), "")
    assert set(manifest.files) == {".metadata", "__0_0.distcp"}


def test_what_an_attempt_before_has_left_is_not_written_into(
    queue: AsyncCallsQueue, tmp_path: Path
) -> None:
    left = tmp_path / "c" / "__0_0.distcp"
    left.parent.mkdir()
    left.write_bytes(b"half")
    with left.open("rb") as still_open:
        schedule(queue, tmp_path / "c", {"a": torch.ones(2)})
        queue.maybe_finalize_async_calls(blocking=True)
        assert still_open.read() == b"half"


def test_the_journal_is_told(
    queue: AsyncCallsQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(announce, "_event", told.append)
    schedule(queue, tmp_path / "iter_0000020", {"a": torch.ones(2)})
    queue.maybe_finalize_async_calls(blocking=True)
    (line,) = told
    assert line.startswith("saved step=20 bytes=")
    assert 0 < float(line.split("stall_s=")[1].split()[0]) < 60
    schedule(queue, tmp_path / "iter_0000030", {"a": torch.ones(2)}, open_file=refuse)
    with pytest.raises(SaveError):
        queue.maybe_finalize_async_calls(blocking=True)
    assert told[1:] == ["failed step=30 [Errno 5] Input/output error"]


def refuse(path: str, mode: str) -> Any:
    raise OSError(errno.EIO, "Input/output error")


def test_what_cannot_be_done_is_said(tmp_path: Path) -> None:
    with pytest.raises(NotImplementedError, match="one file per rank"):
        FileSystemWriterAsync(tmp_path, single_file_per_rank=False)
    with pytest.raises(ValueError, match="separation_hint"):
        FileSystemWriterAsync(tmp_path, separation_hint="a/b")
    with pytest.raises(ValueError, match="open_file"):
        FileSystemWriterAsync("s3://bucket/x")
    with pytest.raises(NotImplementedError, match="AsyncRequest"):
        FileSystemWriterAsync(tmp_path).write_data(None, None)
    assert FileSystemWriterAsync.validate_checkpoint_id("msc://profile/x")
    assert FileSystemWriterAsync(tmp_path).checkpoint_id == tmp_path


def test_an_object_that_cannot_be_saved_is_named_and_nothing_is_scheduled(
    queue: AsyncCallsQueue, tmp_path: Path
) -> None:
    with pytest.raises(SaveFailedError, match=r"rank 0 .*lambda"):
        schedule(queue, tmp_path / "c", {"a": lambda: 0})
    assert queue.get_num_unfinalized_calls() == 0
    shutil.rmtree(tmp_path / "c")
    schedule(queue, tmp_path / "c", collections.OrderedDict(a=torch.ones(1)))
    assert queue.maybe_finalize_async_calls(blocking=True) == [0]
