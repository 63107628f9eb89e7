"""State means what torch means by it: what `torch.save` and `load_state_dict` would give."""

from __future__ import annotations

import collections
import copy
import enum
import math
import pickle
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from undaunted.checkpointing import Checkpointer, SaveError, StructureError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.*torch.distributed is")]


def put(folder: Path, state: dict[str, Any]) -> None:
    with Checkpointer(folder) as checkpoints:
        checkpoints.save(1, state)


def get(folder: Path, state: dict[str, Any]) -> dict[str, Any]:
    with Checkpointer(folder) as checkpoints:
        assert checkpoints.load(state) == 1
    return state


def parameters(*sizes: int) -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(size), requires_grad=True) for size in sizes]


def stepped(optimizer: torch.optim.Optimizer, steps: int = 1) -> Any:
    for _ in range(steps):
        for group in optimizer.param_groups:
            for one in group["params"]:
                one.grad = torch.ones_like(one)
        optimizer.step()
    return optimizer


class Counting(torch.optim.SGD):
    """Counts its steps in its groups, as many optimizers of others do."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for one in group["params"]:
                self.state[one].setdefault("buffers", {})[0.9] = torch.full_like(one, 2.0)
        return super().step(closure)


def test_what_an_optimizer_puts_into_its_groups_and_state(tmp_path: Path) -> None:
    put(tmp_path, {"optimizer": stepped(Counting(parameters(2)), 7)})
    fresh = Counting(parameters(2))
    get(tmp_path, {"optimizer": fresh})
    assert fresh.param_groups[0]["step"] == 7
    (state,) = fresh.state.values()
    assert state["buffers"][0.9].tolist() == [2.0, 2.0]


class Newer(torch.optim.SGD):
    """Its package has given it one more default since the checkpoint."""

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self.__setstate__({})

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("decoupled", False)


def test_an_optimizer_that_has_one_more_default_by_now(tmp_path: Path) -> None:
    put(tmp_path, {"optimizer": torch.optim.SGD(parameters(1), lr=0.5)})
    fresh = Newer(parameters(1))
    get(tmp_path, {"optimizer": fresh})
    assert fresh.param_groups[0]["lr"] == 0.5
    assert fresh.param_groups[0]["decoupled"] is False


def test_another_number_of_groups_or_parameters_is_refused(tmp_path: Path) -> None:
    saved = torch.optim.Adam(parameters(1))
    saved.add_param_group({"params": parameters(2)})
    put(tmp_path, {"optimizer": stepped(saved)})
    with pytest.raises(StructureError, match=r"optimizer: .*different number of parameter groups"):
        get(tmp_path, {"optimizer": torch.optim.Adam(parameters(1))})
    more = torch.optim.Adam([{"params": parameters(1, 3)}, {"params": parameters(2)}])
    with pytest.raises(StructureError, match=r"optimizer: .*size of optimizer's group"):
        get(tmp_path, {"optimizer": more})


class Extra(nn.Linear):
    """Has an extra state of which a fresh one does not know the size, and a buffer that grows."""

    scales = torch.empty(0, dtype=torch.uint8)  # of all fresh ones

    def __init__(self) -> None:
        super().__init__(1, 1)
        self.register_buffer("seen", torch.zeros(0))

    def get_extra_state(self) -> torch.Tensor:
        return self.scales

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.scales = state

    def _load_from_state_dict(self, state: Any, prefix: str, *others: Any) -> None:
        self.seen = torch.zeros_like(state[f"{prefix}seen"])
        super()._load_from_state_dict(state, prefix, *others)


@pytest.mark.parametrize("fresh", [0, 4])
def test_modules_decide_what_tensors_of_other_sizes_are(
    fresh: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = nn.Sequential(Extra(), Extra())
    for number, layer in enumerate(saved, 1):
        layer.scales = torch.full((4,), number, dtype=torch.uint8)
        layer.seen = torch.ones(number)
    put(tmp_path, {"model": saved})
    monkeypatch.setattr(Extra, "scales", torch.empty(fresh, dtype=torch.uint8))
    mine = nn.Sequential(Extra(), Extra())
    get(tmp_path, {"model": mine})
    assert [layer.scales.tolist() for layer in mine] == [[1] * 4, [2] * 4]
    assert [len(layer.seen) for layer in mine] == [1, 2]


def test_a_module_says_itself_that_sizes_differ(tmp_path: Path) -> None:
    put(tmp_path, {"model": nn.Linear(2, 3)})
    with pytest.raises(StructureError, match=r"model: (.|\n)*size mismatch for weight"):
        get(tmp_path, {"model": nn.Linear(2, 4)})


class Versioned(nn.Linear):
    """Its package changes what a version of it means."""

    _version = 2
    loaded: Any = None

    def _load_from_state_dict(self, state: Any, prefix: str, local: Any, *others: Any) -> None:
        self.loaded = local["version"]
        super()._load_from_state_dict(state, prefix, local, *others)


@pytest.mark.parametrize("version", [1, 2])
def test_modules_learn_the_version_that_was_saved(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(Versioned, "_version", version)
        put(tmp_path, {"model": nn.Sequential(Versioned(1, 1))})
    mine = nn.Sequential(Versioned(1, 1))
    get(tmp_path, {"model": mine})
    assert mine[0].loaded == version


def test_an_object_without_a_state_that_is_new_in_a_dictionary_stays(tmp_path: Path) -> None:
    put(tmp_path, {"parts": {"a": 1}, "list": [1, {}]})
    new = torch.amp.GradScaler("cpu", enabled=False)
    state = get(tmp_path, {"parts": {"a": 0, "new": new}, "list": [0, {}, new]})
    assert state == {"parts": {"a": 1, "new": new}, "list": [1, {}, new]}


class Early:
    """Early stopping, whose best loss becomes a tensor."""

    def __init__(self, best: Any) -> None:
        self.best = best

    def state_dict(self) -> Any:
        return {"best": self.best}

    def load_state_dict(self, state: Any) -> None:
        self.best = state["best"]


SAVED: list[Any] = [0.5, torch.tensor(0.25), [torch.ones(2), 1], [1, 2], {}, {1: {}}, {"a": 1}, ()]
FRESH: list[Any] = [None, math.inf, "text", [], [1, 2, 3], {"more": 1}, torch.zeros(3)]
PAIRS = {
    f"{saved}-{fresh}": (SAVED[saved], FRESH[fresh]) for saved in range(8) for fresh in range(7)
}


def test_an_object_gets_what_was_saved_whatever_it_has(tmp_path: Path) -> None:
    put(tmp_path, {"deep": {name: [Early(saved)] for name, (saved, _) in PAIRS.items()}})
    deep = {name: [Early(copy.deepcopy(fresh))] for name, (_, fresh) in PAIRS.items()}
    get(tmp_path, {"deep": deep})
    for name, (saved, _) in PAIRS.items():
        assert repr(deep[name][0].best) == repr(saved)


def overlapping(kind: str) -> dict[str, torch.Tensor]:
    """Tensors of two by two and of four values, that have memory in common."""
    memory = torch.zeros(12)
    a, b = {
        "in part": (memory[:4].view(2, 2), memory[3:7]),
        "inside": (memory[4:8].view(2, 2), memory[:12:3]),
        "around": (memory.as_strided((2, 2), (10, 1)), memory[5:9]),
        "same": (memory[:4].view(2, 2), memory[:4]),
        "with itself": (memory.as_strided((2, 2), (1, 1)), memory[8:]),
        "one value": (memory[:1].expand(2, 2), memory[4:8]),
        "not": (memory.as_strided((2, 2), (1, 2)), memory[4:8]),
    }[kind]
    return {"a": a, "b": b}


@pytest.mark.parametrize("wrap", [lambda one: one, nn.Parameter])
@pytest.mark.parametrize(
    "kind", ["in part", "inside", "around", "same", "with itself", "one value", "not"]
)
def test_tensors_of_a_fresh_object_that_share_memory(kind: str, wrap: Any, tmp_path: Path) -> None:
    values = {"a": torch.arange(4.0).view(2, 2), "b": torch.arange(4.0, 8.0)}
    put(tmp_path, {"object": Early(values)})
    fresh = Early({name: wrap(value) for name, value in overlapping(kind).items()})
    get(tmp_path, {"object": fresh})
    assert {n: v.tolist() for n, v in fresh.best.items()} == {
        n: v.tolist() for n, v in values.items()
    }


@pytest.mark.parametrize("steps", [(0,), (0, 0), (1, 1), (1, 2)])
@pytest.mark.parametrize("wrap", [lambda one: one, nn.Parameter])
def test_tensors_whose_values_lie_in_one_place(steps: Any, wrap: Any, tmp_path: Path) -> None:
    def expanded(value: float) -> Any:
        return wrap(torch.full((9,), value).as_strided((3,) * len(steps), steps))

    values = torch.arange(3.0 ** len(steps)).view((3,) * len(steps))
    put(tmp_path, {"top": values, "deep": {"list": [values]}, "same": expanded(5.0)})
    state = {"top": expanded(1.0), "deep": {"list": [expanded(1.0)]}, "same": expanded(1.0)}
    get(tmp_path, state)
    for one in (state["top"], state["deep"]["list"][0]):
        assert one.tolist() == values.tolist()
        assert type(one) is type(expanded(1.0))
    assert state["same"].tolist() == torch.full_like(values, 5.0).tolist()


def learning() -> dict[str, Any]:
    return {
        "parameter": nn.Parameter(torch.ones(2)),
        "frozen": nn.Parameter(torch.ones(2), requires_grad=False),
        "numbers": nn.Parameter(torch.ones(2, dtype=torch.int32), requires_grad=False),
        "tensor": torch.ones(2, requires_grad=True),
        "plain": torch.ones(2),
        "list": [nn.Parameter(torch.ones(2, 2, dtype=torch.bfloat16))],
    }


@pytest.mark.parametrize("fresh", [None, {"parameter": torch.zeros(2)}])
@pytest.mark.parametrize("owned", [False, True])
def test_new_tensors_are_parameters_and_learn_as_they_did(
    fresh: Any, owned: bool, tmp_path: Path
) -> None:
    put(tmp_path, {"object": Early(learning()) if owned else {"best": learning()}})
    if owned:
        mine = Early(fresh)
        get(tmp_path, {"object": mine})
        found = mine.best
    else:
        found = get(tmp_path, {"object": {}})["object"]["best"]

    def told(state: Any) -> Any:
        pairs = {**state, "list": state["list"][0]}.items()
        return [(name, type(one), one.dtype, one.requires_grad) for name, one in pairs]

    assert told(found) == told(learning())


def test_plain_data_are_replaced(tmp_path: Path) -> None:
    put(tmp_path, {"deep": {name: [saved] for name, (saved, _) in PAIRS.items()}})
    deep = {
        name: [copy.deepcopy(fresh), "more"]
        for name, (_, fresh) in PAIRS.items()
        if not isinstance(fresh, torch.Tensor)
    }
    get(tmp_path, {"deep": {**deep, "more": 1}})
    for name, value in deep.items():
        assert repr(value) == repr([PAIRS[name][0]])


def test_tensors_that_were_not_saved_are_refused(tmp_path: Path) -> None:
    put(tmp_path, {"plain": {"a": torch.ones(1)}, "list": [torch.ones(1)]})
    more = {"a": torch.zeros(1), "b": torch.zeros(1)}
    for state in ({"plain": more}, {"list": list(more.values())}, {"plain": {"c": Early(1)}}):
        with pytest.raises(StructureError, match=r"has no (plain\.b|list\.1|plain\.c)"):
            get(tmp_path, state)


@pytest.mark.parametrize("fresh", [(torch.zeros(1),), ({"a": 0}, torch.zeros(1))])
def test_tensors_in_tuples_that_were_not_saved_are_refused(fresh: Any, tmp_path: Path) -> None:
    put(tmp_path, {"x": [{"a": 1}]})
    with pytest.raises(StructureError, match=r"has no x\."):
        get(tmp_path, {"x": fresh})


def gan(seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    g, d = nn.Linear(2, 2), nn.Linear(2, 1)
    optimizers = [torch.optim.Adam(one.parameters()) for one in (g, d)]
    schedulers = tuple(torch.optim.lr_scheduler.StepLR(one, 1) for one in optimizers)
    return {"models": {"g": g, "d": d}, "optimizers": optimizers, "schedulers": schedulers}


def test_objects_in_dictionaries_lists_and_tuples(tmp_path: Path) -> None:
    saved, mine = gan(1), gan(2)
    for number in range(2):
        stepped(saved["optimizers"][number])
        saved["schedulers"][number].step()
    put(tmp_path, saved)
    parts = [*mine["models"].values(), *mine["optimizers"], *mine["schedulers"]]
    get(tmp_path, mine)
    now = [*mine["models"].values(), *mine["optimizers"], *mine["schedulers"]]
    assert all(one is other for one, other in zip(now, parts, strict=True))
    theirs = [*saved["models"].values(), *saved["optimizers"], *saved["schedulers"]]
    for one, other in zip(now, theirs, strict=True):
        assert repr(one.state_dict()) == repr(other.state_dict())


def test_what_an_object_holds_of_a_model_is_not_mixed_with_it(tmp_path: Path) -> None:
    """Its state refers to the model's parameters before the first step."""

    class Best:
        def __init__(self, model: nn.Module) -> None:
            self.weights: Any = model.state_dict()

        def state_dict(self) -> Any:
            return self.weights

        def load_state_dict(self, state: Any) -> None:
            self.weights = state

    saved = nn.Linear(2, 2)
    best = Best(nn.Linear(2, 2))
    put(tmp_path, {"best": best, "model": saved})
    mine = nn.Linear(2, 2)
    its = Best(mine)
    get(tmp_path, {"best": its, "model": mine})
    assert torch.equal(mine.weight, saved.weight)
    assert torch.equal(its.weights["weight"], best.weights["weight"])


