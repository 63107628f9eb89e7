"""What all ranks do together to save and load local checkpoints, wherever the shards are kept."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from undaunted.agreement.connect import Connected, connect
from undaunted.agreement.failures import Failure
from undaunted.checkpointing import aborting, announce
from undaunted.checkpointing.async_ckpt.core import AsyncRequest
from undaunted.checkpointing.errors import AGREED, CheckpointError, NoCheckpointError
from undaunted.checkpointing.local import flat
from undaunted.checkpointing.local.buffers import Buffers
from undaunted.checkpointing.local.ckpt_managers.cleaning import Cleaner
from undaunted.checkpointing.local.ckpt_managers.loading import (
    CkptID,
    Standing,
    Verdict,
    decider,
    decode,
    encode,
)
from undaunted.checkpointing.local.ckpt_managers.saving import (
    CheckpointingException,
    Image,
    Replication,
    SameMachineReplicationException,
    SaveJob,
    ThisSave,
)
from undaunted.checkpointing.local.replication.retrieval import carry_out

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    import torch

    from undaunted.checkpointing.local.base_state_dict import TensorAwareStateDict
    from undaunted.checkpointing.local.replication.strategies import ReplicationStrategy
    from undaunted.checkpointing.local.selection import Choice, Held
    from undaunted.checkpointing.local.shard import Head

__all__ = [
    "BaseCheckpointManager",
    "CheckpointingException",
    "CkptID",
    "SameMachineReplicationException",
]

_log = logging.getLogger("undaunted")
TIMEOUT_S = 1800.0


class BaseCheckpointManager(ABC):
    """Saves and loads the shards of all ranks; all ranks make the same calls in the same order.

    Attributes:
        session_id: tells the checkpoints of different runs apart.
        latest_iteration: of the newest checkpoint, as far as is known; -1 = none.
    """

    def __init__(
        self,
        session_id: str,
        repl_strategy: ReplicationStrategy | None = None,
        *,
        keep: int = 2,
        timeout_s: float = TIMEOUT_S,
        allow_pickle: bool = False,
        same_on_all_ranks: bool = False,
    ) -> None:
        """Take settings; nothing is done, and `torch.distributed` is not needed yet.

        Args:
            session_id: see the class.
            repl_strategy: who keeps copies for whom; None = nobody.
            keep: how many checkpoints stay; 1 needs copies, as an older one must be left when the
                newest is damaged.
            timeout_s: for every wait of a rank for others and for its disk, in seconds.
            allow_pickle: whether a state may have objects that are neither plain data nor tensors,
                which reading it back runs code for. Only where nobody else writes to the disk.
            same_on_all_ranks: whether the state of every rank is the whole one, as with DDP; then
                any shard will do for any rank, and the number of ranks may change.

        Raises:
            ValueError: a value is not possible.
        """
        if keep < (1 if repl_strategy else 2):
            raise ValueError(
                f"keep={keep}: at least 2, or 1 with replicas, so that there is another checkpoint "
                "when the newest is damaged"
            )
        self.session_id = session_id
        self.latest_iteration = -1
        self._strategy = repl_strategy
        self._timeout_s = timeout_s
        self._allow_pickle = allow_pickle
        self._same_on_all_ranks = same_on_all_ranks
        self._buffers = Buffers(2)
        self._turn = threading.Lock()
        self._complete: deque[int] = deque(maxlen=keep)  # iterations, oldest first
        self._jobs: weakref.WeakSet[SaveJob] = weakref.WeakSet()  # neither finalized nor dropped
        self._count = 0
        self._loads = 0
        self._connection: Connected | None = None
        self._replication: Replication | None = None
        self._choice: Choice | None = None
        self._reasons: list[str] = []
        self._cleaner = Cleaner(timeout_s)
        aborting.register(self)

    # --- what a place to keep shards has ----------------------------------------------------------

    @abstractmethod
    def _my_ckpt_ids(self) -> Iterable[Held]:
        """Return the shards that this rank can read, as far as can be told quickly."""

    @abstractmethod
    def _load(self, held: Held) -> TensorAwareStateDict:
        """Return a shard's state, every byte checked; a damaged one is not offered again.

        Raises:
            DamagedCheckpointError: there is no whole copy.
            OSError: it cannot be read.
        """

    @abstractmethod
    def _read(self, held: Held) -> tuple[torch.Tensor, str]:
        """Return a shard in flat form and its checksums; as for `_load`."""

    @abstractmethod
    def _save(
        self,
        memory: memoryview,
        size: int,
        head: Head,
        wrote: Callable[[int], None],
        expected: str | None,
    ) -> str:
        """Write a shard; see `ShardFolder.write`."""

    @abstractmethod
    def _cleanup(self, keep: Collection[int]) -> None:
        """Delete the shards of iterations that are not kept, and those before all of these."""

    @abstractmethod
    def _cleanup_failed_save(self, iteration: int) -> None:
        """Delete what a save that failed has left."""

    @abstractmethod
    def _place(self) -> str:
        """Return what is the same for two ranks only if they keep shards in the same place."""

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
        newest = max([self.latest_iteration, *(job.iteration for job in self._jobs)])
        if iteration < 0 or iteration <= newest:
            raise ValueError(
                f"iteration {iteration} is not newer than the last one that was saved, {newest}"
            )
        job = self._prepare(state_dict, iteration)
        self._jobs.add(job)
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
        place, image, failure = "", None, None
        try:
            place = self._place()
            image = self._copy(state, iteration, name)
        except Exception as error:  # noqa: BLE001 - told to all ranks
            failure = Failure.of(error)
        of = ThisSave(self._count, iteration, name, place, self._timeout_s)
        return SaveJob(of, image, failure, self._save, self._peers(), self._turn, began)

    def _copy(self, state: TensorAwareStateDict, iteration: int, name: str) -> Image:
        prepared = self._lay_out(state, iteration, name)
        lease = self._buffers.take(prepared.size, self._timeout_s)
        try:
            flat.copy_into(prepared, lease.buffer.tensor)
        except BaseException:
            lease.release()
            raise
        return Image(prepared.head, lease, prepared.size)

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
        for buffers in [self._buffers, *([peers.buffers] if (peers := self._peers()) else [])]:
            buffers.warm_up(size, self._timeout_s)

    def _finalize(self, job: SaveJob, in_background: bool) -> None:
        """Agree that all ranks have saved; then delete what is not kept any more."""
        job.release()
        self._jobs.discard(job)
        try:
            self._connected().main.round(
                f"local checkpoint {job.iteration}",
                job.failure or b"",
                lambda _: b"",
                self._timeout_s,
            )
        except CheckpointError as error:
            if self._replication is not None:
                self._replication.renew()
            self._cleanup_failed_save(job.iteration)
            mine = job.failure.kind if job.failure else ""
            same = mine == SameMachineReplicationException.__name__
            kind = SameMachineReplicationException if same else CheckpointingException
            ranks = getattr(error, "ranks", ())
            failed = kind(str(error), ranks, getattr(error, "errno", None))
            announce.failed(job.iteration, failed)
            raise failed from error
        job.tell_saved()
        self.latest_iteration = max(self.latest_iteration, job.iteration)
        self._choice = None
        self._complete.append(job.iteration)
        if len(self._complete) == self._complete.maxlen:
            keep = {*self._complete, *(one.iteration for one in self._jobs)}
            self._cleaner.run(lambda: self._cleanup(keep), in_background)

    # --- loading ----------------------------------------------------------------------------------

    def find_latest(self) -> int:
        """Return the newest iteration of which all ranks can get their shards; -1 if there is none.

        Heads and ends of files are looked at, not yet their tensors. What is left out is logged.

        Raises:
            CheckpointError: a rank did not answer.
        """
        if self._choice is None:
            verdict = self._agree(Standing(list(self._my_ckpt_ids())))
            self._take(verdict.choice)
            self._reasons = verdict.reasons
        return self.latest_iteration

    def load(self) -> tuple[TensorAwareStateDict, CkptID]:
        """Return this rank's state and what it is: from its own disk, or from a rank that has it.

        Every byte is checked. When a shard turns out to be damaged everywhere, all ranks take the
        next older checkpoint.

        Raises:
            NoCheckpointError: there is none that all can load; it says why.
        """
        self.find_latest()
        choice, reasons, began = self._choice, self._reasons, time.monotonic()
        while choice is not None:
            state, standing = self._try(choice)
            verdict = self._agree(standing)
            if verdict.done:
                assert state is not None
                self._take(choice)
                self._complete.append(choice.iteration)
                size = sum(tensor.nbytes for tensor in state.tensors)
                announce.loaded(choice.iteration, size, time.monotonic() - began)
                me = self._connected().rank
                return state, CkptID(choice.iteration, choice.shards[me], self.session_id)
            del state  # before the next one is read
            choice, reasons = verdict.choice, [*reasons, *verdict.reasons]
        self._take(None)
        raise NoCheckpointError(
            f"no local checkpoint can be loaded: {'; '.join(reasons) or 'there is none'}"
        )

    def _agree(self, standing: Standing) -> Verdict:
        content = self._connected().main.round(
            "finding a local checkpoint",
            encode(standing),
            decider(self._same_on_all_ranks),
            self._timeout_s,
        )
        verdict = decode(content)
        if self._connected().rank == 0:
            for reason in verdict.reasons:
                _log.warning("Local checkpoint: %s", reason)
        return verdict

    def _take(self, choice: Choice | None) -> None:
        self._choice = choice
        self.latest_iteration = -1 if choice is None else choice.iteration

    def _try(self, choice: Choice) -> tuple[TensorAwareStateDict | None, Standing]:
        """Try to load; damage and absent peers are for all ranks to know."""
        before = set(self._my_ckpt_ids())
        state, problem = None, ""
        try:
            state = self._get(choice, before)
        except (CheckpointError, OSError, RuntimeError, MemoryError) as error:
            problem = str(error) or type(error).__name__
        after = list(self._my_ckpt_ids())
        loaded = None if state is None else (choice.iteration, choice.save)
        return state, Standing(after, loaded, problem, before != set(after))

    def _get(self, choice: Choice, mine: Collection[Held]) -> TensorAwareStateDict:
        """Return this rank's state; sends first what others need."""
        me = self._connected().rank
        key = (choice.iteration, choice.save)
        here = {one.rank: one for one in mine if (one.iteration, one.save) == key}
        self._loads += 1
        name = f"{self._connected().session}/load/{self._loads}"
        received, failed = None, None
        try:
            received = carry_out(
                choice, me, name, lambda rank: self._read(here[rank]), self._timeout_s
            )
        except (CheckpointError, OSError, RuntimeError) as error:
            failed = error  # what is on the own disk is looked at all the same
        if received is not None:
            return flat.rebuild_from(received, "a shard from a peer", self._allow_pickle)
        if failed is not None and choice.shards[me] not in here:
            raise failed
        state = self._load(here[choice.shards[me]])
        if failed is not None:
            raise failed
        return state

    # --- the others -------------------------------------------------------------------------------

    def _connected(self) -> Connected:
        if self._connection is None:
            self._connection = connect(None, self._timeout_s, AGREED)
        return self._connection

    def _peers(self) -> Replication | None:
        if self._replication is None and self._strategy is not None:
            connected = self._connected()
            clique = self._strategy.clique
            if len(clique) > 1:
                self._replication = Replication(
                    clique, connected.rank, connected.session, self._timeout_s
                )
        return self._replication

    def abort(self) -> None:
        """Give everything up, from any thread: saves, and waits for other ranks, which raise."""
        for job in list(self._jobs):
            job.cancel()
        if self._connection is not None:
            self._connection.abort()

    def close(self) -> None:
        """Let memory and connections go; saves that are under way must be finalized before."""
        self._cleaner.join()
        self._buffers.close()
        if self._replication is not None:
            self._replication.close()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
