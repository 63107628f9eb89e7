from __future__ import annotations

import io
import threading
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import TensorProperties

from tests.checkpointing.dcp.saved import alone, save, write
from undaunted.agreement.agreement import Agreement
from undaunted.checkpointing.dcp.saving import Planned, Saver
from undaunted.checkpointing.errors import AGREED, CheckpointError, SaveError
from undaunted.checkpointing.memory.arena import HEADER_BYTES, Arena, ArenaTooSmallError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.*torch.distributed is")]


@pytest.fixture
def arena() -> Iterator[Arena]:
    one = Arena.create("test", 1 << 20)
    yield one
    one.close()


def state() -> dict[str, Any]:
    base = torch.arange(24, dtype=torch.float32)
    tied = torch.randn(4, 4)
    numpy = pytest.importorskip("numpy")
    return {
        "plain": torch.randn(5, 3),
        "view": base[4:8],
        "transposed": base.view(4, 6).t(),
        "strided": base[::2],
        "expanded": torch.tensor([1.0, 2.0]).expand(3, 2),
        "tied": {"one": tied, "other": tied},
        "scalar": torch.tensor(7.5),
        "empty": torch.empty(0, 3),
        "half": torch.randn(7, dtype=torch.bfloat16),
        "mask": torch.tensor([True, False]),
        "complex": torch.randn(3, dtype=torch.complex64).conj(),
        "grad": torch.nn.Parameter(torch.randn(2)),
        "array": numpy.arange(4),
        "list": [1, [2, 3]],
        "text": "before",
        "nested": {"numbers": {"a": 1}, "tensors": [torch.ones(2), torch.zeros(1)]},
    }


def scramble(value: Any) -> None:
    """Change everything in place."""
    if isinstance(value, torch.Tensor):
        with torch.no_grad():
            value.data.copy_(torch.ones(value.shape)) if not value.stride().count(0) else None
            if value.untyped_storage().nbytes():
                value.untyped_storage().fill_(3)
    elif isinstance(value, dict):
        for key in list(value):
            scramble(value[key])
            if isinstance(value[key], (int, str)):
                value[key] = "after"
    elif isinstance(value, list):
        for one in value:
            scramble(one)
        value.append("after")
    elif type(value).__module__ == "numpy":
        value += 100


def like(value: Any) -> Any:
    """The same with other content, to be loaded into."""
    if isinstance(value, torch.Tensor):
        return torch.zeros(value.shape, dtype=value.dtype)
    if isinstance(value, dict):
        return {key: like(one) for key, one in value.items()}
    if isinstance(value, list) and any(isinstance(one, torch.Tensor) for one in value):
        return [like(one) for one in value]
    return None


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one.resolve_conj(), other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            assert_same(mine, theirs)
    else:
        assert bytes(memoryview(one)) == bytes(memoryview(other)) if _array(one) else one == other


def _array(value: Any) -> bool:
    return type(value).__module__ == "numpy"


def test_what_is_staged_does_not_change_any_more(tmp_path: Path, arena: Arena) -> None:
    torch.manual_seed(1)
    expected = state()
    torch.manual_seed(1)
    live = state()
    planned = Saver(alone()).plan(live, 10)
    staged = planned.stage(arena)
    scramble(live)
    write(tmp_path, staged, arena)
    (tmp_path / ".metadata").write_bytes(planned.metadata([staged.report]))
    loaded = like(expected)
    dcp.load(loaded, checkpoint_id=tmp_path)
    assert_same(expected, loaded)


def test_a_snapshot_is_begun_but_not_complete(arena: Arena) -> None:
    planned = Saver(alone()).plan({"a": torch.ones(3)}, 10)
    staged = planned.stage(arena)
    assert arena.generation == 1
    assert arena.description() is None
    assert [(image.name, image.offset) for image in staged.files] == [
        ("__0_0.distcp", HEADER_BYTES)
    ]
    assert staged.files[0].size <= planned.arena_bytes()


def test_an_arena_that_was_warmed_up_gives_the_same(arena: Arena) -> None:
    planned = Saver(alone()).plan(state(), 10)
    planned.warm_up(arena)
    assert arena.description() is None
    prepared = arena.occupant
    warm = content(planned.stage(arena), arena)
    assert arena.occupant is prepared
    arena.occupant = None
    assert content(planned.stage(arena), arena) == warm


def content(staged: Any, arena: Arena) -> bytes:
    (image,) = staged.files
    return bytes(arena.memory[image.offset : image.offset + image.size])


