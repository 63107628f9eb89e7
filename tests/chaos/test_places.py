"""The directories of a chaos run."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from undaunted.chaos.places import (
    ChaosDirectory,
    PlaceError,
    check_checkpoint_dir,
    keep_checkpoints,
    size_of,
)
from undaunted.chaos.plan import Planned


def test_a_run_has_a_private_directory(tmp_path: Path) -> None:
    place = ChaosDirectory(tmp_path / "a" / "b")

    directory = place.new_run("1", [Planned("f1", "kill", 1, 30, 1)])

    place.close()
    assert directory == tmp_path / "a" / "b" / "run-1"
    assert (directory / "work").is_dir()
    for path in (tmp_path / "a", place.path, directory, directory / "work"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / "faults.json").stat().st_mode) == 0o600
    assert json.loads((directory / "faults.json").read_bytes())[0]["kind"] == "kill"


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    one = ChaosDirectory(tmp_path / "c")

    with pytest.raises(PlaceError, match="another `undaunted chaos` uses"):
        ChaosDirectory(tmp_path / "c")

    one.close()
    ChaosDirectory(tmp_path / "c").close()


def test_earlier_runs_are_not_mixed_with_new_ones(tmp_path: Path) -> None:
    (tmp_path / "run-1").mkdir()

    with pytest.raises(PlaceError, match="not empty"):
        ChaosDirectory(tmp_path)


def test_a_place_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(PlaceError, match="cannot be used: Not a directory"):
        ChaosDirectory(tmp_path / "file" / "c")


def test_checkpoints_of_an_earlier_run_are_refused(tmp_path: Path) -> None:
    check_checkpoint_dir(tmp_path / "missing", tmp_path)
    check_checkpoint_dir(tmp_path, tmp_path)
    (tmp_path / "step-10").touch()

    with pytest.raises(PlaceError, match="is not empty"):
        check_checkpoint_dir(tmp_path, tmp_path)
    with pytest.raises(PlaceError, match="Not a directory"):
        check_checkpoint_dir(tmp_path / "step-10", tmp_path)


def test_checkpoints_that_would_have_to_be_copied_are_refused(tmp_path: Path) -> None:
    if Path("/dev/shm").stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system")

    with pytest.raises(PlaceError, match=r"another file system than .*--dir"):
        check_checkpoint_dir(Path("/dev/shm/undaunted-missing/checkpoints"), tmp_path)


def test_checkpoints_elsewhere_are_kept_with_the_run(tmp_path: Path) -> None:
    run, place = tmp_path / "run-1", tmp_path / "checkpoints"
    (run / "work").mkdir(parents=True)
    (place / "step-10").mkdir(parents=True)
    (place / "latest").write_text("step-10")

    keep_checkpoints(place, run)

    assert sorted(path.name for path in (run / "work").iterdir()) == ["latest", "step-10"]
    assert not place.exists()
    keep_checkpoints(place, run)  # nothing there: nothing to do
    keep_checkpoints(run / "work", run)
    place.mkdir()
    keep_checkpoints(place, run, was_there=True)
    assert place.exists()
    assert (run / "work" / "latest").exists()


def test_what_a_run_has_left_at_two_places_is_all_kept(tmp_path: Path) -> None:
    run, place = tmp_path / "run-1", tmp_path / "checkpoints"
    for where in (run / "work", place):
        (where / "step-10").mkdir(parents=True)
        (where / "step-10" / "model").write_text(where.name)
        (where / "latest").write_text(where.name)

    keep_checkpoints(place, run)

    texts = [path.read_text() for path in (run / "work").rglob("*") if path.is_file()]
    assert sorted(texts) == ["checkpoints"] * 2 + ["work"] * 2


def test_size_is_that_of_all_files(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(bytes(1000))
    (tmp_path / "c").write_bytes(bytes(24))

    assert size_of(tmp_path) == 1024
    assert size_of(tmp_path / "missing") == 0
