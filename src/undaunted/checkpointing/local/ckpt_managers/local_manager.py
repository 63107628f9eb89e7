"""Local checkpoints: what all ranks do together to save and load shards on their nodes' disks."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec
import torch

from undaunted.agreement.connect import Connected, connect
from undaunted.agreement.failures import Failure
from undaunted.checkpointing import aborting, announce
from undaunted.checkpointing.async_ckpt.core import AsyncRequest
from undaunted.checkpointing.errors import (
    AGREED,
    CheckpointError,
    DamagedCheckpointError,
    NoCheckpointError,
)
from undaunted.checkpointing.files.folder import FolderStorage
from undaunted.checkpointing.files.reading import Piece
from undaunted.checkpointing.format.ledger import Candidate
from undaunted.checkpointing.local import flat, folder
from undaunted.checkpointing.local.folder import ShardFile, ShardFolder
from undaunted.checkpointing.local.replication.exchange import fetch
from undaunted.checkpointing.local.saving import (
    CheckpointingException,
    LeasedShard,
    Peers,
    SameMachineReplicationException,
    SaveJob,
    memory_for_shards,
    tensor_of,
)
from undaunted.checkpointing.local.selection import Answer, CkptID, Held, Standing, decider
from undaunted.checkpointing.memory.arena import HEADER_BYTES
from undaunted.checkpointing.memory.copy import memory_of
from undaunted.checkpointing.trust import Trust, suspect_steps

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from undaunted.checkpointing.local.base_state_dict import TensorAwareStateDict
    from undaunted.checkpointing.local.replication.strategies import ReplicationStrategy
    from undaunted.checkpointing.local.selection import Parts, Save, Share
    from undaunted.checkpointing.local.shard import Head

__all__ = [
    "CheckpointingException",
    "CkptID",
    "LocalCheckpointManager",
    "SameMachineReplicationException",
]

_log = logging.getLogger("undaunted")
_TIMEOUT_S = 1800.0
_READ_THREADS = 4
_MOST_DOUBTED = 2  # checkpoints that are not trusted and stay for people to look at
_T = TypeVar("_T")


class LocalCheckpointManager:
    """Keeps shards in ``root/session/rank/iter_{iteration:07d}_{rank}_local.pt``.

    All ranks make the same calls in the same order:

        manager = LocalCheckpointManager("/local/ckpt", repl_strategy=strategy)
        if manager.find_latest() != -1:
            state, _ = manager.load()
            model.load_state_dict(state.state_dict["model"])
        ...
        request = manager.save(BasicTensorAwareStateDict({"model": model.state_dict()}), step, True)
        queue.schedule_async_request(request)

    Attributes:
        session_id: tells the checkpoints of different runs apart.
        latest_iteration: of the newest checkpoint, as far as is known; -1 = none.
    """

    def __init__(
        self,
        root_local_ckpt_dir: str | os.PathLike[str],
        session_id: str = "",
        repl_strategy: ReplicationStrategy | None = None,
        *,
        keep: int = 2,
        timeout_s: float = _TIMEOUT_S,
        allow_pickle: bool = False,
        same_on_all_ranks: bool = False,
        other_tier: bool = False,
    ) -> None:
        """Take settings; nothing is done, and `torch.distributed` is not needed yet.

        Args:
            root_local_ckpt_dir: on a disk of this node, with room for ``keep`` + 1 checkpoints of
                the shards of its ranks, and of those they keep copies of.
            session_id: name of a folder in it, so that runs may share a disk; "" = no such folder.
            repl_strategy: who keeps copies for whom; None = nobody.
            keep: how many checkpoints stay; 1 needs copies, as an older one must be left when the
                newest is damaged.
            timeout_s: for every wait of a rank for others and for its disk, in seconds.
            allow_pickle: whether a state may have objects that are neither plain data nor tensors,
                which reading it back runs code for. Only where nobody else writes to the disk.
            same_on_all_ranks: whether the state of every rank is the whole one, as with DDP; then
                any shard will do for any rank, and the number of ranks may change.
            other_tier: whether the program goes on from other checkpoints, as on a common file
                system, when `find_latest` returns -1. Then it does so, too, when all local ones
                lead to failures; else the newest is loaded again.

        Raises:
            ValueError: a value is not possible.
        """
        if keep < (1 if repl_strategy else 2):
            raise ValueError(
                f"keep={keep}: at least 2, or 1 with replicas, so that there is another checkpoint "
                "when the newest is damaged"
            )
        folder.check_session(session_id)
        self.session_id = session_id
        self.latest_iteration = -1
        self._root = root_local_ckpt_dir
        self._strategy = repl_strategy
        self._timeout_s = timeout_s
        self._allow_pickle = allow_pickle
        self._same_on_all_ranks = same_on_all_ranks
        self._other_tier = other_tier
        self._parts: Parts | None = None  # of the last search
        self._trust: Trust | None = None
        self._pool = memory_for_shards(2)
        self._turn = threading.Lock()
        self._saves = _Saves(keep)
        self._count = 0
        self._loads = 0
        self._connection: Connected | None = None
        self._opened: ShardFolder | None = None
        self._peers: Peers | None = None
        self._choice: Share | None = None
        self._reasons: list[str] = []
        self._files: dict[Held, list[ShardFile]] = {}
        self._damaged: set[Path] = set()
        self._said: set[str] = set()
        self._cleaner = _Cleaner(self._delete_old)
        aborting.register(self)

    @property
    def rank(self) -> int:
        """This rank; all ranks ask, or none: they are connected when it is first asked for."""
        return self._connected().rank

    @property
    def local_ckpt_dir(self) -> Path:
        """The folder of this rank's shards; see `rank`."""
        return self._folder().own

    # --- saving -----------------------------------------------------------------------------------

    def save(
        self, state_dict: TensorAwareStateDict, iteration: int, is_async: bool = False
    ) -> AsyncRequest | None:
        """Save the state of this rank; its content is fixed when this returns.

        Args:
            state_dict: the state; it is not changed.
            iteration: more than that of any checkpoint before.
            is_async: return a request, for `AsyncCallsQueue.schedule_async_request`, as soon as
                the state is copied; else wait until all ranks have written.

        Raises:
            CheckpointingException: (not when ``is_async``) a rank has failed; on all ranks.
            ValueError: the iteration is not a new one.
        """
        newest = max([self.latest_iteration, *self._saves.under_way()])
        if iteration < 0 or iteration <= newest:
            raise ValueError(
                f"iteration {iteration} is not newer than the last one that was saved, {newest}"
            )
        job = self._prepare(state_dict, iteration)
        self._saves.begin(job)
        finalize = partial(self._finalize, job, is_async)
        if is_async:
            return AsyncRequest(job, (), [finalize])
        job()
        finalize()
        return None

    def _prepare(self, state: TensorAwareStateDict, iteration: int) -> SaveJob:
        """Copy the state; what goes wrong is for the job to tell, so that no rank goes on alone."""
        connected = self._connected()
        began = time.monotonic()
        self._count += 1
        name = f"{connected.session}-{self._count}"
        place, shard, failure = "", None, None
        try:
            place = self._folder().identity()
            if self._saves.take_doubt(iteration):  # this save takes its name
                self._folder().put_aside(iteration)
            shard = self._copy(state, iteration, name)
        except Exception as error:  # noqa: BLE001 - told to all ranks
            failure = Failure.of(error)
        return SaveJob(
            number=self._count,
            iteration=iteration,
            name=name,
            place=place,
            shard=shard,
            failure=failure,
            write=self._write,
            peers=self._clique(),
            turn=self._turn,
            timeout_s=self._timeout_s,
            began=began,
        )

    def _copy(self, state: TensorAwareStateDict, iteration: int, name: str) -> LeasedShard:
        prepared = self._lay_out(state, iteration, name)
        lease = self._pool.lease(HEADER_BYTES + prepared.size, self._timeout_s)
        try:
            flat.copy_into(prepared, tensor_of(lease, prepared.size))
        except BaseException:
            lease.release()
            raise
        return LeasedShard(prepared.head, lease, prepared.size)

    def _lay_out(self, state: TensorAwareStateDict, iteration: int, name: str) -> flat.Prepared:
        connected = self._connected()
        identity = flat.Identity(
            iteration, connected.rank, connected.world_size, self.session_id, name, time.time()
        )
        return flat.prepare(state, identity, self._allow_pickle)

    def warm_up(self, state_dict: TensorAwareStateDict) -> None:
        """Allocate the memory for such a state now, so that the first save is as fast as others.

        Raises:
            OSError: there is not enough.
        """
        size = self._lay_out(state_dict, 0, "").size
        peers = self._clique()
        for pool in (self._pool, *([peers.pool] if peers else [])):
            pool.warm_up(HEADER_BYTES + size, self._timeout_s)

    def _write(
        self,
        memory: memoryview,
        size: int,
        head: Head,
        wrote: Callable[[int], None],
        expected: str | None = None,
    ) -> str:
        """Write a shard; see `ShardFolder.write`."""
        crc32 = self._folder().write(memory, size, head, wrote, expected)
        self._damaged.discard(self._folder().own / folder.name_of(head.iteration, head.rank))
        return crc32

    def _finalize(self, job: SaveJob, in_background: bool) -> None:
        """Agree that all ranks have saved; then delete what is not kept any more."""
        job.release()
        try:
            self._connected().main.round(
                f"local checkpoint {job.iteration}",
                job.failure or b"",
                lambda _: b"",
                self._timeout_s,
            )
        except CheckpointError as error:
            self._saves.end(job, saved=False)
            raise self._failed(job, error) from error
        self._saves.end(job, saved=True)
        job.tell_saved()
        self.latest_iteration = max(self.latest_iteration, job.iteration)
        self._choice = None
        if in_background:
            self._cleaner.ask()
        else:
            self._delete_old()

    def _failed(self, job: SaveJob, error: CheckpointError) -> CheckpointingException:
        """Remove what the save has left, and return the error that the user gets."""
        if self._peers is not None:
            self._peers.renew()
        self._folder().delete(lambda iteration: iteration == job.iteration)
        mine = job.failure.kind if job.failure else ""
        same = mine == SameMachineReplicationException.__name__
        kind = SameMachineReplicationException if same else CheckpointingException
        failed = kind(str(error), getattr(error, "ranks", ()), getattr(error, "errno", None))
        announce.failed(job.iteration, failed, aloud=self._connected().main.speaks_of(failed))
        return failed

    def _delete_old(self) -> None:
        """Delete the shards of iterations that are not kept, and those before all of these."""
        if not self._saves.kept():
            return
        # Asked after the folder is listed: a save may begin while a slow disk is.
        self._folder().delete(lambda iteration: iteration not in self._saves.kept())
        self._folder().delete_old(min(self._saves.kept()))
        self._folder().delete_aside(self._saves.is_passed, _MOST_DOUBTED)

    # --- loading ----------------------------------------------------------------------------------

    def find_latest(self, parts: Parts | None = None) -> int:
        """Return the newest iteration of which all ranks can get their shards; -1 if there is none.

        Heads and ends of files are looked at, not yet their tensors. What is left out is logged.

        Args:
            parts: see `load_parts`; None = each rank loads its own, as `load` does.

        Raises:
            CheckpointError: a rank did not answer.
        """
        if self._choice is None or parts is not self._parts:
            self._parts = parts
            answer = self._agree(Standing(list(self._held())))
            self._take(answer.share)
            self._reasons = answer.reasons
        return self.latest_iteration

    def load(self) -> tuple[TensorAwareStateDict, CkptID]:
        """Return this rank's state and what it is: from its own disk, or from a rank that has it.

        Every byte is checked. When a shard turns out to be damaged everywhere, all ranks take the
        next older checkpoint.

        Raises:
            NoCheckpointError: there is none that all can load; it says why.
        """
        ((rank, state),), choice = self._load(None)
        return state, CkptID(choice.iteration, rank, self.session_id)

    def load_parts(self, parts: Parts) -> tuple[dict[int, TensorAwareStateDict], int]:
        """Return the states that this rank takes over, by the ranks that saved, and the iteration.

        For a number of ranks that is another than the one that saved. A checkpoint will do if its
        copies hold the states of all ranks, and each of these is taken over by somebody: the
        program puts them together, as only it knows what they are parts of.

            def mine(rank, ranks, saved):  # 4 ranks become 2: 0 and 1, 2 and 3
                return range(rank * saved // ranks, (rank + 1) * saved // ranks)

            states, iteration = manager.load_parts(mine)

        Args:
            parts: returns whose states a rank takes over: given its number, how many ranks there
                are, and how many have saved. The same on all ranks.

        Raises:
            NoCheckpointError: there is none that all can load; it says why, and names the ranks
                whose states nobody would load.
        """
        states, choice = self._load(parts)
        return dict(states), choice.iteration

    def _load(self, parts: Parts | None) -> tuple[list[tuple[int, TensorAwareStateDict]], Share]:
        self.find_latest(parts)
        choice, reasons, began = self._choice, self._reasons, time.monotonic()
        while choice is not None:
            states, standing = self._try(choice)
            answer = self._agree(standing)
            if answer.done:
                assert states is not None
                self._take(choice)
                self._saves.loaded(choice.iteration)
                self._write_down(choice)
                size = sum(tensor.nbytes for _, state in states for tensor in state.tensors)
                announce.loaded(choice.iteration, size, time.monotonic() - began)
                return states, choice
            del states  # before the next one is read
            choice, reasons = answer.share, [*reasons, *answer.reasons]
        self._take(None)
        raise NoCheckpointError(
            f"no local checkpoint can be loaded: {'; '.join(reasons) or 'there is none'}"
        )

    def _agree(self, standing: Standing) -> Answer:
        content = self._connected().main.scatter(
            "finding a local checkpoint",
            msgspec.msgpack.encode(standing),
            decider(self._same_on_all_ranks, self._trusted, self._parts),
            self._timeout_s,
        )
        answer = msgspec.msgpack.decode(content, type=Answer)
        self._saves.doubt(answer.doubted)
        if self._connected().rank == 0:
            for reason in answer.reasons:
                _log.warning("Local checkpoint: %s", reason)
        return answer

    def _trusted(self, saves: Sequence[Save]) -> tuple[Save | None, dict[Save, str]]:
        """Choose among saves, the newest first, on rank 0; see `checkpointing.trust`."""
        if self._trust is None:
            session = self._connected().session
            self._trust = Trust(FolderStorage(str(self._folder().session)), session)
        by_name = {_candidate(one.iteration, one.name).name: one for one in saves}
        candidates = [_candidate(one.iteration, one.name) for one in saves]
        choice = self._trust.choose(candidates)
        doubts = {by_name[name]: f"not trusted: {why}" for name, why in choice.doubts.items()}
        if choice.is_none_trusted and self._other_tier:
            return None, doubts
        first = by_name[choice.order[0].name] if choice.order else None
        return first, {} if choice.is_none_trusted else doubts

    def _write_down(self, choice: Share) -> None:
        if self._trust is not None:
            self._trust.loaded(_candidate(choice.iteration, choice.save))

    def _take(self, choice: Share | None) -> None:
        self._choice = choice
        self.latest_iteration = -1 if choice is None else choice.iteration

    def _try(self, choice: Share) -> tuple[list[tuple[int, TensorAwareStateDict]] | None, Standing]:
        """Try to load; damage and absent peers are for all ranks to know."""
        before = set(self._held())
        states, problem = None, ""
        try:
            states = self._get(choice, before)
        except (CheckpointError, OSError, RuntimeError, MemoryError) as error:
            problem = str(error) or type(error).__name__
        after = list(self._held())
        loaded = None if states is None else (choice.iteration, choice.save)
        return states, Standing(after, loaded, problem, before != set(after))

    def _get(self, choice: Share, mine: Collection[Held]) -> list[tuple[int, TensorAwareStateDict]]:
        """Return what this rank loads, with the ranks that saved; sends first what others need."""
        me = self._connected().rank
        key = (choice.iteration, choice.save)
        here = {one.rank: one for one in mine if (one.iteration, one.save) == key}
        self._loads += 1
        name = f"{self._connected().session}/load/{self._loads}"
        received, failed = {}, None

        def read(rank: int) -> tuple[torch.Tensor, str]:
            return self._of_first_whole(here[rank], _read_file)

        try:
            received = fetch(choice, me, name, read, self._timeout_s)
        except (CheckpointError, OSError, RuntimeError) as error:
            failed = error  # what is on the own disk is looked at all the same
        states = []
        for rank in choice.shards:
            if rank in here:
                states.append((rank, self._of_first_whole(here[rank], self._load_file)))
            elif rank in received:
                image = received.pop(rank)
                state = flat.rebuild_from(image, "a shard from a peer", self._allow_pickle)
                states.append((rank, state))
        if failed is not None:
            raise failed
        return states

    # --- the shards of this node ------------------------------------------------------------------

    def _folder(self) -> ShardFolder:
        if self._opened is None:
            self._opened = ShardFolder(self._root, self.session_id, self._connected().rank)
            self._opened.sweep()
        return self._opened

    def _held(self) -> Collection[Held]:
        """Return the shards that this rank can read, as far as can be told quickly."""
        own = self._folder().own
        self._files = {}
        for file in self._folder().scan(self._complain):
            head = file.head
            if file.path not in self._damaged and head.session == self.session_id:
                held = Held(head.iteration, head.rank, head.world_size, head.save, head.saved_at)
                self._files.setdefault(held, []).append(file)
        for files in self._files.values():
            files.sort(key=lambda file: file.path.parent != own)  # the own copy first
        return self._files.keys()

    def _load_file(self, file: ShardFile) -> TensorAwareStateDict:
        where = str(file.path)
        tensors = flat.new_tensors(file.head, where)
        pieces = folder.pieces_of(file, [memory_of(tensor) for tensor in tensors])
        folder.read(file, pieces, _READ_THREADS, _ignore)
        return flat.rebuild(file.head, tensors, where, self._allow_pickle)

    def _of_first_whole(self, held: Held, read: Callable[[ShardFile], _T]) -> _T:
        """Read a shard, every byte checked; a damaged copy is not offered again.

        Raises:
            DamagedCheckpointError: there is no whole copy.
            OSError: it cannot be read.
        """
        failed: Exception | None = None
        for file in self._files.get(held, []):
            if file.path in self._damaged:
                continue
            try:
                return read(file)
            except (DamagedCheckpointError, OSError) as error:  # the next may be whole
                self._damaged.add(file.path)
                failed = error
        raise failed or DamagedCheckpointError(f"the shard of rank {held.rank} is gone", "")

    def _complain(self, text: str) -> None:
        """Say it once."""
        if text not in self._said:
            self._said.add(text)
            _log.warning(text)

    # --- the others -------------------------------------------------------------------------------

    def _connected(self) -> Connected:
        if self._connection is None:
            self._connection = connect(None, self._timeout_s, AGREED)
        return self._connection

    def _clique(self) -> Peers | None:
        if self._peers is None and self._strategy is not None:
            connected = self._connected()
            clique = self._strategy.clique
            if len(clique) > 1:
                self._peers = Peers(clique, connected.rank, connected.session, self._timeout_s)
        return self._peers

    def abort(self) -> None:
        """Give everything up, from any thread: saves, and waits for other ranks, which raise."""
        self._saves.cancel()
        if self._connection is not None:
            self._connection.abort()

    def close(self) -> None:
        """Let memory and connections go; saves that are under way must be finalized before."""
        self._cleaner.close(self._timeout_s)
        self._pool.close()
        if self._peers is not None:
            self._peers.close()
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _Saves:
    """Which iterations are being saved, and which of those that are complete stay."""

    def __init__(self, keep: int) -> None:
        self._lock = threading.Lock()
        self._complete: deque[int] = deque(maxlen=keep)  # oldest first
        self._jobs: weakref.WeakSet[SaveJob] = weakref.WeakSet()  # neither finalized nor dropped
        self._doubted: set[int] = set()  # that training has not passed yet
        self._within = suspect_steps()

    def doubt(self, iterations: Collection[int]) -> None:
        """Keep what is not trusted until training has come beyond it; of many the newest."""
        with self._lock:
            self._doubted = set(sorted({*self._doubted, *iterations})[-_MOST_DOUBTED:])

    def take_doubt(self, iteration: int) -> bool:
        """Return whether this iteration is doubted; from now on it is another save's, not."""
        with self._lock:
            doubted = iteration in self._doubted
            self._doubted.discard(iteration)
            return doubted

    def is_passed(self, iteration: int) -> bool:
        """Return whether training has saved enough iterations beyond this one to prove it."""
        with self._lock:
            return self._is_passed(iteration)

    def _is_passed(self, iteration: int) -> bool:
        return max(self._complete, default=-1) >= iteration + self._within

    def begin(self, job: SaveJob) -> None:
        with self._lock:
            self._jobs.add(job)

    def end(self, job: SaveJob, *, saved: bool) -> None:
        with self._lock:
            self._jobs.discard(job)
            if saved:
                self._complete.append(job.iteration)

    def loaded(self, iteration: int) -> None:
        with self._lock:
            self._complete.append(iteration)

    def under_way(self) -> list[int]:
        with self._lock:
            return [job.iteration for job in self._jobs]

    def kept(self) -> set[int]:
        """Return what must not be deleted; empty as long as all must stay."""
        with self._lock:
            if len(self._complete) < (self._complete.maxlen or 0):
                return set()
            self._doubted = {one for one in self._doubted if not self._is_passed(one)}
            return {*self._complete, *self._doubted, *(job.iteration for job in self._jobs)}

    def cancel(self) -> None:
        with self._lock:
            jobs = list(self._jobs)
        for job in jobs:
            job.cancel()


