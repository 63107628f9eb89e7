"""A rank that is about to begin training: `test_resuming`.

Begins three times: as all others do; at its own rank; and at last without rank 0.
"""

from __future__ import annotations

import torch.distributed as dist

from tests.training import gloo_ranks
from undaunted.integrations.resuming import begin_alike


def refusal(rank: int, start: int, timeout_s: float) -> str:
    try:
        begin_alike(start, f"step {start} of /node-{rank}", timeout_s)
    except RuntimeError as error:
        return str(error)
    return ""


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    said = [refusal(rank, 5, 60.0), refusal(rank, 10 * (rank == 0), 60.0)]
    if rank != 0:
        said.append(refusal(rank, 5, 1.0))
    gloo_ranks.leave({"said": said})


if __name__ == "__main__":
    main()
