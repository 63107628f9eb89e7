"""Writes torch's distributed checkpoints beside training, under the names users of NVRx know.

`prepare_write_data` copies the state into an arena: from then on its content is fixed. A writer
process writes the arena to files that `torch.distributed.checkpoint.load` reads.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import queue
import re
import time
import traceback
import uuid
import weakref
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.storage import WriteResult

from undaunted import __version__
from undaunted.checkpointing import announce
from undaunted.checkpointing.async_ckpt import core
from undaunted.checkpointing.async_ckpt.ranks import TIMEOUT_S
from undaunted.checkpointing.dcp import items, packed
from undaunted.checkpointing.dcp import metadata as metadata_format
from undaunted.checkpointing.dcp.torch_private import METADATA_VERSION, storage_info
from undaunted.checkpointing.errors import DamagedCheckpointError, SaveError
from undaunted.checkpointing.files import durable
from undaunted.checkpointing.format import manifest as manifests
from undaunted.checkpointing.format.image import Image
from undaunted.checkpointing.format.manifest import File, crc32, file_of
from undaunted.checkpointing.memory.arena import ArenaTooSmallError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch.distributed.checkpoint.metadata import Metadata
    from torch.distributed.checkpoint.planner import SavePlan, SavePlanner

    from undaunted.checkpointing.dcp.items import Laid, StagedFile
    from undaunted.checkpointing.memory.pool import Lease
    from undaunted.checkpointing.writer.process import Writer


MSC = "msc://"
METADATA = metadata_format.NAME
DATA = ".distcp"
_PLANNER = "torch.distributed.checkpoint.planner"
_PLANS = frozenset(
    (_PLANNER, name) for name in ("SavePlan", "TensorWriteData", "WriteItem", "WriteItemType")
)
_UNIQUE = re.compile(rf".*__\d+_[01]\.[0-9a-f]{{8}}\{DATA}")


class Destination:
    """A folder, or a place that only ``open_file`` knows, in which a checkpoint comes into being.

    Data files first, then ``.metadata``: only with it is there a checkpoint. Where there is one
    already, its data files are left alone until the new ``.metadata`` has replaced the old one.

    Attributes:
        id: as the user has named it.
        folder: the same as a string.
        open_file: how files are opened there.
    """

    def __init__(self, path: str | os.PathLike[str], open_file: Callable[..., Any]) -> None:
        self.id = path
        self.folder = os.fspath(path).rstrip("/") or "/"
        self.is_folder = "://" not in self.folder
        if self.folder.startswith(MSC) and open_file is open:
            open_file = importlib.import_module("multistorageclient").open
        elif not self.is_folder and open_file is open:
            raise ValueError(f"{path}: only folders and {MSC} are known; give open_file for others")
        self.open_file = open_file

    def make(self) -> None:
        """Make the folder."""
        if self.is_folder:
            durable.make_folder(str(Path(self.folder).absolute()))

    def is_occupied(self) -> bool:
        """Return whether a checkpoint is here."""
        if self.is_folder:
            return os.path.lexists(self._path(METADATA))
        try:
            with self.open_file(self._path(METADATA), "rb"):
                return True
        except OSError:
            return False

    def leftovers(self) -> list[str]:
        """Return the data files with unique names that are not part of the checkpoint here."""
        if not self.is_folder:
            return []
        try:
            names = [path.name for path in Path(self.folder).iterdir()]
            here = [name for name in names if _UNIQUE.fullmatch(name)]
            known = self._listed() if here and self.is_occupied() else set()
        except (OSError, DamagedCheckpointError):  # nobody knows what is part of it
            return []
        return [name for name in here if name not in known]

    def remove(self, names: Iterable[str]) -> None:
        """Remove files of a save that can become no checkpoint, if they are there."""
        for name in names if self.is_folder else ():
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                self._remove(name)

    def commit(self, metadata: Metadata, files: dict[str, manifests.File], world_size: int) -> None:
        """Make the files that are here a checkpoint, in place of the one that was here.

        Args:
            metadata: says where every item is.
            files: all data files, for the manifest; none = no manifest is written.
            world_size: ranks that have written.

        Raises:
            OSError: with the path.
        """
        content = metadata_format.dumps(metadata)
        former: set[str] = set()
        if self.is_folder and self.is_occupied():
            with contextlib.suppress(OSError, DamagedCheckpointError):
                former = self._data_files()  # of one that cannot be read they stay
        if self.is_folder:
            with contextlib.suppress(FileNotFoundError):
                self._remove(manifests.NAME)  # of the former one: it is gone before that is
            durable.sync_folder(self.folder)
        self._write(METADATA, content)
        if files:
            self._write(manifests.NAME, _manifest(self.folder, content, files, world_size))
        for name in former - {one.relative_path for one in metadata.storage_data.values()}:
            with contextlib.suppress(OSError):
                self._remove(name)

    def _path(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def _remove(self, name: str) -> None:
        Path(self._path(name)).unlink()

    def _listed(self) -> set[str]:
        """Return the files of the checkpoint that is here, the sooner where it has a manifest."""
        path = self._path(manifests.NAME)
        try:
            return set(manifests.decode(Path(path).read_bytes(), path).files)
        except FileNotFoundError:
            return self._data_files()

    def _data_files(self) -> set[str]:
        path = self._path(METADATA)
        metadata = decode_metadata(Path(path).read_bytes(), path)
        names = {one.relative_path for one in (metadata.storage_data or {}).values()}
        return {name for name in names if "/" not in name}

    def _write(self, name: str, content: bytes) -> None:
        if not self.is_folder:
            write_through(self.open_file, self._path(name), memoryview(content))
            return
        beside = self._path(f"{name}.tmp-{uuid.uuid4().hex[:8]}")
        try:
            durable.replace_file(self._path(name), content, beside)
        except OSError:
            with contextlib.suppress(OSError):
                Path(beside).unlink()
            raise


def decode_metadata(content: bytes, path: str) -> Metadata:
    """Read ``.metadata``: with plans in it, and with classes that the user has declared safe.

    Raises:
        DamagedCheckpointError: it is no metadata, or names something that has no business there.
    """
    safe = torch.serialization.get_safe_globals()
    more = {(one.__module__, one.__qualname__) for one in safe if isinstance(one, type)}
    return metadata_format.decode(content, path, _PLANS | more)


def write_through(open_file: Callable[..., Any], path: str, content: memoryview) -> str:
    """Write a file by a function like `open`; return the checksums as in `manifest.File`."""
    checksums = ""
    with open_file(path, "wb") as file:
        for at in range(0, len(content), manifests.BLOCK_BYTES):
            block = content[at : at + manifests.BLOCK_BYTES]
            checksums += f"{crc32(block):08x}"
            file.write(block)
        file.flush()
        with contextlib.suppress(AttributeError, OSError):
            os.fsync(file.fileno())
    return checksums


def step_of(folder: str) -> int:
    """Return the step that the name of a checkpoint's folder ends with, or 0."""
    number = re.search(r"(\d+)/*$", folder)
    return int(number[1]) if number else 0


