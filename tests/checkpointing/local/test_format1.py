"""Hollow states as versions until the end of November 2026 have written them."""

from __future__ import annotations

import base64
import contextlib
from argparse import Namespace
from collections import OrderedDict

import msgspec
import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from undaunted.checkpointing.local.base_state_dict import (  # noqa: E402
    PlainError,
    TensorPlaceholder,
)
from undaunted.checkpointing.local.format1 import decode  # noqa: E402

pytestmark = pytest.mark.torch

# Every kind of value that there was.
WRITTEN = base64.b85decode(
    b"n*yb9Y+-3`n*hMW0g?r@FnBaDFfcGMFfcGMFfcGMFfcGM%Rl%4000000FwsG0000000000%Rle{000000HI-$2gC#I"
    b"pn${yVv-2N0b{CTZ*Fv9X>Mh5bCdy;36lb;Uu|V{VPs)+VU!7x0-%!ur*>s>b7^mG0ij_5l>!2i0|Sx)1d;>=lM11D"
    b"2Bmawa${(e0Fw))WOR9OWv6CrZ((#XHj@jcWMy_~V`ZabaCMUlq;qL{Ws(2_rEYa?aCwselMAPAWMOi0VR@7QqdaLi"
    b"k^lq57ytkO00000009610000000IC2000000Fw)*b7Ns_VRDlIqdaCb!~_5Uz(1yRWo~nCa+3?IaBN{?WoU0~WMy)c"
    b"0Hb4Yb&>!Ar)F$#VRSPx"
)


def test_what_was_written_is_read() -> None:
    state = decode(WRITTEN, allow_pickle=False)
    plain = [None, True, 1, 1 << 70, 1.5, 1j, "a", "\ud800", b"b", bytearray(b"c")]
    assert repr(state["plain"]) == repr(plain)
    ordered, mapping, named = state["containers"]
    assert type(ordered) is OrderedDict
    assert (ordered, ordered._metadata) == ({"a": 1}, {"": {"version": 1}})
    assert mapping == {2: {3}, (4,): frozenset({5})}
    assert type(mapping[4,]) is frozenset
    assert named == Namespace(x=6)
    assert state["torch"] == [torch.float16, torch.device("cpu"), torch.Size([2])]
    assert type(state["torch"][2]) is torch.Size
    assert np.array_equal(state["numpy"][0], np.arange(3))
    assert type(state["numpy"][1]) is np.float32
    assert state["tensor"] == TensorPlaceholder("cpu", (2,), torch.float32)


def test_a_pickle_needs_permission() -> None:
    packed = msgspec.msgpack.encode([11, "pickle", b"\x80\x04K\x07."])
    assert decode(packed, allow_pickle=True) == 7
    with pytest.raises(PlainError, match="allow_pickle"):
        decode(packed, allow_pickle=False)


@pytest.mark.parametrize(
    "packed",
    [[], [99], ["x"], [2, 1], [3, [0]], [5, "z"], [6, "a", "b"], [9], [10, 1, 2], [11, "x"], {}],
)
def test_nonsense_is_an_error_of_its_own(packed: object) -> None:
    with pytest.raises(PlainError):
        decode(msgspec.msgpack.encode(packed), allow_pickle=False)


@given(st.binary(max_size=40))
def test_any_bytes_decode_or_are_refused(content: bytes) -> None:
    with contextlib.suppress(PlainError):
        decode(content, allow_pickle=False)


def test_nested_bombs_are_refused() -> None:
    with pytest.raises(PlainError):
        decode(b"\x92\x00" * 100_000, allow_pickle=False)
