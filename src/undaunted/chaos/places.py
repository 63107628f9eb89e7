"""The directories of a chaos run, and who may use them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from undaunted.base.directories import make_private
from undaunted.chaos.nemesis.conduct import WORK_DIR

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.chaos.plan import Planned

PLACEHOLDER = "{dir}"
UNDISTURBED = "undisturbed"
FAULTS_FILE = "faults.json"
_LOCK = ".lock"


class PlaceError(Exception):
    """A directory cannot be used; the message says why and what to do."""


class ChaosDirectory:
    """The directory of one `undaunted chaos`, locked. The owner calls `close`."""

    def __init__(self, path: Path) -> None:
        """Make it, or take an empty one.

        Raises:
            PlaceError: another chaos uses it, it is not empty, or it cannot be written.
        """
        self.path = path.absolute()
        try:
            make_private(self.path)
            fd = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            remedy = "name a directory you can write to"
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                remedy = "make room there, or name another directory"
            raise PlaceError(f"{path} cannot be used: {error.strerror}; {remedy}") from None
        self._fd = fd
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise PlaceError(
                f"another `undaunted chaos` uses {path}; give each another directory"
            ) from None
        except OSError:
            pass  # a file system without locks
        if any(name != _LOCK for name in os.listdir(self.path)):
            self.close()
            raise PlaceError(
                f"{path} is not empty: runs of an earlier chaos would be mixed with new ones; "
                "remove it or name another directory"
            )

    def new_run(self, name: str, faults: Sequence[Planned]) -> Path:
        """Make the directory of a run.

        Raises:
            OSError: it cannot be made.
        """
        directory = self.run_directory(name)
        directory.mkdir(mode=0o700)
        (directory / WORK_DIR).mkdir(mode=0o700)
        planned = msgspec.json.format(msgspec.json.encode(faults), indent=1).decode()
        self.write(f"{directory.name}/{FAULTS_FILE}", f"{planned}\n")
        return directory

    def run_directory(self, name: str) -> Path:
        """Return the directory of a run, which may not exist yet."""
        return self.path / f"run-{name}"

    def left_bytes(self) -> int:
        """Return the size of what the runs have left in their ``work/``."""
        return sum(size_of(work) for work in self.path.glob(f"run-*/{WORK_DIR}"))

    def write(self, name: str, text: str) -> Path:
        """Write a file that only this user can read; return its path.

        Raises:
            OSError: it cannot be written.
        """
        path = self.path / name
        path.touch(0o600)
        path.write_text(text, encoding="utf-8")
        return path

    def close(self) -> None:
        """Let others use it."""
        os.close(self._fd)


def check_checkpoint_dir(path: Path, chaos_dir: Path) -> None:
    """Make sure that runs begin with nothing there, and that it can be moved away after each.

    Args:
        path: where the program keeps its checkpoints.
        chaos_dir: where they are moved to.

    Raises:
        PlaceError: there is something, or it would have to be copied.
    """
    there = next(each for each in (path, *path.absolute().parents) if each.exists())
    if there.stat().st_dev != chaos_dir.stat().st_dev:
        raise PlaceError(
            f"--checkpoint-dir {path} is on another file system than {chaos_dir}, so that all "
            "checkpoints would be copied; name a directory on the same one with --dir"
        )
    try:
        names = os.listdir(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise PlaceError(f"--checkpoint-dir {path}: {error.strerror}; name a directory") from None
    if names:
        raise PlaceError(
            f"--checkpoint-dir {path} is not empty: the first run would go on from what is there; "
            "move it away first"
        )


def keep_checkpoints(place: Path, run_directory: Path, *, was_there: bool = False) -> None:
    """Move the checkpoints of a run from their place to the run's directory.

    Args:
        place: where the checkpoints are.
        run_directory: of the run. A name that is taken there gets a number.
        was_there: the place was there before all runs, so that each must find it there.

    Raises:
        OSError: it cannot be moved.
    """
    work = run_directory / WORK_DIR
    if place == work or not place.exists():
        return
    for path in place.iterdir():
        path.rename(_free(work / path.name))
    if not was_there:
        place.rmdir()


def _free(path: Path) -> Path:
    """Return this path, or the first with a number behind it that nothing has."""
    paths = chain([path], (path.with_name(f"{path.name}.{number}") for number in count(2)))
    return next(each for each in paths if not os.path.lexists(each))


def remove_checkpoints(run_directory: Path) -> None:
    """Remove what a run has left in its ``work/``, as far as that is possible."""
    shutil.rmtree(run_directory / WORK_DIR, ignore_errors=True)


def size_of(directory: Path) -> int:
    """Return how many bytes the files below a directory have."""
    total = 0
    for place, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):  # removed meanwhile
                total += Path(place, name).lstat().st_size
    return total
