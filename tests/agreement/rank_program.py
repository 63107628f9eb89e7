"""One rank: does what it reads from its input, line by line, and prints what came of it."""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from undaunted.agreement import connect as connecting
from undaunted.agreement.agreement import Failure
from undaunted.agreement.connect import connect
from undaunted.checkpointing.errors import AGREED, CheckpointError

rank, world_size, path, timeout_s = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], 60.0
dist.init_process_group(
    "gloo",
    init_method=f"file://{path}",
    rank=rank,
    world_size=world_size,
    timeout=timedelta(seconds=timeout_s),
)
if "apart" in sys.argv:
    connecting.network = lambda: f"machine {rank}"
links: Any = None


def run(what: str, lane: str, limit_s: float) -> Any:
    global links
    if what == "connect":
        links = connect(None, limit_s, AGREED)
        return [links.rank, links.world_size, links.session]
    if what == "where":
        return links.background._link.host
    if what == "close":
        links.close()
        dist.destroy_process_group()
        return "closed"
    contribution: Any = b"%d" % rank if what == "round" else Failure(what, 28)
    return getattr(links, lane).round("save-1", contribution, b",".join, limit_s).decode()


print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    began = time.monotonic()
    try:
        answer = {"value": run(*json.loads(line))}
    except CheckpointError as error:
        answer = {"error": str(error), "ranks": list(getattr(error, "ranks", ()))}
    print(json.dumps(answer | {"seconds": time.monotonic() - began}), flush=True)
