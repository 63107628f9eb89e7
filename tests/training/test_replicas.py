"""Replicas that should be alike: who is named, by which votes, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - needs torch

from tests.training.gloo_ranks import DEADLINE_S, run  # noqa: E402
from undaunted.base import torch_ranks  # noqa: E402
from undaunted.training import Difference, Replicas, ReplicasDifferError  # noqa: E402
from undaunted.training.replicas import vote  # noqa: E402

PROGRAM = Path(__file__).with_name("replicas_program.py")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(DEADLINE_S + 30)]

A, B, C = b"a", b"b", b"c"


def votes(*digests: list[bytes]) -> list[Difference]:
    """Vote about tensors x and y on ranks 10, 11, ..., of which each gives its digests."""
    ranks = range(10, 10 + len(digests))
    return vote(5, ranks, ("x", "y"), digests, [f"n{rank}" for rank in ranks])


def test_all_alike() -> None:
    assert votes([A, B], [A, B], [A, B]) == []
    assert votes([A, B]) == []


def test_the_one_that_differs_from_most_is_named() -> None:
    (one,) = votes([A, B], [A, B], [A, C], [A, B])
    assert one == Difference(5, (10, 11, 12, 13), ("y",), (12,), ("n12",))
    assert str(one) == "rank 12 on n12 holds something else than most of 4 replicas in y"


def test_two_that_differ_from_each_other() -> None:
    (one,) = votes([A, B], [C, B])
    assert (one.names, one.guilty) == (("x",), ())
    assert str(one) == "ranks 10, 11 differ in x; it is not known which of them is wrong"


def test_half_of_them_is_not_most() -> None:
    (one,) = votes([A, B], [A, B], [C, B], [C, B])
    assert not one.guilty


def test_votes_are_about_each_tensor_alone() -> None:
    """No whole replica is right in the eyes of most, and yet the wrong ones are known."""
    found = votes([C, B], [A, C], [A, B])
    assert [(one.names, one.guilty) for one in found] == [(("x",), (10,)), (("y",), (11,))]


def test_several_ranks_that_are_wrong_in_the_same_tensors_are_named_together() -> None:
    (one,) = votes([C, C], [A, B], [B, A], [A, B], [A, B])
    assert (one.names, one.guilty) == (("x", "y"), (10, 12))


def test_many_names_are_cut_in_the_message() -> None:
    names = tuple(f"p{number}" for number in range(20))
    assert str(Difference(0, (0, 1), names, (), ())).count("p") == 8
    assert "and 12 more" in str(Difference(0, (0, 1), names, (), ()))


def test_without_other_ranks_nothing_differs() -> None:
    heard: list[Any] = []
    Replicas(nn.Linear(2, 2), every=1, on_difference=heard.append)(0)
    assert heard == []


def test_only_steps_that_are_due_are_compared() -> None:
    asked: list[int] = []
    replicas = Replicas(lambda: asked.append(1) or {}, every=3)  # type: ignore[func-returns-value]
    for iteration in range(7):
        replicas(iteration)
    assert len(asked) == 3


def test_who_wants_to_hear_of_it_is_told_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {32: lambda own: [own, own[:16] + bytes(16)], 16: lambda own: [own, bytes(16)]}
    monkeypatch.setattr(torch_ranks, "gather_bytes", lambda data, _group: answers[len(data)](data))
    monkeypatch.setattr(
        torch_ranks, "gather", lambda one, *_: [one, "other"] if isinstance(one, str) else [one]
    )
    monkeypatch.setattr(torch_ranks, "members", lambda _group: [0, 1])
    heard: list[Any] = []
    weight = {"weight": torch.ones(3)}
    Replicas(lambda: weight, on_difference=heard.append).check(4)
    (((one),),) = heard
    assert (one.iteration, one.names, one.guilty) == (4, ("weight",), ())
    with pytest.raises(ReplicasDifferError, match="after iteration 4 ranks 0, 1 differ in weight"):
        Replicas(lambda: weight).check(4)


def test_a_bad_interval_and_modules_that_do_not_say_what_they_hold_are_refused() -> None:
    with pytest.raises(ValueError, match="every is 0"):
        Replicas(nn.Linear(2, 2), every=0)
    from torch.distributed.fsdp import FullyShardedDataParallel

    with pytest.raises(ValueError, match="fully_shard"):
        Replicas(FullyShardedDataParallel.__new__(FullyShardedDataParallel))


@pytest.mark.e2e
def test_the_corrupted_rank_of_four_is_named_100_of_100_times(tmp_path: Path) -> None:
    for said in run(PROGRAM, 4, tmp_path, "corrupt"):
        assert said["named"] == 100, said


@pytest.mark.e2e
def test_two_replicas_differ_but_it_is_not_known_which(tmp_path: Path) -> None:
    for said in run(PROGRAM, 2, tmp_path, "corrupt"):
        assert "not known which" in said["example"]


@pytest.mark.e2e
def test_sharded_state_is_compared_where_it_is_replicated(tmp_path: Path) -> None:
    everyone = run(PROGRAM, 6, tmp_path, "hybrid")
    for said in everyone:
        assert said["named"] == [[list(range(who % 2, 6, 2)), [who]] for who in range(6)]


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("task", "text"),
    [("sharded", "no two ranks hold the same part of 0.weight"), ("uneven", "different names")],
)
def test_what_has_no_replica_is_refused(tmp_path: Path, task: str, text: str) -> None:
    for said in run(PROGRAM, 2, tmp_path, task):
        assert text in said["refused"]


def test_what_is_no_tensor_with_content_is_refused() -> None:
    with pytest.raises(ValueError, match="every is '3'"):
        Replicas(nn.Linear(2, 2), every="3")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="give a module"):
        Replicas({"one": torch.ones(2)})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="one is a list"):
        Replicas(lambda: {"one": [1.0]}).check(0)  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="device meta"):
        Replicas(nn.Linear(2, 2, device="meta")).check(0)


@pytest.mark.e2e
def test_all_ranks_hear_what_some_have_found(tmp_path: Path) -> None:
    everyone = run(PROGRAM, 4, tmp_path, "groups")
    assert all(said == everyone[0] for said in everyone)
    said = everyone[0]
    assert said["pairs"] == [[[2, 3], ["x"], []]]
    assert said["three"] == [[[0, 1, 2], ["x"], [1]]]
    for name in ("empty", "gradient"):
        assert "rank 0 has" in said[name], said
        assert "rank 1 has" in said[name], said
    assert said["no_gradients"] == []


@pytest.mark.e2e
def test_training_keeps_replicas_and_reduced_gradients_alike(tmp_path: Path) -> None:
    assert run(PROGRAM, 3, tmp_path, "alike") == [{"done": True}] * 3
