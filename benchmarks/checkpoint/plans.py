"""How much ranks tell each other when they plan anew: at the first save, or when the state changes.

    python -m benchmarks.checkpoint.plans

Rank 0 sends every rank the parts of all ranks, over one store. Prints, for a state of `ITEMS`
shards per rank, how large that is and how long one rank takes to fetch it from a store on this
machine.
"""

from __future__ import annotations

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)

from undaunted.checkpointing.dcp import plan_codec

ITEMS = 1500  # of a rank: about those of a model of 125 layers with Adam, sharded
RANKS = (8, 128, 1024, 4096)
TIMEOUT = timedelta(seconds=300)


def part_of_a_rank() -> bytes:
    """Return what rank 0 has left of a local plan, encoded."""
    none, size = torch.Size([0, 0]), torch.Size([8, 8])
    data = TensorWriteData(ChunkStorageMetadata(none, size), TensorProperties(), size)
    items = [
        WriteItem(MetadataIndex(f"optimizer.state.{i}.exp_avg", none), WriteItemType.SHARD, data)
        for i in range(ITEMS)
    ]
    plan = SavePlan(items)
    return plan_codec.encode_part(plan, plan)


def main() -> None:
    """Print a table."""
    part = part_of_a_rank()
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
    client = dist.TCPStore("127.0.0.1", server.port, is_master=False, timeout=TIMEOUT)
    print(f"{ITEMS} items: {len(part) / 1e3:.1f} kB per rank")
    for ranks in RANKS:
        size = ranks * len(part)
        line = f"{ranks} ranks: {size / 1e6:.1f} MB to each, {ranks * size / 1e9:.2f} GB in all"
        try:
            server.compare_set(str(ranks), "", bytes(size))
        except RuntimeError:
            print(f"{line}: more than a torch store takes as one value (8 MiB)")
            break
        began = time.perf_counter()
        assert len(client.get(str(ranks))) == size
        took_s = time.perf_counter() - began
        print(f"{line}, {took_s:.3f} s for one rank, {took_s * ranks:.0f} s one after the other")


if __name__ == "__main__":
    main()
