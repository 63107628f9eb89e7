"""What ranks that save and load together are told, and what comes back to each of them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests import warm
from tests.checkpointing import together_program
from tests.checkpointing.together_program import LAYOUTS, ranks_of
from tests.said import lines_of

ROOT = Path(__file__).parents[2]
DEADLINE_S = 300.0
# Every layout loads what the one before it has saved; with ALL_LAYOUTS=1 what each of them has.
ALL = os.environ.get("ALL_LAYOUTS") == "1"

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.timeout(4 * DEADLINE_S)]

Outcomes = dict[str, list[Any]]


def run(folder: Path, world_size: int, *scenarios: str) -> Outcomes:
    """Run ranks; return for each scenario what each rank has said."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("UNDAUNTED")}
    environment |= {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "OMP_NUM_THREADS": "1"}
    # torch does not remove it after all programs, and a later one would look for the ranks there.
    folder.joinpath(f"store-{world_size}").unlink(missing_ok=True)
    words = [str(world_size), str(folder), *scenarios]
    ranks = [
        warm.Popen(
            [sys.executable, "-m", together_program.__name__, str(rank), *words],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    try:
        outputs = [rank.communicate(timeout=DEADLINE_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    said: Outcomes = {}
    for out, _ in outputs:
        for name, outcome in map(json.loads, lines_of(out)):
            said.setdefault(name, []).append(outcome)
    assert [len(said.get(name, ())) for name in scenarios] == [world_size] * len(scenarios), outputs
    return said


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("together")


@pytest.fixture(scope="module")
def of_two(folder: Path) -> Outcomes:
    return run(
        *(folder, 2, "experts", "loaders", "large_and_long", "equal_in_other_words", "buffers"),
        "certified",
        "of_other_kinds",
        *("warned", "save_own", "load_own", "parts_alone"),
        *("packed_shards", "own_parts", "lists", "own_on_one_rank"),
    )


@pytest.fixture(scope="module")
def of_four(folder: Path) -> Outcomes:
    return run(folder, 4, "experts_of_groups", "pipeline")


def assert_refused(outcome: str, *names: str) -> None:
    assert outcome.startswith("StateError: ")
    assert "PerRank" in outcome
    for name in names:
        assert f"{name} differs between rank" in outcome


def test_parameters_of_one_name_that_differ_are_refused(of_two: Outcomes) -> None:
    for (outcome,) in of_two["experts"]:
        assert_refused(outcome, "experts.0.weight", "experts.1.weight")
        assert "rank 0 and rank 1" in outcome


def test_objects_that_come_to_differ_are_refused_until_they_are_the_same(of_two: Outcomes) -> None:
    for first, later, again in of_two["loaders"]:
        assert (first, again) == ("", "")
        assert_refused(later, "data.position")


def test_long_tensors_with_the_same_values_in_another_order_are_refused(of_two: Outcomes) -> None:
    for swapped, same in of_two["large_and_long"]:
        assert_refused(swapped, "x")
        assert same == ""


def test_tensors_that_are_made_of_others_are_compared(of_two: Outcomes) -> None:
    for same, *different in of_two["of_other_kinds"]:
        assert same == ""
        names = ["packed", "sparse", "quantized", "scale", "in a tuple", "slice"]
        for outcome, name in zip(different, names, strict=True):
            assert_refused(outcome, name)


def test_lists_of_other_lengths_are_refused(of_two: Outcomes) -> None:
    for refused, not_refused in of_two["lists"]:
        assert not_refused == ["", ""]
        for outcome in refused:
            assert outcome.startswith("StateError: ")
            assert "m.all has 1 entry on rank 0, 2 entries on rank 1" in outcome
            assert "PerRank" in outcome


def test_a_value_of_its_own_on_one_rank_only_is_refused(of_two: Outcomes) -> None:
    for refused, not_refused in of_two["own_on_one_rank"]:
        assert not_refused == [""]
        for outcome in refused:
            assert outcome.startswith("StateError: ")
            assert "m.x is a PerRank on rank 1, and something else on rank 0" in outcome


def test_values_that_are_equal_are_saved_however_they_are_pickled(of_two: Outcomes) -> None:
    assert of_two["equal_in_other_words"] == [["", "", ""]] * 2


def test_buffers_that_differ_are_saved_with_one_warning(of_two: Outcomes) -> None:
    first, second = of_two["buffers"]
    assert first["outcome"] == second["outcome"] == ["", ""]
    assert first["plain"] == second["plain"] == [""]
    of_model, of_dictionary = first["heard"]
    assert "model.seen differs" in of_model
    assert "model.0.running_mean differs" in of_model
    assert of_dictionary.startswith("running_mean differs")
    assert second["heard"] == []


def test_replicas_are_compared_at_every_so_many_saves(of_two: Outcomes) -> None:
    for outcomes, certified in of_two["certified"]:
        wrong = {at + 1: text for at, text in enumerate(outcomes) if text}
        assert list(wrong) == [4]
        assert "model.0.weight differs between rank 0 and rank 1" in wrong[4]
        assert "running_mean" not in wrong[4]
        assert {int(name[-1]): one for name, one in certified.items()} == {
            0: False,  # shards
            **dict.fromkeys((1, 3, 6), False),
            **dict.fromkeys((2, 5, 7), True),  # the one that failed is made up for
        }


def test_who_wants_only_a_warning_gets_it_once(of_two: Outcomes) -> None:
    first, second = of_two["warned"]
    assert first["outcome"] == second["outcome"] == ["", "", ""]
    (line,) = first["heard"]
    assert "x differs" in line
    assert "n differs" in line
    assert second["heard"] == []


def test_what_some_ranks_have_in_common_is_compared_among_them(of_four: Outcomes) -> None:
    for whole, again, other in of_four["pipeline"]:
        assert (whole, again) == ("", "")
        assert_refused(other, "stage 0.epoch", "stage 1.epoch")
        assert "own" not in other


def test_shards_of_one_name_on_other_ranks_that_differ_are_refused(of_four: Outcomes) -> None:
    for (outcome,) in of_four["experts_of_groups"]:
        assert_refused(outcome, "expert")
        assert "same differs" not in outcome


def test_each_rank_gets_its_own_back(of_two: Outcomes) -> None:
    assert of_two["save_own"] == [["", ""]] * 2
    for rank, outcome in enumerate(of_two["load_own"]):
        same = dict.fromkeys(("data", "expert", "optimizer", "list"), True)
        assert outcome == {"step": 1, "number": rank, "large": rank, "heard": [], **same}


def test_ranks_that_were_not_there_keep_what_they_have_and_say_so(
    of_two: Outcomes, folder: Path
) -> None:
    assert of_two["save_own"] == [["", ""]] * 2
    *there, new = run(folder, 3, "load_own")["load_own"]
    assert [one["number"] for one in there] == [0, 1]
    assert all(one["data"] and one["optimizer"] and not one["heard"] for one in there)
    assert (new["number"], new["large"], new["optimizer"]) == (-1, -1, False)
    assert len(new["heard"]) == 4
    assert all("no state of rank 2" in line and "ranks 0-1" in line for line in new["heard"])


def test_states_of_ranks_that_are_gone_are_named(of_two: Outcomes, folder: Path) -> None:
    assert of_two["save_own"] == [["", ""]] * 2
    (only,) = run(folder, 1, "load_own")["load_own"]
    assert only["data"]
    assert only["number"] == 0
    assert len(only["heard"]) == 4
    assert all("rank 1" in line and "fewer ranks" in line for line in only["heard"])


def test_a_part_of_a_tensor_is_not_saved_or_loaded_for_the_whole(of_two: Outcomes) -> None:
    for save, load in of_two["parts_alone"]:
        assert save.startswith("StateError: model.weight is not whole")
        assert "8 of 16" in save
        if not load.startswith("torch saves no part"):
            assert load.startswith("DamagedCheckpointError: ")
            assert "model.weight is not whole" in load


def test_shards_of_a_class_of_their_own_come_back_as_such(of_two: Outcomes, folder: Path) -> None:
    for rank, outcome in enumerate(of_two["packed_shards"]):
        mine = [2.0 * rank, 2.0 * rank + 1]
        parts = [mine, [one + 10 for one in mine]]
        assert outcome == ["", "", "DTensor", "TwoTensor", parts]
    ((refused, kind, _, _),) = run(folder, 1, "packed_shards")["packed_shards"]
    assert "w was saved as TwoTensor" in refused
    assert kind == "DTensor"


@pytest.mark.skipif(
    not importlib.util.find_spec("torch.distributed.checkpoint.protocol"),
    reason="this torch has no CheckpointableTensor",
)
def test_tensors_of_which_attributes_say_the_parts(folder: Path) -> None:
    assert run(folder, 2, "attributes")["attributes"] == [[True] * 9] * 2


def test_tensors_that_say_themselves_which_parts_they_have(of_two: Outcomes) -> None:
    assert of_two["own_parts"] == [[True] * 9] * 2


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_job_starts_again_in_another_layout(folder: Path) -> None:
    names = list(LAYOUTS)
    wrong: dict[str, Any] = {}
    for layout, before in [*zip(names, [[], *([one] for one in names)], strict=False)]:
        others = names[: names.index(layout)] if ALL else before
        wrong |= resumed_in(folder, layout, others)
    # What is saved in the last layouts is loaded in the first ones.
    for layout in names if ALL else names[:1]:
        others = names[names.index(layout) + 1 :] if ALL else names[-1:]
        wrong |= resumed_in(folder, layout, others)
    assert wrong == {}


def resumed_in(folder: Path, layout: str, others: list[str]) -> dict[str, Any]:
    """Start a layout, which loads what others have saved; what has gone wrong, by rank."""
    scenario = ",".join(("in_layout", layout, *others))
    outcomes = run(folder, ranks_of(layout), scenario)[scenario]
    return {scenario: outcomes} if any(outcomes) else {}
