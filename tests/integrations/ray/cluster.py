"""A Ray cluster of a head and three nodes on this machine.

It prints its address, and ends with standard input.

Usage: python -m tests.integrations.ray.cluster DIRECTORY     a short path: sockets lie there
"""

from __future__ import annotations

import os
import signal
import sys

# Before it is imported. In /tmp other programs of Ray would find the address of this cluster.
os.environ["RAY_TMPDIR"] = sys.argv[1]

# Ray's workers, and so launchers and ranks, give way to all else: a loaded machine starves them.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - Ray's name

# Until it is known that a node is lost.
os.environ["RAY_health_check_period_ms"] = "1000"  # noqa: SIM112 - Ray's name

from ray.cluster_utils import Cluster


def main() -> None:
    """Serve it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as one that a shell has started with &
    node = {"include_log_monitor": True}
    head = {**node, "num_cpus": 0, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(3):
            cluster.add_node(**node, num_cpus=2)
        cluster.wait_for_nodes(timeout=60)
        print(cluster.address, flush=True)
        sys.stdin.read()
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
