"""A Ray cluster of two nodes on this machine: prints its address, and ends with standard input.

Usage: python -m tests.integrations.ray.cluster DIRECTORY     a short path: sockets lie there
"""

from __future__ import annotations

import os
import signal
import sys

# Before it is imported. In /tmp other programs of Ray would find the address of this cluster.
os.environ["RAY_TMPDIR"] = sys.argv[1]

from ray.cluster_utils import Cluster


def main() -> None:
    """Serve it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as one that a shell has started with &
    node = {"num_cpus": 2, "include_log_monitor": True}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        cluster.add_node(**node)
        cluster.wait_for_nodes(timeout=60)
        print(cluster.address, flush=True)
        sys.stdin.read()
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
