"""The re-run machine: one process, and several ranks as threads."""

from __future__ import annotations

import gc
import logging
import math
import random
import threading
import weakref

import pytest

from undaunted.training.rerun import machine as machine_module
from undaunted.training.rerun.batches import RerunDataIterator
from undaunted.training.rerun.machine import RerunStateMachine
from undaunted.training.rerun.table import RerunDiagnostic, RerunMode, RerunState

NAN = math.nan
CHECK = RerunMode.VALIDATE_RESULTS


@pytest.fixture(autouse=True)
def here(monkeypatch):
    for name in ("RANK", "SLURM_JOBID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LOCAL_RANK", "0")


def machine(mode=CHECK, **arguments):
    verdicts: list[machine_module.Verdict] = []
    one = RerunStateMachine(mode=mode, on_verdict=verdicts.append, **arguments)
    one.verdicts = verdicts
    return one


def step(one, compute, *, fatal=True, batches=None, check=math.isnan, tolerance=0.0):
    """Run a step; return how often, and what follows."""
    runs = 0
    while one.should_run_forward_backward(batches):
        runs += 1
        one.validate_result(compute(), check, "loss", tolerance=tolerance, fatal=fatal)
    return runs, one.should_checkpoint_and_exit()


def first(one):
    assert step(one, lambda: 1.0) == (1, (False, False, 0))


def results(*values):
    values = iter(values)
    return lambda: next(values)


GO_ON = (False, False, 0)


def test_nothing_odd():
    one = machine()
    for number in range(5):
        assert step(one, lambda: 1.0) == (1, GO_ON)
        assert one.current_iteration == number + 1
        assert one.state is RerunState.NOT_RUNNING_YET


def test_the_first_iteration_is_not_checked():
    assert step(machine(), lambda: NAN) == (1, GO_ON)


def test_a_transient_error_that_is_fatal(caplog):
    one = machine()
    first(one)
    assert step(one, results(NAN, 1.0)) == (2, (False, True, 17))
    (verdict,) = one.verdicts
    assert verdict.diagnostic is RerunDiagnostic.TRANSIENT_ERROR
    for line in (
        "Unexpected result nan on rank 0 at iteration #2 invocation #1 (message='loss')",
        "Need to rerun step to check reproducibility of initial result",
        "First rerun: unexpected result is not reproducible within the tolerance (1.0 != nan)",
        "iteration #2: Possible transient error!",
        "Exiting now. The job can be resumed from a previous checkpoint",
    ):
        assert line in caplog.text
    assert "Rank 0, node " in caplog.text


def test_a_transient_error_that_is_not_fatal(caplog):
    one = machine()
    first(one)
    assert step(one, results(NAN, 1.0), fatal=False) == (2, GO_ON)
    assert one.state is RerunState.NOT_RUNNING_YET
    assert "Possible transient error!" in caplog.text
    assert "Continuing normal execution because failed validation was not fatal" in caplog.text
    assert step(one, lambda: 1.0) == (1, GO_ON)


def test_a_result_that_comes_again_and_is_not_fatal():
    one = machine()
    first(one)
    assert step(one, lambda: NAN, fatal=False) == (2, GO_ON)
    assert one.verdicts == []


def suspicious(compute=lambda: NAN, **arguments):
    """Return what is saved of a machine whose odd result came again."""
    one = machine(**arguments)
    first(one)
    assert step(one, compute) == (2, (True, True, 16))
    return one.state_dict()


def resumed(saved, monkeypatch, place="1", **arguments):
    monkeypatch.setenv("LOCAL_RANK", place)
    one = machine(**arguments)
    one.load_state_dict(saved)
    return one


def test_a_persistent_error(monkeypatch, caplog):
    one = resumed(suspicious(), monkeypatch)
    assert step(one, lambda: 1.0) == (1, (False, True, 17))
    (verdict,) = one.verdicts
    assert verdict.diagnostic is RerunDiagnostic.PERSISTENT_ERROR
    assert verdict.slot.device.endswith(":0"), "the slot where it was computed"
    assert verdict.iteration == 2
    for line in (
        (
            "First rerun: unexpected result is reproducible within the tolerance (nan = nan). Need "
            "to rerun on a different GPU to verify correctness."
        ),
        (
            "Saving a checkpoint and exiting now. Please resume the job from the checkpoint to "
            "rerun the last iteration and establish a diagnostic"
        ),
        "Getting RerunStateMachine state from checkpoint. Will rerun step.",
        (
            "Second rerun: unexpected result is not reproducible on a different GPU, therefore was "
            "likely incorrect (1.0 != nan)"
        ),
        "Possible persistent error!",
        "Exiting now. A checkpoint at the last iteration already exists",
    ):
        assert line in caplog.text


