"""Agrees with the other ranks on the longest of everything, over any backend, with a deadline.

Uses torch.distributed if the program has set it up, and does not import torch otherwise.
"""

from __future__ import annotations

import json
import sys
import zlib
from datetime import timedelta
from time import monotonic
from typing import Any

from undaunted.fault_tolerance.timeouts_calc import Maxima


class SynchronizationError(Exception):
    """The other ranks could not be asked: they are gone, late, or the group is closed."""


def synchronized(seen: Maxima, group: Any = None, timeout_s: float = 60.0) -> Maxima:
    """Return the largest values of all ranks; every rank of the group has to call this.

    Without torch.distributed this process is alone, and its own values are returned. Whole numbers
    of 64 bits are reduced, which every backend can. Ranks may have used different sections.

    Args:
        seen: on this rank.
        group: process group; None = all ranks.
        timeout_s: for all of it, seconds. Some backends close a group in which time ran out.

    Raises:
        SynchronizationError: it did not work within that time.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return seen
    try:
        if distributed.get_world_size(group) < 0:
            raise SynchronizationError("this rank does not belong to the group")
        return _Exchange(distributed, group, timeout_s).maxima(seen)
    except (RuntimeError, ValueError, AssertionError, OSError) as error:
        raise SynchronizationError(str(error).partition("\n")[0]) from error


class _Exchange:
    def __init__(self, distributed: Any, group: Any, timeout_s: float) -> None:
        self._torch = sys.modules["torch"]
        self._distributed = distributed
        self._group = group
        self._deadline = monotonic() + timeout_s
        # For example cpu:gloo,cuda:nccl.
        devices = [
            pair.partition(":")[0]
            for pair in str(distributed.get_backend_config(group)).split(",")
            if ":" in pair
        ]
        self._device = "cpu" if "cpu" in devices or not devices else devices[0]

    def maxima(self, seen: Maxima) -> Maxima:
        names = sorted(seen.sections_ns)
        blob = json.dumps(names).encode()
        digest = zlib.crc32(blob)
        # The largest of x and of -x tell whether x is the same everywhere.
        words = [digest, -digest, len(blob)]
        words += [seen.initial_ns, seen.subsequent_ns, seen.out_of_section_ns]
        most, minus_least, longest, *times = self._largest(words)
        if most != -minus_least:
            names = self._all_names(blob, longest)
        sections = self._largest([seen.sections_ns.get(name, 0) for name in names])
        initial_ns, subsequent_ns, outside_ns = times
        by_name = dict(zip(names, sections, strict=True))
        return Maxima(initial_ns, subsequent_ns, outside_ns, by_name)

    def _all_names(self, blob: bytes, longest: int) -> list[str]:
        padded = blob.ljust(longest)
        mine = self._torch.tensor(list(padded), dtype=self._torch.uint8, device=self._device)
        size = self._distributed.get_world_size(self._group)
        all_of_them = [self._torch.empty_like(mine) for _ in range(size)]
        self._wait(
            self._distributed.all_gather(all_of_them, mine, group=self._group, async_op=True)
        )
        lists = [json.loads(bytes(each.tolist())) for each in all_of_them]
        return sorted({str(name) for names in lists for name in names})

    def _largest(self, values: list[int]) -> list[int]:
        if not values:
            return []
        tensor = self._torch.tensor(values, dtype=self._torch.int64, device=self._device)
        largest = self._distributed.ReduceOp.MAX
        self._wait(
            self._distributed.all_reduce(tensor, op=largest, group=self._group, async_op=True)
        )
        return [int(value) for value in tensor.tolist()]

    def _wait(self, work: Any) -> None:
        left_s = self._deadline - monotonic()
        if left_s <= 0:
            raise SynchronizationError("time ran out")
        if work is not None and work.wait(timedelta(seconds=left_s)) is False:
            raise SynchronizationError("the other ranks did not take part in time")
