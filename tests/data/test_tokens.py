"""`TokenFile`: samples of files of tokens, raw or with an index of Megatron."""

from __future__ import annotations

import json
import os
import pickle
import struct
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch

from undaunted.data import DataChangedError, Loader, ShardError, TokenFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*torch.distributed is"),
]

LETTERS = {"uint8": "B", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I", "int64": "q"}
CODES = {"uint8": 1, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}


def write(path: Path, tokens: list[int], dtype: str = "uint16", head: bytes = b"") -> Path:
    path.write_bytes(head + struct.pack(f"<{len(tokens)}{LETTERS[dtype]}", *tokens))
    return path


def write_megatron(
    path: Path, documents: list[list[list[int]]], dtype: str = "uint16"
) -> list[int]:
    """Write documents of sequences of tokens, and return all tokens."""
    item = struct.calcsize(LETTERS[dtype])
    sequences = [one for document in documents for one in document]
    tokens = [token for one in sequences for token in one]
    write(path, tokens, dtype)
    pointers, at = [], 0
    for one in sequences:
        pointers.append(at)
        at += len(one) * item
    ends = [0]
    for document in documents:
        ends.append(ends[-1] + len(document))
    path.with_suffix(".idx").write_bytes(
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", 1, CODES[dtype], len(sequences), len(ends))
        + struct.pack(f"<{len(sequences)}i", *map(len, sequences))
        + struct.pack(f"<{len(sequences)}q", *pointers)
        + struct.pack(f"<{len(ends)}q", *ends)
    )
    return tokens


def largest(dtype: str) -> int:
    return 1 << (8 * struct.calcsize(LETTERS[dtype]) - (not dtype.startswith("u"))) - 1


@pytest.mark.parametrize("dtype", LETTERS)
def test_samples_overlap_by_one_token(tmp_path: Path, dtype: str) -> None:
    tokens = [largest(dtype) - one for one in range(38)]
    for offset in (0, 1024):
        path = write(tmp_path / "a.bin", tokens, dtype, b"\1" * offset)
        file = TokenFile(path, dtype, length=5, offset=offset)
        assert (file.tokens, len(file)) == (38, 7)
        for index in range(7):
            assert file[index].dtype == torch.int64
            assert file[index].tolist() == tokens[5 * index : 5 * index + 6]
        for wrong in (-1, 7):
            with pytest.raises(IndexError, match=str(wrong)):
                file[wrong]


@given(
    st.lists(
        st.lists(st.lists(st.integers(1, 250), max_size=9), max_size=4), min_size=1, max_size=9
    ),
    st.integers(1, 12),
    st.sampled_from(list(CODES)),
)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_documents_of_an_index_of_megatron(
    tmp_path: Path, documents: list[list[list[int]]], length: int, dtype: str
) -> None:
    documents.append([[1] * (length + 1)])
    tokens = write_megatron(tmp_path / "a.bin", documents, dtype if dtype != "int16" else "uint16")
    own = [n for n, one in enumerate(documents) for sequence in one for _ in sequence]
    file = TokenFile(tmp_path / "a.bin", length=length, documents=True)
    assert len(file) == (len(tokens) - 1) // length
    for index in range(len(file)):
        found = {name: value.tolist() for name, value in file[index].items()}
        here = slice(index * length, index * length + length + 1)
        assert found["tokens"] == tokens[here]
        check_documents(found, own[here])
    assert TokenFile(tmp_path / "a.bin", length=length)[0].tolist() == tokens[: length + 1]


@given(st.lists(st.integers(0, 3), min_size=8, max_size=60), st.integers(1, 7))
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_documents_that_end_with_a_token(tmp_path: Path, tokens: list[int], length: int) -> None:
    file = TokenFile(
        write(tmp_path / "a.bin", tokens), "uint16", length=length, documents=True, eos=0
    )
    own = [tokens[:at].count(0) for at in range(len(tokens))]
    for index in range(len(file)):
        found = {name: value.tolist() for name, value in file[index].items()}
        check_documents(found, own[index * length : index * length + length + 1])


def check_documents(found: dict[str, list[int]], own: list[int]) -> None:
    numbers = {document: number for number, document in enumerate(sorted(set(own)))}
    got = {document: number for number, document in enumerate(sorted(set(found["documents"])))}
    assert [got[one] for one in found["documents"]] == [numbers[one] for one in own]
    assert found["documents"][0] == 0
    first = {document: at for at, document in reversed(list(enumerate(own)))}
    assert found["positions"] == [at - first[document] for at, document in enumerate(own)]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_job_goes_on_with_workers(tmp_path: Path, workers: int) -> None:
    path = write(tmp_path / "a.bin", list(range(10_001)))

    def loader(**settings: Any) -> Loader:
        file = TokenFile(path, "uint16", length=10, documents=True, eos=9)
        return Loader(file, global_batch=8, micro_batch=4, seed=1, **settings)

    whole, first = steps(loader(), 6), loader(num_workers=workers)
    assert steps(first, 2) == whole[:2]
    state = json.loads(json.dumps(first.state_dict()))
    first.close()
    second = loader(num_workers=2 - workers)
    second.load_state_dict(state)
    assert steps(second, 4) == whole[2:]
    second.close()


def steps(loader: Loader, count: int) -> list[list[Any]]:
    return [
        [{name: value.tolist() for name, value in batch.items()} for batch in loader.step()]
        for _ in range(count)
    ]


def test_a_copy_for_another_process(tmp_path: Path) -> None:
    write_megatron(tmp_path / "a.bin", [[[1, 2, 3]], [[4, 5, 6]]])
    file = TokenFile(tmp_path / "a.bin", length=4, documents=True)
    expected = file[0]["documents"].tolist()
    assert expected == [0, 0, 0, 1, 1]
    copy = pickle.loads(pickle.dumps(file))
    assert copy[0]["documents"].tolist() == expected
    assert copy.fingerprint == file.fingerprint
    before = len(os.listdir("/proc/self/fd"))
    file.close()
    copy.close()
    assert len(os.listdir("/proc/self/fd")) == before - 2
    assert file[0]["documents"].tolist() == expected


def test_other_tokens_are_refused(tmp_path: Path) -> None:
    tokens = list(range(5000))
    path = write(tmp_path / "a.bin", tokens)

    def loader(path: Path = path, length: int = 10) -> Loader:
        return Loader(TokenFile(path, "uint16", length=length), global_batch=4, micro_batch=4)

    state = loader().state_dict()
    loader(write(tmp_path / "copy.bin", tokens)).load_state_dict(state)
    tokens[2500] += 1
    for other in (loader(write(tmp_path / "b.bin", tokens)), loader(length=5), loader(length=11)):
        with pytest.raises(DataChangedError, match="data was"):
            other.load_state_dict(state)


# --- bad input ------------------------------------------------------------------------------------


def bad_index(change: Callable[[bytes], bytes]) -> Callable[[Path], dict[str, Any]]:
    def make(folder: Path) -> dict[str, Any]:
        write_megatron(folder / "a.bin", [[[1, 2, 3]], [[4, 5, 6]]])
        index = folder / "a.idx"
        index.write_bytes(change(index.read_bytes()))
        return {"path": folder / "a.bin"}

    return make


BAD: dict[str, tuple[Callable[[Path], dict[str, Any]], type[Exception], str]] = {
    "no file": (lambda at: {"path": at / "a.bin", "dtype": "uint16"}, ShardError, "a.bin"),
    "no index": (lambda at: {"path": write(at / "a.bin", [1] * 9)}, ShardError, "dtype="),
    "no index of documents": (
        lambda at: {"path": write(at / "a.bin", [1] * 9), "dtype": "uint16", "documents": True},
        ShardError,
        "eos=",
    ),
    "half a token": (
        lambda at: {"path": write(at / "a.bin", [1] * 9, "uint8"), "dtype": "uint16"},
        ShardError,
        "multiple",
    ),
    "a type that is none": (
        lambda at: {"path": write(at / "a.bin", [1] * 9), "dtype": "float16"},
        ValueError,
        "float16",
    ),
    "too few": (
        lambda at: {"path": write(at / "a.bin", [1] * 4), "dtype": "uint16"},
        ValueError,
        "5",
    ),
    "no length": (
        lambda at: {"path": write(at / "a.bin", [1] * 4), "dtype": "uint16", "length": 0},
        ValueError,
        "length=0",
    ),
    "an index cut short": (bad_index(lambda one: one[:-1]), ShardError, "a.idx"),
    "an empty index": (bad_index(lambda _: b""), ShardError, "a.idx"),
    "no index but a file": (bad_index(lambda one: b"x" + one[1:]), ShardError, "a.idx"),
    "an index of floats": (
        bad_index(lambda one: one[:17] + b"\6" + one[18:]),
        ShardError,
        "a.idx",
    ),
    "another index": (
        bad_index(lambda one: one[:17] + b"\4" + one[18:]),
        ShardError,
        "cut short",
    ),
    "an index that contradicts": (
        lambda at: bad_index(bytes)(at) | {"dtype": "uint32", "documents": True},
        ValueError,
        "uint16",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_refused(tmp_path: Path, name: str) -> None:
    make, kind, complaint = BAD[name]
    with pytest.raises(kind, match=complaint):
        TokenFile(**{"length": 4, **make(tmp_path)})


@pytest.mark.parametrize("sequence", [-1, 3, 1 << 40])
def test_a_document_that_cannot_be(tmp_path: Path, sequence: int) -> None:
    write_megatron(tmp_path / "a.bin", [[[1, 2, 3]], [[4, 5, 6]]])
    index = tmp_path / "a.idx"
    content = index.read_bytes()
    index.write_bytes(content[:-16] + struct.pack("<q", sequence) + content[-8:])
    with pytest.raises(ShardError, match=r"a\.idx"):
        TokenFile(tmp_path / "a.bin", length=4, documents=True)[0]


def test_a_file_that_is_cut_under_the_job(tmp_path: Path) -> None:
    path = write(tmp_path / "a.bin", list(range(101)))
    file = TokenFile(path, "uint16", length=10)
    os.truncate(path, 100)
    assert file[2].tolist() == list(range(20, 31))
    with pytest.raises(ShardError, match="byte 100"):
        file[9]
    file.close()
    path.unlink()
    with pytest.raises(ShardError, match="out of reach"):
        file[0]
