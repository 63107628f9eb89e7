"""`Shards`: samples of tars, JSON lines and Parquet by their number, and what damage does."""

from __future__ import annotations

import gzip
import io
import json
import operator
import os
import random
import stat
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

from torch.utils.data import IterableDataset

from undaunted.data import DataChangedError, Loader, ShardError, ShardOrder, Shards

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*torch.distributed is"),
]

Members = list[tuple[str, bytes]]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


def write_tar(path: Path, members: Members, kind: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w", format=kind) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            info.mtime = 1.5  # pax writes a header of its own for a part of a second
            tar.addfile(info, io.BytesIO(content))
    return path


def write_tars(folder: Path, lengths: Sequence[int]) -> list[Path]:
    made, number = [], 0
    for shard, length in enumerate(lengths):
        members: Members = []
        for _ in range(length):
            members += [
                (f"{number:06}.id", str(number).encode()),
                (f"{number:06}.x", b"x" * number),
            ]
            number += 1
        made.append(write_tar(folder / f"{shard:03}.tar", members))
    return made


def write_lines(folder: Path, lengths: Sequence[int]) -> list[Path]:
    made, number = [], 0
    for shard, length in enumerate(lengths):
        rows = [json.dumps({"id": number + at, "x": "ä" * at}) + "\n" for at in range(length)]
        made.append(folder / f"{shard:03}.jsonl")
        made[-1].write_text("".join(rows))
        number += length
    return made


def write_parquet(folder: Path, lengths: Sequence[int]) -> list[Path]:
    pa = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
    pq = pytest.importorskip("pyarrow.parquet", reason="Parquet needs pyarrow")
    made, number = [], 0
    for shard, length in enumerate(lengths):
        numbers = list(range(number, number + length))
        table = pa.table(
            {"id": pa.array(numbers, pa.int64()), "x": [b"x" * one for one in numbers]}
        )
        made.append(folder / f"{shard:03}.parquet")
        pq.write_table(table, made[-1], row_group_size=4)
        number += length
    return made


WRITERS: dict[str, Callable[[Path, Sequence[int]], list[Path]]] = {
    "tar": write_tars,
    "jsonl": write_lines,
    "parquet": write_parquet,
}


def id_of(sample: dict[str, Any]) -> int:
    return int(sample["id"])


def index_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.index"))


# --- what is read ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", WRITERS)
def test_samples_are_numbered_through_all_shards(tmp_path: Path, kind: str) -> None:
    paths = WRITERS[kind](tmp_path, [5, 1, 9])
    for shards in (Shards(paths, transform=id_of), Shards(f"{tmp_path}/*.{kind}", transform=id_of)):
        assert (len(shards), shards.lengths) == (15, [5, 1, 9])
        assert [shards[index] for index in (14, 0, 5, 6, 7, 4, 13)] == [14, 0, 5, 6, 7, 4, 13]
        assert list(shards) == list(range(15))
        assert shards.place(5) == (str(paths[1]), 0)
        for wrong in (-1, 15):
            with pytest.raises(IndexError, match=str(wrong)):
                shards[wrong]


def test_a_sample_of_a_tar_is_its_members(tmp_path: Path) -> None:
    members = [
        ("a/one.jpg", b"\xff" * 700),
        ("a/one.seg.PNG", b""),
        ("README", b"no sample"),
        ("__info__.json", b"{}"),
        ("b/one.jpg", b"two"),
    ]
    shards = Shards(write_tar(tmp_path / "a.tar", members))
    assert list(shards) == [
        {"__key__": "a/one", "jpg": b"\xff" * 700, "seg.png": b""},
        {"__key__": "b/one", "jpg": b"two"},
    ]


NAMES = st.text("ab/ü", max_size=12).map(lambda one: f"{one}d.x.y")


@given(
    st.lists(st.tuples(NAMES, st.integers(1, 130), st.binary(max_size=1100)), max_size=8),
    st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_tars_are_read_as_python_does(
    tmp_path: Path, parts: list[tuple[str, int, bytes]], kind: int
) -> None:
    members = [
        (f"{number}{'deep/' * (deep // 5)}{name}", content)
        for number, (name, deep, content) in enumerate(parts)
    ]
    path = write_tar(tmp_path / "a.tar", [*members, ("end.x", b"")], kind)
    with tarfile.open(path) as tar:
        expected = [tar.extractfile(one).read() for one in tar]  # type: ignore[union-attr]
    found = [
        [value for key, value in sample.items() if key != "__key__"] for sample in Shards(path)
    ]
    assert found == [[one] for one in expected]


def test_large_numbers_and_tars_one_after_the_other(tmp_path: Path) -> None:
    """GNU's tar writes sizes from 8 GiB on in binary; here the same for a small one."""
    first = write_tar(tmp_path / "first.tar", [("1.x", b"one")], tarfile.GNU_FORMAT)
    block = bytearray(first.read_bytes()[:512])
    block[124:136] = b"\x80" + (3).to_bytes(11)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    second = write_tar(tmp_path / "second.tar", [("2.x", b"two")])
    both = tmp_path / "both.tar"
    both.write_bytes(bytes(block) + first.read_bytes()[512:] + second.read_bytes())
    assert [one["x"] for one in Shards(both)] == [b"one", b"two"]


def test_lines_may_be_empty_and_the_last_one_without_end(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\n\n{"a": 1}\r\n  \n\r\n[2]\n"three"')
    assert list(Shards(path)) == [{"a": 1}, [2], "three"]


def test_columns_and_row_groups_of_parquet(tmp_path: Path) -> None:
    paths = write_parquet(tmp_path, [10, 3])
    for memory in (0, 1 << 20):
        shards = Shards(paths, columns=["id"], memory=memory)
        order = random.Random(1).sample(range(13), 13)
        assert [shards[index] for index in order] == [{"id": index} for index in order]
    with pytest.raises(ShardError, match="'no'"):
        Shards(paths, columns=["no"])[0]


# --- with a loader --------------------------------------------------------------------------------


def seen(loader: Loader, steps: int) -> list[list[int]]:
    made = []
    for _ in range(steps):
        batches = [batch.tolist()[: loader.real] for batch in loader.step() if loader.scale]
        made.append(sorted(one for batch in batches for one in batch))
    return made


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("ordered", [True, False])
def test_a_job_goes_on_with_other_ranks_and_workers(
    tmp_path: Path, kind: str, *, ordered: bool
) -> None:
    paths = WRITERS[kind](tmp_path, [20, 7, 33, 1])

    def loader(**place: Any) -> Loader:
        shards = Shards(paths, transform=id_of)
        order = ShardOrder(shards.lengths, seed=2, window=16) if ordered else None
        return Loader(shards, order=order, global_batch=8, micro_batch=2, seed=2, **place)

    undisturbed = loader()
    whole = seen(undisturbed, 14)
    assert sorted(one for step in whole[:7] for one in step) != list(range(56))
    assert len({one for step in whole[:7] for one in step}) == 56
    first = loader(num_workers=2)
    assert seen(first, 4) == whole[:4]
    state = json.loads(json.dumps(first.state_dict()))
    first.close()
    rest: list[list[int]] = [[] for _ in range(10)]
    for rank in range(3):
        part = loader(rank=rank, world_size=3, num_workers=2 * (rank == 1))
        part.load_state_dict(state)
        for at, step in enumerate(seen(part, 10)):
            rest[at] += step
        part.close()
    assert [sorted(step) for step in rest] == whole[4:]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_workers_that_are_spawned_read_as_well(tmp_path: Path, kind: str) -> None:
    shards = Shards(WRITERS[kind](tmp_path, [4, 4]), transform=operator.itemgetter("id"))
    assert int(shards[7]) == 7  # files are open by then
    loader = Loader(
        shards,
        global_batch=8,
        micro_batch=8,
        num_workers=1,
        multiprocessing_context="spawn",
        collate_fn=list,
    )
    (batch,) = loader.step()
    assert sorted(map(int, batch)) == list(range(8))
    loader.close()


def test_a_process_that_is_forked_while_files_are_open(tmp_path: Path) -> None:
    shards = Shards(write_lines(tmp_path, [4, 4]), transform=id_of)
    assert shards[0] == 0
    loader = Loader(
        shards, global_batch=4, micro_batch=4, num_workers=2, multiprocessing_context="fork"
    )
    assert sorted(one for step in seen(loader, 2) for one in step) == list(range(8))
    assert shards[1] == 1
    loader.close()


def test_many_shards_need_few_open_files(tmp_path: Path) -> None:
    shards = Shards(write_lines(tmp_path, [1] * 300), transform=id_of)
    before = len(os.listdir("/proc/self/fd"))
    assert list(shards) == list(range(300))
    assert len(os.listdir("/proc/self/fd")) - before < 200
    shards.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_other_data_are_refused_and_a_copy_is_not(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    paths = write_lines(tmp_path, [10, 10])
    state = Loader(Shards(paths), global_batch=4, micro_batch=4).state_dict()
    copy = Shards(write_lines(tmp_path / "copy", [10, 10]))
    Loader(copy, global_batch=4, micro_batch=4).load_state_dict(state)
    paths[1].write_text(paths[1].read_text().replace("15", "51"))
    with pytest.raises(DataChangedError, match="data was"):
        Loader(Shards(paths), global_batch=4, micro_batch=4).load_state_dict(state)


def fail(_: Any) -> Any:
    raise KeyError("cls")


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_in_transform_names_shard_and_sample(tmp_path: Path, workers: int) -> None:
    paths = write_tars(tmp_path, [3, 3])
    loader = Loader(
        Shards(paths, transform=fail),
        shuffle=False,
        global_batch=1,
        micro_batch=1,
        num_workers=workers,
    )
    with pytest.raises(KeyError) as caught:
        next(loader.step())
    loader.close()
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert f"sample 0 of {paths[0]}" in text


# --- the index ------------------------------------------------------------------------------------


def test_the_index_is_made_once_and_again_for_a_shard_that_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    paths = write_lines(tmp_path, [3, 4])
    first = Shards(paths)
    files = index_files(tmp_path)
    assert len(files) == 2
    made = [file.stat().st_ino for file in files]
    again = Shards(paths)
    assert [file.stat().st_ino for file in files] == made
    assert again.fingerprint == first.fingerprint
    assert not caplog.records
    with paths[1].open("a") as file:
        file.write('{"id": 7}\n')
    changed = Shards(paths)
    assert changed.lengths == [3, 5]
    assert changed[7] == {"id": 7}
    assert changed.fingerprint != first.fingerprint
    assert any(str(paths[1]) in one.getMessage() for one in caplog.records)
    assert [file.stat().st_ino == old for file, old in zip(files, made, strict=True)] == [
        True,
        False,
    ]


def test_an_index_that_is_damaged_is_made_anew(tmp_path: Path) -> None:
    paths = write_lines(tmp_path, [30])
    whole = list(Shards(paths))
    (file,) = index_files(tmp_path)
    content = file.read_bytes()
    for at in (0, 9, 20, 40, 60, 64, 64 + 8 * 11, len(content) - 1):
        file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        assert list(Shards(paths)) == whole
        assert file.read_bytes() == content
    for size in (0, 10, 64, len(content) - 8):
        file.write_bytes(content[:size])
        assert list(Shards(paths)) == whole
    file.unlink()
    shards = Shards(paths)
    file.unlink()  # under the job
    assert list(shards) == whole


def test_an_index_elsewhere(tmp_path: Path) -> None:
    paths = write_lines(tmp_path, [3])
    shards = Shards(paths, index=tmp_path / "elsewhere")
    assert len(shards) == 3
    assert index_files(tmp_path) == index_files(tmp_path / "elsewhere") != []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(tmp_path: Path, cache: Path) -> None:
    paths = write_lines(tmp_path, [3])
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    assert len(list(Shards(paths))) == 3
    assert len(index_files(cache)) == 1
    tmp_path.chmod(stat.S_IRWXU)


def test_folders_that_cannot_be(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in the place of a folder stops root, too."""
    paths = write_lines(tmp_path, [3])
    (tmp_path / ".undaunted").write_text("")
    assert len(list(Shards(paths))) == 3
    assert len(index_files(cache)) == 1
    monkeypatch.setenv("XDG_CACHE_HOME", str(paths[0]))
    with pytest.raises(ShardError, match="index="):
        Shards(paths)


MAKE = """
import sys
from undaunted.data import Shards
shards = Shards(sys.argv[1], transform=lambda sample: sample["id"])
assert list(shards) == list(range(600)), list(shards)
print(shards.fingerprint)
"""


def test_several_ranks_at_once(tmp_path: Path) -> None:
    write_lines(tmp_path, [20] * 30)
    words = [sys.executable, "-c", MAKE, f"{tmp_path}/*.jsonl"]
    ranks = [
        subprocess.Popen(
            words,
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "3"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    prints = [rank.communicate(timeout=100)[0] for rank in ranks]
    assert len(set(prints)) == 1
    assert prints[0].strip()
    assert len(index_files(tmp_path)) == 30
    left = [path for path in (tmp_path / ".undaunted").iterdir() if path.suffix != ".index"]
    assert not left


# --- bad input ------------------------------------------------------------------------------------


def cut(path: Path, size: int) -> Path:
    path.write_bytes(path.read_bytes()[:size])
    return path


def linked(folder: Path) -> Path:
    path = folder / "links.tar"
    with tarfile.open(path, "w") as tar:
        info = tarfile.TarInfo("1.x")
        info.type, info.linkname = tarfile.SYMTYPE, "2.x"
        tar.addfile(info)
    return path


def of_bytes(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


SAMPLE: Members = [("1.x", b"x" * 1000), ("2.x", b"y" * 1000)]
BAD: dict[str, tuple[Callable[[Path], Path], str]] = {
    "a member half missing": (lambda folder: cut(write_tar(folder / "a.tar", SAMPLE), 4500), "2.x"),
    "a header half missing": (lambda folder: cut(write_tar(folder / "a.tar", SAMPLE), 3800), "cut"),
    "no end of a tar": (lambda folder: cut(write_tar(folder / "a.tar", SAMPLE), 5120), "end mark"),
    "no bytes": (lambda folder: of_bytes(folder / "a.tar", b""), "end mark"),
    "no tar": (lambda folder: of_bytes(folder / "a.tar", b"no tar" * 1000), "no header"),
    "a header that changed": (
        lambda folder: of_bytes(
            folder / "a.tar",
            write_tar(folder / "b.tar", SAMPLE).read_bytes().replace(b"2.x", b"3.x"),
        ),
        "byte",
    ),
    "a link": (linked, "--dereference"),
    "members apart": (
        lambda folder: write_tar(folder / "a.tar", [("1.x", b""), ("2.x", b""), ("1.y", b"")]),
        "--sort=name",
    ),
    "a member twice": (
        lambda folder: write_tar(folder / "a.tar", [("1.x", b""), ("1.x", b"")]),
        "twice",
    ),
    "a line half missing": (
        lambda folder: of_bytes(folder / "a.jsonl", b'{"a": 1}\n{"a'),
        "sample 1",
    ),
    "compressed": (lambda folder: of_bytes(folder / "a.jsonl.gz", gzip.compress(b"1\n")), "gzip"),
    "compressed in secret": (
        lambda folder: of_bytes(folder / "a.jsonl", gzip.compress(b"1\n")),
        "gzip",
    ),
    "a compressed tar": (lambda folder: of_bytes(folder / "a.tar.zst", b""), "zstd"),
}


@pytest.mark.parametrize("name", BAD)
def test_damage_is_found_when_the_index_is_made(tmp_path: Path, name: str) -> None:
    make, complaint = BAD[name]
    path = make(tmp_path)
    good = write_lines(tmp_path, [2])[0] if path.suffix == ".jsonl" else path
    with pytest.raises(ShardError, match=complaint) as caught:
        Shards([good, path])
    assert str(path) in str(caught.value)
    assert not list(tmp_path.rglob(f"{path.name}.index"))


@pytest.mark.parametrize("kind", ["tar", "jsonl"])
def test_any_damage_is_an_error_of_a_shard(tmp_path: Path, kind: str) -> None:
    (whole,) = WRITERS[kind](tmp_path, [6])
    content, draw = whole.read_bytes(), random.Random(4)
    path, outcomes = tmp_path / f"damaged.{kind}", set()
    for _ in range(150):
        changed = bytearray(content)
        for at in draw.choices(range(len(content)), k=3):
            changed[at] = draw.choice([0, 48, 128, 255])
        path.write_bytes(changed[: draw.choice([len(content), draw.randrange(1, len(content))])])
        try:
            outcomes.add(len(list(Shards(path))))
        except ShardError as error:
            assert str(path) in str(error)  # noqa: PT017 - most are errors, not all
            outcomes.add(-1)
    assert -1 in outcomes
    assert max(outcomes) <= 6 + (kind == "jsonl") * 3  # a line may become two


def test_no_parquet(tmp_path: Path) -> None:
    path = of_bytes(tmp_path / "a.parquet", b"PAR1 and so on")
    with pytest.raises(ShardError, match=r"pyarrow|Parquet"):
        Shards(path)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_line_that_is_no_json(tmp_path: Path, workers: int) -> None:
    paths = write_lines(tmp_path, [3, 3])
    paths[1].write_text('{"id": 3}\n{"id": \n{"id": 5}\n')
    shards = Shards(paths, transform=id_of)
    assert [shards[index] for index in (3, 5)] == [3, 5]
    loader = Loader(shards, shuffle=False, global_batch=2, micro_batch=2, num_workers=workers)
    assert seen(loader, 2) == [[0, 1], [2, 3]]
    with pytest.raises(ShardError, match="sample 1 of") as caught:
        next(loader.step())
    assert str(paths[1]) in str(caught.value)
    loader.close()


def test_what_becomes_of_shards_under_a_job(tmp_path: Path) -> None:
    paths = write_tars(tmp_path, [3, 3, 3, 3])
    shards = Shards(paths, transform=id_of)
    assert shards[0] == 0
    paths[1].unlink()
    write_tar(paths[2], [("other.id", b"1")])
    cut(paths[3], 2048)
    for index, complaint in ((3, "missing"), (6, "has changed"), (9, "3")):
        with pytest.raises(ShardError, match=complaint) as caught:
            shards[index]
        assert str(paths[index // 3]) in str(caught.value)
    cut(paths[0], 1024)  # is open
    with pytest.raises(ShardError, match="cut short"):
        shards[2]


def test_a_tar_that_is_written_over_while_it_is_open_names_the_place(tmp_path: Path) -> None:
    (path,) = write_tars(tmp_path, [6])
    shards = Shards(path, transform=id_of)
    assert shards[0] == 0
    with path.open("r+b") as file:
        at = path.read_bytes().index(b"ustar", path.stat().st_size // 4) // 512 * 512
        file.seek(at)
        file.write(b"something else")
    complaints = []
    for number in range(6):
        try:
            assert shards[number] == number
        except ShardError as error:
            complaints.append((number, str(error)))
    ((number, complaint),) = complaints
    assert number
    for part in (f"sample {number} of", str(path), f"byte {at}"):
        assert part in complaint


def test_a_shard_that_was_touched_only(tmp_path: Path) -> None:
    paths = write_lines(tmp_path, [3])
    shards = Shards(paths, transform=id_of)
    os.utime(paths[0], (1, 1))
    assert shards[2] == 2


def test_shards_without_samples(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    paths = write_lines(tmp_path, [0, 2, 0])
    shards = Shards(paths, transform=id_of)
    assert (shards.lengths, list(shards)) == ([0, 2, 0], [0, 1])
    assert sum("no samples" in one.getMessage() for one in caplog.records) == 2
    order = ShardOrder(shards.lengths, window=2)
    assert sorted(order.index(0, at) for at in range(2)) == [0, 1]
    with pytest.raises(ValueError, match="no samples"):
        Shards([paths[0], paths[2]])


class Streamed(IterableDataset):  # type: ignore[misc]
    """As a data set of Hugging Face: can be iterated over, and names its features."""

    features = ("text",)

    def __iter__(self) -> Any:
        return iter(["a"])


def test_what_are_no_shards(tmp_path: Path) -> None:
    write_lines(tmp_path, [1])
    write_tars(tmp_path, [1])
    (tmp_path / "a.txt").write_text("1\n")
    for wrong, kind, complaint in (
        ([], ValueError, "empty"),
        (f"{tmp_path}/*.parquet", ValueError, "no file"),
        (str(tmp_path), ValueError, "no file"),
        (f"{tmp_path}/00*", ValueError, "several"),
        (f"{tmp_path}/a.txt", ValueError, "kind="),
        ("s3://bucket/a.tar", TypeError, "s3://"),
        (Streamed(), TypeError, "Streamed"),
        (3, TypeError, "int"),
        ([tmp_path / "gone.tar"], ShardError, "gone.tar"),
    ):
        with pytest.raises(kind, match=complaint):
            Shards(wrong)  # type: ignore[arg-type]
    assert list(Shards(tmp_path / "a.txt", kind="jsonl")) == [1]
    with pytest.raises(ValueError, match="columns"):
        Shards(f"{tmp_path}/*.tar", columns=["id"])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.leaves("fds")  # webdataset leaves the file open
def test_tars_of_webdataset(tmp_path: Path) -> None:
    wds = pytest.importorskip("webdataset", reason="compares with webdataset")
    path = tmp_path / "a.tar"
    with wds.TarWriter(str(path)) as writer:
        for number in range(5):
            writer.write({"__key__": f"s{number}", "x.bin": b"x" * 99 * number, "cls": number})
    expected = [
        {key: value for key, value in sample.items() if key not in ("__url__", "__local_path__")}
        for sample in wds.WebDataset(str(path), shardshuffle=False)
    ]
    assert list(Shards(path)) == expected
