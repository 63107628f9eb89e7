"""States, and the buffers that hold everything in them."""

from __future__ import annotations

import ctypes
import math
from argparse import Namespace
from collections import OrderedDict, defaultdict

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from undaunted.checkpointing.errors import DamagedCheckpointError  # noqa: E402
from undaunted.checkpointing.local import flat, shard  # noqa: E402
from undaunted.checkpointing.local.base_state_dict import (  # noqa: E402
    PlainError,
    TensorAwareStateDict,
)
from undaunted.checkpointing.local.basic_state_dict import (  # noqa: E402
    BasicTensorAwareStateDict,
)

pytestmark = pytest.mark.torch
WHO = flat.Identity(3, 0, 1, "", "s", 0.0)

WHOLE = st.integers(-(1 << 1000), 1 << 1000)
KEYS = st.one_of(st.none(), st.booleans(), WHOLE, st.text(), st.binary(), st.tuples(WHOLE))
NAMES = st.text().filter(lambda name: not name.startswith("__"))  # those are Python's
LEAVES = st.one_of(KEYS, st.floats(allow_nan=False), st.complex_numbers(allow_nan=False))
DATA = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner),
        st.tuples(inner, inner),
        st.dictionaries(KEYS, inner),
        st.dictionaries(KEYS, inner).map(OrderedDict),
        st.sets(KEYS),
        st.frozensets(KEYS),
        st.dictionaries(NAMES, inner).map(lambda named: Namespace(**named)),
    ),
    max_leaves=12,
)