@pytest.mark.parametrize("word", ["_orig_mod", "module"])  # of torch.compile, of DDP
@pytest.mark.parametrize("wrapped", ["saved", "mine"])
def test_names_that_differ_by_a_wrapper(word: str, wrapped: str, tmp_path: Path) -> None:
    plain = nn.Linear(1, 1)
    wrapper = nn.Sequential(collections.OrderedDict({word: nn.Linear(1, 1)}))
    put(tmp_path, {"model": wrapper if wrapped == "saved" else plain})
    mine = wrapper if wrapped == "mine" else plain
    for state in ({"model": mine}, {"model": dict(mine.state_dict())}):
        with pytest.raises(StructureError) as caught:
            get(tmp_path, state)
        assert f"model.{word}.bias" in str(caught.value)
        assert f"its .{word}" in str(caught.value)


def test_lazy_modules_and_those_without_memory(tmp_path: Path) -> None:
    saved = nn.Linear(3, 4)
    put(tmp_path, {"model": saved})
    lazy = nn.LazyLinear(4)
    get(tmp_path, {"model": lazy})
    assert torch.equal(lazy.weight, saved.weight)
    with torch.device("meta"):
        meta = nn.Linear(3, 4)
    with pytest.raises(StructureError, match=r"model\.weight is on the meta device.*to_empty"):
        get(tmp_path, {"model": meta})