def test_a_correct_result(monkeypatch, caplog):
    one = resumed(suspicious(), monkeypatch)
    assert step(one, lambda: NAN) == (1, (False, True, 17))
    assert one.verdicts[0].diagnostic is RerunDiagnostic.CORRECT_RESULT
    assert "therefore it was likely correct (nan = nan)" in caplog.text
    assert "Correct result (but possible Application error) (loss)!" in caplog.text


def test_the_second_opinion_of_what_is_not_fatal_any_more(monkeypatch):
    one = resumed(suspicious(), monkeypatch)
    assert step(one, lambda: NAN, fatal=False) == (1, GO_ON)
    assert step(one, lambda: 1.0) == (1, GO_ON)
    assert one.current_iteration == 3


def test_the_same_slot_has_to_be_left(monkeypatch, caplog):
    one = resumed(suspicious(), monkeypatch, place="0")
    assert step(one, lambda: 1.0) == (1, (False, True, 16))
    assert one.verdicts == []
    assert "Got rescheduled on the same GPU. Need to resume again from the same checkpoint" in (
        caplog.text
    )
    assert one.state is RerunState.RERUNNING_AGAIN_FROM_CHECKPOINT
    # Saved as what can be resumed, and resumed elsewhere.
    later = resumed(one.state_dict(), monkeypatch)
    assert step(later, lambda: 1.0) == (1, (False, True, 17))
    assert later.verdicts[0].diagnostic is RerunDiagnostic.PERSISTENT_ERROR


def test_a_tensor_is_kept_as_its_number(monkeypatch):
    torch = pytest.importorskip("torch")
    one = machine()
    first(one)
    while one.should_run_forward_backward():
        one.validate_result(torch.tensor(NAN), torch.isnan, "loss")
    assert one.should_checkpoint_and_exit() == (True, True, 16)
    saved = one.state_dict()
    kept = saved["sharded"]["initial_result"]
    assert torch.is_tensor(kept)
    assert not kept.requires_grad
    later = resumed(saved, monkeypatch)
    assert step(later, lambda: torch.tensor(NAN), check=torch.isnan)[0] == 1
    assert later.verdicts[0].diagnostic is RerunDiagnostic.CORRECT_RESULT


def test_the_tolerance():
    one = machine()
    first(one)
    odd = {"check": lambda value: value > 10, "tolerance": 0.01}
    assert step(one, results(100.0, 100.5), **odd)[1] == (True, True, 16)
    one = machine()
    first(one)
    assert step(one, results(100.0, 102.0), **odd)[1] == (False, True, 17)


def test_infinities_of_different_signs_are_different():
    one = machine()
    first(one)
    assert step(one, results(math.inf, -math.inf), check=math.isinf)[1] == (False, True, 17)


def test_only_the_first_odd_result_of_a_step_counts():
    one = machine()
    first(one)
    values = results(1.0, NAN, NAN, 1.0, 2.0, NAN)
    while one.should_run_forward_backward():
        for _ in range(3):
            one.validate_result(values(), math.isnan, "loss")
    assert one.verdicts[0].diagnostic is RerunDiagnostic.TRANSIENT_ERROR


def test_a_check_that_is_not_made_again(caplog):
    one = machine()
    first(one)
    runs = 0
    while one.should_run_forward_backward():
        runs += 1
        if runs == 1:
            one.validate_result(NAN, math.isnan, "loss")
    assert one.should_checkpoint_and_exit() == (False, True, 17)
    assert "was not made when iteration #2 was run again" in caplog.text


def test_disabled(caplog, tmp_path):
    one = machine(RerunMode.DISABLED, result_rejected_tracker_filename=tmp_path / "odd")
    assert step(one, lambda: NAN, fatal=False) == (1, GO_ON)
    assert ", iteration 1: Unexpected result nan (message='loss')" in caplog.text
    with pytest.raises(RuntimeError, match="iteration 2: Unexpected result nan"):
        step(one, lambda: NAN)
    assert (tmp_path / "odd").read_text().count("status=rerun_disabled") == 2


