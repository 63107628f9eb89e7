from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from undaunted.fault_tolerance import timeouts_calc
from undaunted.fault_tolerance.timeouts_calc import (
    HeartbeatTimeouts,
    Maxima,
    SectionTimeouts,
    SynchronizationError,
    TimeoutsCalcError,
    from_state,
    heartbeat_timeouts,
    section_timeouts,
    synchronized,
    to_state,
    with_loaded,
)

S = 10**9

SRC = Path(__file__).parents[2] / "src"
RANKS = """
import json, sys, time
from datetime import timedelta
import torch.distributed as dist
from undaunted.progress.snapshot import Maxima
from undaunted.fault_tolerance.timeouts_calc import SynchronizationError, synchronized

rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
alone = dist.new_group([0], timeout=timedelta(seconds=20))
big = 10**15 + 7  # nanoseconds that a float of 32 bits could not tell apart
results = [
    synchronized(Maxima(big + rank, 5 - rank, 7, {"a": 1 + rank, "b": 2 - rank})),
    synchronized(Maxima(1, 2, 3, {"only 0": 4} if rank == 0 else {"only 1": 5, "x" * 90: 6})),
    synchronized(Maxima()),
]
found = [[r.initial_ns, r.subsequent_ns, r.out_of_section_ns, dict(r.sections_ns)] for r in results]
if rank == 0:
    found.append(synchronized(Maxima(9), group=alone).initial_ns)
else:
    try:
        synchronized(Maxima(9), group=alone)
    except SynchronizationError as error:
        found.append(str(error))
dist.barrier()
if rank == 0:  # the other one does not come
    began = time.monotonic()
    try:
        synchronized(Maxima(1), timeout_s=0.5)
    except SynchronizationError as error:
        found.append([time.monotonic() - began < 10, bool(str(error))])
print(json.dumps(found), flush=True)
sys.stdin.read()
dist.destroy_process_group()
found = synchronized(Maxima(3)).initial_ns
assert found == 3
"""


# --- formulae -------------------------------------------------------------------------------------

BEATS = Maxima(initial_ns=4 * S, subsequent_ns=2 * S)


def test_new_limits_replace_configured_ones():
    new = heartbeat_timeouts(BEATS, HeartbeatTimeouts(1.0, None), 5.0)
    assert new == HeartbeatTimeouts(20.0, 10.0, were_calculated=True)


def test_calculated_ones_are_averaged():
    new = heartbeat_timeouts(BEATS, HeartbeatTimeouts(10.0, 30.0, were_calculated=True), 5.0)
    assert new == HeartbeatTimeouts(15.0, 20.0, were_calculated=True)


@pytest.mark.parametrize("seen", [Maxima(), Maxima(initial_ns=1)])
def test_too_few_heartbeats(seen):
    with pytest.raises(TimeoutsCalcError, match="two heartbeats"):
        heartbeat_timeouts(seen, HeartbeatTimeouts(), 5.0)


SECTIONS = Maxima(out_of_section_ns=S, sections_ns={"a": 2 * S, "b": 3 * S})


def sections(current, names, *, out_of_section=True, seen=SECTIONS):
    return section_timeouts(seen, current, 5.0, sections=names, out_of_section=out_of_section)


def test_sections_that_are_not_selected_stay():
    current = SectionTimeouts({"b": 7.0, "c": None}, 9.0)
    assert sections(current, ["a"], out_of_section=False) == SectionTimeouts(
        {"a": 10.0, "b": 7.0, "c": None}, 9.0, frozenset("a")
    )
    assert sections(current, ["b"]) == SectionTimeouts(
        {"b": 15.0, "c": None}, 5.0, frozenset("b"), is_out_of_section_calculated=True
    )


def test_calculated_sections_are_averaged_each_on_its_own():
    current = SectionTimeouts({"a": 20.0, "b": 20.0}, 9.0, frozenset("a"), True)
    new = sections(current, ["a", "b"])
    assert new.section == {"a": 15.0, "b": 15.0}
    assert new.out_of_section == 7.0


def test_no_section_means_none():
    """Spec 3.1 item 9: upstream takes an empty selection for all in one place."""
    new = sections(SectionTimeouts({"c": 3.0}), [])
    assert (new.section, new.out_of_section) == ({"c": 3.0}, 5.0)
    assert new.calculated_sections == frozenset()


def test_missing_sections_are_named():
    with pytest.raises(TimeoutsCalcError, match="no rank has ended section 'x', 'y' yet"):
        sections(SectionTimeouts(), ["y", "x", "a"])
    with pytest.raises(TimeoutsCalcError, match="outside of sections"):
        sections(SectionTimeouts(), [], seen=Maxima())


# --- state ----------------------------------------------------------------------------------------


def test_the_state_holds_what_was_calculated():
    assert to_state(HeartbeatTimeouts(3.0, 2.0), SectionTimeouts({"a": 1.0}, 2.0)) == {
        "current_timeouts": {}
    }
    heartbeat = HeartbeatTimeouts(3.0, 2.0, were_calculated=True)
    section = SectionTimeouts({"b": None, "a": 1.0}, 2.0, frozenset("a"), True)
    state = to_state(heartbeat, section)
    assert state == {
        "current_timeouts": {
            "heartbeat": {"initial": 3.0, "subsequent": 2.0, "were_calculated": True},
            "section": {
                "section": {"a": 1.0, "b": None},
                "out_of_section": 2.0,
                "calculated_sections": ["a"],
                "is_out_of_section_calculated": True,
            },
        }
    }
    assert from_state(json.loads(json.dumps(state))) == (heartbeat, section)
    assert from_state({}) == from_state({"current_timeouts": {}}) == (None, None)


