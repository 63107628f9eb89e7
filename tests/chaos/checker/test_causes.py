"""What usually causes a difference: each row of the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from tests.chaos.histories import Moment, Parts, Run, fault, parts_of, undisturbed
from undaunted.chaos.checker.verdict import judge
from undaunted.chaos.output import words
from undaunted.digests.record import FORWARD, STEP, UPDATE

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.chaos.checker.values import Judgement
    from undaunted.chaos.history import History
    from undaunted.digests.record import Record

Change = "Callable[[Moment, Parts], Parts]"


def differing(
    change: Callable[[Moment, Parts], Parts], world: int = 2, **options: object
) -> Judgement:
    one = fault(iteration=12, resume=10)
    run = Run(change=lambda m, p: change(m, p) if m.start else p, world=world, **options)  # type: ignore[arg-type]
    reference = undisturbed(world=world, **options)
    return judge(reference, run.history(one), [one.plan])[0]


def cause_of(change: Callable[[Moment, Parts], Parts], **options: object) -> str:
    verdict = differing(change, **options)  # type: ignore[arg-type]
    assert verdict.identical_from is None
    assert verdict.difference is not None
    [finding] = verdict.findings
    assert finding.remedy
    return finding.key


def replacing(at: str, **values: Callable[[Moment], str]) -> Callable[[Moment, Parts], Parts]:
    """From the first such moment on, ``values`` instead of what should be there."""

    def change(moment: Moment, parts: Parts) -> Parts:
        if moment.at == at:
            for name, value in values.items():
                parts[name] = value(moment)
        return parts

    return change


def as_of(iteration_of: Callable[[int], int], *names: str) -> Callable[[Moment, Parts], Parts]:
    """``names`` as in the undisturbed run at another iteration."""

    def change(moment: Moment, parts: Parts) -> Parts:
        there = parts_of(moment.rank, iteration_of(moment.iteration), moment.at)
        return {**parts, **{n: d for n, d in there.items() if n.rpartition(".")[2] in names}}

    return change


def other(*names: str, at: str = FORWARD) -> Callable[[Moment, Parts], Parts]:
    """``names`` as they never were."""
    return replacing(at, **{name: lambda moment: f"x{moment.iteration}" for name in names})


def test_random_state_as_at_the_beginning() -> None:
    verdict = differing(as_of(lambda i: i - 10, "rng"))

    [finding] = verdict.findings
    assert (verdict.colour, finding.key) == ("yellow", "rng-not-restored")
    assert finding.text.startswith(
        "On ranks 0-1 at step 10, right after the restart, the random state (rng) is that of the "
        "very beginning"
    )
    assert "torch.set_rng_state" in finding.remedy
    assert verdict.difference is not None
    assert verdict.difference.parts == ("rng",)
    assert verdict.difference.equals == {"rng": 0}


def moves_once_an_epoch(moment: Moment, parts: Parts) -> Parts:
    """Nothing is drawn in a step: only making an iterator, every ten steps, moves the state."""
    return {**parts, "rng": f"epoch {moment.iteration // 10}"} if "rng" in parts else parts


def judged_beside_epochs(
    change: Callable[[Moment, Parts], Parts], world: int = 2, resume: int = 15
) -> Judgement:
    """The verdict about a run in which making the iterator again moves the state once more."""

    def twice(moment: Moment, parts: Parts) -> Parts:
        moved = moves_once_an_epoch(moment, parts)
        if not moment.start:
            return moved
        further = f"epoch {moment.iteration // 10 + 2}"
        return change(moment, {**moved, "rng": further} if "rng" in parts else moved)

    one = fault(iteration=resume + 2, resume=resume)
    reference = undisturbed(world=world, change=moves_once_an_epoch)
    return judge(reference, Run(world=world, change=twice).history(one), [one.plan])[0]


def test_random_state_from_which_nothing_follows() -> None:
    verdict = judged_beside_epochs(lambda _, parts: parts)

    [finding] = verdict.findings
    assert (verdict.colour, finding.key) == ("yellow", "rng-not-restored")
    assert "torch.set_rng_state" in finding.remedy
    assert words.identical(verdict) == "all but rng"


@pytest.mark.parametrize(("world", "colour"), [(2, "red"), (3, "yellow")])
def test_random_state_does_not_hide_gradients_that_do_not_follow_from_it(
    world: int, colour: str
) -> None:
    verdict = judged_beside_epochs(other("gradients", "parameters", at=UPDATE), world)

    assert verdict.colour == colour
    keys = [(finding.key, finding.severity) for finding in verdict.findings]
    assert keys == [("computation-differs", colour), ("rng-not-restored", "yellow")]
    assert verdict.difference is not None
    assert verdict.difference.parts == ("parameters", "gradients")
    assert words.identical(verdict) == "no: parameters, gradients"
    assert ("find_unused_parameters=True" in verdict.findings[0].remedy) == (world > 2)


def test_the_last_step_of_an_epoch_does_not_draw_what_the_next_iterator_draws() -> None:
    change = other("gradients", "parameters", at=UPDATE)

    verdict = judged_beside_epochs(change, world=3, resume=9)

    assert verdict.colour == "yellow"
    assert [one.key for one in verdict.findings] == ["computation-differs", "rng-not-restored"]


def test_gradients_that_may_follow_from_the_random_state() -> None:
    wrong = as_of(lambda i: i - 10, "rng")
    gradients = other("gradients", "parameters", at=UPDATE)

    verdict = differing(lambda m, p: gradients(m, wrong(m, p)), world=3)

    [finding] = verdict.findings
    assert (verdict.colour, finding.key) == ("red", "rng-not-restored")


def test_a_damaged_checkpoint_that_was_loaded() -> None:
    one = fault("corrupt-checkpoint", iteration=12, resume=10)
    change = other("parameters")
    run = Run(change=lambda m, p: change(m, p) if m.start else p)

    [verdict] = judge(undisturbed(), run.history(one), [one.plan])

    assert (verdict.colour, verdict.findings[0].key) == ("red", "damage-not-noticed")


@pytest.mark.parametrize("part", ["scheduler", "average", "scaler"])
def test_state_beside_model_and_optimizer(part: str) -> None:
    def beside(m: Moment, parts: Parts) -> Parts:
        return {**parts, part: f"{part}{m.iteration}"} if m.at == FORWARD else parts

    def anew(m: Moment, parts: Parts) -> Parts:
        begun = m.iteration - 10 if m.start else m.iteration
        return {**parts, part: f"{part}{begun}"} if m.at == FORWARD else parts

    one = fault(iteration=12, resume=10)
    reference = undisturbed(change=beside)

    [sound] = judge(reference, Run(change=beside).history(one), [one.plan])
    [verdict] = judge(reference, Run(change=anew).history(one), [one.plan])

    assert sound.colour == "green"
    [finding] = verdict.findings
    assert (verdict.colour, finding.key) == ("red", f"{part}-not-restored")
    assert f"{part}.load_state_dict(" in finding.remedy


def test_random_state_and_what_is_drawn_from_it() -> None:
    [finding] = differing(as_of(lambda i: i - 10, "rng", "data"), told=False).findings

    assert finding.key == "rng-not-restored"
    assert "and so is what was drawn from it: the data" in finding.text


def test_random_state_as_at_the_beginning_and_data_of_another_step() -> None:
    def both(moment: Moment, parts: Parts) -> Parts:
        begun = as_of(lambda i: i - 10, "rng")(moment, parts)
        return as_of(lambda i: i - 3, "data")(moment, begun)

    [finding] = differing(both, told=False).findings

    assert finding.key == "rng-not-restored"
    assert "drawn from it" not in finding.text
    assert "The data is that of step 7: batches are skipped" in finding.text
    assert "torch.set_rng_state" in finding.remedy
    assert "sampler.set_epoch" in finding.remedy


def test_random_state_as_never() -> None:
    assert cause_of(other("rng")) == "rng-not-restored"


def test_random_state_of_another_rank() -> None:
    def first_ranks(moment: Moment, parts: Parts) -> Parts:
        return {**parts, "rng": parts_of(0, moment.iteration, moment.at).get("rng", "")}

    verdict = differing(first_ranks)

    assert verdict.findings[0].key == "rng-of-another-rank"
    assert verdict.findings[0].text.startswith("On rank 1 at step 10")
    assert verdict.difference is not None
    assert verdict.difference.ranks == (1,)
    assert "that of rank 0" in verdict.findings[0].text


def test_random_state_of_another_step() -> None:
    assert cause_of(as_of(lambda i: i - 1, "rng")) == "rng-of-another-step"


@pytest.mark.parametrize("further", [2, -5])
def test_data_at_another_position_whose_iterator_draws(further: int) -> None:
    """The random state was saved at the right moment; making an iterator has moved it on."""
    drawn, data = as_of(lambda i: i + 3, "rng"), as_of(lambda i: i + further, "data")

    [finding] = differing(lambda m, p: data(m, drawn(m, p)), told=False).findings

    assert finding.key == "data-at-another-position"
    assert f"that of step {10 + further}" in finding.text
    assert "another moment" not in finding.text
    assert "something drew from it after it was restored" in finding.text
    assert "sampler.set_epoch" in finding.remedy


def test_data_in_another_order_whose_iterator_draws() -> None:
    drawn, data = as_of(lambda i: i + 3, "rng"), other("data")

    assert cause_of(lambda m, p: data(m, drawn(m, p)), told=False) == "data-order-not-restored"


def test_random_state_that_something_has_moved_on() -> None:
    verdict = differing(as_of(lambda i: i + 3, "rng"))

    [finding] = verdict.findings
    assert finding.key == "rng-not-restored"
    assert "that of step 13" in finding.text
    assert "making the iterator" in finding.text


def in_updates_of_two_steps(moment: Moment, parts: Parts) -> Parts:
    """Gradients of two steps are added up; the model is looked at once for each update."""
    if moment.at == FORWARD and moment.iteration % 2 and not moment.fresh:
        return {"data": parts["data"], "rng": parts["rng"]}
    return {} if moment.at == UPDATE and not moment.iteration % 2 else parts


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize(
    ("resume", "key"), [(11, "accumulated-gradients-not-saved"), (10, "computation-differs")]
)
def test_a_checkpoint_between_two_steps_of_an_update(resume: int, key: str, world: int) -> None:
    lost = other("gradients", "parameters", at=UPDATE)

    def change(moment: Moment, parts: Parts) -> Parts | None:
        kept = in_updates_of_two_steps(moment, parts)
        return (lost(moment, kept) if moment.start and kept else kept) or None

    one = fault(iteration=13, resume=resume)
    reference = undisturbed(world=world, told=False, change=change)
    run = Run(world=world, told=False, change=change)
    [finding] = judge(reference, run.history(one), [one.plan])[0].findings
    assert finding.key == key
    if resume == 11:
        assert finding.severity == "red"
        assert "Save after an update" in finding.remedy


def test_sampler_that_starts_anew() -> None:
    verdict = differing(as_of(lambda i: i - 10, "data"))

    assert verdict.findings[0].key == "sampler-starts-anew"
    assert "very first batch" in verdict.findings[0].text


def test_sampler_that_starts_anew_and_draws() -> None:
    change = as_of(lambda i: i - 10, "data")
    drawn = other("rng")

    assert cause_of(lambda m, p: drawn(m, change(m, p))) == "sampler-starts-anew"


def test_iterator_made_after_the_random_state_was_restored() -> None:
    assert cause_of(other("rng", "data")) == "iterator-made-after-restore"


def test_data_at_another_position() -> None:
    verdict = differing(as_of(lambda i: i + 2, "data"))

    assert verdict.findings[0].key == "data-at-another-position"
    assert "that of step 12" in verdict.findings[0].text


def test_data_of_another_rank() -> None:
    def swapped(moment: Moment, parts: Parts) -> Parts:
        there = parts_of(1 - moment.rank, moment.iteration, moment.at)
        return {**parts, **{name: there[name] for name in ("data",) if name in there}}

    assert cause_of(swapped) == "data-of-another-rank"


def test_data_in_another_order() -> None:
    assert cause_of(other("data")) == "data-order-not-restored"


def test_data_in_another_order_in_the_next_epoch() -> None:
    change = other("data")

    assert cause_of(lambda m, p: change(m, p) if m.iteration >= 15 else p) == "data-order-later"


def test_model_that_is_not_loaded() -> None:
    change = as_of(lambda i: i - 10, "parameters", "buffers", "optimizer")

    assert cause_of(change) == "checkpoint-not-loaded"
    assert cause_of(change, told=False) == "checkpoint-not-loaded"


def test_model_that_is_not_loaded_by_a_script_that_does_not_tell_its_steps() -> None:
    change = as_of(lambda i: i - 10, "parameters", "buffers", "optimizer", "gradients")

    assert cause_of(change, counted=True, told=False) == "checkpoint-not-loaded"


def test_random_state_of_python_alone() -> None:
    def change(moment: Moment, parts: Parts) -> Parts:
        if moment.at == FORWARD:
            parts["random.rng"] = f"y{moment.iteration - (10 if moment.start else 0)}"
            parts["data"] += "x" if moment.start else ""
        return parts

    reference = undisturbed(change=change, told=False)
    one = fault(iteration=12, resume=10)
    [verdict] = judge(reference, Run(change=change, told=False).history(one), [one.plan])

    [finding] = verdict.findings
    assert finding.key == "rng-not-restored"
    assert "the random state of random is that of the very beginning" in finding.text


def test_further_model_that_is_not_loaded() -> None:
    def record(history: History, of: Callable[[Record], int]) -> None:
        for records in history.records.values():
            assert isinstance(records, list)
            for place, one in reversed(list(enumerate(records))):
                if one.at == UPDATE:
                    parts = {"parameters": f"other-{of(one)}"}
                    records.insert(place, structs.replace(one, at=FORWARD, n=1, parts=parts))

    one = fault(iteration=12, resume=10)
    reference, history = undisturbed(), Run().history(one)
    record(reference, lambda record: record.iteration)
    record(history, lambda record: record.iteration - (10 if record.round else 0))
    [verdict] = judge(reference, history, [one.plan])

    [finding] = verdict.findings
    assert finding.key == "checkpoint-not-loaded"
    assert "of a further model" in finding.text


def test_counter_and_parameters_of_different_checkpoints() -> None:
    verdict = differing(as_of(lambda i: i - 1, "parameters"))

    assert verdict.findings[0].key == "counter-and-parameters-apart"
    assert "those of step 9" in verdict.findings[0].text
    assert "off by 1" in verdict.findings[0].text


def test_parameters_as_never() -> None:
    assert cause_of(other("parameters"), told=False) == "parameters-differ"


def test_parameters_as_never_of_a_script_that_does_not_tell_its_steps() -> None:
    change = replacing(FORWARD, parameters=lambda moment: f"x{moment.iteration}")
    verdict = differing(change, counted=True, told=False)

    assert [finding.key for finding in verdict.findings] == ["parameters-unknown"]
    assert verdict.difference is not None
    assert verdict.difference.iteration == -1
    assert verdict.resumed_at is None


def test_buffers() -> None:
    assert cause_of(other("buffers")) == "buffers-not-restored"


def test_optimizer_seen_by_its_update() -> None:
    change = other("parameters", "optimizer", at=UPDATE)
    verdict = differing(change)

    assert verdict.findings[0].key == "optimizer-not-restored"
    assert (
        "the same gradients on the same parameters gave another update" in verdict.findings[0].text
    )


def test_optimizer_that_the_script_shows() -> None:
    def shows(moment: Moment, parts: Parts) -> Parts:
        if moment.at == STEP:
            parts["model.optimizer"] = "o0" if moment.start else f"o{moment.iteration}"
        return parts

    one = fault()
    reference = Run(change=shows, name="undisturbed").history()
    [verdict] = judge(reference, Run(change=shows).history(one), [one.plan])

    assert verdict.findings[0].key == "optimizer-not-restored"
    assert "those of the very beginning" in verdict.findings[0].text


def test_what_the_script_names_itself() -> None:
    def shows(moment: Moment, parts: Parts) -> Parts:
        if moment.at == STEP:
            parts["ema\x1b"] = "e0" if moment.start else f"e{moment.iteration}"
        return parts

    one = fault()
    reference = Run(change=shows, name="undisturbed").history()
    [verdict] = judge(reference, Run(change=shows).history(one), [one.plan])

    assert verdict.findings[0].key == "state-not-restored"
    assert "'ema\\x1b' is as at the very beginning" in verdict.findings[0].text


@pytest.mark.parametrize(("world", "colour"), [(2, "red"), (3, "yellow")])
def test_gradients_alone(world: int, colour: str) -> None:
    verdict = differing(other("gradients", "parameters", at=UPDATE), world)

    assert (verdict.colour, verdict.findings[0].key) == (colour, "computation-differs")
    assert ("DistributedDataParallel" in verdict.findings[0].text) == (world > 2)


def test_parameters_that_differ_later_for_no_reason_that_was_recorded() -> None:
    change = other("parameters")

    assert cause_of(lambda m, p: change(m, p) if m.iteration > 12 else p, told=False) == (
        "computation-differs"
    )