def test_the_tracker_has_a_line_for_each_finding(tmp_path, monkeypatch):
    odd = tmp_path / "odd"
    saved = suspicious(result_rejected_tracker_filename=odd)
    one = resumed(saved, monkeypatch, result_rejected_tracker_filename=odd)
    step(one, lambda: 1.0)
    found = [line.split(" status=")[1].split()[0] for line in odd.read_text().splitlines()]
    assert found == [
        "initial_run",
        "first_rerun_reproducible",
        "second_rerun_not_reproducible",
    ]


# --- what is put back ----------------------------------------------------------------------------


def test_random_numbers_batches_and_the_programs_own_state_come_again():
    state = {"count": 0}
    one = machine(state_save_func=lambda: dict(state), state_restore_func=state.update)
    batches = RerunDataIterator(range(100))
    first(one)
    seen = []

    def compute():
        state["count"] += 1
        seen.append((random.random(), next(batches), next(batches), state["count"]))
        return NAN

    assert step(one, compute, batches=[batches, None])[1] == (True, True, 16)
    assert seen[0] == seen[1]
    assert (state["count"], next(batches)) == (0, 0), "what is saved is the state before the step"


def test_a_plain_iterator_is_wrapped():
    one = machine()
    source = iter(range(100))
    first(one)
    seen = []
    while one.should_run_forward_backward(source):
        seen.append(next(one.batches(source)))
        one.validate_result(NAN if seen == [0] else 1.0, math.isnan, "loss", fatal=False)
    assert seen == [0, 0]
    while one.should_run_forward_backward(source):
        assert next(one.batches(source)) == 1


def test_iterators_of_former_epochs_are_given_back():
    class Batches:
        """As the iterator of a data loader, which has processes."""

        def __iter__(self):
            return self

        def __next__(self):
            return 0

    one = machine()
    first(one)
    seen = []
    for _ in range(3):
        source = Batches()
        seen.append(weakref.ref(source))
        for _ in range(2):
            step(one, lambda source=source: next(one.batches(source)), batches=[source, None])
    del source
    gc.collect()
    assert [ref() is None for ref in seen] == [True, True, False]


def test_batches_that_nobody_keeps(caplog):
    one = machine()
    source = iter(range(100))
    first(one)
    assert step(one, lambda: NAN + next(source), batches=source, fatal=False)[0] == 2
    assert "were not read through RerunDataIterator" in caplog.text


def test_batches_go_along_with_the_checkpoint(monkeypatch):
    one = machine()
    first(one)
    batches = RerunDataIterator("abc")
    while one.should_run_forward_backward(batches):
        next(batches), next(batches)
        one.validate_result(NAN, math.isnan, "loss")
    saved = one.state_dict(batches)
    later = resumed(saved, monkeypatch)
    assert later.state_dict()["sharded"] == saved["sharded"], "it can be saved before it goes on"
    source = RerunDataIterator("xyz")
    while later.should_run_forward_backward(source):
        assert [next(source), next(source)] == ["a", "b"]
        later.validate_result(NAN, math.isnan, "loss", fatal=False)
    while later.should_run_forward_backward(source):
        assert next(source) == "x"


def test_random_numbers_go_along_with_the_checkpoint(monkeypatch):
    seen = []

    def compute():
        seen.append(random.random())
        return NAN

    saved = suspicious(compute)
    random.seed(12345)
    step(resumed(saved, monkeypatch), compute)
    assert seen[0] == seen[1] == seen[2]


# --- what is saved -------------------------------------------------------------------------------


def test_a_state_that_cannot_be_resumed_is_never_saved(monkeypatch):
    one = machine()
    first(one)
    seen = []
    while one.should_run_forward_backward():
        seen.append(one.state)
        saved = one.state_dict()
        assert saved["state"] == RerunState.NOT_RUNNING_YET
        assert saved["current_iteration"] == 1, "the step is not done"
        one.validate_result(NAN if len(seen) == 1 else 1.0, math.isnan, "loss")
    assert seen == [RerunState.INITIAL_RUN, RerunState.RERUNNING_IN_PLACE]
    later = resumed(one.state_dict(), monkeypatch)
    assert step(later, lambda: 1.0) == (1, GO_ON)
    assert later.current_iteration == 2


