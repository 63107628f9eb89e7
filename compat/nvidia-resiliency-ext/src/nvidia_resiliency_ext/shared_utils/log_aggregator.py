"""``python -m nvidia_resiliency_ext.shared_utils.log_aggregator``: one log of a node's messages."""

from __future__ import annotations

import sys

from undaunted.cli.log_aggregator import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
