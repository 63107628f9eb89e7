"""Runs beside the undisturbed one: what is equal is never red, and every difference is found."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chaos.histories import Fault, Run, fault, undisturbed
from undaunted.chaos.checker.verdict import judge
from undaunted.digests.record import Record

if TYPE_CHECKING:
    from undaunted.chaos.checker.values import Judgement

STEPS = 20
HOW = ("restart", "inside", "relaunch", "nothing")


@st.composite
def faults(draw: st.DrawFn) -> list[Fault]:
    iterations = draw(st.lists(st.integers(1, STEPS - 1), min_size=1, max_size=4, unique=True))
    found: list[Fault] = []
    for number, iteration in enumerate(sorted(iterations)):
        how = draw(st.sampled_from(HOW))
        kind = {"relaunch": "sigterm", "nothing": "slow"}.get(how, "exception")
        resume = draw(st.integers(0, iteration))
        rank = draw(st.integers(0, 1))
        one = fault(kind, iteration, rank, how=how, resume=resume, id=f"f{number}")
        found.append(one)
    return found


def reds(verdicts: list[Judgement]) -> list[str]:
    """What is red, but for a start from the beginning late in the run, which a plan may hold."""
    found = [finding for verdict in verdicts for finding in verdict.findings]
    return [f.key for f in found if f.severity == "red" and f.key != "started-anew"]


def run_of(plan: list[Fault], **options: bool) -> Run:
    return Run(steps=STEPS, **options)  # type: ignore[arg-type]


@settings(deadline=None, max_examples=60)
@given(faults(), st.booleans())
def test_a_run_that_restores_everything_is_never_red(plan: list[Fault], told: bool) -> None:
    history = run_of(plan, told=told).history(*plan)

    verdicts = judge(undisturbed(told=told), history, [one.plan for one in plan])

    assert reds(verdicts) == []
    for one, verdict in zip(plan, verdicts, strict=True):
        assert verdict.difference is None
        if one.how == "nothing":
            assert verdict.steps_lost is None
        else:
            assert verdict.resumed_at == one.resume
            assert verdict.steps_lost == one.plan.iteration - one.resume


@settings(deadline=None, max_examples=60)
@given(faults(), st.data())
def test_any_single_change_is_found(plan: list[Fault], data: st.DataObject) -> None:
    history = run_of(plan).history(*plan)
    rank = data.draw(st.sampled_from(sorted(history.records)))
    records = list(history.records[rank])
    at = data.draw(st.integers(0, len(records) - 1))
    part = data.draw(st.sampled_from(sorted(records[at].parts)))
    records[at] = changed(records[at], part)
    broken = replace(history, records={**history.records, rank: records})

    verdicts = judge(undisturbed(), broken, [one.plan for one in plan])

    keys = [finding.key for verdict in verdicts for finding in verdict.findings]
    places = {
        (v.difference.rank, v.difference.iteration, v.difference.parts)
        for v in verdicts
        if v.difference is not None
    }
    if "not-deterministic" in keys:
        return  # it was before the first fault
    if (rank, records[at].iteration, (part,)) not in places:
        # Only what was interrupted by the next fault may pass: the iteration is done again.
        assert records[at].iteration in {one.plan.iteration for one in plan}


def changed(record: Record, part: str) -> Record:
    return Record(
        record.round,
        record.iteration,
        record.at,
        record.n,
        {**record.parts, part: "changed"},
        record.counted,
        record.finite,
        record.pid,
    )


@settings(deadline=None, max_examples=40)
@given(faults(), st.lists(st.integers(0, 10_000), max_size=30))
def test_records_that_are_missing_make_nothing_red(plan: list[Fault], gone: list[int]) -> None:
    plan = [one for one in plan if one.how != "inside"]  # known by the records alone
    history = run_of(plan).history(*plan)
    records = {
        rank: [record for n, record in enumerate(of_rank) if n not in gone]
        for rank, of_rank in history.records.items()
    }
    verdicts = judge(undisturbed(), replace(history, records=records), [one.plan for one in plan])

    reds = {f.key for v in verdicts for f in v.findings if f.severity == "red"}
    assert reds <= {"ranks-resume-apart", "started-anew"}


def test_records_that_were_cut_short_by_a_kill() -> None:
    one = fault(iteration=12, resume=10)
    history = Run().history(one)
    cut = [r for r in history.records[1] if not (r.round == 0 and r.iteration >= 11)]

    [verdict] = judge(
        undisturbed(), replace(history, records={0: history.records[0], 1: cut}), [one.plan]
    )

    assert (verdict.colour, verdict.identical_from, verdict.steps_lost) == ("green", 10, 2)


def test_without_process_ids_rounds_tell_starts_apart() -> None:
    plan = [fault(iteration=8, id="a"), fault("sigterm", iteration=15, id="b")]
    history = Run().history(*plan)
    records = {
        rank: [
            Record(r.round, r.iteration, r.at, r.n, r.parts, r.counted, r.finite) for r in of_rank
        ]
        for rank, of_rank in history.records.items()
    }

    verdicts = judge(undisturbed(), replace(history, records=records), [one.plan for one in plan])

    assert [v.colour for v in verdicts] == ["green", "green"]
    assert [v.identical_from for v in verdicts] == [5, 15]


def test_what_was_recorded_before_the_first_step_is_not_compared() -> None:
    def with_setup(history: object, digests: tuple[str, ...]) -> object:
        from undaunted.chaos.history import History

        assert isinstance(history, History)
        records = {}
        for rank, of_rank in history.records.items():
            found: list[Record] = []
            for record in of_rank:
                if not found or found[-1].pid != record.pid:
                    digest = digests[min(record.round, 1)]
                    setup = Record(
                        record.round, -1, "forward", 0, {"parameters": digest}, pid=record.pid
                    )
                    found.append(setup)
                found.append(record)
            records[rank] = found
        return replace(history, records=records)

    one = fault()
    reference = with_setup(undisturbed(), ("p0", "p0"))

    [verdict] = judge(reference, with_setup(Run().history(one), ("p0", "p10")), [one.plan])  # type: ignore[arg-type]

    assert (verdict.colour, verdict.resumed_at, verdict.identical_from) == ("green", 10, 10)