def test_names_in_what_is_saved_are_always_the_same():
    one = machine()
    assert one.state_dict()["sharded"].keys() == suspicious()["sharded"].keys()


@pytest.mark.parametrize("state", [2, 4, 5])
def test_states_that_others_have_saved(state, monkeypatch):
    saved = suspicious() | {"state": state}
    one = resumed(saved, monkeypatch)
    runs, _ = step(one, lambda: 1.0)
    assert runs == 1
    assert bool(one.verdicts) == (state != 2)


@pytest.mark.parametrize(
    "damage",
    [
        {},
        7,
        [],
        {"state": 3},
        {"state": 99, "current_iteration": 1, "sharded": {}},
        {"state": 3, "current_iteration": "x", "sharded": {}},
        {"state": 3, "current_iteration": 1, "sharded": {"failed_validation_call": 5}},
    ],
)
def test_a_damaged_state_is_said_and_left(damage, caplog):
    one = machine()
    one.load_state_dict(damage)
    assert "cannot be used" in caplog.text
    assert step(one, lambda: 1.0) == (1, GO_ON)


def test_damaged_generators_are_said_and_left(caplog, monkeypatch):
    saved = suspicious()
    saved["sharded"]["generators"] = {"python": [1]}
    one = resumed(saved, monkeypatch)
    assert step(one, lambda: 1.0)[0] == 1
    assert "random generators cannot be set" in caplog.text


def test_nothing_is_loaded_where_nothing_is_run_again(caplog, monkeypatch):
    saved = suspicious()
    one = resumed(saved, monkeypatch, mode=RerunMode.DISABLED)
    assert "RerunStateMachine disabled via CLI, ignoring machine state saved in checkpoint" in (
        caplog.text
    )
    assert one.current_iteration == 0
    one.load_state_dict(None)


def test_counting_goes_on(monkeypatch):
    one = machine()
    for _ in range(5):
        first(one)
    one.is_unexpectedly_large(3.0, 2.0, "loss")
    later = resumed(one.state_dict(), monkeypatch)
    first(later)
    assert later.current_iteration == 6
    assert later.max_values == {"loss": 3.0}


# --- several ranks -------------------------------------------------------------------------------


class Ranks:
    """Ranks that are threads, and a reduction between them."""

    def __init__(self, number):
        self.barrier = threading.Barrier(number, timeout=30)
        self.wishes = [None] * number
        self.reductions = 0

    def any_rank(self, rank):
        def reduce(mine):
            self.wishes[rank] = list(mine)
            self.barrier.wait()
            found = [any(one) for one in zip(*self.wishes, strict=True)]
            if rank == 0:
                self.reductions += 1
            self.barrier.wait()
            return found

        return reduce

    def run(self, body):
        found, threads = {}, []
        for rank in range(len(self.wishes)):

            def call(rank=rank):
                found[rank] = body(rank)

            threads.append(threading.Thread(target=call))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        return [found[rank] for rank in range(len(self.wishes))]


def test_all_ranks_do_what_one_needs():
    ranks = Ranks(3)

    def body(rank):
        one = machine(any_rank=ranks.any_rank(rank))
        first(one)
        return step(one, results(*((NAN, NAN) if rank == 1 else (1.0, 1.0))))

    assert ranks.run(body) == [(2, (True, True, 16))] * 3
    assert ranks.reductions == 3, "one in each step, and one after the repetition"


@pytest.mark.parametrize(
    ("of_0", "of_1", "follows"),
    [
        (("transient", False), ("again", True), (True, True, 16)),
        (("transient", True), ("again", True), (True, True, 16)),
        (("again", False), ("transient", True), (False, True, 17)),
        (("again", False), ("transient", False), GO_ON),
    ],
)
def test_what_is_fatal_on_one_rank_is_not_forgiven_for_another(of_0, of_1, follows):
    ranks = Ranks(2)

    def body(rank):
        kind, fatal = (of_0, of_1)[rank]
        one = machine(any_rank=ranks.any_rank(rank))
        first(one)
        return step(one, results(NAN, NAN if kind == "again" else 1.0), fatal=fatal)[1]

    assert ranks.run(body) == [follows] * 2


