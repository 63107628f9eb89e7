"""A chaos run from its beginning to its end, with runs that nobody makes."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from tests.chaos.histories import Run, fault, undisturbed
from tests.chaos.results import rng_anew
from undaunted.chaos import run as trials
from undaunted.chaos.generator import Wanted
from undaunted.chaos.outcome import Outcome
from undaunted.chaos.places import ChaosDirectory
from undaunted.chaos.reference import Reference, found_iteration
from undaunted.chaos.run import Campaign, ChaosError, Request

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from undaunted.chaos.history import History
    from undaunted.chaos.nemesis.conduct import Trial

BYTES = 1000


@pytest.fixture(name="place")
def _place(tmp_path: Path) -> Iterator[ChaosDirectory]:
    place = ChaosDirectory(tmp_path / "chaos")
    yield place
    place.close()


def conduct(trial: Trial) -> Outcome:
    """Leave a checkpoint, as every run does."""
    (trial.place / "checkpoint").write_bytes(bytes(BYTES))
    return Outcome(exit_codes=[0])


def history_of(directory: Path) -> History:
    """The undisturbed run; run 1 that survives a kill; run 2 that does not restore anything."""
    if directory.name == "run-undisturbed":
        return undisturbed()
    number = int(directory.name.removeprefix("run-"))
    one = fault("kill", id=f"f{number}", run=number)
    return Run(name=str(number), change=rng_anew if number == 2 else None).history(one)


def reference_of(_: Path, history: History) -> Reference:
    return Reference(history, 0, 19, 2, limit_s=5.0, grace_s=10.0, left_bytes=BYTES)


def campaign(
    place: ChaosDirectory, monkeypatch: pytest.MonkeyPatch, *runs: int, **options: bool
) -> Campaign:
    monkeypatch.setattr(trials, "conduct", conduct)
    monkeypatch.setattr(trials, "read_history", history_of)
    monkeypatch.setattr(trials, "measure", reference_of)
    wanted = [Wanted(f"f{run}", "kill", rank=1, iteration=12, run=run) for run in runs]
    request = Request([], frozenset(), ["train.py"], {}, wanted, **options)  # type: ignore[arg-type]
    return Campaign(request, place, lambda _: None)


def kept(place: ChaosDirectory) -> set[str]:
    return {path.parent.parent.name for path in place.path.glob("run-*/work/checkpoint")}


def test_checkpoints_of_red_runs_are_kept(
    place: ChaosDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = campaign(place, monkeypatch, 1, 2)

    one.run()

    assert [verdict.colour for verdict in one.result.verdicts] == ["green", "red"]
    assert kept(place) == {"run-undisturbed", "run-2"}
    assert one.result.checkpoint_bytes == 2 * BYTES


def test_no_checkpoints_are_kept_where_all_is_green(
    place: ChaosDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = campaign(place, monkeypatch, 1)

    one.run()

    assert [verdict.colour for verdict in one.result.verdicts] == ["green"]
    assert kept(place) == set()
    assert one.result.checkpoint_bytes == 0


def test_all_checkpoints_are_kept_if_the_user_wants(
    place: ChaosDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign(place, monkeypatch, 1, keep_all=True).run()

    assert kept(place) == {"run-undisturbed", "run-1"}


def test_a_launcher_that_does_not_end_is_not_said_to_be_a_full_disk(
    place: ChaosDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stuck(_: Trial) -> Outcome:
        raise TimeoutError("the launcher (pid 5) does not end after SIGKILL")

    one = campaign(place, monkeypatch, 1)
    monkeypatch.setattr(trials, "conduct", stuck)

    with pytest.raises(ChaosError, match="does not end after SIGKILL") as caught:
        one.run()

    assert "make room" not in str(caught.value)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.ENOTEMPTY])
def test_only_a_full_disk_is_said_to_be_full(
    place: ChaosDirectory, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(_: Trial) -> Outcome:
        raise OSError(number, os.strerror(number), "/some/where")

    one = campaign(place, monkeypatch, 1)
    monkeypatch.setattr(trials, "conduct", fail)

    with pytest.raises(ChaosError, match="/some/where") as caught:
        one.run()

    assert ("make room" in str(caught.value)) == (number in (errno.ENOSPC, errno.EDQUOT))


def test_a_program_that_does_not_count_and_found_a_checkpoint_is_noticed() -> None:
    whole = undisturbed(counted=True, told=False)
    late = {
        rank: [structs.replace(one, iteration=one.iteration - 10) for one in records[20:]]
        for rank, records in whole.records.items()
    }

    assert found_iteration(replace(whole, records=late), whole) == 10
    assert found_iteration(whole, whole) == 0
    assert found_iteration(replace(whole, records={}), whole) == 0