class _Cleaner:
    """Deletes old shards on a thread of its own: large files take a while, training goes on."""

    def __init__(self, delete: Callable[[], None]) -> None:
        self._delete = delete
        self._lock = threading.Lock()
        self._asked = False
        self._thread: threading.Thread | None = None

    def ask(self) -> None:
        """Delete, after what is being deleted."""
        with self._lock:
            self._asked = True
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="undaunted-local-clean", daemon=True
                )
                self._thread.start()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._asked:
                    self._thread = None
                    return
                self._asked = False
            try:
                self._delete()
            except OSError as error:
                _log.warning("Old local checkpoints are not deleted: %s", error)

    def close(self, timeout_s: float) -> None:
        """Wait for what is being deleted."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)


def _read_file(file: ShardFile) -> tuple[torch.Tensor, str]:
    image = torch.empty(file.image_bytes, dtype=torch.uint8)
    folder.read(file, [Piece(0, memory_of(image))], _READ_THREADS, _ignore)
    return image, file.crc32


def _candidate(iteration: int, save: str) -> Candidate:
    """Return how the ledger knows a save."""
    return Candidate(name=f"{iteration}-{save}", step=iteration, session=save.rpartition("-")[0])


def _ignore(_: int) -> None:
    """Nobody is told how far it is."""