def test_a_default_device_changes_nothing(tmp_path: Path) -> None:
    put(tmp_path, {"kept": {"a": torch.ones(2)}, "early": Early([torch.ones(2)])})
    early = Early(None)
    with torch.device("meta"):
        state = get(tmp_path, {"kept": {}, "early": early})
    assert state["kept"]["a"].tolist() == early.best[0].tolist() == [1, 1]


class Colour(enum.Enum):
    RED = 1


@pytest.mark.parametrize("owner", [lambda value: value, Early, lambda value: [Early(value)]])
def test_what_cannot_be_loaded_is_refused_by_the_first_save(owner: Any, tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpoints:
        with pytest.raises(SaveError, match=r"colour.* has objects of types .*Colour"):
            checkpoints.save(1, {"colour": owner(Colour.RED)})
        checkpoints.save(2, {"colour": owner("red")})
        checkpoints.save(3, {"colour": owner(Colour.RED)})  # the same structure: copied, then told
        with pytest.raises(SaveError, match=r"colour.* has objects of types .*Colour"):
            checkpoints.wait()
        assert checkpoints.latest() == 2
    with Checkpointer(tmp_path, on_failure="warn") as checkpoints:
        checkpoints.save(4, {"colour": owner(Colour.RED)})


def test_types_that_were_allowed(tmp_path: Path) -> None:
    with torch.serialization.safe_globals([Colour]):
        put(tmp_path, {"colour": Colour.RED})
        assert get(tmp_path, {"colour": None}) == {"colour": Colour.RED}


def test_empty_arrays_and_bytes(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    state = {"array": numpy.zeros((0, 3), numpy.int8), "bytes": b"", "mixed": [b"", bytearray()]}
    put(tmp_path, state)
    assert repr(get(tmp_path, dict.fromkeys(state))) == repr(state)


def test_torch_reads_what_has_types_of_containers(tmp_path: Path) -> None:
    put(tmp_path, {"x": {1: torch.ones(2), 0.5: 3}, "empty": {}, "l": [{"t": torch.ones(1)}]})
    folder = tmp_path / "step-00000001"
    state: Any = {"x": {1: torch.zeros(2), 0.5: 0}, "l": [{"t": torch.zeros(1)}]}
    dcp.load(state, checkpoint_id=folder)
    assert state["x"][1].tolist() == [1, 1]
    dcp_to_torch_save(folder, tmp_path / "whole.pt")
    whole = torch.load(tmp_path / "whole.pt")
    assert whole["x"]["0.5"] == 3
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    assert set(metadata.state_dict_metadata) == {"x.1", "x.0.5", "l.0.t"}
