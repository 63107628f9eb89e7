"""Save and load the state of a training loop: all that a raw loop needs.

checkpoints = Checkpointer("checkpoints")
state = {"model": model, "optimizer": optimizer, "epoch": 0}
start = checkpoints.load(state) or 0
for step in range(start, steps):
    ...
    if step % 100 == 0:
        checkpoints.save(step, state)
checkpoints.close()
"""

from __future__ import annotations

import atexit
import errno
import math
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Literal

from undaunted.agreement.connect import FAREWELL_S, connect
from undaunted.agreement.failures import Failure
from undaunted.checkpointing import aborting, announce, finding
from undaunted.checkpointing.arguments import (
    ATTEMPTS,
    check_certifying,
    check_every,
    check_settings,
    step_number,
)
from undaunted.checkpointing.dcp.saving import Saver
from undaunted.checkpointing.errors import AGREED, CheckpointError, SaveError, StateError
from undaunted.checkpointing.files.places import open_storage, refuse_one_checkpoint
from undaunted.checkpointing.format.rules import Rule
from undaunted.checkpointing.keeping.client import ShelfClient
from undaunted.checkpointing.memory.pool import Pool
from undaunted.checkpointing.pace import Pace
from undaunted.checkpointing.publishing import Publisher
from undaunted.checkpointing.restoring import Loader
from undaunted.checkpointing.saves import Saves
from undaunted.checkpointing.snapshot import Snapshot, Taker
from undaunted.checkpointing.trust import Trust
from undaunted.checkpointing.writer.job import WriterOptions
from undaunted.checkpointing.writer.process import Writer
from undaunted.coordinator.epoch import round_epoch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self

    from torch.distributed import ProcessGroup

    from undaunted.checkpointing.arguments import Differing, OnFailure
    from undaunted.checkpointing.dcp.saving import Planned, Staged
    from undaunted.checkpointing.memory.pool import Lease

EXCEPTION_S = 10.0  # for what is being saved when the program leaves by an exception
FAILED_FAREWELL_S = 1.0  # for other ranks to take leave of rank 0 when it has failed
ABORT_S = 5.0  # for the saving thread to notice that it is to stop
STALL_S = 60.0  # a writer that has written nothing for so long is given up


