"""What heartbeat, step, section and event cost a training process.

    python benchmarks/heartbeat.py [--rounds 15] [--calls 20000] [--json]

Each case is called through its public name, on a real page. Where NVIDIA's NVRx is importable, its
`RankMonitorClient` with a running monitor is measured beside ours, round by round, so that both see
the same machine. A figure is the mean of one round of calls; shown are median, least and largest
over the rounds. The loop's own cost (about 10 ns) is not subtracted.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import undaunted
from benchmarks.nvidia import has_nvrx
from undaunted.fault_tolerance import RankMonitorClient
from undaunted.progress import timeouts
from undaunted.progress.area import PageArea
from undaunted.progress.limits import Limits

Case = Callable[[], object]

WARM_UP = 200
SLOW_FACTOR = 20  # fewer calls of what is not for every iteration


def with_section() -> None:
    with undaunted.section("benchmark"):
        pass


def client_section(client: RankMonitorClient) -> Case:
    def open_and_close() -> None:
        client.start_section("client")
        client.end_section("client")

    return open_and_close


@contextlib.contextmanager
def our_cases() -> Iterator[dict[str, Case]]:
    with PageArea.create(1) as area:
        os.environ["UNDAUNTED_PAGE"] = area.env_value(0)
        client = RankMonitorClient()
        client.init_workload_monitoring()
        iterations = itertools.count()
        undaunted.step(next(iterations))
        yield {
            "heartbeat": undaunted.heartbeat,
            "step": lambda: undaunted.step(next(iterations)),
            "section": with_section,
            "event": lambda: undaunted.event("name", "a short text"),
            "client heartbeat": client.send_heartbeat,
            "client section": client_section(client),
            "agent: snapshot": lambda: area.snapshot(0),
            "agent: snapshot and check": lambda: timeouts.check(
                area.snapshot(0), Limits(), now_ns=time.monotonic_ns(), started_ns=0
            ),
        }


@contextlib.contextmanager
def nvrx_cases() -> Iterator[dict[str, Case]]:
    """NVRx's client with its monitor in a process of its own, or nothing if it is not there."""
    if not has_nvrx():
        yield {}
        return
    import torch.multiprocessing as mp

    from nvidia_resiliency_ext import fault_tolerance as nvrx

    config = nvrx.FaultToleranceConfig()
    config.rank_section_timeouts = {"client": 600.0}
    config.rank_out_of_section_timeout = None
    with tempfile.TemporaryDirectory() as directory:
        socket = str(Path(directory) / "monitor.socket")
        os.environ["FT_RANK_MONITOR_IPC_SOCKET"] = socket
        for name in ("RANK", "LOCAL_RANK"):
            os.environ.setdefault(name, "0")
        monitor = nvrx.RankMonitorServer.run_in_subprocess(
            config, ipc_socket_path=socket, mp_ctx=mp.get_context("spawn")
        )
        try:
            client = nvrx.RankMonitorClient()
            client.init_workload_monitoring()
            yield {
                "NVRx heartbeat": client.send_heartbeat,
                "NVRx section": client_section(client),
            }
            client.shutdown_workload_monitoring()
        finally:
            monitor.terminate()
            monitor.join(30)


def mean_ns(case: Case, calls: int) -> float:
    start = time.perf_counter_ns()
    for _ in range(calls):
        case()
    return (time.perf_counter_ns() - start) / calls


def measure(cases: dict[str, Case], rounds: int, calls: int) -> dict[str, dict[str, float]]:
    for case in cases.values():
        mean_ns(case, WARM_UP)
    seen: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            slow = name.startswith(("agent", "NVRx"))
            seen[name].append(mean_ns(case, calls // SLOW_FACTOR if slow else calls))
    return {
        name: {
            "median_us": round(statistics.median(times) / 1e3, 3),
            "least_us": round(min(times) / 1e3, 3),
            "largest_us": round(max(times) / 1e3, 3),
        }
        for name, times in seen.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="rounds, at least 1")
    parser.add_argument("--calls", type=int, default=20_000, help="calls per round, at least 20")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with our_cases() as ours, nvrx_cases() as theirs:
        results = measure({**ours, **theirs}, options.rounds, options.calls)
    if options.json:
        print(json.dumps(results))
        return
    print(f"{'call':<28}{'median us':>10}{'least us':>10}{'largest us':>12}")
    for name, one in results.items():
        print(
            f"{name:<28}{one['median_us']:>10.3f}{one['least_us']:>10.3f}{one['largest_us']:>12.3f}"
        )
    if not any(name.startswith("NVRx") for name in results):
        print("NVRx is not importable: nothing to compare with")


if __name__ == "__main__":
    main()