def test_saves_of_the_same_structure_have_the_same_plan_and_only_the_values_differ(
    arena: Arena,
) -> None:
    planners: list[Counting] = []

    class Counting(DefaultSavePlanner):
        made = 0

        def lookup_object(self, index: Any) -> Any:
            planners.append(self)
            return super().lookup_object(index)

        def set_up_planner(self, *args: Any, **kwargs: Any) -> None:
            super().set_up_planner(*args, **kwargs)

    saver = Saver(alone(), Counting)
    value = {"a": torch.zeros(3), "b": torch.zeros(2, 2), "n": 1}
    first = saver.plan(value, 10)
    before = content(first.stage(arena), arena)
    again = saver.plan(value, 10)
    assert again._plan is first._plan
    assert content(again.stage(arena), arena) == before
    value["a"] += 1
    third = saver.plan(value, 10).stage(arena)
    after = content(third, arena)
    assert after != before
    assert sum(x != y for x, y in zip(after, before, strict=True)) == 3 * 2  # of 1.0


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.update(new=torch.ones(1)),
        lambda s: s.pop("b"),
        lambda s: s.update(b=torch.ones(3)),
        lambda s: s.update(b=torch.ones(2, dtype=torch.int64)),
        lambda s: s.update(b=5),
        lambda s: s.update(n=torch.ones(2)),
        lambda s: s.update(m=None),
        lambda s: s.update(b=torch.ones(2, requires_grad=True)),
    ],
)
def test_a_change_of_structure_is_noticed(
    change: Callable[[dict[str, Any]], Any], tmp_path: Path
) -> None:
    saver = Saver(alone())
    value: dict[str, Any] = {"a": torch.zeros(3), "b": torch.zeros(2), "n": 1}
    first = save(tmp_path / "first", value, saver)
    change(value)
    second = save(tmp_path / "second", value, saver)
    assert second._plan is not first._plan
    assert second.structure != first.structure
    loaded = like(value)
    dcp.load(loaded, checkpoint_id=tmp_path / "second")
    assert_same(
        {k: v for k, v in value.items() if v is not None},
        {k: v for k, v in loaded.items() if v is not None},
    )


def test_saves_in_inference_mode_and_outside_of_it(arena: Arena) -> None:
    saver = Saver(alone())
    value = {"a": torch.zeros(3)}
    contents = []
    for mode in (True, False, True):
        with torch.inference_mode(mode):
            contents.append(content(saver.plan(value, 10).stage(arena), arena))
    assert len(set(contents)) == 1


def test_objects_of_another_length(tmp_path: Path) -> None:
    saver = Saver(alone())
    for length in (1, 5, 3000):
        folder = tmp_path / str(length)
        value = {"a": torch.full((3,), float(length)), "text": "x" * length, "last": [length]}
        save(folder, value, saver)
        loaded = {"a": torch.zeros(3), "text": "", "last": []}
        dcp.load(loaded, checkpoint_id=folder)
        assert_same(value, loaded)


def test_an_arena_that_is_too_small_is_left_as_it_is() -> None:
    planned = Saver(alone()).plan({"a": torch.ones(3), "text": "x" * 300_000}, 10)
    small = Arena.create("small", 100_000)
    with pytest.raises(ArenaTooSmallError) as caught:
        planned.stage(small)
    assert small.generation == 0
    large = Arena.create("large", caught.value.needed)
    planned.stage(large)
    assert planned.arena_bytes() > 300_000
    small.close()
    large.close()


def test_two_states_in_turns_in_one_arena(arena: Arena, tmp_path: Path) -> None:
    one, other = Saver(alone()), Saver(alone())
    for number in range(3):
        for saver, shape in ((one, (3,)), (other, (5, 5))):
            value = {"a": torch.full(shape, float(number))}
            planned = saver.plan(value, 10)
            staged = planned.stage(arena)
            write(tmp_path, staged, arena)
            (tmp_path / ".metadata").write_bytes(planned.metadata([staged.report]))
            loaded = {"a": torch.zeros(shape)}
            dcp.load(loaded, checkpoint_id=tmp_path)
            assert_same(value, loaded)


