"""Checkpoints in a folder that all ranks see; docs/design/checkpointing.md explains its files."""
# pathlib would double the start of the writer:
# ruff: noqa: PTH100, PTH102, PTH104, PTH106, PTH108, PTH114, PTH118

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING

from undaunted.checkpointing.errors import DamagedCheckpointError, OccupiedError
from undaunted.checkpointing.files import blocks, durable
from undaunted.checkpointing.files.direct import NOT_OFFERED, DirectReader, folder_mode
from undaunted.checkpointing.files.living import Living
from undaunted.checkpointing.files.storage import NO_GATE, KeptAside, Leftover, Stray, warn
from undaunted.checkpointing.format import ledger, names, rules
from undaunted.checkpointing.format import manifest as manifests

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from contextlib import AbstractContextManager

    from undaunted.checkpointing.files.living import Session
    from undaunted.checkpointing.files.storage import FileReader
    from undaunted.checkpointing.format.image import Image

_MAX_FENCE_BYTES = 1 << 20
# Mounted buckets answer these to the rename of a folder.
_LAST_COPY = ", its last copy"  # follows the name of a run
_NO_RENAME = frozenset({errno.EMFILE, errno.EXDEV, errno.ENOTEMPTY, *NOT_OFFERED})


class FolderStorage:
    """Implements `storage.Storage` by renames.

    Attributes:
        place: the folder, absolute.
    """

    def __init__(
        self,
        place: str,
        run: str = "",
        options: blocks.WriteOptions = blocks.DEFAULTS,
        block_bytes: int = manifests.BLOCK_BYTES,
    ) -> None:
        """Prepare; nothing is read or made yet.

        Args:
            place: the folder.
            run: name of the run whose rounds have epochs.
            options: of writing.
            block_bytes: what a checksum is of.
        """
        self.place = os.path.abspath(place)
        self._run = run
        self._options = options
        self._block_bytes = block_bytes
        self._living = Living(self.place)

    def target(self, step: int, session: str, attempt: int) -> str:
        """See `Storage`."""
        return self._path(names.attempt(step, session, attempt).folder())

    def write(
        self, target: str, image: Image, memory: memoryview, wrote: Callable[[int], None]
    ) -> str:
        """See `Storage`."""
        path = self._file_of(target, image.name)
        return blocks.write_image(path, memory, image, self._block_bytes, wrote, self._options)

    def write_small(self, target: str, name: str, content: bytes) -> None:
        """See `Storage`."""
        durable.write_file(self._file_of(target, name), content)

    def discard(self, target: str, files: Collection[str] | None = None) -> None:
        """See `Storage`."""
        self._attempt(target)
        if os.path.islink(target):
            return
        if files is None:
            durable.remove_tree(target)
            return
        for name in files:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(target, names.check_file(name)))
        with contextlib.suppress(OSError):  # other ranks have files there
            os.rmdir(target)

    def commit(
        self,
        target: str,
        manifest: manifests.Manifest,
        gate: AbstractContextManager[object] = NO_GATE,
        *,
        aside: bool = False,
    ) -> None:
        """See `Storage`."""
        attempt = self._attempt(target)
        self._write_manifest(target, manifest)
        self._refuse_two_jobs()
        former = self._put_aside(attempt)
        try:
            self._check_epoch(manifest.epoch)
            with gate:
                self._rename(target, attempt)
        except BaseException:
            if former:
                with contextlib.suppress(OSError):
                    os.rename(former, self._path(names.step(attempt.step)))
            raise
        durable.sync_folder(self.place)
        if former:
            with contextlib.suppress(OSError):  # left for the sweep
                if aside:
                    os.rename(former, self._path(names.doubted(attempt)))
                else:
                    durable.remove_tree(former)

    def raise_epoch(self, epoch: int) -> None:
        """See `Storage`."""
        durable.make_folder(self.place)
        before = self._fence()
        alive = self._living.others(self._run) if epoch < before.runs.get(self._run, 0) else False
        after = rules.begun(before, self._run, epoch, self.place, alive=alive)
        if after != before:
            path, content = self._path(names.EPOCH), rules.encode_fence(after)
            unused = f"{path}.{os.urandom(4).hex()}"
            self._if_full(lambda: durable.replace_file(path, content, unused))

    def steps(self) -> list[int]:
        """See `Storage`."""
        found = set()
        for name in self._names():
            replaced = names.read_replaced(name)
            step = names.read_step(name) if replaced is None else replaced.step
            if step is not None and self._is_ours(self._path(name)):
                found.add(step)
        return sorted(found)

    def strays(self) -> dict[int, Stray]:
        """See `Storage`."""
        found = {}
        for name in self._names():
            step, path = names.read_step(name), self._path(name)
            # In this order: it may be deleted meanwhile.
            if step is not None and not self._is_ours(path) and os.path.lexists(path):
                found[step] = Stray(path, _why_not_ours(path))
        return found

    def kept_aside(self) -> list[KeptAside]:
        """See `Storage`."""
        found = ((name, names.read_doubted(name)) for name in self._names())
        return [
            KeptAside(name, one.step, _bytes_below(self._path(name)))
            for name, one in found
            if one is not None and self._is_ours(self._path(name))
        ]

    def leftovers(self) -> list[Leftover]:
        """See `Storage`."""
        found = []
        for name in self._names():
            attempt, replaced = names.read_attempt(name), names.read_replaced(name)
            size = _bytes_below(self._path(name)) if attempt or replaced else 0
            if attempt is not None:
                alive = self._living.is_alive(attempt.session)
                found.append(Leftover(name, attempt.step, "unfinished", size, alive))
            elif replaced is not None:
                if os.path.lexists(self._path(names.step(replaced.step))):  # else it counts itself
                    alive = self._living.is_alive(replaced.session)
                    found.append(Leftover(name, replaced.step, "replaced", size, alive))
            elif (step := names.read_deleted(name)) is not None:
                size = _bytes_below(self._path(name))
                found.append(Leftover(name, step, "deleted", size, alive=None))
        return found

    def sessions(self) -> list[Session] | None:
        """See `Storage`."""
        return self._living.look()

    def manifest(self, step: int, *, check_files: bool = True) -> manifests.Manifest:
        """See `Storage`."""
        folder = self.locate(step)
        found = OneFolder(folder).manifest(step, check_files=check_files)
        if found.step != step:
            path = os.path.join(folder, manifests.NAME)
            raise DamagedCheckpointError(f"{path}: is the manifest of step {found.step}", path)
        return found

    def open(self, step: int, name: str, *, shared: bool = False) -> FileReader:
        """See `Storage`."""
        path = os.path.join(self.locate(step), names.check_file(name))
        return DirectReader(path, shared=shared)

    def locate(self, step: int) -> str:
        """See `Storage`."""
        committed = self._path(names.step(step))
        if not os.path.lexists(committed):
            # Between two renames of a commit, or after a crash there: the former still counts.
            for replaced in self._replaced(step):
                return self._path(replaced)
        return committed

    def read_ledger(self) -> bytes:
        """See `Storage`."""
        try:
            return durable.read_file(self._path(names.LEDGER), ledger.MOST_BYTES)
        except FileNotFoundError:
            return b""

    def write_ledger(self, content: bytes) -> None:
        """See `Storage`."""
        path = self._path(names.LEDGER)
        durable.replace_file(path, content, f"{path}.{os.urandom(4).hex()}")

    def delete(self, step: int) -> None:
        """See `Storage`."""
        committed = self._path(names.step(step))
        # Those first: as long as one is there, the step would still be found.
        former = [self._path(name) for name in self._replaced(step)]
        gone = []
        for path in [*former, committed]:
            if path == committed and former and not os.path.lexists(path):
                continue
            if not self._is_ours(path):
                raise FileNotFoundError(errno.ENOENT, "no checkpoint: nothing was deleted", path)
            gone.append(self._path(names.deleted(step, os.urandom(8).hex())))
            os.rename(path, gone[-1])
        durable.sync_folder(self.place)
        for path in gone:
            durable.remove_tree(path)

    def sweep(self, session: str) -> list[str]:
        """See `Storage`; from now on others see that this session is alive."""
        durable.make_folder(self.place)
        self._if_full(lambda: self._living.begin(session, self._run))
        self._try_rename()
        swept = self._sweep(session)
        self._warn_of(self._living.runs_elsewhere())
        return swept

    def begin_last(self, session: str) -> None:
        """See `Storage`."""
        durable.make_folder(self.place)
        self._if_full(lambda: self._living.begin(session, f"{self._run}{_LAST_COPY}"))

    def _if_full(self, work: Callable[[], None]) -> None:
        """Write something small; a full disk may be so of what sessions that are over have left."""
        try:
            work()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self._sweep():
                raise
            work()

    def _sweep(self, session: str = "") -> list[str]:
        ended: dict[str, bool] = {session: False}
        swept = []
        for name in self._names():
            attempt = names.read_attempt(name) or names.read_replaced(name)
            if attempt is not None and attempt.session not in ended:
                ended[attempt.session] = self._living.is_over(attempt.session)
            if names.is_deleted(name) or (attempt is not None and ended[attempt.session]):
                try:
                    self._clean(name)
                    swept.append(name)
                except OSError as error:  # as on NFS, where somebody has a file open
                    warn("%s cannot be removed, nor all that is in it: %s", self._path(name), error)
        return swept

    def close(self) -> None:
        """See `Storage`."""
        self._living.end()

    def _path(self, name: str) -> str:
        return os.path.join(self.place, name)

    def _names(self) -> list[str]:
        try:
            return sorted(os.listdir(self.place))
        except FileNotFoundError:
            return []

    def _warn_of(self, runs: list[str]) -> None:
        """Tell that other jobs have this place open."""
        for run in runs:
            if not self._is_same(run):
                warn(
                    "%s: another job (%s) has these checkpoints open; only the job that saves "
                    "first can save there: give each job its own directory",
                    self.place,
                    _named(run),
                )

    def _refuse_two_jobs(self) -> None:
        """Each would delete and replace the checkpoints of the other.

        Raises:
            OccupiedError: another job saves here, and did so before.
        """
        if (other := self._living.saver(self._is_same)) is not None:
            raise OccupiedError(
                f"{self.place}: another job ({_named(other.run)}, pid {other.pid} on {other.host}) "
                "saves its checkpoints there: give each job its own directory, or end that one"
            )

    def _is_same(self, run: str) -> bool:
        """Whether it is this run: its rounds have their fence."""
        return bool(run) and run.removesuffix(_LAST_COPY) == self._run

    def _try_rename(self) -> None:
        """See at the start, and not after hours at the first save, that folders can be renamed.

        Raises:
            OSError: they cannot, as on mounted buckets.
        """
        before, after = (self._path(names.deleted(0, os.urandom(8).hex())) for _ in range(2))
        refused = 0
        with contextlib.suppress(OSError):  # nothing else is tried here
            os.mkdir(before, folder_mode())
            durable.write_file(os.path.join(before, manifests.NAME), b"")
            try:
                os.rename(before, after)
            except OSError as error:
                refused = error.errno or 0
            for path in filter(os.path.lexists, (before, after)):
                durable.remove_tree(path)
        if refused in _NO_RENAME:
            raise OSError(
                refused,
                "this file system cannot rename folders, as those of mounted buckets: give the "
                "bucket itself, as in gs://bucket/run or s3://bucket/run",
                self.place,
            )

    def _attempt(self, target: str) -> names.Attempt:
        above, name = os.path.split(target)
        attempt = names.read_attempt(name)
        if above != self.place or attempt is None:
            raise ValueError(f"{target}: not the folder of an attempt in {self.place}")
        return attempt

    def _file_of(self, target: str, name: str) -> str:
        """Return the path of a file of an attempt, in its folder, which is made if missing."""
        self._attempt(target)
        path = os.path.join(target, names.check_file(name))
        try:
            os.mkdir(target, folder_mode())
        except FileExistsError:
            if os.path.islink(target):
                raise
        except FileNotFoundError:
            durable.make_folder(target)
        return path

    def _write_manifest(self, target: str, content: manifests.Manifest) -> None:
        try:
            check_sizes(target, content)
        except DamagedCheckpointError as error:
            raise OSError(
                errno.ENOENT,
                f"not all files are there that ranks have written ({error}): do all nodes see the "
                "same folder?",
                target,
            ) from error
        durable.write_file(os.path.join(target, manifests.NAME), manifests.encode(content))
        durable.sync_folder(target)

    def _put_aside(self, attempt: names.Attempt) -> str:
        """Make room for a checkpoint; return where the former one is, "" = there was none."""
        committed = self._path(names.step(attempt.step))
        if not os.path.lexists(committed):
            return ""
        if not self._is_ours(committed):
            raise FileExistsError(
                errno.EEXIST,
                f"no checkpoint can be made there: move away what has that name; it "
                f"{_why_not_ours(committed)}",
                committed,
            )
        former = self._path(attempt.replaced())
        os.rename(committed, former)
        durable.sync_folder(self.place)
        return former

    def _rename(self, target: str, attempt: names.Attempt) -> None:
        committed = self._path(names.step(attempt.step))
        try:
            os.rename(target, committed)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise OSError(
                    error.errno,
                    "another job has saved this step at the same moment: give each job its own "
                    "directory",
                    committed,
                ) from error
            if error.errno != errno.ENOENT:
                raise
            # NFS repeats a rename whose answer was lost, and then finds nothing to rename.
            done = self.manifest(attempt.step)
            if (done.session, done.attempt) != (attempt.session, attempt.number):
                raise

    def _check_epoch(self, epoch: int) -> None:
        rules.check_fence(self._fence(), self._run, epoch, self.place)

    def _fence(self) -> rules.Fence:
        try:
            return rules.decode_fence(durable.read_file(self._path(names.EPOCH), _MAX_FENCE_BYTES))
        except FileNotFoundError:
            return rules.Fence()

    def _is_ours(self, path: str) -> bool:
        """Return whether this is the folder of a checkpoint, and not a link to one."""
        try:
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                return False
            return stat.S_ISREG(os.lstat(os.path.join(path, manifests.NAME)).st_mode)
        except FileNotFoundError:
            return False

    def _replaced(self, step: int) -> Iterator[str]:
        for name in self._names():
            former = names.read_replaced(name)
            if former is not None and former.step == step and self._is_ours(self._path(name)):
                yield name

    def _clean(self, name: str) -> None:
        """Remove what a session that is over has left, or bring back what it has put aside."""
        replaced = names.read_replaced(name)
        if replaced is not None:
            committed = self._path(names.step(replaced.step))
            # What is half removed is no checkpoint, and would be in the way of one.
            if not os.path.lexists(committed) and self._is_ours(self._path(name)):
                os.rename(self._path(name), committed)
                durable.sync_folder(self.place)
                return
        durable.remove_tree(self._path(name))


