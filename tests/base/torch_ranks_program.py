"""A rank that reduces and gathers: `test_torch_ranks`."""

from __future__ import annotations

from tests.training import gloo_ranks
from undaunted.base import torch_ranks


def main() -> None:
    rank, _ = gloo_ranks.join()
    gloo_ranks.leave(
        {
            "place": torch_ranks.place(),
            "distributed": torch_ranks.is_distributed(),
            "any": torch_ranks.any_rank([rank == 1, False, True]),
            "gathered": torch_ranks.gather({"rank": rank, "text": "x" * rank, "inf": float("inf")}),
        }
    )


if __name__ == "__main__":
    main()
