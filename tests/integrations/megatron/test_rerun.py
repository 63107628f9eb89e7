"""Names of Megatron's re-run machine."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace

import pytest

from undaunted.integrations.megatron import rerun
from undaunted.integrations.megatron.rerun import (
    RerunMode,
    RerunState,
    RerunStateMachine,
    destroy_rerun_state_machine,
    get_rerun_state_machine,
    initialize_rerun_state_machine,
)


@pytest.fixture(autouse=True)
def none_left():
    yield
    destroy_rerun_state_machine()


def test_values():
    assert [state.value for state in RerunState] == [0, 1, 2, 3, 4, 5]
    assert {mode.value for mode in RerunMode} == {
        "disabled",
        "validate_results",
        "report_determinism_stats",
    }
    assert rerun.Call(rerun.Caller(message="m", rank=1), sequence=2).caller.rank == 1


def test_one_machine_for_the_process(caplog):
    initialize_rerun_state_machine(mode=RerunMode.VALIDATE_RESULTS)
    assert get_rerun_state_machine().get_mode() is RerunMode.VALIDATE_RESULTS
    with pytest.raises(AssertionError, match="destroy_rerun_state_machine"):
        initialize_rerun_state_machine()
    destroy_rerun_state_machine()
    assert "Implicit" not in caplog.text
    assert get_rerun_state_machine().get_mode() is RerunMode.DISABLED
    assert "Implicit initialization of Rerun State Machine!" in caplog.text
    assert get_rerun_state_machine() is get_rerun_state_machine()


def odd(machine):
    """Run a step whose odd result comes again."""
    for result in (1.0, math.nan):
        while machine.should_run_forward_backward(None):
            machine.validate_result(result, math.isnan, "loss")
        follows = machine.should_checkpoint_and_exit()
    assert follows == (True, True, 16)


def test_what_is_saved_and_when():
    machine = RerunStateMachine(mode=RerunMode.VALIDATE_RESULTS)
    assert machine.state_dict(None, "zarr") is None
    assert machine.state_dict(None, "zarr", force=True) is not None
    state = machine.state_dict(None, "torch_dist")
    assert [*state] == ["mode", "state", "current_iteration", "sharded"]
    assert not machine.validate_state_dict(state)
    assert not machine.validate_state_dict(None)
    assert not machine.validate_state_dict({"state": "x"})
    odd(machine)
    assert machine.validate_state_dict(machine.state_dict(None, "torch_dist"))
    disabled = RerunStateMachine()
    assert disabled.state_dict(None, "torch_dist") is None
    assert disabled.state_dict(None, "torch_dist", force=True) is not None


def test_what_belongs_to_a_rank_is_a_sharded_object(monkeypatch):
    calls = []
    mapping = SimpleNamespace(ShardedObject=lambda *given: calls.append(given) or "object")
    monkeypatch.setitem(sys.modules, "megatron", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "megatron.core", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "megatron.core.dist_checkpointing", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "megatron.core.dist_checkpointing.mapping", mapping)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    machine = RerunStateMachine(mode=RerunMode.VALIDATE_RESULTS)
    assert machine.state_dict(None, "torch_dist")["sharded"] == "object"
    ((key, data, shape, offset),) = calls
    assert (key, shape, offset) == ("rerun_state_machine_state", (4,), (1,))
    assert "large_value_counts" in data


def test_another_process_goes_on(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")
    machine = RerunStateMachine(mode=RerunMode.VALIDATE_RESULTS)
    odd(machine)
    saved = machine.state_dict(None, "torch_dist")
    monkeypatch.setenv("LOCAL_RANK", "1")
    later = RerunStateMachine(mode=RerunMode.VALIDATE_RESULTS)
    later.load_state_dict(saved)
    assert later.state is RerunState.WILL_RERUN_FROM_CHECKPOINT
    while later.should_run_forward_backward(None):
        later.validate_result(2.0, math.isnan, "loss")
    assert later.should_checkpoint_and_exit() == (False, True, 17)
