"""What is found below the roots; see also `test_service`, which asks for it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from undaunted.base.roots import RefusedError, Roots
from undaunted.services import looks
from undaunted.services.results import Log

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    for number, name in enumerate(("b_17.log", "a_17.out", "170.log", "17.pt", "slurm-17.out")):
        (folder / name).write_text("content")
        os.utime(folder / name, (number, number))
    (folder / "17.log").touch()
    (tmp_path / "secret-17.log").write_text("secret")
    (folder / "link-17.log").symlink_to(tmp_path / "secret-17.log")
    return folder


def test_logs_of_a_job_oldest_first(folder: Path) -> None:
    def names(log: Log, where: str = str(folder)) -> list[str]:
        return [one.path.rpartition("/")[2] for one in looks.others(Roots([folder]), where, log)]

    assert names(Log(f"{folder}/slurm-17.out", job="17")) == ["b_17.log", "a_17.out"]
    assert names(Log("/slurm.out")) == ["b_17.log", "a_17.out", "170.log", "slurm-17.out"]
    assert names(Log("/slurm.out", job=".*")) == []
    with pytest.raises(RefusedError, match="is not below"):
        names(Log("/slurm.out"), str(folder.parent))


def test_a_folder_of_dumps_has_ranks_in_its_names(folder: Path) -> None:
    (folder / "x").mkdir()
    for name, is_one in (("notes", False), ("_dump_3", True)):
        (folder / "x" / name).touch()
        if is_one:
            assert looks.dumps(Roots([folder]), str(folder / "x")) == str(folder / "x")
        else:
            with pytest.raises(RefusedError, match="no name in"):
                looks.dumps(Roots([folder]), str(folder / "x"))
