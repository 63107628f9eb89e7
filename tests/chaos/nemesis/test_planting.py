"""Bad checkpoints, made of files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from undaunted.chaos.nemesis.planting import plant

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def write(path: Path, text: str, at_s: int, size: int = 1000) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text * (size // len(text)))
    os.utime(path, (at_s, at_s))


def common(place: Path) -> None:
    """Folders of all ranks, as of `Checkpointer`."""
    for step in (10, 20, 30):
        for rank in (0, 1):
            write(place / f"step-{step:08d}/__{rank}_0.distcp", f"{step}/{rank} ", step)
        write(place / f"step-{step:08d}/undaunted.json", f"{step}", step, 2)
    write(place / ".epoch", "1", 31)


def local(place: Path) -> None:
    """Local checkpoints with a copy of the other rank's."""
    for step in (10, 20, 30):
        for rank, other in ((0, 1), (1, 0)):
            for whose in (rank, other):
                name = f"{rank}/iter_{step:07d}_{whose}_local.pt"
                write(place / name, f"{step}/{whose} ", step)


def single(place: Path) -> None:
    """One file for each step, and the number of an epoch."""
    for step in (10, 20, 30):
        write(place / f"epoch=1-step={step}.ckpt", f"{step}/0 ", step)


def starts(place: Path) -> dict[str, str]:
    paths = sorted(p for p in place.rglob("*") if p.is_file())
    return {str(p.relative_to(place)): p.read_text().split(" ")[0] for p in paths}


@pytest.mark.parametrize(
    ("layout", "how", "changed"),
    [
        (common, "other-rank", {"step-00000030/__1_0.distcp": "30/0"}),
        (common, "stale", {"step-00000030/__1_0.distcp": "20/1"}),
        (
            common,
            "wrong-step",
            {
                "step-00000030/__0_0.distcp": "20/0",
                "step-00000030/__1_0.distcp": "20/1",
                "step-00000030/undaunted.json": "20",
            },
        ),
        (local, "stale", {"1/iter_0000030_1_local.pt": "20/1"}),
        (single, "stale", {"epoch=1-step=30.ckpt": "20/0"}),
        (single, "wrong-step", {"epoch=1-step=30.ckpt": "20/0"}),
        (single, "other-rank", {}),
    ],
)
def test_which_file_has_the_content_of_which(
    tmp_path: Path, layout: Callable[[Path], None], how: str, changed: dict[str, str]
) -> None:
    layout(tmp_path)
    before, times = starts(tmp_path), {p: p.stat().st_mtime for p in tmp_path.rglob("*.*")}

    done = plant(tmp_path, how)

    assert starts(tmp_path) == before | changed
    assert bool(done) == bool(changed)
    assert {p: p.stat().st_mtime for p in tmp_path.rglob("*.*")} == times


@pytest.mark.parametrize(("how", "size"), [("disk", 1000), ("torn", 500)])
def test_damage(tmp_path: Path, how: str, size: int) -> None:
    single(tmp_path)
    newest = tmp_path / "epoch=1-step=30.ckpt"
    content = newest.read_bytes()

    assert plant(tmp_path, how).startswith("epoch=1-step=30.ckpt: ")

    assert newest.stat().st_size == size * len(content) // 1000
    assert newest.read_bytes() != content


@pytest.mark.parametrize("how", ["disk", "torn", "other-rank", "stale", "wrong-step"])
def test_there_is_nothing_yet(tmp_path: Path, how: str) -> None:
    assert plant(tmp_path, how) == ""
