"""The look-alikes themselves: plain, repeatable, shaped like torch's, and true to their truth.

What the dumps say is read here with the naked eye, group by group; nothing is analysed.
"""

from __future__ import annotations

import ast
import json
import pickle
import pickletools
from collections import Counter
from functools import cache
from math import prod
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from tests.attribution.flight.lookalikes import (
    DEEP,
    FAULTS,
    LAYOUTS,
    SCENARIOS,
    VERSIONS,
    Lookalike,
    Scenario,
    _start_job,
    generate,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow  # of what other tests are made with

# Whose dumps are read: all small jobs, and a large one of each fault.
READ = [
    s
    for s in SCENARIOS
    if s.seed < DEEP and (s.world == 16 or (s.seed == 0 and s.version == "2.9"))
]


@cache
def look(scenario: Scenario) -> Lookalike:
    return generate(*scenario)


@cache
def read(scenario: Scenario) -> dict[int, dict[str, Any]]:
    made = look(scenario)
    load = json.loads if "json" in made.form.encoding else pickle.loads
    return {rank: load(dump) for rank, dump in made.dumps.items()}


def jobs(*faults: str) -> Iterator[tuple[Scenario, Lookalike, dict[int, dict[str, Any]]]]:
    for scenario in READ:
        if not faults or scenario.fault in faults:
            yield scenario, look(scenario), read(scenario)


def test_scenarios_cover_every_fault_version_and_form() -> None:
    assert len(SCENARIOS) == len(set(SCENARIOS)) >= 200
    assert {(s.world, s.version, s.fault) for s in SCENARIOS} == {
        (world, version, fault) for world in LAYOUTS for version in VERSIONS for fault in FAULTS
    }
    forms = [look(scenario).form for scenario in READ]
    assert {f.encoding for f in forms} == {"torch", "torch json", "pickle", "json"}
    assert {f.protocol for f in forms if f.encoding == "pickle"} == {2, 3, 4, 5}
    assert {f.retired for f in forms} == {
        "as is",
        "timed out",
        "timed out and counted",
        "left behind",
    }
    for setting in ("timing", "only_active", "frames", "tuples", "eager", "described"):
        assert {getattr(f, setting) for f in forms} == {False, True}, setting
    traits = set().union(*(look(scenario).traits for scenario in READ))
    assert traits >= {"before", "inside", "jam", "half done", "size", "dtype", "type", "order"}
    causes = Counter(look(scenario).truth.cause for scenario in READ)
    assert set(causes) == {"host_lag", "device_lag", "no_dump", "mismatch"}
    assert sum(look(scenario).truth.ambiguous for scenario in READ) < len(READ) / 2


@pytest.mark.parametrize("fault", FAULTS)
def test_same_arguments_give_same_bytes_and_other_seeds_others(fault) -> None:
    first = generate(1, 16, "2.9", fault)
    assert generate(1, 16, "2.9", fault) == first
    assert generate(2, 16, "2.9", fault).dumps != first.dumps


def test_pickles_hold_plain_types_only() -> None:
    plain = {"GLOBAL", "STACK_GLOBAL", "REDUCE", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "BUILD"}
    for scenario in READ:
        made = look(scenario)
        if "json" not in made.form.encoding:
            dump = next(iter(made.dumps.values()))
            names = {opcode.name for opcode, _, _ in pickletools.genops(dump)}
            assert not names & plain, scenario


@pytest.mark.parametrize("layout", [sizes for group in LAYOUTS.values() for sizes in group])
def test_a_job_without_a_fault_comes_to_its_end(layout, monkeypatch) -> None:
    world = layout[0] * layout[1] * layout[2]
    monkeypatch.setitem(LAYOUTS, world, (layout,))
    for seed in range(12):
        job, _, _ = _start_job(Random(seed), world)
        job.run()
        assert all(rank.step == len(rank.program) and not rank.in_flight for rank in job.ranks)


def test_dumps_have_the_shape_of_their_version() -> None:
    for scenario, made, dumps in jobs():
        ranks = set(range(scenario.world))
        assert set(dumps) == set(made.names) == ranks - set(made.truth.missing)
        assert all(name.removesuffix(".json").endswith(f"_{r}") for r, name in made.names.items())
        for rank, dump in dumps.items():
            assert dump["version"] == scenario.version
            assert ("comm_lib_version" in dump) == (scenario.version == "2.10")
            for name, group in dump["pg_config"].items():
                assert group["name"] == name
                assert rank in ast.literal_eval(group["ranks"])
            records = [entry["record_id"] for entry in dump.get("entries", [])]
            assert records == sorted(set(records))
            assert len(records) <= made.form.ring
            for entry in dump.get("entries", []):
                assert entry["process_group"][0] in dump["pg_config"]
                assert str(entry["pg_id"]) in dump["pg_status"]
                assert ("thread_id" in entry) == (scenario.version != "2.5")
                assert entry["state"] in ("scheduled", "started", "completed")


def test_sizes_fit_their_operation_and_group() -> None:
    for scenario, _, dumps in jobs():
        for dump in dumps.values():
            for entry in dump.get("entries", []):
                grows = {"nccl:_all_gather_base": 1, "nccl:_reduce_scatter_base": -1}
                factor = len(members(dump, entry["process_group"][0])) ** grows.get(
                    entry["profiling_name"], 0
                )
                sizes = zip(entry["input_sizes"], entry["output_sizes"], strict=True)
                assert all(prod(i) * factor == prod(o) for i, o in sizes), (scenario, entry)


def test_only_active_dumps_of_json_may_lack_their_entries() -> None:
    lacking = [s for s, _, dumps in jobs() if any("entries" not in d for d in dumps.values())]
    assert lacking
    assert all(look(s).form.encoding == "torch json" for s in lacking)


def test_local_group_ids_differ_between_ranks() -> None:
    names = {
        (entry["pg_id"], entry["process_group"][0])
        for dump in read(Scenario(0, 16, "2.9", "host_lag")).values()
        for entry in dump.get("entries", [])
    }
    assert len({local for local, _ in names}) < len(names)


def test_truth_is_consistent() -> None:
    for scenario in READ:
        truth = look(scenario).truth
        culprits = set(truth.culprits)
        assert culprits, scenario
        assert truth.accepts(culprits)
        assert not truth.accepts(set())
        assert truth.cause in truth.causes
        assert truth.must <= culprits <= truth.may
        assert truth.ambiguous == (truth.must != truth.may)
        if truth.cause == "no_dump":
            assert set(truth.missing) == culprits
        elif scenario.fault == "lost_dump":
            assert len(set(truth.missing) - culprits) == 1
        else:
            assert not truth.missing


def pending(made: Lookalike, dump: dict[str, Any]) -> list[dict[str, Any]]:
    """Entries that are not done; of a batch only its last entry, "nccl:coalesced", ever is."""
    return [
        e
        for e in dump.get("entries", [])
        if e["state"] != "completed"
        and not (
            "batched" in made.traits and e["profiling_name"] != "nccl:coalesced" and e["is_p2p"]
        )
    ]


def honest(made: Lookalike) -> bool:
    """Whether an entry that is not completed is one that waits."""
    return made.form.retired in ("as is", "timed out")


def test_only_ranks_whose_host_stopped_wait_for_nothing() -> None:
    for scenario, made, dumps in jobs("host_lag", "p2p_host_lag", "two_host_lag", "node_host_lag"):
        if honest(made):
            idle = {rank for rank, dump in dumps.items() if not pending(made, dump)}
            assert idle <= set(made.truth.culprits), scenario
            assert idle >= made.truth.must, scenario


def test_in_all_other_jobs_every_rank_waits() -> None:
    for scenario, made, dumps in jobs(
        "device_lag", "p2p_device_lag", "mismatch", "no_dump", "two_no_dump", "node_no_dump"
    ):
        if honest(made):
            assert all(pending(made, dump) for dump in dumps.values()), scenario


def test_somebody_waits_for_a_host_that_stopped() -> None:
    for scenario, made, dumps in jobs("host_lag", "p2p_host_lag"):
        (culprit,) = made.truth.culprits
        if made.truth.ambiguous or not honest(made):
            continue
        mine = dumps[culprit]
        waiting = [
            entry
            for rank, dump in dumps.items()
            if rank != culprit
            for entry in pending(made, dump)
            if culprit in members(dump, entry["process_group"][0])
        ]
        assert waiting, (scenario, mine["pg_status"])


def members(dump: dict[str, Any], group: str) -> list[int]:
    return ast.literal_eval(dump["pg_config"][group]["ranks"])


def content(entry: dict[str, Any]) -> tuple[Any, ...]:
    def frozen(sizes: Any) -> tuple[Any, ...]:
        return tuple(tuple(size) for size in sizes)

    return (
        entry["profiling_name"],
        frozen(entry["input_sizes"]),
        frozen(entry["output_sizes"]),
        *entry["input_dtypes"],
    )


def collectives(dump: dict[str, Any]) -> dict[tuple[str, int], tuple[Any, ...]]:
    return {
        (entry["process_group"][0], entry["collective_seq_id"]): content(entry)
        for entry in dump.get("entries", [])
        if not entry["is_p2p"]
    }


def test_only_a_mismatch_shows_other_contents_under_one_number() -> None:
    for scenario, made, dumps in jobs():
        said: dict[tuple[str, int], dict[int, tuple[Any, ...]]] = {}
        for rank, dump in dumps.items():
            for key, value in collectives(dump).items():
                said.setdefault(key, {})[rank] = value
        differing = {rank for v in said.values() if len(set(v.values())) > 1 for rank in v}
        if made.truth.cause == "mismatch" and "crossed" not in made.traits:
            assert set(made.truth.culprits) <= differing, scenario
        else:
            assert not differing, scenario


def test_a_stopped_device_leaves_its_rank_behind_its_peers() -> None:
    for scenario, made, dumps in jobs("device_lag", "p2p_device_lag"):
        (culprit,) = made.truth.culprits
        if made.truth.ambiguous or not honest(made) or "before" not in made.traits:
            continue
        first = pending(made, dumps[culprit])[0]
        assert first["state"] == "scheduled", scenario
        peers = members(dumps[culprit], first["process_group"][0])
        states = [
            entry["state"]
            for peer in peers
            if peer != culprit
            for entry in pending(made, dumps[peer])
            if entry["process_group"] == first["process_group"]
        ]
        assert "started" in states, scenario


def test_only_a_stopped_device_has_started_nothing_that_waits() -> None:
    for scenario, made, dumps in jobs("device_lag", "p2p_device_lag"):
        if honest(made) and made.form.timing and "before" in made.traits:
            none_started = {
                rank
                for rank, dump in dumps.items()
                if all(entry["state"] == "scheduled" for entry in pending(made, dump))
            }
            assert none_started == set(made.truth.culprits), scenario


def test_without_timing_nothing_is_started() -> None:
    for _, made, dumps in jobs():
        if not made.form.timing:
            for dump in dumps.values():
                assert all(e["state"] != "started" for e in dump.get("entries", []))
                started = {int(s["last_started_collective"]) for s in dump["pg_status"].values()}
                assert started <= {-1}


@pytest.mark.parametrize("scenario", [s for s in SCENARIOS if s.seed >= DEEP])
def test_deep_jobs_fill_their_rings(scenario) -> None:
    made, dumps = look(scenario), read(scenario)
    assert made.form.ring == 2000
    if not made.form.only_active:
        assert {len(dump["entries"]) for dump in dumps.values()} == {2000}
