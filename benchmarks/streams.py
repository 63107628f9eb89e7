"""What samples of shards cost beside iteration over them: `python -m benchmarks.streams --dir DIR`.

Makes 200 shards of 5,000 samples in each of three formats and a file of 1 GiB of tokens (6 GB), and
measures in one process, without workers, files in the page cache: time for the index, time and
memory for Shards whose index is there, and microseconds of CPU a sample, in turns, of the first
20,000 samples of a kind. webdataset and datasets must be there: the environment "jobs".
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import statistics
import subprocess
import sys
import tarfile
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset

from undaunted.data import GlobalOrder, Loader, ShardOrder, Shards, TokenFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

COUNT = 20_000
WORDS = [f"w{number:x}" for number in random.Random(1).sample(range(1 << 20), 4096)]
OPEN = """
import re, sys, time
from undaunted.data import Shards, TokenFile
def mib():
    with open("/proc/self/status") as file:
        return int(re.search("VmRSS:\\s+(\\d+)", file.read())[1]) / 1024
before = mib()
began = time.perf_counter()
data = eval(sys.argv[2], {**globals(), "path": sys.argv[1]})
opened = time.perf_counter() - began
for index in range(0, len(data), len(data) // 500):
    data[index]
print(f"{opened * 1e3:.0f} ms, {mib() - before:.1f} MiB with 500 samples read")
"""


def opened(path: str, made: str) -> str:
    """Return what another process says that opens it."""
    words = [sys.executable, "-c", OPEN, path, made]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def write(folder: Path, shards: int, samples: int) -> None:
    """Write the same texts as tars, JSON lines and, with datasets, Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    draw = random.Random(2)
    for shard in range(shards):
        rows = [
            {"id": shard * samples + at, "text": " ".join(draw.choices(WORDS, k=150))}
            for at in range(samples)
        ]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{shard:04}.jsonl").write_text(lines)
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{shard:04}.parquet")
        with tarfile.open(folder / f"{shard:04}.tar", "w") as tar:
            for row in rows:
                for field, value in (("txt", str(row["text"])), ("cls", str(row["id"]))):
                    info = tarfile.TarInfo(f"{row['id']:08}.{field}")
                    info.size = len(value)
                    tar.addfile(info, io.BytesIO(value.encode()))


class Lines(IterableDataset):  # type: ignore[misc]
    """Lines of files, one after the other, as a program without Shards reads them."""

    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths

    def __iter__(self) -> Iterator[Any]:
        for path in self._paths:
            with path.open() as file:
                yield from map(json.loads, file)


def of(source: Callable[[], Iterable[Any]]) -> float:
    """Return microseconds of CPU a sample, after the first 100."""
    samples = iter(source())
    for _ in islice(samples, 100):
        pass
    began = time.process_time()
    count = sum(1 for _ in islice(samples, COUNT))
    return (time.process_time() - began) / count * 1e6


def by(order: Any, dataset: Any) -> Iterable[Any]:
    for start in range(0, order.length, 1000):
        for index in order.indices(0, torch.arange(start, start + 1000)).tolist():
            yield dataset[index]


def sources(folder: Path, kind: str) -> dict[str, Callable[[], Iterable[Any]]]:
    shards = Shards(f"{folder}/*.{kind}")
    window, all_over = ShardOrder(shards.lengths, seed=1), GlobalOrder(len(shards), seed=1)
    made: dict[str, Callable[[], Iterable[Any]]] = {
        "Shards, in order": lambda: (shards[index] for index in range(len(shards))),
        "Shards, windows of 10,000": lambda: by(window, shards),
        "Shards through Loader": lambda: (
            one
            for batch in Loader(
                shards, order=window, global_batch=100, micro_batch=100, collate_fn=list
            )
            for one in batch
        ),
    }
    if kind != "parquet":
        made["Shards, shuffled all over"] = lambda: by(all_over, shards)
    paths = sorted(folder.glob(f"*.{kind}"))
    names = list(map(str, paths))
    if kind == "tar":
        import webdataset as wds

        made["webdataset"] = lambda: wds.WebDataset(names, shardshuffle=False)
        made["webdataset, buffer of 10,000"] = lambda: wds.WebDataset(
            names, shardshuffle=False
        ).shuffle(10_000)
    elif kind == "jsonl":
        made["IterableDataset of lines"] = lambda: Lines(paths)
    else:
        import datasets

        datasets.disable_progress_bars()
        streamed = datasets.load_dataset("parquet", data_files=names, split="train", streaming=True)
        mapped = datasets.load_dataset(
            "parquet", data_files=names, split="train", cache_dir=str(folder / "cache")
        )
        made["datasets, streaming"] = lambda: streamed
        made["datasets, streaming, buffer of 10,000"] = lambda: streamed.shuffle(
            seed=1, buffer_size=10_000
        )
        made["datasets, on disk, shuffled all over"] = lambda: by(all_over, mapped)
    return made


def tokens(folder: Path, rounds: int) -> None:
    path = folder / "tokens.bin"
    if not path.exists():
        with path.open("wb") as file:
            for _ in range(64):
                file.write(torch.randint(0, 65_536, (1 << 23,)).to(torch.uint16).numpy().tobytes())
    file = TokenFile(path, "uint16", length=1024)
    with_documents = TokenFile(path, "uint16", length=1024, documents=True, eos=0)
    order = GlobalOrder(len(file), seed=1)
    kinds = {
        "TokenFile, shuffled all over": lambda: by(order, file),
        "TokenFile with documents": lambda: by(order, with_documents),
        "memmap of numpy, to int64": lambda: by(order, Mapped(path)),
    }
    show(f"tokens, {path.stat().st_size >> 20} MiB", kinds, rounds)
    cost = opened(str(path), 'TokenFile(path, "uint16", length=1024)')
    print(f"\n{len(file)} samples of tokens: {cost}\n")


class Mapped:
    """As nanoGPT reads them."""

    def __init__(self, path: Path) -> None:
        import numpy as np

        self._tokens = np.memmap(path, dtype=np.uint16, mode="r")

    def __getitem__(self, index: int) -> torch.Tensor:
        piece = self._tokens[index * 1024 : index * 1024 + 1025]
        return torch.from_numpy(piece.astype("int64"))


def show(title: str, kinds: dict[str, Callable[[], Iterable[Any]]], rounds: int) -> None:
    found: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(rounds):
        for name, source in kinds.items():
            found[name].append(of(source))
    print(f"\n| {title} | us of CPU a sample |\n|---|---|")
    for name, values in found.items():
        print(f"| {name} | {statistics.median(values):.1f} ({min(values):.1f}-{max(values):.1f}) |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="for 6 GB; kept for the next run")
    parser.add_argument("--shards", type=int, default=200)
    parser.add_argument("--samples", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)  # as in a loader's workers
    options.dir.mkdir(parents=True, exist_ok=True)
    if not (options.dir / "written").exists():
        write(options.dir, options.shards, options.samples)
        (options.dir / "written").touch()
    for kind in ("tar", "jsonl", "parquet"):
        for old in options.dir.glob(f".undaunted/*.{kind}.index"):
            old.unlink()
        size = sum(path.stat().st_size for path in options.dir.glob(f"*.{kind}"))
        began, worked = time.perf_counter(), time.process_time()
        count = len(Shards(f"{options.dir}/*.{kind}"))
        seconds, worked = time.perf_counter() - began, time.process_time() - worked
        files = list(options.dir.glob(f".undaunted/*.{kind}.index"))
        kept = sum(path.stat().st_size for path in files) / 1e6
        again = opened(f"{options.dir}/*.{kind}", "Shards(path)")
        print(
            f"\n{kind}: index of {count} samples in {len(files)} shards, {size / 1e6:.0f} MB: "
            f"{seconds:.1f} s ({worked:.1f} s of CPU), {size / seconds / 1e6:.0f} MB/s, "
            f"{count / seconds:.0f} samples/s; "
            f"{kept:.1f} MB; once it is there: {again}"
        )
        show(kind, sources(options.dir, kind), options.rounds)
    tokens(options.dir, options.rounds)
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