def test_modules_and_optimizers_are_asked_for_their_state(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    save(tmp_path, {"model": model, "optimizer": optimizer})
    other = torch.nn.Linear(3, 2)
    dcp.load({"model": other}, checkpoint_id=tmp_path)
    assert_same(dict(model.state_dict()), dict(other.state_dict()))


def test_each_version_of_torch_reads_what_another_has_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch 2.15 has six properties of a tensor, and 2.14 reads five."""
    value = {"a": torch.arange(6.0).view(2, 3)}
    of_this_version = TensorProperties.__getstate__
    with monkeypatch.context() as patch:
        patch.setattr(
            TensorProperties,
            "__getstate__",
            lambda self: (*of_this_version(self)[:5], (3, 1)),
        )
        save(tmp_path, value)
    read = []
    of_older = TensorProperties.__setstate__
    monkeypatch.setattr(
        TensorProperties,
        "__setstate__",
        lambda self, state: (read.append(len(state)), of_older(self, state))[1],
    )
    loaded = {"a": torch.zeros(2, 3)}
    dcp.load(loaded, checkpoint_id=tmp_path)
    assert_same(value, loaded)
    assert set(read) == {5}


def test_what_cannot_be_planned_or_copied_is_named(arena: Arena) -> None:
    with pytest.raises(SaveError, match=r"duplicated flatten key a\.b"):
        Saver(alone()).plan({"a": {"b": torch.ones(1)}, "a.b": torch.ones(1)}, 10)
    for name, value, message in (
        ("lock", threading.Lock(), "lock cannot be saved: TypeError"),
        ("own", {"f": lambda: 1}, r"own\.f cannot be saved: \w*Error"),
        ("lazy", torch.nn.LazyLinear(1), r"lazy\.\w* has no values yet"),
        ("text", {"\ud800": 1}, r"text\.\\ud800 cannot be saved"),
        ("keys", {"x": {frozenset(): 1}}, r"keys\.x has the key frozenset\(\), of type frozenset"),
    ):
        with pytest.raises(SaveError, match=message):
            Saver(alone()).plan({"a": torch.ones(1), name: value}, 10)
    planned = Saver(alone()).plan({"model": {"w": torch.ones(3, device="meta")}}, 10)
    with pytest.raises(CheckpointError, match=r"model\.w is on the meta device"):
        planned.stage(arena)
    assert arena.generation == 0


def test_a_planner_that_converts(tmp_path: Path) -> None:
    import dataclasses

    class Half(DefaultSavePlanner):
        def create_local_plan(self) -> Any:
            plan = super().create_local_plan()
            items = [
                dataclasses.replace(i, tensor_data=self.half(i.tensor_data)) for i in plan.items
            ]
            return dataclasses.replace(plan, items=items)

        def half(self, data: Any) -> Any:
            properties = dataclasses.replace(data.properties, dtype=torch.float16)
            return dataclasses.replace(data, properties=properties)

        def resolve_data(self, write_item: Any) -> Any:
            return super().resolve_data(write_item).to(torch.float16)

    saver = Saver(alone(), Half)
    for _ in range(2):
        save(tmp_path, {"a": torch.tensor([1.5, 2.5])}, saver)
        loaded = {"a": torch.zeros(2, dtype=torch.float16)}
        dcp.load(loaded, checkpoint_id=tmp_path)
        assert loaded["a"].tolist() == [1.5, 2.5]


def test_a_planner_that_does_not_keep_to_its_plan(arena: Arena) -> None:
    class Wrong(DefaultSavePlanner):
        def resolve_data(self, write_item: Any) -> Any:
            return super().resolve_data(write_item).double()

    planned = Saver(alone(), Wrong).plan({"a": torch.ones(2)}, 10)
    with pytest.raises(
        CheckpointError, match=r"a is torch.float64 \(2,\), but its plan says torch"
    ):
        planned.stage(arena)
    assert arena.generation == 0


@pytest.mark.filterwarnings("ignore:Validating sparse tensor invariants")  # of torch 2.15
def test_tensors_without_a_frame(tmp_path: Path) -> None:
    """Those that torch.save writes in another way than as bytes."""
    sparse = torch.eye(3).to_sparse()
    save(tmp_path, {"sparse": sparse, "a": torch.ones(2)})
    metadata = dcp.FileSystemReader(tmp_path).read_metadata()
    (info,) = (v for k, v in metadata.storage_data.items() if k.fqn == "sparse")
    content = (tmp_path / info.relative_path).read_bytes()[info.offset :][: info.length]
    loaded = torch.load(io.BytesIO(content), weights_only=True)
    assert torch.equal(loaded.to_dense(), torch.eye(3))


def test_only_rank_0_knows_the_metadata() -> None:
    store = torch.distributed.HashStore()
    first, second = together(
        lambda rank: Saver(Agreement(store, rank, 2, "s", kinds=AGREED)).plan(
            {"a": torch.ones(2), "n": 1}, 30
        )
    )
    assert isinstance(first, Planned)
    with pytest.raises(ValueError, match="rank 0"):
        second.metadata([])
    assert first.structure == second.structure
    written = [len(one._plan.final.items) for one in (first, second)]
    assert sum(written) == 2  # what all have is written once


def save_as_two(folder: Path, value: dict[str, Any], **settings: Any) -> list[Any]:
    """Save the same state as each of two ranks; returns what each one wrote."""
    store = torch.distributed.HashStore()

    def save_it(rank: int) -> Any:
        planned = Saver(Agreement(store, rank, 2, "s", kinds=AGREED), **settings).plan(value, 30)
        arena = Arena.create("test", planned.arena_bytes())
        staged = planned.stage(arena)
        write(folder, staged, arena)
        arena.close()
        return planned, staged

    (first, one), (_, other) = together(save_it)
    (folder / ".metadata").write_bytes(first.metadata([one.report, other.report]))
    return [one, other]


def test_a_rank_with_nothing_to_write(tmp_path: Path) -> None:
    written = save_as_two(tmp_path, {"a": torch.arange(3)})
    assert sorted(len(staged.files) for staged in written) == [0, 1]
    loaded = {"a": torch.zeros(3, dtype=torch.int64)}
    dcp.load(loaded, checkpoint_id=tmp_path)
    assert loaded["a"].tolist() == [0, 1, 2]


class InPlacePlanner(DefaultSavePlanner):  # type: ignore[misc]
    """Changes the list of plans that it is given, as that of torch 2.6 did."""

    def create_global_plan(self, all_plans: Any) -> Any:
        final, metadata = super().create_global_plan(all_plans)
        all_plans[:] = final
        return final, metadata


def test_a_planner_that_changes_the_list_of_plans(tmp_path: Path) -> None:
    value: dict[str, Any] = {name: torch.full((at + 1,), at) for at, name in enumerate("abcde")}
    value |= {"numbers": [1, 2, 3], "text": "it"}
    save_as_two(tmp_path, value, planner_factory=InPlacePlanner)
    loaded = like(value)
    dcp.load(loaded, checkpoint_id=tmp_path)
    assert_same(loaded, value)


def together(call: Callable[[int], Any], ranks: int = 2) -> list[Any]:
    """Call it as each of the ranks; returns what each returned or raised."""
    results: list[Any] = [None] * ranks

    def run(rank: int) -> None:
        try:
            results[rank] = call(rank)
        except CheckpointError as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_a_change_on_one_rank_makes_all_plan_anew() -> None:
    store = torch.distributed.HashStore()
    savers = [Saver(Agreement(store, rank, 2, "s", kinds=AGREED)) for rank in range(2)]
    states: list[dict[str, Any]] = [{"a": torch.ones(2)}, {"a": torch.ones(2)}]
    plan = lambda rank: savers[rank].plan(states[rank], 30)  # noqa: E731
    before = together(plan)
    same = together(plan)
    assert [b._plan is s._plan for b, s in zip(before, same, strict=True)] == [True, True]
    states[1]["only here"] = torch.ones(1)
    after = together(plan)
    assert [b._plan is a._plan for b, a in zip(before, after, strict=True)] == [False, False]
    names = [{item.index.fqn for item in one._plan.final.items} for one in after]
    assert names[0] | names[1] == {"a", "only here"}
    again = together(plan)
    assert [a._plan is b._plan for a, b in zip(again, after, strict=True)] == [True, True]


class Counted:
    """A store that notes how much its user reads."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.read = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, key: str) -> bytes:
        value: bytes = self._store.get(key)
        self.read += len(value)
        return value

    def multi_get(self, keys: list[str]) -> list[bytes]:
        values: list[bytes] = self._store.multi_get(keys)
        self.read += sum(map(len, values))
        return values


def test_what_a_rank_is_told_does_not_grow_with_the_number_of_ranks() -> None:
    def read_by_rank_1(ranks: int) -> int:
        store = torch.distributed.HashStore()
        counted = Counted(store)

        def plan(rank: int) -> Any:
            state = {f"{rank}.{number}": torch.ones(2) for number in range(300)}
            mine = counted if rank == 1 else store
            return Saver(Agreement(mine, rank, ranks, "s", kinds=AGREED)).plan(state, 30)

        assert all(len(one._plan.final.items) == 300 for one in together(plan, ranks))
        return counted.read

    few, many = read_by_rank_1(2), read_by_rank_1(8)
    assert many < 1.5 * few


def test_a_rank_that_cannot_plan_is_named_on_all() -> None:
    store = torch.distributed.HashStore()
    savers = [Saver(Agreement(store, rank, 2, "s", kinds=AGREED)) for rank in range(2)]
    states: list[dict[str, Any]] = [{"a": torch.ones(2)}, {}]
    for state in ({"a": {"b": 1}, "a.b": torch.ones(1)}, {"lock": threading.Lock()}):
        states[1] = state
        for error in together(lambda rank: savers[rank].plan(states[rank], 30, "save of step 4")):
            assert isinstance(error, SaveError)
            assert error.ranks == (1,)
            assert str(error).startswith("save of step 4: rank 1: ")
    states[1] = {"a": torch.ones(2)}
    assert all(isinstance(p, Planned) for p in together(lambda r: savers[r].plan(states[r], 30)))
