"""Saves of torch's distributed checkpoint beside training, in one process."""

from __future__ import annotations

import collections
import contextlib
import errno
import gc
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
import types
import zlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.checkpointing.async_ckpt.jobs import writer_pid

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")
dcp = pytest.importorskip("torch.distributed.checkpoint")

from undaunted.checkpointing import announce  # noqa: E402
from undaunted.checkpointing.async_ckpt import core, filesystem_async  # noqa: E402
from undaunted.checkpointing.async_ckpt.cached_metadata_filesystem_reader import (  # noqa: E402
    CachedMetadataFileSystemReader,
)
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
from undaunted.checkpointing.writer.job import WriterOptions  # noqa: E402

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
    core.close_pool()


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


def stems(folder: Path) -> list[str]:
    """Names of the data files without what tells saves apart."""
    return sorted(path.name.partition(".")[0] for path in folder.glob("*.distcp"))


def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on no write comes to its end."""
    monkeypatch.setattr(core, "_options", WriterOptions(bandwidth=1.0))


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
    assert stems(folder) == ["__0_0", "optimizer__0_1"]
    names = {path.name for path in folder.iterdir()}
    assert len(names) == 4
    assert {".metadata", "undaunted.json"} < names
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
    for number in range(core.ARENAS + 1):  # one more than there is memory for
        save_state_dict_async_plan(state, FileSystemWriterAsync(tmp_path / f"x{number}"))
    arenas = []
    for number in range(3):
        schedule(queue, tmp_path / str(number), state)
        queue.maybe_finalize_async_calls(blocking=True)
        lease = core.the_pool().lease(0, 0)
        arenas.append(lease.arena)
        lease.release()
    assert arenas[0] is arenas[1] is arenas[2] is not None


def test_memory_is_given_back_when_the_state_cannot_be_copied(
    queue: AsyncCallsQueue, tmp_path: Path
) -> None:
    for number in range(core.ARENAS + 1):
        with pytest.raises(SaveFailedError, match="meta device"):
            schedule(queue, tmp_path / str(number), {"a": torch.ones(1000, device="meta")})


def test_a_save_that_failed_leaves_no_files(queue: AsyncCallsQueue, tmp_path: Path) -> None:
    schedule(queue, tmp_path / "c", {"a": torch.ones(2)}, open_file=refuse_to_sync)
    with pytest.raises(SaveError):
        queue.maybe_finalize_async_calls(blocking=True)
    assert list((tmp_path / "c").iterdir()) == []


def written(queue: AsyncCallsQueue) -> None:
    """Wait until everything that was scheduled is written, and finalize nothing."""
    done = threading.Event()
    queue.schedule_async_request(AsyncRequest(done.set, (), []))
    assert done.wait(60)


def test_files_of_a_save_that_was_dropped_go_with_the_next_one(
    queue: AsyncCallsQueue, tmp_path: Path
) -> None:
    state = {"a": torch.ones(2)}
    schedule(queue, tmp_path / "c", state)
    schedule(queue, tmp_path / "c", state)
    written(queue)
    assert stems(tmp_path / "c") == ["__0_0", "__0_0"]  # both can be finalized
    queue.close(abort=True)
    gc.collect()
    schedule(queue, tmp_path / "d", state)
    written(queue)
    assert stems(tmp_path / "c") == []
    assert stems(tmp_path / "d") == ["__0_0"]


def test_two_saves_of_one_folder_at_once(queue: AsyncCallsQueue, tmp_path: Path) -> None:
    other = AsyncCallsQueue()
    for values in ((1.0, 2.0), (3.0, 4.0)):
        for to, value in zip((queue, other), values, strict=True):
            schedule(to, tmp_path / "c", {"a": torch.full((9,), value)})
        for to, value in zip((other, queue), reversed(values), strict=True):
            to.maybe_finalize_async_calls(blocking=True)
            assert load(tmp_path / "c", {"a": torch.ones(9)})["a"].tolist() == [value] * 9
        assert stems(tmp_path / "c") == ["__0_0"]
    other.close()


def test_a_checkpoint_of_an_earlier_version_loads_and_is_replaced(
    queue: AsyncCallsQueue, tmp_path: Path
) -> None:
    folder = tmp_path / "iter_0000007"
    shutil.copytree(Path(__file__).with_name("iter_0000007"), folder)
    state: dict[str, Any] = {
        "model.weight": torch.zeros(3, 4),
        "model.half": torch.zeros(3, dtype=torch.bfloat16),
        "optimizer.step": torch.tensor(0.0),
        "optimizer.lr": 0.0,
        "order": [],
    }
    dcp.load(state, storage_reader=CachedMetadataFileSystemReader(folder))
    assert torch.equal(state["model.weight"], torch.arange(12.0).reshape(3, 4))
    assert torch.equal(state["model.half"], torch.ones(3, dtype=torch.bfloat16))
    assert [state[k] for k in ("optimizer.step", "optimizer.lr", "order")] == [7, 0.5, [3, 1, 2]]
    state["optimizer.step"].fill_(8)
    schedule(queue, folder, state, separation_hint="optimizer")
    queue.maybe_finalize_async_calls(blocking=True)
    assert load(folder, state)["optimizer.step"] == 8
    assert not (folder / "__0_0.distcp").exists()
    assert stems(folder) == ["__0_0", "optimizer__0_1"]


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
    assert stems(folder) == ["__0_0"]


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
    queue: AsyncCallsQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {"a": torch.ones(2)}
    with monkeypatch.context() as patch:
        slow(patch)
        schedule(queue, tmp_path / "c", state)
        os.kill(writer_pid(), signal.SIGKILL)
        with pytest.raises(SaveError, match=r"rank 0 .*SIGKILL"):
            queue.maybe_finalize_async_calls(blocking=True)
    assert list((tmp_path / "c").iterdir()) == []
    schedule(queue, tmp_path / "c", state)
    assert queue.maybe_finalize_async_calls(blocking=True) == [1]
    assert torch.equal(load(tmp_path / "c", state)["a"], state["a"])


def test_an_abort_ends_a_writer_that_stands_still(
    queue: AsyncCallsQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        slow(patch)
        schedule(queue, tmp_path / "c", {"a": torch.ones(2)})
        os.kill(writer_pid(), signal.SIGSTOP)
        abort_nvrx_checkpoint()
    assert queue.maybe_finalize_async_calls(blocking=True) == []
    assert not (tmp_path / "c" / ".metadata").exists()
    schedule(queue, tmp_path / "c", {"a": torch.ones(2)})
    assert queue.maybe_finalize_async_calls(blocking=True) == [0]
    assert torch.equal(load(tmp_path / "c", {"a": torch.zeros(2)})["a"], torch.ones(2))


def test_saves_that_are_aborted_at_any_moment(queue: AsyncCallsQueue, tmp_path: Path) -> None:
    moments = random.Random(7)
    for number in range(10):
        schedule(queue, tmp_path / "c", {"a": torch.full((100_000,), -1.0)})
        select.select([], [], [], moments.uniform(0, 0.2))
        abort_nvrx_checkpoint()
        state = {"a": torch.full((9,), float(number))}
        schedule(queue, tmp_path / "c", state)
        assert queue.maybe_finalize_async_calls(blocking=True) == [0]
        assert torch.equal(load(tmp_path / "c", state)["a"], state["a"])
    for thread in threading.enumerate():
        if thread.name == "undaunted-async-save":
            thread.join(60)
    schedule(queue, tmp_path / "c", state)
    queue.maybe_finalize_async_calls(blocking=True)
    assert stems(tmp_path / "c") == ["__0_0"]


def test_a_writer_has_the_priorities_that_were_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = AsyncCallsQueue(cpu_priority=7, io_priority=3)
    monkeypatch.setattr(core, "_options", msgspec.structs.replace(core._options, bandwidth=1.0))
    assert core._options.io_class == "idle"
    schedule(queue, tmp_path / "c", {"a": torch.ones(2)})
    pid = writer_pid()
    deadline = time.monotonic() + 60
    while os.getpriority(os.PRIO_PROCESS, pid) != 7:  # it sets it itself
        assert time.monotonic() < deadline
    queue.close(abort=True)


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


DIES = """
import os, signal, sys, torch
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from jobs import writer_pid
from undaunted.checkpointing.async_ckpt import core
from undaunted.checkpointing.async_ckpt.core import AsyncCallsQueue, AsyncRequest
from undaunted.checkpointing.async_ckpt.filesystem_async import FileSystemWriterAsync
from undaunted.checkpointing.async_ckpt.state_dict_saver import save_state_dict_async_plan
from undaunted.checkpointing.writer.job import WriterOptions
how, folder = sys.argv[2:]
files = len(list(Path(folder).glob("*.distcp")))
queue = AsyncCallsQueue()
if how != "written":
    core._options = WriterOptions(bandwidth=1.0)