def test_an_empty_dict_of_calculated_sections_is_understood():
    state = {"section": {"section": {"a": 1}, "out_of_section": None, "calculated_sections": {}}}
    assert from_state({"current_timeouts": state})[1] == SectionTimeouts({"a": 1.0})


@pytest.mark.parametrize(
    "state",
    [
        3,
        {"current_timeouts": []},
        {"current_timeouts": {"heartbeat": 3}},
        {"current_timeouts": {"heartbeat": {"initial": "3"}}},
        {"current_timeouts": {"heartbeat": {"initial": -1}}},
        {"current_timeouts": {"heartbeat": {"subsequent": float("nan")}}},
        {"current_timeouts": {"section": {"section": {"a": True}}}},
        {"current_timeouts": {"section": {"calculated_sections": 3}}},
    ],
)
def test_other_states_are_refused(state):
    with pytest.raises(ValueError, match="not a"):
        from_state(state)


def test_loaded_limits_replace_only_what_they_have_calculated():
    current = SectionTimeouts({"a": 1.0, "b": 2.0}, 3.0, frozenset("b"))
    loaded = SectionTimeouts({"a": 10.0, "b": 20.0}, 30.0, frozenset("a"))
    assert with_loaded(current, loaded) == SectionTimeouts(
        {"a": 10.0, "b": 2.0}, 3.0, frozenset("ab")
    )
    loaded = SectionTimeouts({}, 30.0, is_out_of_section_calculated=True)
    assert with_loaded(current, loaded).out_of_section == 30.0


def test_limits_are_valid_when_all_are_known():
    some = [(None, None), (1.0, None), (None, 1.0), (1.0, 2.0)]
    found = [HeartbeatTimeouts(*limits).are_valid for limits in some]
    assert found == [False, False, False, True]
    assert not SectionTimeouts().are_valid
    assert not SectionTimeouts({"a": 1.0}).are_valid
    assert not SectionTimeouts({"a": None}, 2.0).are_valid
    assert SectionTimeouts({"a": 1.0}, 2.0).are_valid
    assert SectionTimeouts({}, 2.0).are_valid


def test_limits_were_calculated_when_all_were():
    limits = {"a": 1.0}
    assert not SectionTimeouts(limits, 2.0, frozenset({"a"})).were_calculated
    assert not SectionTimeouts(limits, 2.0, frozenset(), True).were_calculated
    assert SectionTimeouts(limits, 2.0, frozenset({"a"}), True).were_calculated
    assert SectionTimeouts({}, None, frozenset(), True).were_calculated


@pytest.mark.torch
def test_ranks_agree_or_give_up_in_time(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "ranks.py").write_text(RANKS)
    ranks = [
        subprocess.Popen(
            [sys.executable, "ranks.py", str(rank), str(tmp_path / "store")],
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]
    try:
        # In old versions gloo prints lines of its own.
        lines = [next((line for line in rank.stdout if "Gloo" not in line), "") for rank in ranks]
        # Gloo cannot give up what rank 0 waits for until its peer is gone.
        ends = [rank.communicate(timeout=60) for rank in reversed(ranks)]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert all(lines), ends
    assert [rank.returncode for rank in ranks] == [0, 0], ends
    zero, one = (json.loads(line) for line in lines)
    assert zero[:3] == one[:3]
    assert zero[0] == [10**15 + 8, 5, 7, {"a": 2, "b": 2}]
    assert zero[1] == [1, 2, 3, {"only 0": 4, "only 1": 5, "x" * 90: 6}]
    assert zero[2] == [0, 0, 0, {}]
    assert zero[3] == 9
    assert "does not belong" in one[3]
    assert zero[4] == [True, True]


def test_a_rank_without_torch_is_alone(monkeypatch):
    seen = Maxima(1, 2, 3, {"a": 4})
    monkeypatch.delitem(timeouts_calc.sys.modules, "torch.distributed", raising=False)
    assert synchronized(seen) is seen


def test_a_closed_group_is_no_crash(monkeypatch):
    class Closed:
        is_available = is_initialized = staticmethod(lambda: True)

        @staticmethod
        def get_world_size(group):
            raise ValueError("group is not initialized\nand a stack")

    monkeypatch.setitem(timeouts_calc.sys.modules, "torch.distributed", Closed)
    with pytest.raises(SynchronizationError, match=r"^group is not initialized$"):
        synchronized(Maxima())


@pytest.mark.parametrize(
    ("backends", "device"),
    [
        ("cpu:gloo,cuda:nccl", "cpu"),
        ("cuda:nccl", "cuda"),
        ("xpu:xccl", "xpu"),
        ("npu:hccl", "npu"),
        ("mine", "cpu"),
    ],
)
def test_values_are_where_the_backend_can_reach_them(monkeypatch, backends, device):
    """Spec 3.1 item 10: any backend, whole numbers of 64 bits, any group, a deadline."""

    class Distributed:
        @staticmethod
        def get_backend_config(group):
            return backends

    monkeypatch.setitem(timeouts_calc.sys.modules, "torch", Distributed)
    assert timeouts_calc._Exchange(Distributed, None, 1.0)._device == device
