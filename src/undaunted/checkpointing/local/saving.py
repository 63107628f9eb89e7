"""One local save: the shard goes to this node's disk and, at the same time, to the peers."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import torch

from undaunted.agreement.failures import Failure
from undaunted.checkpointing import announce
from undaunted.checkpointing.dcp.torch_private import default_store
from undaunted.checkpointing.errors import SaveError
from undaunted.checkpointing.local import shard as shards
from undaunted.checkpointing.local.replication.exchange import Group, Header, exchange
from undaunted.checkpointing.memory import copy
from undaunted.checkpointing.memory.arena import HEADER_BYTES
from undaunted.checkpointing.memory.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from undaunted.checkpointing.local.shard import Head
    from undaunted.checkpointing.memory.pool import Lease


class CheckpointingException(SaveError):  # noqa: N818 - the name users of NVRx know
    """A local checkpoint was not saved, or not on all ranks; those before it are untouched."""


class SameMachineReplicationException(CheckpointingException):
    """Two ranks that keep copies for each other keep them on the same disk."""


class LeasedShard(NamedTuple):
    """A shard in an arena, behind its header.

    Attributes:
        head: of it.
        lease: the arena.
        size: bytes.
    """

    head: Head
    lease: Lease
    size: int

    @property
    def image(self) -> torch.Tensor:
        """Its bytes."""
        return tensor_of(self.lease, self.size)


def memory_for_shards(count: int) -> Pool:
    """Return a pool of arenas for images, whose pages are mapped ahead, and pinned for CUDA."""
    return Pool(count, "undaunted-local", "raise timeout_s=", copy.warm_up)


def tensor_of(lease: Lease, size: int) -> torch.Tensor:
    """Return the bytes of an image in an arena that was asked for."""
    assert lease.arena is not None
    return copy.view_of(lease.arena, HEADER_BYTES, torch.uint8, [size])


def room_of(lease: Lease) -> memoryview:
    """Return all memory behind the header of an arena that was asked for."""
    assert lease.arena is not None
    return lease.arena.memory[HEADER_BYTES:]


class Peers:
    """The ranks that keep copies for this one, connected over a group of their own.

    The group is made by the first save, and made anew after one that failed.
    """

    def __init__(self, clique: Sequence[int], me: int, session: str, timeout_s: float) -> None:
        """Name the peers.

        Args:
            clique: global ranks, this one included.
            me: global rank.
            session: of the run.
            timeout_s: for connecting, and for every operation.
        """
        self.pool = memory_for_shards(1)
        self._clique = list(clique)
        self._me = me
        self._session = session
        self._timeout_s = timeout_s
        self._group: Group | None = None

    def group(self, number: int) -> Group:
        """Return the group.

        Args:
            number: of the save, so that all peers mean the same group when they make one.

        Raises:
            PeerError: they cannot be connected.
        """
        if self._group is None:
            known = hashlib.sha256(repr(self._clique).encode()).hexdigest()[:16]
            name = f"{self._session}/clique/{known}/{number}"
            self._group = Group.connect(
                default_store(), name, self._clique, self._me, self._timeout_s
            )
        return self._group

    def renew(self) -> None:
        """Have the next save make the group anew."""
        self._group = None

    def close(self) -> None:
        """Let connections and memory go."""
        self._group = None
        self.pool.close()


@dataclass(eq=False, kw_only=True)
class SaveJob:
    """The work beside training, on any thread; it never raises.

    Attributes:
        number: of the save in this run, from 1.
        iteration: at which the state was.
        name: see `shard.Head.save`.
        place: names the folder this rank writes to, on all machines.
        shard: this rank's, in its arena; None when the state could not be copied.
        failure: why this rank has not done its part; None when it has.
        write: writes a shard and returns the checksums of its blocks, see `ShardFolder.write`.
        peers: None where there are no copies.
        turn: held while a save of this rank is under way.
        timeout_s: for the save before this one, and for the disk, in seconds.
        began: when training stopped for it, monotonic, in seconds.
        size: of the shard, bytes.
    """

    number: int
    iteration: int
    name: str
    place: str
    shard: LeasedShard | None
    failure: Failure | None
    write: Callable[..., str]
    peers: Peers | None
    turn: threading.Lock
    timeout_s: float
    began: float

    def __post_init__(self) -> None:
        self.size = 0 if self.shard is None else self.shard.size
        self._stall_s = time.monotonic() - self.began
        self._write_s = 0.0
        self._doomed = self.failure
        self.failure = self.failure or Failure("the save was given up before it began")
        self._cancelled = False
        self._running = False

    def __call__(self) -> None:
        """Write and copy."""
        self._running = True
        try:
            with self._in_turn():
                began = time.monotonic()
                self._run()
                self._write_s = time.monotonic() - began
        except Exception as error:  # noqa: BLE001 - told to all ranks when they finalize
            self.failure = self._doomed or Failure.of(error)
        else:
            self.failure = self._doomed
        finally:
            self._running = False
            self.release()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a local save runs in the process that has the state")

    def cancel(self) -> None:
        """Give it up at the next block."""
        self._cancelled = True

    def tell_saved(self) -> None:
        """Tell that all ranks have saved."""
        total_s = time.monotonic() - self.began
        announce.saved(self.iteration, self.size, self._stall_s, self._write_s, total_s)

    def release(self) -> None:
        """Give the arena back; one that is being written from, as soon as that is given up."""
        if self._running:
            self.cancel()
            return
        shard, self.shard = self.shard, None
        if shard is not None:
            shard.lease.release()

    @contextlib.contextmanager
    def _in_turn(self) -> Iterator[None]:
        if not self.turn.acquire(timeout=self.timeout_s):
            raise TimeoutError(
                f"the local save before this one was not done within {self.timeout_s:g} s"
            )
        try:
            yield
        finally:
            self.turn.release()

    def _run(self) -> None:
        if self.peers is None:
            self._write_own()
            return
        own = _in_thread(self._write_own)
        failed: Exception | None = None
        try:
            self._copy(self.peers, own)
        except Exception as error:  # noqa: BLE001 - raised when the own shard is written
            failed = error
            self.peers.renew()  # so that peers that still wait notice at once
        try:
            own.exception(self.timeout_s)
        except TimeoutError:
            self.cancel()  # what is written from now on may be of a later save: it is not kept
            raise TimeoutError(
                f"the disk has not taken the shard within {self.timeout_s:g} s"
            ) from None
        own.result()
        if failed is not None:
            raise failed

    def _write_own(self) -> str | None:
        if self.shard is None:
            return None
        room = room_of(self.shard.lease)
        return self.write(room, self.shard.size, self.shard.head, self._progress)

    def _copy(self, peers: Peers, own: Future[str | None]) -> None:
        """Send the own shard to the peers and write theirs, one after the other."""
        image = None if self.shard is None else self.shard.image
        mine = Header.of(image, self.name, self.place)

        def checksums() -> str | None:
            try:
                return own.result(self.timeout_s)
            except Exception:  # noqa: BLE001 - the peers are told; `_run` raises it
                return None

        lease: Lease | None = None

        def room(rank: int, theirs: Header) -> torch.Tensor:
            nonlocal lease
            if theirs.place == mine.place:
                raise SameMachineReplicationException(
                    f"rank {rank} keeps its checkpoints in the same folder of this machine, so "
                    "that copies there are none: choose replication_jump so that the ranks of a "
                    "group are on different nodes, or a folder for each"
                )
            if lease is not None:
                lease.release()
            size = max(theirs.size, 0)
            lease = peers.pool.lease(HEADER_BYTES + size, self.timeout_s)
            return tensor_of(lease, size)

        def received(rank: int, image: torch.Tensor, crc32: str) -> None:
            assert lease is not None
            self._write_theirs(rank, room_of(lease), image.numel(), crc32)

        try:
            exchange(peers.group(self.number), mine, image, checksums, room, received)
        finally:
            if lease is not None:
                lease.release()

    def _write_theirs(self, rank: int, memory: memoryview, size: int, crc32: str) -> None:
        """Write a peer's shard; raises `DamagedCheckpointError` if it is another one."""
        where = f"the shard from rank {rank}"
        end, announced = shards.head_length(bytes(memory[: min(shards.PREFIX_BYTES, size)]), where)
        head = shards.decode_head(bytes(memory[:end]), where)
        if (announced, head.rank, head.save) != (size, rank, self.name):
            raise shards.damaged(where, "is another one")
        self.write(memory, size, head, self._progress, crc32)

    def _progress(self, _: int) -> None:
        if self._cancelled:
            raise InterruptedError("the save was given up")


def _in_thread(function: Callable[[], str | None]) -> Future[str | None]:
    """Run a function on a thread that nobody waits for at the end of the program."""
    future: Future[str | None] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            future.set_exception(error)

    threading.Thread(target=run, name="undaunted-local", daemon=True).start()
    return future