writer = FileSystemWriterAsync(folder)
save_state_dict_async_plan({"a": torch.ones(2)}, writer)
save, preload, arguments = writer.get_save_function_and_args()
queue.schedule_async_request(AsyncRequest(save, tuple(arguments), [], preload_fn=preload))
if how == "written":
    queue.maybe_finalize_async_calls(blocking=True)  # nothing is: there is no function
else:
    pid = writer_pid()
    while len(list(Path(folder).glob("*.distcp"))) == files:
        pass  # until it is at work
    os.kill(pid, signal.SIGSTOP)
    print(pid, flush=True)
if how != "ends":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.e2e
@pytest.mark.parametrize("how", ["ends", "killed", "written"])
def test_the_process_ends_while_it_saves(queue: AsyncCallsQueue, tmp_path: Path, how: str) -> None:
    """Its writer ends with it, what was there stays, and the next save clears away its files."""
    folder, old, new = tmp_path / "c", {"a": torch.zeros(3)}, {"a": torch.full((3,), 7.0)}
    if how != "written":  # else it is the first save of this folder
        schedule(queue, folder, old)
        queue.maybe_finalize_async_calls(blocking=True)
    ended = subprocess.run(
        [sys.executable, "-c", DIES, str(Path(__file__).parent), how, str(folder)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == (0 if how == "ends" else -signal.SIGKILL), ended.stderr
    assert ("1 asynchronous saves were not finalized" in ended.stderr) == (how == "ends")
    if how != "written":
        # What is left of the writer is a zombie of this process, which adopts orphans.
        deadline = time.monotonic() + 30
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(int(ended.stdout), os.WNOHANG) == (0, 0):
                assert time.monotonic() < deadline
                select.select([], [], [], 0.01)
        assert torch.equal(load(folder, old)["a"], old["a"])
    schedule(queue, folder, new)
    queue.maybe_finalize_async_calls(blocking=True)
    assert torch.equal(load(folder, new)["a"], new["a"])
    assert stems(folder) == ["__0_0"]


FULL = """
import json, resource, sys, torch
sys.path.insert(0, sys.argv[1])
from functools import partial
from pathlib import Path
from undaunted.checkpointing.async_ckpt.core import AsyncCallsQueue, AsyncRequest
from undaunted.checkpointing.async_ckpt.filesystem_async import FileSystemWriterAsync
from undaunted.checkpointing.async_ckpt.state_dict_saver import *
from undaunted.checkpointing.errors import SaveError
queue, told = AsyncCallsQueue(), []
unlimited = resource.RLIM_INFINITY  # first, as the limit counts for memory that is allocated, too
for folder, limit in (("first", unlimited), ("c", 100_000), ("c", unlimited)):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, unlimited))
    writer = FileSystemWriterAsync(folder)
    planned = save_state_dict_async_plan({"a": torch.ones(300_000)}, writer)
    save, preload, arguments = writer.get_save_function_and_args()
    end = [partial(save_state_dict_async_finalize, *planned)]
    queue.schedule_async_request(AsyncRequest(save, arguments, end, preload_fn=preload))
    try:
        queue.maybe_finalize_async_calls(blocking=True)
        told.append(None)
    except SaveError as error:
        told.append([error.errno, str(error)])
    told.append(len(list(Path(folder).iterdir())))
queue.close()
print(json.dumps(told))
"""


@pytest.mark.e2e
def test_a_disk_that_takes_no_more_is_an_error_and_keeps_nothing(tmp_path: Path) -> None:
    """A limit of the size of files stands for the disk: there is a real error while writing."""
    ended = subprocess.run(
        [sys.executable, "-c", FULL, str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
        cwd=tmp_path,
    )
    _, _, (number, text), left, fine, there = json.loads(ended.stdout)
    assert number == errno.EFBIG
    assert "rank 0" in text
    assert "c/__0_0." in text
    assert (left, fine, there) == (0, None, 3)


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
    assert opened == [str(path) for path in (tmp_path / "c").glob("*.distcp")]
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
    assert sorted(name.partition(".")[0] for name in manifest.files) == ["", "__0_0"]


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
