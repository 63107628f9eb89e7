from __future__ import annotations

import contextlib
import json
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.health.check import Finding, Settings
from undaunted.health.checks import endpoint
from undaunted.health.checks.endpoint import (
    Answer,
    Endpoint,
    decode_answer,
    encode_arguments,
    judge,
)

if TYPE_CHECKING:
    from pathlib import Path


def field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2]) + endpoint._varint(len(data)) + data


def answer(success: bool, code: int, output: str = "", error: str = "") -> bytes:
    head = bytes([1 << 3, success, 2 << 3]) + endpoint._varint(code & 2**64 - 1)
    return head + field(3, output.encode()) + field(4, error.encode())


def test_messages() -> None:
    assert encode_arguments(("--no-slurm",)) == b"\x0a\x0a--no-slurm"
    long = "x" * 300
    assert decode_answer(answer(True, 3, long, "e")) == Answer(True, 3, long, "e")
    assert decode_answer(b"") == Answer()
    unknown = bytes([9 << 3 | 1]) + b"8" * 8 + bytes([10 << 3 | 5]) + b"4444"
    assert decode_answer(unknown + answer(True, 0)) == Answer(True)


@given(st.binary(max_size=60))
def test_garbage_is_an_error_or_an_answer(message: bytes) -> None:
    with contextlib.suppress(ValueError):
        judge(decode_answer(message))


@pytest.mark.parametrize("cut", [b"\x0a", b"\x1a\x05abc", b"\x08\xff", b"\x0b"])
def test_cut_off(cut: bytes) -> None:
    with pytest.raises(ValueError, match="answer"):
        decode_answer(cut)


@pytest.mark.parametrize(
    ("said", "failed"),
    [
        (Answer(True, 0, json.dumps({"fail_count": 0})), False),
        (Answer(True, 0, json.dumps({"fail_count": 2, "failed_checks": ["gpu"]})), True),
        (Answer(False, 1, "", "no permission"), True),
        (Answer(True, 0, "no JSON"), False),
        (Answer(True, 0, "[" * 100_000), False),
        (Answer(True, 0, '{"fail_count": "many"}'), False),
        (Answer(True, 0, '{"fail_count": true}'), False),
        (Answer(True, 0, '{"fail_count": -1}'), False),
        (Answer(True, 0, "3"), False),
        (Answer(), False),  # nothing definite
    ],
)
def test_only_a_definite_word_counts(said: Answer, failed: bool) -> None:
    found = judge(said)
    assert (found is not None and found.failed) is failed


@pytest.mark.parametrize("output", ["no JSON", "[]", "{}", '{"fail_count": true}'])
def test_an_answer_that_makes_no_sense_is_said(output: str) -> None:
    found = judge(Answer(True, 0, output))
    assert found is not None
    assert not found.failed
    assert output in found.text


def test_it_says_which_checks_failed() -> None:
    said = Answer(True, 0, json.dumps({"fail_count": 1, "failed_checks": ["prolog: disk"]}))
    assert judge(said) == Finding('1 of its checks failed: ["prolog: disk"]')


def test_no_socket_no_fault(tmp_path: Path) -> None:
    for text in (f"unix://{tmp_path}/none", f"{tmp_path}/none"):
        (check,) = endpoint.checks(Settings(endpoint=text))
        assert check.subject == f"{tmp_path}/none"
        assert not check.must_answer
        found = check.run({})
        assert found is not None
        assert not found.failed
    assert endpoint.checks(Settings()) == []


def test_no_grpc_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    (tmp_path / "socket").touch()
    found = Endpoint(str(tmp_path / "socket")).run({})
    assert found is not None
    assert not found.failed
    assert "undaunted[health]" in found.text


class RpcError(Exception):
    def details(self) -> str:
        return "failed to connect\nand more"


class Channel:
    asked = (b"\x0a\x0a--no-slurm", 60)

    def __init__(self, target: str, answer: bytes | None) -> None:
        self.target, self.answer = target, answer

    def __enter__(self) -> object:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def unary_unary(self, method: str, encode: Any, decode: Any) -> Any:
        assert method == "/nvhcd.HealthCheckService/RunHealthCheck"

        def ask(arguments: tuple[str, ...], timeout: float) -> Answer:
            assert (encode(arguments), timeout) == self.asked
            if self.answer is None:
                raise RpcError
            decoded: Answer = decode(self.answer)
            return decoded

        return ask


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (answer(True, 0, '{"fail_count": 0}'), None),
        (answer(False, 2, "", "bad disk"), Finding("failed with exit code 2: bad disk")),
        (None, Finding("no answer: failed to connect", failed=False)),
    ],
)
def test_the_service_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reply: bytes | None, expected: Finding | None
) -> None:
    grpc = ModuleType("grpc")
    grpc.RpcError = RpcError  # type: ignore[attr-defined]
    grpc.insecure_channel = lambda target: Channel(target, reply)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "grpc", grpc)
    (tmp_path / "socket").touch()
    assert Endpoint(str(tmp_path / "socket")).run({}) == expected
    monkeypatch.setattr(Channel, "asked", (b"\x0a\x01a\x0a\x01b", 5))
    other = Endpoint(str(tmp_path / "socket"), arguments=("a", "b"), timeout_s=5)
    assert other.run({}) == expected
    assert other.deadline_s == 15