class Checkpointer:
    """Checkpoints of one training job in one directory.

    Every rank makes one, and calls ``save`` and ``load`` for the same steps in the same order.
    Training stops only while its state is copied; another process writes. A checkpoint
    exists when all ranks have written their part, and never before; what dies in between leaves
    the ones before it as they were.

    The state is a dictionary, nested as you like. It may have tensors (also DTensors), objects
    with ``state_dict`` and ``load_state_dict`` (modules, optimizers, yours), and plain Python data.
    Of what all ranks have under one name they save one copy between them. Wrap what each rank has
    for itself, such as the position of its data loader, in `PerRank`.
    """

    def __init__(  # noqa: PLR0913 - the settings
        self,
        directory: str | os.PathLike[str],
        keep: int | None = 3,
        *,
        every: int | Literal["continuous"] | None = None,
        keep_every: int | None = None,
        certify: int | None = None,
        keep_certified: int = 2,
        process_group: ProcessGroup | Literal["alone"] | None = None,
        on_failure: OnFailure = "raise",
        differing: Differing = "refuse",
        slots: int = 1,
        timeout: float = 600.0,
        threads: int = 4,
        bandwidth: float | None = None,
    ) -> None:
        """Open the directory; all ranks of the group together.

        Where it has checkpoints and cannot be written, or is full, they can be loaded; `save` fails
        until it can be.

        Args:
            directory: a folder that all ranks see (created when missing), or a URL for fsspec.
            keep: how many of the newest checkpoints are kept, at least 1; None keeps all.
            every: of which steps `due` says that they are to be saved: of those divisible by this;
                with "continuous" as often as the disk allows, as long as saving takes no more
                than 2.5 % of the time. None means that nobody asks.
            keep_every: checkpoints of steps divisible by this are kept as well.
            certify: every so many saves the content of what several ranks have (replicas of a
                model) is compared, each bit of it, before it is saved. A save whose replicas differ
                fails; one whose replicas are the same is marked as certified. None compares only
                when the structure of the state changes.
            keep_certified: how many of the newest certified checkpoints are kept as well.
            process_group: the ranks that save together; None means all, or this process alone
                where ``torch.distributed`` is not initialized and WORLD_SIZE is not set or 1;
                "alone" means this process by itself, in a directory of its own.
            on_failure: what becomes of a save that failed: "raise" raises it at the next ``save``,
                ``wait`` or ``close``; "retry" tries twice more before; "warn" logs it and goes on.
            differing: what becomes of a save whose ranks have different content under one name, so
                that one rank's would be saved for all: "refuse" raises a `SaveError` that names it;
                "warn" says so once and saves one rank's. Buffers of modules are only warned of.
            slots: copies of this rank's part of the state that are held in memory. With 2, the
                next save need not wait for the writing of this one.
            timeout: seconds that any wait for other ranks or for storage may last; a write that
                makes progress may take longer.
            threads: that write files, per rank.
            bandwidth: bytes per second that this rank's writer may write; None means no limit.

        Raises:
            ValueError: an argument is out of its range.
            OSError: the directory cannot be used.
            SaveError: the ranks did not come together in time, or cannot yet.
        """
        check_settings(keep, keep_every, on_failure, differing, slots, timeout, threads)
        check_certifying(certify, keep_certified)
        check_every(every)
        self._pid = os.getpid()
        self._timeout_s = timeout
        self._on_failure = on_failure
        self._storage = open_storage(directory)
        refuse_one_checkpoint(self._storage.place)
        self._epoch = epoch = round_epoch()
        options = WriterOptions(
            threads=threads, bandwidth=bandwidth, stall_timeout_s=min(STALL_S, timeout / 2)
        )
        self._writer = Writer(str(directory), options)
        self._links = links = connect(process_group, timeout, AGREED)
        self._read_only = ""  # why
        self._enter()
        self._shelf = ShelfClient.connect(links.rank, self._storage.place)
        self._saver = Saver(
            links.main, refuse_differing=differing == "refuse", certifies=certify is not None
        )
        self._pool = Pool(slots, "undaunted-checkpoint", "raise timeout=")
        self._number = 0
        self._certify = certify
        rule = Rule(keep=keep, every=keep_every, certified=keep_certified)
        trust = Trust(self._storage, links.session)
        self._publisher = publisher = Publisher(self._storage, links.background, epoch, rule, trust)
        self._taker = Taker(
            links.rank,
            links.world_size,
            links.session,
            epoch,
            self._shelf,
            lambda: publisher.has_saved,
        )
        self._loader = Loader(self._storage, links.main, publisher, self._shelf, trust, timeout)
        self._interval = every if isinstance(every, int) else None
        self._pace = Pace(links.background, timeout) if every == "continuous" else None
        self._saves = Saves(
            self._writer, publisher, ATTEMPTS[on_failure], timeout, bandwidth, self._pace
        )
        self._closing = threading.Lock()
        self._closed = False
        atexit.register(self._at_exit)
        aborting.register(self)

    def save(self, step: int, state_dict: dict[str, Any]) -> None:
        """Copy the state; all ranks together. When this returns, what will be saved is fixed.

        Args:
            step: the checkpoint's number, at least 0. One that exists already is replaced.
            state_dict: what to save.

        Raises:
            SaveError: an earlier save failed, or this one at once (with ``on_failure="warn"`` it is
                logged). The next save may work.
        """
        self._check_open()
        step = step_number(step)
        began = time.monotonic()
        number = self._number + 1
        lease = self._pool.lease(0, self._saves.longest_s)
        try:
            # Saves before those that other arenas are for are over, on every rank.
            self._tell_failure(number - self._pool.count + 1)
            planned = self._plan(step, number, state_dict)
            if planned is None:
                lease.release()
                return
            self._number = number
            staged, problem = self._copy(step, planned, lease)
        except BaseException:
            lease.release()
            raise
        if self._pace is not None:
            self._pace.begun(step, number)
        # Also without a copy: the other ranks learn from it at once that this one has none.
        self._saves.submit(
            Snapshot(
                step=step,
                number=number,
                lease=lease,
                planned=planned,
                staged=staged,
                problem=problem,
                stall_s=time.monotonic() - began,
                began=began,
            )
        )

    def due(self, step: int) -> bool:
        """Return whether this step is to be saved, by ``every=``; the same on all ranks.

        With ``every="continuous"`` each rank has to ask for each step that it has done, in order.

        Args:
            step: the number that `save` would get.

        Raises:
            ValueError: ``every`` was not given.
            SaveError: the save before this step has failed, see ``on_failure``; it is not raised
                again by `save`.
        """
        self._check_open()
        step = step_number(step)
        if self._pace is not None:
            due = self._pace.due(step)
            if due and not self._pace.went_back(step):
                # That it is due was decided after the last save, so that all ranks know of it.
                self._tell_failure()
            return due
        if self._interval is None:
            raise ValueError('due: make the Checkpointer with every=N or every="continuous"')
        return step % self._interval == 0

    def _plan(self, step: int, number: int, state_dict: dict[str, Any]) -> Planned | None:
        certify = self._certify is not None and number % self._certify == 0
        what = f"save of step {step}"
        try:
            self._check_writable()
            return self._saver.plan(state_dict, self._timeout_s, what, certify=certify)
        except SaveError as error:  # on all ranks, so that nobody waits for this one
            announce.failed(step, error, aloud=self._links.main.speaks_of(error))
            if self._pace is not None:
                self._pace.refused(step)
            if self._on_failure != "warn":
                raise
            return None

    def _copy(
        self, step: int, planned: Planned, lease: Lease
    ) -> tuple[Staged | None, Failure | None]:
        try:
            return self._taker.take(step, self._number, planned, lease), None
        except (CheckpointError, OSError) as error:
            kind = "StateError" if isinstance(error, StateError) else "SaveError"
            details = {"is_final": True}  # there is nothing that another attempt could write
            return None, Failure(str(error), getattr(error, "errno", None), kind, details)

    def warm_up(self, state_dict: dict[str, Any]) -> None:
        """Allocate the memory of the first save ahead, so that it is no slower than later ones.

        All ranks together, before the first ``save``. Takes about 0.3 s per GiB of this rank's
        part.

        Raises:
            SaveError: the state cannot be saved, or a rank did not answer.
            OSError: there is not enough memory.
        """
        self._check_open()
        self._check_writable()
        planned = self._saver.plan(state_dict, self._timeout_s, "warm-up")
        lease = self._pool.lease(0, self._saves.longest_s)
        try:
            self._taker.warm_up(planned, lease)
        finally:
            lease.release()

    def wait(self) -> None:
        """Wait until everything that was saved is in storage.

        Raises:
            SaveError: a save failed, or is not done in time.
        """
        self._check_open()
        self._wait()
        self._tell_failure()

    def load(self, state_dict: dict[str, Any], step: int | None = None) -> int | None:
        """Fill the state from a checkpoint; all ranks together.

        Tensors are filled in place, also when they are distributed in another way than when they
        were saved; objects get their ``load_state_dict`` called; plain data are replaced. Every
        block that is read is checked. A damaged checkpoint is passed over for the one before it,
        and the log says why.

        Args:
            state_dict: of the same structure as what was saved.
            step: which checkpoint; None means the newest that can be used.

        Returns:
            The step of the checkpoint, None when there is none at all.

        Raises:
            NoCheckpointError: that of the given step, or all there are, cannot be used; the state
                may be filled in part.
            StructureError: the checkpoint does not have what the state needs.
        """
        self.wait()
        loaded = self._loader.load(state_dict, step)
        if self._pace is not None and loaded is not None:
            self._pace.loaded(loaded)
        return loaded

    def latest(self) -> int | None:
        """Return the step of the newest checkpoint that looks whole; its data are not read.

        Each rank looks for itself, so that one may see a checkpoint a moment before another.
        """
        manifest = finding.find(self._storage).manifest
        return None if manifest is None else manifest.step

    def close(self) -> None:
        """Wait for what is being saved, and give everything back. Calling it again does nothing.

        Raises:
            SaveError: a save failed, or is not done in time.
        """
        self._close(FAREWELL_S)

    def _close(self, farewell_s: float) -> None:
        if not self._begin_end():
            return
        try:
            self._wait()
            self._tell_failure()
        finally:
            self._give_back(self._timeout_s, farewell_s)

    def abort(self) -> None:
        """Give up what is being saved, and everything else back, without waiting for anybody.

        When this returns, nothing is committed any more. Any thread may call it, again and again:
        what another one waits for in a call of this object fails with a `SaveError`.
        """
        if os.getpid() != self._pid:
            return
        self._begin_end()
        self._loader.abort()
        self._publisher.abort(ABORT_S)
        self._saves.close(0.0)
        self._writer.abort()
        self._links.abort()
        self._give_back(ABORT_S)

    def _begin_end(self) -> bool:
        """Return whether it is this caller that ends it: the first one, and no fork."""
        if os.getpid() != self._pid:
            return False
        with self._closing:
            if self._closed:
                return False
            self._closed = True
        atexit.unregister(self._at_exit)
        return True

    def __enter__(self) -> Self:
        """Return the object itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it. After an exception what is being saved is waited for as long as makes sense.

        The end of the program (``sys.exit``, Ctrl-C) waits as `close` does; a save that failed is
        raised in place of an exit with code 0 or 75. Another exception waits
        for some seconds, unless an agent keeps the copy anyway: other ranks may be gone.
        """
        if kind is None:
            self.close()
        elif issubclass(kind, (SystemExit, KeyboardInterrupt)):
            # The others of a rank that has failed may wait for it, and do not take leave.
            failed = isinstance(error, SystemExit) and error.code not in (None, 0)
            try:
                self._close(FAILED_FAREWELL_S if failed else FAREWELL_S)
            except SaveError as lost:
                if _ends_well(error):  # it would look as if the checkpoint were there
                    raise _last(lost) from lost
                announce.log.error("%s", lost)
        else:
            kept = self._shelf is not None and not self._shelf.unsaved
            if issubclass(kind, Exception) and not kept and not self._closed:
                self._saves.wait(EXCEPTION_S)
            self.abort()

    def _enter(self) -> None:
        try:
            self._prepare()
        except BaseException:
            self._writer.abort()
            self._links.close()
            self._storage.close()
            raise
        if self._read_only and self._links.main.rank == 0:
            announce.log.warning(
                "the checkpoints in %s can be loaded, and none can be saved there: %s",
                self._storage.place,
                self._read_only,
            )

    def _prepare(self) -> None:
        """Have rank 0 prepare the place; what goes wrong there is raised on all ranks."""

        def prepare(_: Sequence[bytes]) -> bytes:
            try:
                self._storage.raise_epoch(self._epoch)
                for name in self._storage.sweep(self._links.session):
                    announce.swept(name)
            except OSError as error:
                full = error.errno in (errno.ENOSPC, errno.EDQUOT)
                refused = isinstance(error, PermissionError) or error.errno == errno.EROFS
                if not (refused or full) or not self._storage.steps():
                    raise
                return f"{error}{'; free space there' if full else ''}".encode()
            return b""

        why = self._links.main.round("open", b"", prepare, self._timeout_s)
        self._read_only = why.decode()

    def _tell_failure(self, before: float = math.inf) -> None:
        failure = self._saves.take_failure(before)
        if failure is not None and self._on_failure != "warn":
            raise failure

    def _wait(self) -> None:
        longest_s = self._saves.longest_s
        if not self._saves.wait(longest_s):
            raise SaveError(
                f"saving to {self._storage.place} has not finished in {longest_s:.0f} s"
            )

    def _check_open(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"this Checkpointer belongs to process {self._pid}, of which this one is a fork: "
                "make one here, with its own directory"
            )
        if self._closed:
            raise ValueError("this Checkpointer is closed")

    def _check_writable(self) -> None:
        """See whether a place that could not be written can be by now; all ranks together.

        Raises:
            SaveError: it cannot.
        """
        if self._read_only:
            self._prepare()
        if self._read_only:
            raise SaveError(
                f"nothing can be saved to {self._storage.place}, which can only be read: "
                f"{self._read_only}"
            )

    def _give_back(self, timeout_s: float, farewell_s: float = FAREWELL_S) -> None:
        self._saves.close(timeout_s)
        self._writer.close(timeout_s)
        self._links.close(farewell_s)
        self._publisher.discard_failed()
        self._pool.close()
        self._storage.close()
        if self._shelf is not None:
            self._shelf.close()

    def _at_exit(self) -> None:
        """Finish what is being saved when the program ends, but not when it fails."""
        if os.getpid() != self._pid:
            return  # a fork that did not know of it
        ended_by = getattr(sys, "last_type", None)
        if ended_by is not None and not issubclass(ended_by, KeyboardInterrupt):
            self.abort()
        else:
            try:
                self._close(FAREWELL_S)
            except SaveError as error:
                announce.lost(_last(error))


def _ends_well(error: BaseException | None) -> bool:
    """Return whether the exit code would be 0, or that of a preemption: 75."""
    code = error.code if isinstance(error, SystemExit) else 1
    return code is None or (isinstance(code, int) and code & 0xFF in (0, 75))


def _last(error: SaveError) -> SaveError:
    return SaveError(f"the last checkpoint was not saved: {error}", error.ranks, error.errno)
