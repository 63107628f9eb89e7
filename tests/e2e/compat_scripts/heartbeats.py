"""Heartbeats, limits that follow from them, and a file that keeps the limits.

In the first round rank 1 stops as if it was frozen, in epoch 2.
"""

import json
import logging
import os
import signal
import threading
from pathlib import Path

import torch.distributed as dist

from nvidia_resiliency_ext import fault_tolerance

STATE = Path("ft_state.json")
logging.basicConfig(level=logging.INFO)

dist.init_process_group("gloo")
rank = dist.get_rank()
client = fault_tolerance.RankMonitorClient()
if STATE.exists():
    client.load_state_dict(json.loads(STATE.read_text()))
client.init_workload_monitoring()
restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
print(f"after restart {restarts}: limits {client.hb_timeouts}", flush=True)

for epoch in range(4):
    for _ in range(20):
        dist.barrier()
        client.send_heartbeat()
    if epoch == 0:
        client.calculate_and_set_hb_timeouts(skip_if_not_ready=True)
        if rank == 0:
            STATE.write_text(json.dumps(client.state_dict()))
    if epoch == 2 and rank == 1 and restarts == "0":
        print("rank 1 stops", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        threading.Event().wait()

client.shutdown_workload_monitoring()
print(f"done after restart {restarts}", flush=True)
dist.destroy_process_group()
