"""Local checkpoints in files on the node's own disk."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

import torch

from undaunted.checkpointing.errors import DamagedCheckpointError
from undaunted.checkpointing.files.reading import Piece
from undaunted.checkpointing.local import flat, folder
from undaunted.checkpointing.local.ckpt_managers.base_manager import (
    TIMEOUT_S,
    BaseCheckpointManager,
)
from undaunted.checkpointing.local.folder import ShardFile, ShardFolder
from undaunted.checkpointing.local.selection import Held
from undaunted.checkpointing.staging.copy import memory_of

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path

    from undaunted.checkpointing.local.base_state_dict import TensorAwareStateDict
    from undaunted.checkpointing.local.replication.strategies import ReplicationStrategy
    from undaunted.checkpointing.local.shard import Head

_log = logging.getLogger("undaunted")
_READ_THREADS = 4
_T = TypeVar("_T")


class LocalCheckpointManager(BaseCheckpointManager):
    """Keeps shards in ``root/session/rank/iter_{iteration:07d}_{rank}_local.pt``.

    All ranks make the same calls in the same order:

        manager = LocalCheckpointManager("/local/ckpt", repl_strategy=strategy)
        if manager.find_latest() != -1:
            state, _ = manager.load()
            model.load_state_dict(state.state_dict["model"])
        ...
        request = manager.save(BasicTensorAwareStateDict({"model": model.state_dict()}), step, True)
        queue.schedule_async_request(request)
    """

    def __init__(
        self,
        root_local_ckpt_dir: str | os.PathLike[str],
        session_id: str = "",
        repl_strategy: ReplicationStrategy | None = None,
        *,
        keep: int = 2,
        timeout_s: float = TIMEOUT_S,
        allow_pickle: bool = False,
        same_on_all_ranks: bool = False,
    ) -> None:
        """Take settings; the other arguments are those of `BaseCheckpointManager`.

        Args:
            root_local_ckpt_dir: on a disk of this node, with room for ``keep`` + 1 checkpoints of
                the shards of its ranks, and of those they keep copies of.
            session_id: name of a folder in it, so that runs may share a disk; "" = no such folder.
            repl_strategy: who keeps copies for whom.
            keep: how many checkpoints stay.
            timeout_s: for every wait, in seconds.
            allow_pickle: whether other objects than plain data may be saved and loaded.
            same_on_all_ranks: whether each rank's state is the whole one.

        Raises:
            ValueError: a value is not possible.
        """
        super().__init__(
            session_id,
            repl_strategy,
            keep=keep,
            timeout_s=timeout_s,
            allow_pickle=allow_pickle,
            same_on_all_ranks=same_on_all_ranks,
        )
        folder.check_session(session_id)
        self._root = root_local_ckpt_dir
        self._opened: ShardFolder | None = None
        self._files: dict[Held, list[ShardFile]] = {}
        self._damaged: set[Path] = set()
        self._said: set[str] = set()

    @property
    def rank(self) -> int:
        """This rank; all ranks ask, or none: they are connected when it is first asked for."""
        return self._connected().rank

    @property
    def local_ckpt_dir(self) -> Path:
        """The folder of this rank's shards; see `rank`."""
        return self._folder().own

    def _folder(self) -> ShardFolder:
        if self._opened is None:
            self._opened = ShardFolder(self._root, self.session_id, self._connected().rank)
            self._opened.sweep()
        return self._opened

    def _my_ckpt_ids(self) -> Iterable[Held]:
        own = self._folder().own
        self._files = {}
        for file in self._folder().scan(self._complain):
            head = file.head
            if file.path not in self._damaged and head.session == self.session_id:
                held = Held(head.iteration, head.rank, head.world_size, head.save, head.saved_at)
                self._files.setdefault(held, []).append(file)
        for files in self._files.values():
            files.sort(key=lambda file: file.path.parent != own)  # the own copy first
        return self._files

    def _load(self, held: Held) -> TensorAwareStateDict:
        return self._of_first_whole(held, self._load_file)

    def _load_file(self, file: ShardFile) -> TensorAwareStateDict:
        where = str(file.path)
        tensors = flat.new_tensors(file.head, where)
        pieces = folder.pieces_of(file, [memory_of(tensor) for tensor in tensors])
        folder.read(file, pieces, _READ_THREADS, _ignore)
        return flat.rebuild(file.head, tensors, where, self._allow_pickle)

    def _read(self, held: Held) -> tuple[torch.Tensor, str]:
        return self._of_first_whole(held, _read_file)

    def _of_first_whole(self, held: Held, read: Callable[[ShardFile], _T]) -> _T:
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

    def _save(
        self,
        memory: memoryview,
        size: int,
        head: Head,
        wrote: Callable[[int], None],
        expected: str | None,
    ) -> str:
        crc32 = self._folder().write(memory, size, head, wrote, expected)
        self._damaged.discard(self._folder().own / folder.name_of(head.iteration, head.rank))
        return crc32

    def _cleanup(self, keep: Collection[int]) -> None:
        self._folder().delete(lambda iteration: iteration not in keep)
        self._folder().delete_old(min(keep))

    def _cleanup_failed_save(self, iteration: int) -> None:
        self._folder().delete(lambda other: other == iteration)

    def _complain(self, text: str) -> None:
        """Say it once."""
        if text not in self._said:
            self._said.add(text)
            _log.warning(text)

    def _place(self) -> str:
        return self._folder().identity()


def _read_file(file: ShardFile) -> tuple[torch.Tensor, str]:
    image = torch.empty(file.image_bytes, dtype=torch.uint8)
    folder.read(file, [Piece(0, memory_of(image))], _READ_THREADS, _ignore)
    return image, file.crc32


def _ignore(_: int) -> None:
    """Nobody is told how far it is."""