def _manifest(
    folder: str, metadata: bytes, files: dict[str, manifests.File], world_size: int
) -> bytes:
    return manifests.encode(
        manifests.Manifest(
            format=manifests.FORMAT_VERSION,
            step=step_of(folder),
            epoch=0,
            world_size=world_size,
            session=uuid.uuid4().hex,
            attempt=0,
            structure="",
            block_bytes=manifests.BLOCK_BYTES,
            files={**files, METADATA: file_of(metadata)},
            saved_at=time.time(),
            writer=f"undaunted {__version__}",
        )
    )


_PLANS_KEPT = 4

# Where other implementations keep results of all saves. Here each writer has its own.
_results_queue: queue.SimpleQueue[Any] | None = None


def get_write_results_queue(mp_mode: str = "spawn") -> queue.SimpleQueue[Any]:
    """Return a queue for programs that hand one around; nothing is ever put into it.

    Args:
        mp_mode: accepted for compatibility.
    """
    global _results_queue  # noqa: PLW0603 - its name is what programs look for
    del mp_mode
    if _results_queue is None:
        _results_queue = queue.SimpleQueue()
    return _results_queue


_get_write_results_queue = get_write_results_queue


@dataclass(frozen=True)
class Prefix:
    """The begin of the names of a rank's files; it has what torch's own class has."""

    prefix: str