@pytest.mark.parametrize("fatal", [True, False])
def test_what_another_rank_gets_in_a_repeated_run_has_to_be_usable(fatal):
    """It may be on the place now that computes wrong, or have an error of its own."""
    ranks = Ranks(2)

    def body(rank):
        forgiving = [RerunDiagnostic.TRANSIENT_ERROR]
        one = machine(any_rank=ranks.any_rank(rank), forgives=forgiving)
        first(one)
        mine = results(NAN, 1.0) if rank == 0 else results(1.0, NAN)
        return step(one, mine, fatal=fatal)[1]

    assert ranks.run(body) == [(False, True, 17) if fatal else GO_ON] * 2


def test_only_the_suspect_decides_after_a_resumption(monkeypatch):
    ranks = Ranks(2)
    saved = {}

    def before(rank):
        one = machine(any_rank=ranks.any_rank(rank))
        first(one)
        step(one, lambda: NAN if rank == 0 else 1.0)
        saved[rank] = one.state_dict()

    ranks.run(before)
    monkeypatch.setenv("LOCAL_RANK", "1")

    def after(rank):
        one = machine(any_rank=ranks.any_rank(rank))
        one.load_state_dict(saved[rank])
        follows = step(one, lambda: 1.0)
        return follows, [verdict.diagnostic for verdict in one.verdicts]

    of_0, of_1 = ranks.run(after)
    assert of_0 == ((1, (False, True, 17)), [RerunDiagnostic.PERSISTENT_ERROR])
    assert of_1 == ((1, (False, True, 17)), [])


def test_without_fatal_checks_nothing_is_reduced():
    def never(_wishes):
        raise AssertionError("a reduction")

    one = machine(fatal_checks=False, any_rank=never)
    for _ in range(3):
        first(one)


def test_without_fatal_checks_a_process_that_is_alone_runs_again():
    one = machine(fatal_checks=False)
    first(one)
    assert step(one, results(NAN, 1.0), fatal=False) == (2, GO_ON)
    assert len(one.verdicts) == 1


def test_without_fatal_checks_ranks_do_not_run_again(monkeypatch):
    monkeypatch.setattr(machine_module.torch_ranks, "is_distributed", lambda: True)
    one = machine(fatal_checks=False)
    first(one)
    assert step(one, lambda: NAN, fatal=False) == (1, GO_ON)
    assert step(one, lambda: 1.0) == (1, GO_ON)


@pytest.mark.parametrize("total", [0.0, 1.0, 2.0, NAN])
def test_the_flag_rides_on_what_the_program_reduces(total):
    reductions = []

    def reduce(mine):
        reductions.append(mine)
        return mine

    one = machine(any_rank=reduce)
    first(one)
    del reductions[:]
    runs = 0
    while one.should_run_forward_backward():
        runs += 1
        assert one.flag == 0.0
        if runs == 1:
            one.flag_reduced(total)
    assert runs == (1 if total == 0 else 2)
    assert len(reductions) == runs - 1, "only after a repetition"


# --- large numbers -------------------------------------------------------------------------------


def test_unexpectedly_large(caplog):
    caplog.set_level(logging.INFO)
    one = machine()

    def large(value, **more):
        return one.is_unexpectedly_large(value, 10.0, "loss", **more)

    assert not any(large(value, num_samples=3) for value in (1.0, -2.0, 1000.0 / 1000))
    assert "Max value for loss: 2.0" in caplog.text
    assert not large(20.0, num_samples=3)
    assert large(-20.1, num_samples=3)
    assert not large(NAN, num_samples=3)
    assert not large(math.inf, num_samples=3)
    assert not large(500.0, num_samples=1, resample=True)
    assert not large(4000.0, num_samples=1)
    assert caplog.text.count("Max value") == 2


def test_evaluation_is_not_run_again():
    one = machine()
    first(one)
    one.set_mode(RerunMode.DISABLED)
    assert step(one, lambda: NAN, fatal=False) == (1, GO_ON)
    one.set_mode(CHECK)
    assert one.get_mode() is CHECK
    assert step(one, results(NAN, 1.0)) == (2, (False, True, 17))
