"""Where a process begins whose script does not tell."""

from __future__ import annotations

from undaunted.digests.past import Past
from undaunted.digests.record import FORWARD, STEP, UPDATE, Record


def begun(iteration: int, parameters: str, data: str = "x", *, counted: bool = True) -> Record:
    parts = {"data": data, "parameters": parameters}
    return Record(0, iteration, FORWARD, 0, parts, counted=counted)


def unknown() -> str:
    return "?"


def test_nothing_is_known_of_the_first_process() -> None:
    past = Past(())
    assert not past.counted
    assert past.iteration_of({"parameters": "a"}, unknown) is None


def test_the_iteration_is_the_one_that_began_with_these_parameters() -> None:
    updated = Record(0, 7, UPDATE, 0, {"parameters": "c"}, counted=True)
    past = Past([begun(5, "a"), begun(6, "b"), updated])
    assert past.counted
    assert past.iteration_of({"parameters": "b", "data": "y"}, unknown) == 6
    assert past.iteration_of({"parameters": "c", "data": "x"}, unknown) is None


def test_a_process_that_saved_and_left_has_not_begun_the_next_iteration() -> None:
    updated = Record(0, 7, UPDATE, 0, {"parameters": "u"}, counted=True)
    past = Past([begun(6, "a"), begun(7, "b"), updated])
    assert past.iteration_of({"parameters": "c"}, lambda: "u") == 8
    assert past.iteration_of({"parameters": "b"}, lambda: "u") == 7


def test_further_models_of_an_iteration_do_not_tell() -> None:
    further = Record(0, 7, FORWARD, 1, {"parameters": "c"}, counted=True)
    assert Past([begun(7, "b"), further]).iteration_of({"parameters": "c"}, unknown) is None


def test_of_several_it_is_the_one_most_alike_and_the_latest() -> None:
    past = Past([begun(0, "a", "x"), begun(1, "a", "y"), begun(2, "a", "z")])
    assert past.iteration_of({"parameters": "a", "data": "x"}, unknown) == 0
    assert past.iteration_of({"parameters": "a", "data": "other"}, unknown) == 2


def test_a_script_that_counts_is_known_to() -> None:
    told = Record(0, 3, STEP, 0, {"rng": "r"})
    assert not Past([begun(1, "a"), begun(2, "b"), told]).counted
    assert not Past([begun(1, "a", counted=False)]).counted