class _StagedSave:
    """The copied items of one save, until they are written.

    Attributes:
        images: the files in the arena.
        lease: of the arena; it ends with this object, also when the save is never scheduled.
    """

    def __init__(self, laid: list[Laid], staged: list[StagedFile], lease: Lease) -> None:
        # Each save has names of its own: of whatever else is in the folder, or is on its way there,
        # nothing is touched.
        unique = uuid.uuid4().hex[:8]
        self.images = [
            Image(f"{one.name}.{unique}{DATA}", file.image.offset, file.image.size)
            for one, file in zip(laid, staged, strict=True)
        ]
        self.lease = lease
        self._laid = laid
        self._staged = staged

    def results(self) -> list[WriteResult]:
        """Return where every item is in the files."""
        return [
            WriteResult(item.index, length, storage_info(image.name, offset, length))
            for laid, file, image in zip(self._laid, self._staged, self.images, strict=True)
            for item, offset, length in laid.placed(file.others)
        ]


class _Save:
    """What `AsyncRequest.async_fn` is; remembers how it went.

    Nobody can finalize a save that is collected: its files are removed before the next write,
    unless they may be part of a checkpoint.

    Attributes:
        results: what was written, once it is.
        files: the same for the manifest.
        error: why nothing was written.
        write_s: how long it took, in seconds.
        to: where to.
        is_open: whether it may still become a checkpoint.
    """

    def __init__(
        self, to: Destination, names: Sequence[str] = (), writer: Writer | None = None
    ) -> None:
        self.results: list[WriteResult] | None = None if names else []
        self.files: dict[str, File] = {}
        self.error: BaseException | None = None
        self.write_s = 0.0
        self.to = to
        self.is_open = True
        self._writer = writer
        self._cancelled = False
        self._drop = weakref.finalize(self, _unwanted.append, (os.getpid(), to, names))
        self._drop.atexit = False
        _saves.add(self)

    def __call__(self, rank: int, snapshot: _StagedSave, results_queue: Any = None) -> None:
        """Write the snapshot; whatever goes wrong is raised and remembered."""
        del rank, results_queue
        began = time.monotonic()
        try:
            _remove_unwanted()
            checksums = self._write(snapshot)
            self.write_s = time.monotonic() - began
            sizes = {image.name: image.size for image in snapshot.images}
            self.files = {n: File(size=sizes[n], crc32=crc) for n, crc in checksums.items()}
            self.results = snapshot.results()
        except BaseException as error:
            self.error = error
            self.is_open = False
            announce.failed(step_of(self.to.folder), SaveError(str(error)))
            with contextlib.suppress(OSError):
                self.to.remove(image.name for image in snapshot.images)
            raise
        finally:
            snapshot.lease.release()

    def cancel(self) -> None:
        """End the writer process if it is at this save; else the save will not begin."""
        self._cancelled = True
        if self._writer is not None:
            self._writer.abort()

    def keep(self) -> None:
        """Leave the files alone from now on: they may become part of a checkpoint."""
        self._drop.detach()

    def _write(self, snapshot: _StagedSave) -> dict[str, str]:
        lease, folder, writer = snapshot.lease, self.to.folder, self._writer
        arena = lease.arena
        if self._cancelled or arena is None:
            raise SaveError("the save was aborted before it was written")
        if writer is not None:
            return writer.write(lease, folder, snapshot.images, TIMEOUT_S).crc32
        checksums = {}
        for image in snapshot.images:
            content = arena.memory[image.offset : image.offset + image.size]
            path = f"{folder}/{image.name}"
            checksums[image.name] = write_through(self.to.open_file, path, content)
        return checksums


