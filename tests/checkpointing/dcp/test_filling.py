from __future__ import annotations

import copy
import pickle
import threading
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch

from tests.checkpointing.dcp.saved import Folder, manifest_of, save
from tests.checkpointing.dcp.test_loading import read
from tests.checkpointing.dcp.test_reader import in_parts
from tests.checkpointing.dcp.test_saving import assert_same
from undaunted.agreement.agreement import Agreement
from undaunted.checkpointing.dcp.loading import load
from undaunted.checkpointing.errors import AGREED, CheckpointError, StructureError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


class Sampler:
    def __init__(self, seen: Any) -> None:
        self.seen = seen

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


class Keeper:
    kept: Any = None

    def state_dict(self) -> Any:
        return self.kept if self.kept is not None else {}

    def load_state_dict(self, state: Any) -> None:
        self.kept = state


@pytest.mark.parametrize("fresh", [{}, {"shard0": 0}, None, []])
def test_dictionaries_that_grew_while_training(fresh: Any, tmp_path: Path) -> None:
    grown = {"shard0": 17, "deep": {"x": [1, 2], "t": torch.ones(2)}, "l": [torch.ones(1), "y"]}
    save(tmp_path, {"history": grown, "sampler": Sampler(grown), "other": {"x": 1}})
    sampler = Sampler(copy.copy(fresh))
    mine = {"history": copy.copy(fresh), "sampler": sampler}
    read(mine, tmp_path)
    assert mine.keys() == {"history", "sampler"}
    assert_same(grown, mine["history"])
    assert_same(grown, sampler.seen)


def test_the_dictionary_that_was_given_is_filled(tmp_path: Path) -> None:
    save(tmp_path, {"history": {"a": 1}})
    history: dict[str, Any] = {}
    read({"history": history}, tmp_path)
    assert history == {"a": 1}


@pytest.mark.parametrize("saved", [[], None])
def test_a_list_that_was_empty_when_saved(saved: Any, tmp_path: Path) -> None:
    save(tmp_path, {"kept": {"list": saved}})
    mine = {"kept": {"list": [torch.ones(1)]}}
    read(mine, tmp_path)
    assert mine == {"kept": {"list": saved}}


def without_types(folder: Path) -> None:
    """Make a checkpoint what it would be without the types of containers, as older ones are."""
    path = folder / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    known = metadata.state_dict_metadata
    metadata.planner_data = {n: p for n, p in metadata.planner_data.items() if n in known}
    path.write_bytes(pickle.dumps(metadata))


def test_older_checkpoints_tell_no_types_of_keys(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, {"loss": {1: 0.5}, "known": {1: 0.5, 2: 0.25}})
    without_types(tmp_path)
    mine: Any = {"loss": {}, "known": {1: 0.0}}
    read(mine, tmp_path)
    assert mine == {"loss": {"1": 0.5}, "known": {1: 0.5, 2: 0.25}}
    assert "keys of loss" in caplog.text


def test_older_checkpoints_have_holes_where_an_item_was_empty(tmp_path: Path) -> None:
    save(tmp_path, {"x": [{"a": torch.ones(1)}, {}, {"b": torch.ones(1)}]})
    without_types(tmp_path)
    mine: Any = {"x": []}
    read(mine, tmp_path)
    assert mine == {"x": [{"a": torch.ones(1)}, None, {"b": torch.ones(1)}]}


def test_older_checkpoints_have_no_empty_dictionaries(tmp_path: Path) -> None:
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.ones(2))])
    save(tmp_path, {"sampler": Sampler({}), "optimizer": optimizer})
    without_types(tmp_path)
    sampler = Sampler({"a": 1})
    with pytest.raises(StructureError, match=r"has no sampler\.seen\.a"):
        read({"sampler": sampler}, tmp_path)
    sampler = Sampler({})
    fresh = torch.optim.Adam([torch.nn.Parameter(torch.ones(2))], lr=0.5)
    read({"sampler": sampler, "optimizer": fresh}, tmp_path)
    assert sampler.seen == {}
    assert fresh.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]


def test_older_checkpoints_of_optimizers(tmp_path: Path) -> None:
    def made() -> torch.optim.Optimizer:
        return torch.optim.Adam([torch.nn.Parameter(torch.ones(2))])

    optimizer = made()
    optimizer.param_groups[0]["params"][0].grad = torch.ones(2)
    optimizer.step()
    save(tmp_path, {"optimizer": optimizer})
    without_types(tmp_path)
    fresh = made()
    read({"optimizer": fresh}, tmp_path)
    assert_same(optimizer.state_dict(), fresh.state_dict())


def test_many_at_once(tmp_path: Path) -> None:
    grown = {f"k{number}": 1 for number in range(3000)}
    save(tmp_path, {"history": grown})
    mine: Any = {"history": {}}
    read(mine, tmp_path)
    assert mine["history"] == grown


def test_a_model_that_lacks_a_layer_says_so(tmp_path: Path) -> None:
    layers = [torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)]
    save(tmp_path, {"model": torch.nn.Sequential(*layers)})
    with pytest.raises(CheckpointError, match=r"Unexpected key.*1\.weight"):
        read({"model": torch.nn.Sequential(torch.nn.Linear(2, 2))}, tmp_path)


def test_tensors_that_several_ranks_saved_are_made_whole(tmp_path: Path) -> None:
    save(tmp_path, {"ema": {"w": in_parts(torch.arange(4.0), [[2]])}})
    mine: Any = {"ema": {}}
    read(mine, tmp_path)
    assert_same(mine, {"ema": {"w": torch.arange(4.0)}})
    sampler = Keeper()
    read({"ema": sampler}, tmp_path)
    assert_same(sampler.kept, {"w": torch.arange(4.0)})


def load_together(folder: Path, states: list[Any]) -> None:
    manifest = manifest_of(folder)
    store = torch.distributed.HashStore()
    storage: Any = Folder(folder)

    def run(rank: int) -> None:
        agreement = Agreement(store, rank, 2, "s", kinds=AGREED)
        load(states[rank], storage, manifest, agreement=agreement, threads=1, timeout_s=30)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_stages_of_a_pipeline_leave_each_other_what_is_theirs(tmp_path: Path) -> None:
    save(tmp_path, {"m": {"a": torch.ones(1), "b": torch.ones(1), "c": 5}, "h": {"x": 1}})
    states: list[Any] = [
        {"m": {"a": torch.zeros(1)}, "h": {"x": 0}},
        {"m": {"b": torch.zeros(1)}, "h": {}},
    ]
    load_together(tmp_path, states)
    assert_same(states[0], {"m": {"a": torch.ones(1), "c": 5}, "h": {"x": 1}})
    assert_same(states[1], {"m": {"b": torch.ones(1), "c": 5}, "h": {"x": 1}})


@pytest.mark.parametrize("nested", [lambda stage: stage, lambda stage: {"deep": [stage]}])
def test_stages_that_are_modules(nested: Any, tmp_path: Path) -> None:
    layers = {name: torch.nn.Linear(1, 1) for name in "ab"}
    save(tmp_path, {"m": nested(torch.nn.ModuleDict(layers))})
    fresh = {name: torch.nn.Linear(1, 1) for name in "ab"}
    load_together(tmp_path, [{"m": nested(torch.nn.ModuleDict({n: fresh[n]}))} for n in "ab"])
    for name, layer in layers.items():
        assert_same(dict(layer.state_dict()), dict(fresh[name].state_dict()))
