"""A rank that reduces and gathers: `test_torch_ranks`."""

from __future__ import annotations

import logging

from tests.training import gloo_ranks
from undaunted.base import torch_ranks
from undaunted.training.rerun.machine import RerunStateMachine


def main() -> None:
    rank, _ = gloo_ranks.join()
    lines: list[str] = []
    logger = logging.getLogger("undaunted")
    logger.setLevel(logging.INFO)
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger.addHandler(handler)
    machine = RerunStateMachine(mode="report_determinism_stats")
    for _ in range(4):
        runs = 0
        while machine.should_run_forward_backward():
            runs += 1
            machine.validate_result(1.0 if rank == 0 else float(runs), bool, "loss")
    gloo_ranks.leave(
        {
            "place": torch_ranks.place(),
            "distributed": torch_ranks.is_distributed(),
            "any": torch_ranks.any_rank([rank == 1, False, True]),
            "gathered": torch_ranks.gather({"rank": rank, "text": "x" * rank, "inf": float("inf")}),
            "last": lines[-1:],
        }
    )


if __name__ == "__main__":
    main()