class FileSystemWriterAsync(FileSystemWriter):  # type: ignore[misc]  # torch has no types here
    """A storage writer of torch's distributed checkpoint for `save_state_dict_async_plan`.

    One object per save. A former checkpoint in the same folder stays whole until the new one is.

    Args:
        path: folder of the checkpoint, or ``msc://`` URL, which `multistorageclient` writes.
        *args: further arguments of torch's `FileSystemWriter`.
        separation_hint: items whose names begin with it are in files of their own, whose names
            begin with it too.
        use_msc: accepted for compatibility, as the next four.
        is_multiproc_io: accepted for compatibility.
        use_cached_data_structure: accepted for compatibility.
        use_cpu_shm_for_gpu_tensors: accepted for compatibility.
        thread_count: accepted for compatibility.
        open_file: opens the files to write; anything but `open` is called on a thread of this
            process.
        **kwargs: further arguments of torch's `FileSystemWriter`.

    Attributes:
        began: when the save began, on the monotonic clock.
        stall_s: how long training was stopped for it, in seconds.

    Raises:
        NotImplementedError: for ``single_file_per_rank=False``.
    """

    can_run_decentralized_global_plan = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *args: Any,
        separation_hint: str | None = None,
        use_msc: bool = False,
        is_multiproc_io: bool = False,
        use_cached_data_structure: bool = False,
        use_cpu_shm_for_gpu_tensors: bool = False,
        thread_count: int = 2,
        open_file: Callable[..., Any] = open,
        **kwargs: Any,
    ) -> None:
        del use_msc, is_multiproc_io, use_cached_data_structure, use_cpu_shm_for_gpu_tensors
        super().__init__(path, *args, thread_count=thread_count, **kwargs)
        if not self.single_file_per_rank:
            raise NotImplementedError("FileSystemWriterAsync writes one file per rank")
        if separation_hint is not None and "/" in separation_hint:
            raise ValueError(f"separation_hint={separation_hint!r} is part of names of files")
        self.separation_hint = separation_hint
        self._to = Destination(path, open_file)
        self.began = time.monotonic()
        self.stall_s = 0.0
        self._save: _Save | None = None
        self._staged: _StagedSave | None = None

    @property
    def checkpoint_id(self) -> str | os.PathLike[str]:
        """Return the folder or URL of the checkpoint."""
        return self._to.id

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether this is a folder or an ``msc://`` URL."""
        if str(checkpoint_id).startswith(MSC):
            return True
        return bool(FileSystemWriter.validate_checkpoint_id(checkpoint_id))

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Take the rank, which the writer of torch 2.8 is not told."""
        del is_coordinator, args
        self.rank: int | None = kwargs.get("rank")
        self.use_collectives: bool = kwargs.get("use_collectives", True)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Make the folder.

        Raises:
            RuntimeError: there is a checkpoint, and ``overwrite=False``.
        """
        self._to.make()
        if not self.overwrite and self._to.is_occupied():
            raise RuntimeError(
                f"there is a checkpoint in {self._to.id} already, and overwrite=False"
            )
        return plan

    def drop_leftovers(self) -> None:
        """Have files removed that processes before this one have left; for the coordinator.

        Not called while ranks write to the folder for a save that this process knows nothing of.
        """
        if not any(save.is_open and save.to.folder == self._to.folder for save in _saves):
            _unwanted.append((os.getpid(), self._to, self._to.leftovers()))

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Say how the names of each rank's files begin."""
        return [_named(plan, rank) for rank, plan in enumerate(plans)]

    def prepare_decentralized_global_plan(self, local_plan: SavePlan) -> SavePlan:
        """Say how the names of this rank's files begin, without asking the others."""
        return _named(local_plan, self.rank or 0)

    def prepare_write_data(self, plan: SavePlan, planner: SavePlanner) -> None:
        """Copy the state: when this returns, training may change it.

        Waits while all arenas are being written, at most 30 minutes.

        Raises:
            SaveError: no arena has become free.
            OSError: there is not enough memory.
            CheckpointError: something in the state cannot be saved.
        """
        packed.mark(plan.items, planner)
        laid = self._lay_out(plan)
        if not laid:
            self._save = _Save(self._to)
            return
        lease = core.the_pool().lease(0, TIMEOUT_S)
        try:
            staged = _stage(lease, laid, planner)
        except BaseException:
            lease.release()
            raise
        self._staged = _StagedSave(laid, staged, lease)
        writer = core.new_writer() if self._to.open_file is open else None
        self._save = _Save(self._to, [image.name for image in self._staged.images], writer)

    def get_save_function_and_args(
        self,
    ) -> tuple[Callable[..., None] | None, Callable[[], Any] | None, list[Any]]:
        """Return ``async_fn``, ``preload_fn`` and ``async_fn_args`` of an `AsyncRequest`.

        Both functions are None, and the list is empty, when this rank has nothing to write.
        """
        staged, self._staged = self._staged, None
        if staged is None:
            return None, None, []
        return self._save, lambda: staged, [self.rank or 0, None, get_write_results_queue()]

    def retrieve_write_results(self) -> list[WriteResult] | tuple[BaseException, Any]:
        """Return what this rank has written, or why not, as torch wraps exceptions."""
        save = self._save
        if save is not None and save.results is not None:
            save.keep()
            return save.results
        error = save.error if save is not None else None
        error = error or SaveError(f"nothing was written to {self._to.id}")
        return error, traceback.extract_tb(error.__traceback__)

    def written_files(self) -> dict[str, File]:
        """Return sizes and checksums of what this rank has written."""
        return self._save.files if self._save is not None else {}

    def announce(self) -> None:
        """Tell the journal that this rank's part is saved."""
        save = self._save
        size = sum(file.size for file in self.written_files().values())
        announce.saved(
            step_of(self._to.folder),
            size,
            self.stall_s,
            save.write_s if save is not None else 0.0,
            time.monotonic() - self.began,
        )

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Any:
        """Not there: `get_save_function_and_args` is how data are written."""
        raise NotImplementedError("FileSystemWriterAsync writes through an AsyncRequest")

    def finish(
        self,
        metadata: Metadata,
        results: list[list[WriteResult]],
        files: Sequence[dict[str, File]] = (),
    ) -> None:
        """Make the checkpoint exist; on the coordinator, when all ranks have written.

        Args:
            metadata: of the state.
            results: of all ranks.
            files: `written_files` of all ranks, for the manifest; none = no manifest is written.
        """
        metadata.storage_data = {one.index: one.storage_data for rank in results for one in rank}
        metadata.storage_meta = self.storage_meta()
        metadata.version = METADATA_VERSION
        merged = {name: file for rank in files for name, file in rank.items()}
        self._to.commit(metadata, merged, len(results))
        if self._save is not None:
            self._save.is_open = False

    def _lay_out(self, plan: SavePlan) -> list[Laid]:
        hint = self.separation_hint
        for known, known_hint, laid in _layouts:
            if known is plan and known_hint == hint:
                return laid
        prefix = plan.storage_data.prefix
        apart = [i for i in plan.items if hint is not None and i.index.fqn.startswith(hint)]
        rest = [i for i in plan.items if hint is None or not i.index.fqn.startswith(hint)]
        laid = []
        if rest:
            laid.append(items.lay_out(f"{prefix}0", rest))
        if apart:
            laid.append(items.lay_out(f"{hint}{prefix}1", apart))
        _layouts.append((plan, hint, laid))
        return laid


