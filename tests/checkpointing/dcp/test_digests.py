from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import decimal
import enum
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from undaunted.checkpointing.dcp.digests import of_tensors, of_value, of_values

pytestmark = pytest.mark.torch


class Kind(enum.Enum):
    ONE = 1
    TWO = 2


@dataclasses.dataclass
class Point:
    x: Any
    y: Any = 0


def itself() -> list[Any]:
    inside: list[Any] = [1]
    inside.append(inside)
    return inside


DIFFERENT: list[Any] = [
    *(None, True, 1, 2, 1.0, -1.5, 1 + 2j, "1", b"1", "", [], (), {}, set(), [1], (1,), {1}, [[1]]),
    *({"a": 1}, {"a": 2}, {"b": 1}, {1: "a"}, {"1": "a"}, {"a": 1, "b": 2}, {"a": 2, "b": 1}),
    *(["a", "b"], ["ab"], ["b", "a"], {"ab"}, range(3), Kind.ONE, Kind.TWO, Point(1), Point(2)),
    *(dt.date(2020, 1, 1), dt.datetime(2020, 1, 1, tzinfo=dt.UTC), dt.timedelta(1)),
    *(decimal.Decimal("1.0"), Path("a"), "\ud800", itself(), torch.ones(2), torch.zeros(2)),
    *(torch.ones(2).int(), torch.ones(1, 2), [torch.ones(2)], (torch.zeros(2),)),
]


def test_values_that_differ_have_other_digests() -> None:
    digests = [of_value(value) for value in DIFFERENT]
    same = [
        (one, other)
        for at, one in enumerate(DIFFERENT)
        for past, other in enumerate(DIFFERENT)
        if at < past and digests[at] == digests[past]
    ]
    assert same == []


def test_equal_values_have_one_digest() -> None:
    text = b"abc".decode()
    assert of_value([text, text]) == of_value([text, b"abc".decode()])
    assert of_value({"a": 1, "b": 2}) == of_value({"b": 2, "a": 1})
    assert of_value({"x", "y", text}) == of_value({text, "y", "x"})
    assert of_value(float("nan")) == of_value(-float("nan") * 0)
    assert of_value([torch.arange(6.0).view(2, 3).t()]) == of_value(
        [torch.arange(6.0).view(2, 3).t().contiguous()]
    )


def test_what_is_not_known_counts_as_equal() -> None:
    assert of_value([object(), 1]) == of_value([object(), 1])
    assert of_value(lambda: 1) == of_value(lambda: 2)
    assert of_value([object(), 1]) != of_value([object(), 2])


def test_namespaces() -> None:
    assert of_value(argparse.Namespace(a=1, b=2)) == of_value(argparse.Namespace(b=2, a=1))
    assert of_value(argparse.Namespace(a=1)) != of_value(argparse.Namespace(a=2))


def test_numpy() -> None:
    numpy = pytest.importorskip("numpy")
    for number, other in ((numpy.float64(1.5), 1.5), (numpy.int64(3), 3), (numpy.bool_(1), True)):
        assert of_value(number) == of_value(other)
        assert of_values([number, "a"]) == of_values([other, "a"])
    assert of_value(numpy.float64(1.5)) != of_value(1.25)
    assert of_value(numpy.arange(3)) == of_value(numpy.arange(3))
    assert of_value(numpy.arange(3)) != of_value(numpy.arange(3)[::-1])
    assert of_value(numpy.arange(3)) != of_value(numpy.arange(3, dtype="int32"))
    words, others = (numpy.array([end, [1]], dtype=object) for end in ("a", "b"))
    assert of_value(words) == of_value(words.copy()) != of_value(others)


@pytest.mark.slow
def test_digests_are_the_same_in_another_process() -> None:
    """Whose texts have other hashes, so that its sets have another order."""
    code = (
        "import torch; from undaunted.checkpointing.dcp.digests import of_value\n"
        "value = [{'a', 'b', 'c', 'd'}, {'x': 1, 'y': (None, 2.5)}, torch.arange(5)]\n"
        "print(of_value(value).hex())"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1


@pytest.mark.parametrize("count", [1, 4096, 4097, 100_003])
@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.bfloat16, torch.float64, torch.complex64, torch.uint8, torch.bool],
)
def test_one_bit_is_noticed(dtype: torch.dtype, count: int) -> None:
    one = torch.arange(count).fmod(3).to(dtype)
    assert of_tensors([one]) == of_tensors([one.clone()])
    for at in {0, count // 2, count - 1}:
        other = one.clone()
        other.view(torch.uint8).view(-1)[at * one.element_size()] ^= 1
        assert of_tensors([one]) != of_tensors([other])


def test_order_matters_in_long_tensors() -> None:
    one = torch.arange(200_000.0)
    for rows in (50_000, 8192, 1):
        other = one.clone()
        other[:rows], other[rows : 2 * rows] = one[rows : 2 * rows], one[:rows]
        assert of_tensors([one]) != of_tensors([other])


def test_what_is_not_read_has_none() -> None:
    assert of_tensors([torch.empty(2, device="meta")]) == [b""]
