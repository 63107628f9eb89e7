"""Samples of shards by their number. Design: docs/design/data.md.

shards = Shards("data/train-*.tar", transform=decoded)
loader = Loader(shards, order=ShardOrder(shards.lengths, seed=1), global_batch=512, micro_batch=8)
"""

from __future__ import annotations

import glob
import hashlib
import os
from bisect import bisect_right
from collections import OrderedDict
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch.utils.data import Dataset

from undaunted.data.formats import FORMATS, JsonLines, Parquet, ShardError, Tar, refuse_compressed
from undaunted.data.shard_index import Indexer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from undaunted.data.formats import Format, Reader

_MOST_OPEN = 64  # with two files each, as a map keeps one open
_KINDS = ("tar", "jsonl", "parquet")


class Shards(Dataset):  # type: ignore[misc]
    """Many files of samples as one data set: tars, JSON lines or Parquet.

    The first use makes an index of each shard and keeps it; see docs/data.md.

    Attributes:
        paths: of the shards, in their order.
        lengths: how many samples each of them has.
        fingerprint: depends on the samples, not on where the shards are; part of a loader's state.
    """

    def __init__(
        self,
        shards: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        transform: Callable[[Any], Any] | None = None,
        kind: Literal["tar", "jsonl", "parquet"] | None = None,
        columns: Sequence[str] | None = None,
        memory: int = 256 << 20,
        index: str | os.PathLike[str] | None = None,
    ) -> None:
        """Find the index of each shard, or make it.

        Args:
            shards: files in their order; or one pattern, such as "data/*.tar", in the order of
                names.
            transform: makes a sample of what a shard has: a dictionary of bytes (tar, with
                ``__key__``), the value of a line (JSON), a dictionary of columns (Parquet). Runs
                in the loader's workers.
            kind: the format; None = by how names end (.tar, .jsonl, .ndjson, .parquet).
            columns: of Parquet; None = all.
            memory: about how many bytes of decoded row groups of Parquet a process keeps; the
                latest one always.
            index: folder for the index; None = ".undaunted" beside the shards, or else
                "undaunted/index" below ``XDG_CACHE_HOME``.

        Raises:
            ShardError: a shard is missing, damaged or compressed; no index can be written.
            TypeError: these are no files.
            ValueError: there are none, no samples, or of several formats.
        """
        self.paths = _paths_of(shards)
        self._kind = kind or _kind_of(self.paths)
        if self._kind not in _KINDS:
            raise ValueError(f"kind={kind!r}: one of {', '.join(_KINDS)}")
        if columns is not None and self._kind != "parquet":
            raise ValueError(f"columns are for Parquet, and these shards are {self._kind}")
        forms: dict[str, Format] = {
            "tar": Tar(),
            "jsonl": JsonLines(),
            "parquet": Parquet(columns, memory),
        }
        self._format = forms[self._kind]
        self._indexer = Indexer(self._kind, self._format, index)
        self._transform = transform
        headers = self._indexer.headers(self.paths)
        self.lengths = [header.samples for header in headers]
        self._digests = [header.digest for header in headers]
        self._ends = list(accumulate(self.lengths))
        if not len(self):
            raise ValueError(f"{self.paths[0]} and the other shards have no samples")
        content = repr((self._kind, self.lengths)).encode() + b"".join(self._digests)
        self.fingerprint = hashlib.blake2b(content, digest_size=16).hexdigest()
        self._open: OrderedDict[int, Reader] = OrderedDict()
        self._process = os.getpid()

    def __len__(self) -> int:
        """Return how many samples all shards have."""
        return self._ends[-1]

    def place(self, index: int) -> tuple[str, int]:
        """Return the shard of a sample, and its number in there from 0.

        Raises:
            IndexError: there is no such sample.
        """
        shard, number = self._place(index)
        return self.paths[shard], number

    def __getitem__(self, index: int) -> Any:
        """Return a sample.

        Raises:
            IndexError: there is no such sample.
            ShardError: it is damaged, or its shard is missing or not as it was.
            Exception: from ``transform``, with a note that names shard and sample.
        """
        shard, number = self._place(index)
        try:
            sample = self._reader(shard).sample(number)
            return sample if self._transform is None else self._transform(sample)
        except ShardError:
            raise
        except Exception as error:
            error.add_note(f"sample {number} of {self.paths[shard]}")
            raise

    def close(self) -> None:
        """Close the files; reading opens them again."""
        while self._open:
            self._open.popitem()[1].close()

    def _place(self, index: int) -> tuple[int, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index}: there are {len(self)}, from 0")
        shard = bisect_right(self._ends, index)
        return shard, index - self._ends[shard] + self.lengths[shard]

    def _reader(self, shard: int) -> Reader:
        if self._process != os.getpid():  # forked: files of Parquet are not for two processes
            self._open, self._process = OrderedDict(), os.getpid()
        found = self._open.get(shard)
        if found is not None:
            self._open.move_to_end(shard)
            return found
        path = self.paths[shard]
        index = self._indexer.index(path)
        if (index.samples, index.digest) != (self.lengths[shard], self._digests[shard]):
            raise ShardError(
                f"{path} has changed since this job began: it had {self.lengths[shard]} samples, "
                f"and has {index.samples}, or others\n  put it back, or start the job anew"
            )
        found = self._format.open(path, index.starts)
        self._open[shard] = found
        if len(self._open) > _MOST_OPEN:
            self._open.popitem(last=False)[1].close()
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Leave files out, for workers that are spawned."""
        return {**self.__dict__, "_open": OrderedDict(), "_process": None}


def _paths_of(shards: Any) -> list[str]:
    found: list[str] | None
    if isinstance(shards, (str, os.PathLike)):
        pattern = os.fspath(shards)
        if "://" in pattern:
            raise TypeError(f"{pattern}: shards are files; mount or copy what is in object stores")
        found = [pattern] if Path(pattern).is_file() else sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 - absolute ones, too
        found = [one for one in found if Path(one).is_file()]
        if not found:
            raise ValueError(f'no file matches {pattern!r}; a pattern is such as "data/*.tar"')
        return found
    try:
        # Data sets of Hugging Face can be iterated over, and have ``features``.
        found = None if hasattr(shards, "features") else [os.fspath(one) for one in shards]
    except TypeError:
        found = None
    if found is None:
        raise TypeError(
            f"Shards are made of files, not of {type(shards).__name__}: give their paths or a "
            "pattern. Those of a data set of Hugging Face: huggingface_hub.snapshot_download"
        )
    if not found:
        raise ValueError("no shards: the list is empty")
    return found


def _kind_of(paths: list[str]) -> str:
    kinds: dict[str | None, str] = {}
    for path in paths:
        refuse_compressed(path)
        kinds.setdefault(FORMATS.get(Path(path).suffix.lower()), path)
    if None in kinds:
        raise ValueError(
            f"{kinds[None]}: the name does not end with {', '.join(FORMATS)}; give kind="
        )
    if len(kinds) > 1:
        raise ValueError(
            f"shards of several formats, such as {', '.join(map(str, kinds.values()))}"
        )
    return str(*kinds)
