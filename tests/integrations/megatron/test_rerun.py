"""Names of Megatron's re-run machine."""

from __future__ import annotations

import math
import random
import sys
from types import SimpleNamespace

import pytest

from undaunted.integrations.megatron import rerun, signals
from undaunted.integrations.megatron.rerun import (
    RerunMode,
    RerunState,
    RerunStateMachine,
    destroy_rerun_state_machine,
    get_rerun_state_machine,
    initialize_rerun_state_machine,
)
from undaunted.progress import writer as writer_module
from undaunted.progress.area import PageArea
from undaunted.progress.layout import STOPPED_ALONE

MAPPING = "megatron.core.dist_checkpointing.mapping"


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


def megatron(monkeypatch, sharded):
    for name in ("megatron", "megatron.core", "megatron.core.dist_checkpointing"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    monkeypatch.setitem(sys.modules, MAPPING, SimpleNamespace(ShardedObject=sharded))


def test_a_megatron_that_saves_in_another_way_is_refused_as_the_job_starts(monkeypatch):
    megatron(monkeypatch, lambda key, data: None)
    with pytest.raises(RuntimeError, match="ShardedObject"):
        rerun.initialize_rerun_state_machine()
    megatron(monkeypatch, lambda key, data, shape, offset, replica=0: None)
    rerun.initialize_rerun_state_machine()
    rerun.destroy_rerun_state_machine()


def test_what_belongs_to_a_rank_is_a_sharded_object(monkeypatch):
    calls = []
    megatron(monkeypatch, lambda *given: calls.append(given) or "object")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    machine = RerunStateMachine(mode=RerunMode.VALIDATE_RESULTS)
    assert machine.state_dict(None, "torch_dist")["sharded"] == "object"
    ((key, data, shape, offset),) = calls
    assert (key, shape, offset) == ("rerun_state_machine_state", (4,), (1,))
    assert "large_value_counts" in data


@pytest.fixture(params=["alone", pytest.param("with Megatron", marks=pytest.mark.integration)])
def saved(request, monkeypatch):
    """Returns the state of a machine as a checkpoint gives it back, with Megatron and without."""
    if request.param == "alone":
        monkeypatch.setitem(sys.modules, MAPPING, None)
        return lambda machine: machine.state_dict(None, "torch_dist")
    mapping = pytest.importorskip(MAPPING)

    def save(machine):
        state = machine.state_dict(None, "torch_dist")
        assert isinstance(state["sharded"], mapping.ShardedObject)
        return {**state, "sharded": state["sharded"].data}  # Megatron loads what is in it

    return save


@pytest.mark.filterwarnings("ignore")  # of Megatron, about what else is not installed
def test_another_process_goes_on(monkeypatch, saved):
    monkeypatch.setenv("LOCAL_RANK", "0")
    machine = RerunStateMachine(mode=RerunMode.VALIDATE_RESULTS)
    odd(machine)
    state = saved(machine)
    monkeypatch.setenv("LOCAL_RANK", "1")
    later = RerunStateMachine(mode=RerunMode.VALIDATE_RESULTS)
    later.load_state_dict(state)
    assert later.state is RerunState.WILL_RERUN_FROM_CHECKPOINT
    while later.should_run_forward_backward(None):
        later.validate_result(2.0, math.isnan, "loss")
    assert later.should_checkpoint_and_exit() == (False, True, 17)


@pytest.fixture
def area(monkeypatch):
    """The page of rank 1, whose launcher knows already that the ranks stop."""
    with PageArea.create(1) as area:
        monkeypatch.setenv("UNDAUNTED_PAGE", area.env_value(0))
        monkeypatch.setenv("RANK", "1")
        area.stop_after(0, "suspect")
        yield area
        if isinstance(writer_module.current, writer_module.PageWriter):
            writer_module.current.detach()
        writer_module.current = writer_module._NotYet()


def why(area):
    wish = area.snapshot(0).wish
    return None if wish is None else (wish.why, wish.rank)


def test_the_launcher_is_told_of_a_result_that_is_to_be_computed_elsewhere(area):
    """The exit code of a rank alone means nothing to it."""
    with signals.DistributedSignalHandler():
        odd(RerunStateMachine(mode=RerunMode.VALIDATE_RESULTS))
        assert why(area) == ("suspect", 1)
    assert area.asked() == [STOPPED_ALONE], "also when the handler has been released"
    assert why(area) == ("suspect", 1)


def test_the_launcher_is_told_of_a_result_that_is_not_to_be_used(area, monkeypatch):
    monkeypatch.setattr(writer_module.PageWriter, "event", lambda _, *what: told.append(what))
    told = []
    machine = RerunStateMachine(mode=RerunMode.VALIDATE_RESULTS)
    for results in ([1.0], [math.nan, 2.0]):
        some = iter(results)
        while machine.should_run_forward_backward(None):
            machine.validate_result(next(some), math.isnan, "loss")
        follows = machine.should_checkpoint_and_exit()
    assert follows == (False, True, 17)
    assert why(area) == ("invalid", 1)
    assert [name for name, _ in told] == ["odd_result", "stop_invalid"]
    assert told[0][1].startswith("loss in iteration 2, computed on cpu:0 of node")


def test_a_rank_without_an_odd_result_says_nothing_but_that_it_stops(area):
    machine = RerunStateMachine(
        mode=RerunMode.VALIDATE_RESULTS, any_rank=lambda wishes: [True] * len(wishes)
    )
    machine.first = False
    while machine.should_run_forward_backward(None):
        machine.validate_result(1.0, math.isnan, "loss")
    assert machine.should_checkpoint_and_exit()[1]
    assert why(area) is None
    assert area.asked() == [STOPPED_ALONE]


def test_a_step_without_odd_results_tells_nothing(area):
    machine = RerunStateMachine(mode=RerunMode.VALIDATE_RESULTS)
    while machine.should_run_forward_backward(None):
        machine.validate_result(1.0, math.isnan, "loss")
    assert machine.should_checkpoint_and_exit() == (False, False, 0)
    assert why(area) is None
    assert not area.asks(0)


def step(machine, *results):
    """Run a step whose runs have these results; return how many there were, and what follows."""
    some, runs = iter(results), 0
    while machine.should_run_forward_backward(None):
        runs += 1
        machine.validate_result(next(some), math.isnan, "loss")
    return runs, machine.should_checkpoint_and_exit()


@pytest.mark.filterwarnings("ignore")  # of Megatron, about what else is not installed
@pytest.mark.parametrize("kind", rerun.RerunDiagnostic)
def test_injected_errors_are_found_out(kind, monkeypatch, saved):
    monkeypatch.setenv("LOCAL_RANK", "0")
    random_state, verdicts = random.getstate(), []

    def machine():
        return RerunStateMachine(
            mode=RerunMode.VALIDATE_RESULTS,
            error_injector=rerun.RerunErrorInjector(1, kind),
            on_verdict=verdicts.append,
        )

    one = machine()
    step(one, 1.0)
    follows = step(one, 1.0, 1.0)
    if kind is not rerun.RerunDiagnostic.TRANSIENT_ERROR:
        assert follows == (2, (True, True, 16))
        state = saved(one)
        monkeypatch.setenv("LOCAL_RANK", "1")
        one = machine()
        one.load_state_dict(state)
        follows = step(one, 1.0)
    assert follows[1] == (False, True, 17)
    assert verdicts[0].diagnostic is kind
    assert random.getstate() == random_state, "the generator of the program"
