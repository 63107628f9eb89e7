"""Sections, nested ones too; in the first round rank 1 does not come back from one."""

import os
import threading

from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient, RankMonitorClientError

client = RankMonitorClient()
try:
    client.start_section("init")
except RankMonitorClientError as error:
    print(f"as expected: {error}", flush=True)
client.init_workload_monitoring()
print("limits:", client.section_timeouts.section, flush=True)

client.start_section("init")
client.end_section("init")
for iteration in range(5):
    client.start_section("train")
    client.start_section("forward")
    if (
        iteration == 3
        and os.environ["RANK"] == "1"
        and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    ):
        threading.Event().wait()
    client.end_section("forward")
    client.end_section("train")
client.start_section("left open")
client.end_all_sections()
if client.calculate_and_set_section_timeouts(selected_sections=["train"], skip_if_not_ready=True):
    print("calculated:", client.section_timeouts.calculated_sections, flush=True)
client.shutdown_workload_monitoring()
print("done after restart", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