class Unplain:
    """Neither plain nor a tensor."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unplain)

    __hash__ = None


class OwnState(BasicTensorAwareStateDict):
    """A class without a plain form, as those of other libraries."""

    plain_state = TensorAwareStateDict.plain_state


def there_and_back(state, allow_pickle=False, spoil=None):
    prepared = flat.prepare(BasicTensorAwareStateDict(state), WHO, allow_pickle)
    buffer = torch.empty(prepared.size + 10, dtype=torch.uint8)
    flat.copy_into(prepared, buffer)
    if spoil:
        spoil()
    return flat.rebuild_from(buffer, "f", allow_pickle).state_dict


def test_everything_comes_back_as_it_was_when_it_was_copied() -> None:
    tied = torch.randn(4, 4)
    model = torch.nn.Linear(3, 2)
    state = {
        "model": model.state_dict(),
        "tied": [tied, tied],
        "view": tied[1:, ::2],
        "transposed": tied.t(),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
        "bf16": torch.randn(5).bfloat16(),
        "fp8": torch.randn(5).to(torch.float8_e4m3fn),
        "bool": torch.tensor([True, False]),
        "complex": torch.randn(2, dtype=torch.complex64),
        "conjugate": torch.randn(2, dtype=torch.complex64).conj(),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "types": (torch.float16, torch.device("cpu"), torch.Size([2])),
        "random": np.random.RandomState(1).get_state(),
        "array": np.arange(6, dtype=np.float16).reshape(2, 3),
        "numpy": np.float32(1.5),
        1: {2: "x"},
    }
    before = torch.tensor(0)
    expected = {k: v.detach().clone() for k, v in state.items() if isinstance(v, torch.Tensor)}

    def spoil() -> None:
        tied.zero_()
        state["array"][:] = 0
        for value in state.values():
            if isinstance(value, torch.Tensor) and value.numel() and not value.is_conj():
                value.detach().zero_()

    back = there_and_back(state, spoil=spoil)
    assert before.item() == 0
    assert list(back) == list(state)
    for name, tensor in expected.items():
        assert back[name].dtype == tensor.dtype
        assert back[name].shape == tensor.shape
        assert torch.equal(
            back[name].float() if "fp8" in name else back[name],
            tensor.float() if "fp8" in name else tensor,
        ), name
    assert isinstance(back["model"], OrderedDict)
    assert back["model"]._metadata == model.state_dict()._metadata
    assert back["tied"][0] is back["tied"][1]
    assert back["types"] == (torch.float16, torch.device("cpu"), torch.Size([2]))
    assert np.array_equal(back["array"], np.arange(6).reshape(2, 3))
    assert isinstance(back["numpy"], np.float32)
    np.random.RandomState(2).set_state(back["random"])


def types(value: object) -> object:
    """The value with the types of everything in it, as True == 1 == 1.0."""
    if isinstance(value, dict):
        return type(value), [(types(k), types(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [types(v) for v in value]
    if isinstance(value, Namespace):
        return Namespace, types(vars(value))
    return type(value), value


@given(DATA)
def test_plain_data_come_back_as_they_were(value: object) -> None:
    assert types(there_and_back([value])) == types([value])


def test_rare_values() -> None:
    values = [
        bytearray(b"x"),
        bytearray(),
        "\ud800",
        math.inf,
        -0.0,
        b"",
        defaultdict(list, {1: [2]}),
    ]
    assert types(there_and_back(values)) == types(values)
    assert math.isnan(there_and_back([math.nan])[0])


def test_what_cannot_be_read_again_is_named_with_its_place() -> None:
    state = {"good": [0, {"x": 1}], "model": [0, {"hook": types}]}
    with pytest.raises(PlainError, match=r"^model\.1\.hook: an object of type builtins\.function"):
        flat.prepare(BasicTensorAwareStateDict(state), WHO)
    flat.prepare(BasicTensorAwareStateDict(state["good"]), WHO)
    with pytest.raises(PlainError, match=r"model"):  # also when its name is known
        flat.prepare(BasicTensorAwareStateDict(state), WHO)


def test_tied_tensors_are_stored_once() -> None:
    one = torch.zeros(1 << 16)
    assert flat.prepare(BasicTensorAwareStateDict([one, one, one]), WHO).size < 2 * one.nbytes


def test_the_state_is_whole_after_it_was_copied_or_refused() -> None:
    tensor = torch.ones(1)
    state = BasicTensorAwareStateDict({"t": tensor, "x": Unplain()})
    with pytest.raises(PlainError, match=r"x: an object of type .*Unplain.*allow_pickle=True"):
        flat.prepare(state, WHO)
    assert state.state_dict["t"] is tensor


def test_an_integer_that_torch_writes_and_does_not_read_is_refused() -> None:
    state = {"seen": [1, {"n": 1 << 2040}]}
    with pytest.raises(PlainError, match=r"seen\.1\.n: an object of type builtins\.int"):
        flat.prepare(BasicTensorAwareStateDict(state), WHO)


def test_other_objects_need_permission_on_both_sides() -> None:
    assert there_and_back([Unplain()], allow_pickle=True) == [Unplain()]
    prepared = flat.prepare(BasicTensorAwareStateDict([Unplain()]), WHO, allow_pickle=True)
    with pytest.raises(DamagedCheckpointError, match="give allow_pickle=True only if"):
        flat.rebuild_from(torch.frombuffer(bytearray(prepared.encoded), dtype=torch.uint8), "f")


def test_classes_without_a_plain_form_need_permission() -> None:
    state = OwnState([torch.ones(2)])
    with pytest.raises(PlainError, match=r"OwnState has no plain form"):
        flat.prepare(state, WHO)
    prepared = flat.prepare(state, WHO, allow_pickle=True)
    buffer = torch.empty(prepared.size, dtype=torch.uint8)
    flat.copy_into(prepared, buffer)
    back = flat.rebuild_from(buffer, "f", allow_pickle=True)
    assert type(back).__name__ == "OwnState"
    assert torch.equal(next(iter(back.tensors)), torch.ones(2))


@pytest.mark.parametrize(
    ("tensor", "why"),
    [
        (torch.ones(2, device="meta"), "no plain bytes"),
        (torch.ones(2).to_sparse(), "sparse_coo"),
    ],
)
def test_tensors_without_bytes_are_refused(tensor, why: str) -> None:
    with pytest.raises(PlainError, match=rf"tensor 1 \(m\.0\) .*{why}"):
        flat.prepare(BasicTensorAwareStateDict({"a": torch.ones(1), "m": [tensor]}), WHO)


@pytest.mark.parametrize(
    "one", [("nonsense", [1], 0, 1), ("int8", [-1], 0, 1), ("int8", [2], 0, 1)]
)
def test_impossible_tensors(one) -> None:
    head = shard.Head(
        format=1, **WHO._asdict(), kind="k", state=b"", tensors=[shard.Tensor(*one)], data_bytes=1
    )
    with pytest.raises(DamagedCheckpointError):
        flat.new_tensors(head, "f")


def test_unknown_class() -> None:
    head = shard.Head(
        format=1, **WHO._asdict(), kind="no.such", state=b"", tensors=[], data_bytes=0
    )
    with pytest.raises(DamagedCheckpointError, match=r"no\.such is not known here: import it"):
        flat.rebuild(head, [], "f")


def test_mapping_at_once_keeps_the_content_and_any_range_will_do() -> None:
    memory = ctypes.create_string_buffer(b"x" * 100, 8 << 20)
    address = ctypes.addressof(memory)
    for start, size in [(0, 8 << 20), (1, 5 << 20), (5, 3), (0, 0)]:
        flat.map_at_once(address + start, size)
    assert memory.value == b"x" * 100
