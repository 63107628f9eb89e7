"""The program that makes a checkpoint of what a job that has ended left in memory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from undaunted.checkpointing.errors import StaleEpochError
from undaunted.checkpointing.files.folder import FolderStorage
from undaunted.checkpointing.format import names, rules
from undaunted.checkpointing.format.image import Image
from undaunted.checkpointing.keeping import last
from undaunted.checkpointing.keeping.client import LastBegun, LastEnded
from undaunted.checkpointing.memory.arena import HEADER_BYTES, Arena, Description
from undaunted.checkpointing.publishing import Publisher

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def write(place: str, *copies: int) -> tuple[int, list[LastBegun | LastEnded]]:
    """Runs the program; returns its exit code and what it has said."""
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as said:
        code = last.main([place, str(writer), *(f"0:{n}:{fd}" for n, fd in enumerate(copies))])
        lines = said.read().splitlines()
    return code, [msgspec.json.decode(line, type=LastBegun | LastEnded) for line in lines]


def left(step: int, epoch: int) -> int:
    """The descriptor of a copy, as the only rank of a round has left it."""
    arena = Arena.create("test", 1 << 16)
    arena.begin()
    image = Image("__0_0.distcp", HEADER_BYTES, 100)
    arena.complete(
        Description(
            step=step,
            epoch=epoch,
            session="s1",
            rank=0,
            world_size=1,
            structure="abc",
            files=[image],
        )
    )
    fd = os.dup(arena.fd)
    arena.close()
    return fd


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderStorage:
    """Where the first round has saved."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run")
    monkeypatch.setenv("UNDAUNTED_ROUND_EPOCH", "1")
    monkeypatch.setattr(
        "undaunted.checkpointing.dcp.metadata.from_blueprint",
        lambda blueprint, reports: b"metadata",
    )
    storage = FolderStorage(str(tmp_path), "run")
    storage.raise_epoch(1)
    return storage


def test_the_last_round_need_not_have_come_to_the_place(
    storage: FolderStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended before any process of it has made a Checkpointer; earlier rounds are refused now."""
    monkeypatch.setenv("UNDAUNTED_ROUND_EPOCH", "2")
    code, said = write(storage.place, left(step=7, epoch=1))
    assert (code, said) == (0, [LastBegun(step=7, bytes=100), LastEnded()])
    assert storage.steps() == [7]
    assert storage.manifest(7).epoch == 2
    with pytest.raises(StaleEpochError):
        rules.check_fence(storage._fence(), "run", 1, storage.place)


def test_nothing_is_written_where_a_later_round_is_alive(
    storage: FolderStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("undaunted.checkpointing.files.living.Living.others", lambda *_: True)
    storage.raise_epoch(3)
    monkeypatch.setenv("UNDAUNTED_ROUND_EPOCH", "2")
    code, (begun, ended) = write(storage.place, left(step=7, epoch=1))
    assert code == 1
    assert begun == LastBegun(step=7, bytes=100)
    assert isinstance(ended, LastEnded)
    assert "epoch" in ended.problem
    assert storage.steps() == []
    assert names.EPOCH in os.listdir(storage.place)


def test_where_a_checkpoint_is_as_new_nothing_is_to_be_done(storage: FolderStorage) -> None:
    assert write(storage.place, left(step=7, epoch=1))[0] == 0
    assert write(storage.place, left(step=7, epoch=1)) == (0, [LastEnded()])
    assert storage.steps() == [7]


def test_while_it_is_written_it_counts_as_alive_and_nobody_removes_it(
    storage: FolderStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job may have been started again meanwhile."""
    seen = []
    commit = Publisher.commit_copies

    def look(publisher: Publisher, *what: Any) -> None:
        again = FolderStorage(storage.place, "run")
        swept = again.sweep("again")
        seen.append((swept, [one.alive for one in again.leftovers()]))
        assert not again._living.others("run")
        again.close()
        commit(publisher, *what)

    monkeypatch.setattr(Publisher, "commit_copies", look)
    assert write(storage.place, left(step=7, epoch=1))[0] == 0
    assert seen == [([], [True])]
    assert storage.steps() == [7]
    assert storage.sessions() == []