class OneFolder:
    """A checkpoint in a folder of any name. Implements `storage.Readable`."""

    def __init__(self, path: str) -> None:
        """Args: the folder."""
        self._path = path

    def open(self, step: int, name: str, *, shared: bool = False) -> FileReader:  # noqa: ARG002
        """See `Readable`."""
        return DirectReader(f"{self._path}/{names.check_file(name)}", shared=shared)

    def locate(self, step: int) -> str:  # noqa: ARG002
        """See `Readable`."""
        return self._path

    def manifest(self, step: int, *, check_files: bool = True) -> manifests.Manifest:  # noqa: ARG002
        """See `Storage`; the step is the one that the manifest says."""
        path = f"{self._path}/{manifests.NAME}"
        try:
            found = manifests.decode(durable.read_file(path, manifests.MAX_BYTES), path)
            if check_files:
                check_sizes(self._path, found)
        except OSError as error:
            raise DamagedCheckpointError(str(error), path) from error
        return found


def _named(run: str) -> str:
    return f"run {run!r}" if run else "started without undaunted run"


def _why_not_ours(path: str) -> str:
    """Return why what is called like a checkpoint is none, to follow its path in a message."""
    if os.path.islink(path):
        return (
            "is a symbolic link, which is not followed: move the checkpoint itself here, or give "
            "the folder that has it"
        )
    return f"has no {manifests.NAME}, so that it is no checkpoint"


def _bytes_below(folder: str) -> int:
    """Return how many bytes the files in a folder have, as far as this can be known."""
    size = 0
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # it may be gone
                size += entry.stat(follow_symlinks=False).st_size
    return size


def check_sizes(folder: str, content: manifests.Manifest) -> None:
    """Raise `DamagedCheckpointError` unless all files are there with their sizes."""
    for name, file in content.files.items():
        path = os.path.join(folder, name)
        try:
            status = os.lstat(os.path.join(folder, names.check_file(name)))
        except FileNotFoundError:
            raise DamagedCheckpointError(f"{path} is missing", path) from None
        except ValueError as error:
            raise DamagedCheckpointError(f"{folder}: {error}", folder) from error
        if not stat.S_ISREG(status.st_mode):
            raise DamagedCheckpointError(f"{path} is not a regular file", path)
        if status.st_size != file.size:
            raise DamagedCheckpointError(
                f"{path} has {status.st_size} bytes and should have {file.size}", path
            )
