"""Ranks over gloo: `rank_program.py RANKS STORE`; prints what each has found, as JSON."""

from __future__ import annotations

import json
import logging
import multiprocessing
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from undaunted.attribution.straggler import (
    Detector,
    NVRxStragglerDetectionConfig,
    NVRxStragglerDetectionManager,
    Report,
    Statistic,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

WORK = 10_000
TIMEOUT = timedelta(seconds=60)


def work(factor: int) -> None:
    sum(range(WORK * factor))


def plain(report: Report | None) -> dict[str, Any] | None:
    if report is None:
        return None
    found = report.identify_stragglers(gpu_rel_threshold=0.25, section_rel_threshold=0.25)
    return {
        "gpu": report.gpu_relative_perf_scores,
        "sections": report.section_relative_perf_scores,
        "nodes": report.rank_to_node,
        "slow": [one.rank for one in found["straggler_gpus_relative"]],
        "slow_in": {
            name: [one.rank for one in slow]
            for name, slow in found["straggler_sections_relative"].items()
        },
        "local": {name: one[Statistic.NUM] for name, one in report.local_section_summaries.items()},
    }


def slow_rank(rank: int, ranks: int, slow: bool = True, **options: Any) -> list[Any]:
    """The last rank does 20 times the work of the others, in steps that end in a collective."""
    Detector.initialize(node_name=f"node{rank // 2}", **options)
    factor = 20 if slow and rank == ranks - 1 else 1
    for _ in range(15):
        with Detector.detection_section("work"):
            work(factor)
        with Detector.detection_section("same"):
            work(4)
        dist.barrier()
    return [plain(Detector.generate_report())]


def undisturbed(rank: int, ranks: int) -> list[Any]:
    return slow_rank(rank, ranks, slow=False)


def alone(rank: int, ranks: int) -> list[Any]:
    return slow_rank(rank, ranks, gather_on_rank0=False)


def roles(rank: int, ranks: int) -> list[Any]:
    """Each half has a role and a section of its own; names that are new come in later."""
    role = "first" if rank < ranks // 2 else "second"
    Detector.initialize(role=role, reference="peers", gather_on_rank0=False)
    reports = []
    for name in (f"of {role}", "later"):
        for _ in range(3):
            with Detector.detection_section(name):
                work(1)
        reports.append(plain(Detector.generate_report()))
    return reports


def interval(rank: int, ranks: int) -> list[Any]:
    """Ranks with steps of unequal length make reports at the same step."""
    Detector.initialize(report_time_interval=2e-3)
    due = []
    for step in range(60):
        work(1 + 3 * rank)
        Detector.generate_report_if_interval_elapsed()
        if Detector.is_interval_elapsed():
            due.append(step)
    return due


def stop(rank: int, ranks: int) -> list[Any]:
    """The manager of each rank says in the same step that the training is to be stopped."""
    if rank == 0:
        logging.basicConfig(stream=sys.stderr, level="INFO", format="%(message)s")
    config = NVRxStragglerDetectionConfig(
        enabled=True,
        report_time_interval=1e-6,
        gpu_relative_perf_threshold=0.25,
        calc_individual_gpu_perf=False,
        stop_if_detected=True,
    )
    manager = NVRxStragglerDetectionManager(config)
    manager.initialize()
    step = manager.wrap_train_step_function(work)
    for number in range(100):
        step(20 if rank == 1 else 1)
        if manager.check_stragglers(rank):
            return [number]
    return []


SCENARIOS: dict[str, Callable[[int, int], list[Any]]] = {
    one.__name__: one for one in (slow_rank, undisturbed, alone, roles, interval, stop)
}


def run(rank: int, ranks: int, store: str, results: Connection) -> None:
    """Be a rank: run the scenarios one after the other."""
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=TIMEOUT
    )
    found = {}
    for name, scenario in SCENARIOS.items():
        found[name] = scenario(rank, ranks)
        Detector.shutdown()
    dist.barrier()
    results.send(json.dumps(found))
    dist.destroy_process_group()


def main() -> None:
    ranks, store = int(sys.argv[1]), sys.argv[2]
    fork = multiprocessing.get_context("fork")  # torch is imported once
    pipes = [fork.Pipe(duplex=False) for _ in range(ranks)]
    processes = [
        fork.Process(target=run, args=(rank, ranks, store, pipes[rank][1]), daemon=True)
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    for _, writer in pipes:
        writer.close()
    print(json.dumps([json.loads(reader.recv()) for reader, _ in pipes]))
    for process in processes:
        process.join()


if __name__ == "__main__":
    main()