# Layouts of the plans that were used last: a plan that is used again need not be laid out again.
_layouts: deque[tuple[SavePlan, str | None, list[Laid]]] = deque(maxlen=_PLANS_KEPT)
_saves: weakref.WeakSet[_Save] = weakref.WeakSet()
# Files that can become part of no checkpoint any more, and the process that has found that out.
# Removed by a thread that saves, as a file system may take its time, or hang.
_unwanted: deque[tuple[int, Destination, Sequence[str]]] = deque()


def _remove_unwanted() -> None:
    while _unwanted:
        pid, to, names = _unwanted.popleft()
        if pid == os.getpid():  # a fork has a copy of all saves: that it forgets them means nothing
            with contextlib.suppress(OSError):
                to.remove(names)


def _named(plan: SavePlan, rank: int) -> SavePlan:
    return replace(plan, storage_data=Prefix(f"__{rank}_"))


def _stage(lease: Lease, laid: list[Laid], planner: SavePlanner) -> list[StagedFile]:
    resolve = planner.resolve_data
    arena = lease.arena
    if arena is None:
        arena = lease.at_least(items.arena_bytes(laid, items.others_bytes(laid, resolve)))
    try:
        return items.stage_items(laid, resolve, arena)
    except ArenaTooSmallError as error:
        return items.stage_items(laid, resolve, lease.at_least(error.needed))
