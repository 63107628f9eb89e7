"""Checkpoints: the one to go on from, that of a stop, those written in the background."""

from __future__ import annotations

import math
import os
import pickletools
import zipfile
from fnmatch import fnmatch
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from undaunted.integrations.resuming import newest

if TYPE_CHECKING:
    from os import PathLike

_STOPPED = "stopped-step={}.ckpt"
_FINALIZE = "maybe_finalize_save_checkpoint"  # of NeMo's CheckpointIO
_NUMBERS = frozenset({"BININT", "BININT1", "BININT2", "LONG1", "INT", "LONG"})
_META = "meta.pt"  # written last where a strategy shards a checkpoint


def last_checkpoint(folder: str | PathLike[str]) -> str | None:
    """Return the checkpoint of the highest step in a folder, for ``fit(ckpt_path=...)``.

    One that was cut short when its writer was killed is passed over, as is one that has the weights
    only; a line of the log says so.

    Args:
        folder: a path, or a URL that fsspec opens; has files ``*.ckpt``, or folders of this name
            where a strategy shards them.

    Returns:
        None if there is none: training begins at its beginning.

    Raises:
        ValueError: it is no folder, or has checkpoints of which none can be gone on from.
        ImportError: a URL needs a package that is not installed.
    """
    files, root = _opened(folder)
    if files.isfile(root):
        raise ValueError(f"{folder} is a file: give last_checkpoint the folder of the checkpoints")

    def age(path: str) -> tuple[float, float]:
        """By step: a copy of a folder has other times. One that cannot be read comes first."""
        try:
            written = files.modified(_last_written(files, path)).timestamp()
            return _step(_content(files, path)), written
        except (FileNotFoundError, EOFError):
            return math.inf, 0.0

    found = sorted(_found(folder, "*.ckpt"), key=age, reverse=True)
    return newest(found, lambda path: _check(files, path))


def folder_of(trainer: Any) -> str:
    """Return where the first ModelCheckpoint saves."""
    folders = [getattr(each, "dirpath", None) for each in trainer.checkpoint_callbacks]
    return str(next(filter(None, folders), trainer.default_root_dir))


def refuse_no_folder(folder: object) -> None:
    """Refuse what is neither a path nor a URL to save at.

    Raises:
        ValueError: it cannot be meant.
        ImportError: a URL needs a package that is not installed.
    """
    if not isinstance(folder, str | os.PathLike) or not folder:
        raise ValueError(f"folder is {folder!r}: give a path, or a URL that fsspec opens")
    files, root = _opened(folder)
    if "://" not in str(folder) and files.isfile(root):
        raise ValueError(f"folder is {folder!r}, which is a file: give a folder to save in")


def save_at_stop(trainer: Any, folder: str | PathLike[str]) -> None:
    """Save a checkpoint. Those of stops before it are deleted when it is whole."""
    new = _in(folder, _STOPPED.format(trainer.global_step))
    trainer.save_checkpoint(new)
    wait_for_saves(trainer)
    for old in _found(folder, _STOPPED.format("*")):
        if old != new:
            trainer.strategy.remove_checkpoint(old)


def saves_behind(trainer: Any) -> bool:
    """Return whether checkpoints are written while training goes on, and finalized by all ranks."""
    return hasattr(trainer.strategy.checkpoint_io, _FINALIZE)


def wait_for_saves(trainer: Any) -> None:
    """Wait for what is written behind the back of the loop."""
    if saves_behind(trainer):
        getattr(trainer.strategy.checkpoint_io, _FINALIZE)(blocking=True)
    trainer.strategy.checkpoint_io.teardown()


def _opened(folder: str | PathLike[str]) -> tuple[Any, str]:
    """Return the file system of a path or a URL, as Lightning opens it, and the path there."""
    from fsspec.core import url_to_fs  # takes long to import

    if isinstance(folder, PurePath) and str(folder).partition(":/")[0].isalnum():
        raise ValueError(f"{folder!r} was a URL, and has lost a slash: give it as text")
    files, root = url_to_fs(os.fspath(folder))
    return files, root


def _found(folder: str | PathLike[str], pattern: str) -> list[str]:
    """Return what is in a folder under such names, as paths or URLs like that of the folder."""
    files, root = _opened(folder)
    files.invalidate_cache()
    try:
        names = [path.rstrip("/").rpartition("/")[2] for path in files.ls(root, detail=False)]
    except FileNotFoundError:
        return []
    return [_in(folder, name) for name in names if fnmatch(name, pattern)]


def _in(folder: str | PathLike[str], name: str) -> str:
    return os.path.join(folder, name)  # noqa: PTH118 - it may be a URL


def _last_written(files: Any, path: str) -> str:
    return f"{path}/{_META}" if files.isdir(path) else path


def _check(files: Any, path: str) -> None:
    """Look for what Lightning needs to go on."""
    if b"lr_schedulers" not in _content(files, path):  # as with `save_weights_only`
        raise ValueError("has the weights only, see save_weights_only of ModelCheckpoint")


def _content(files: Any, path: str) -> bytes:
    """Return the pickle of a checkpoint, without its tensors. It is not unpickled.

    The index of the archive is what torch.save writes last.
    """
    try:
        with files.open(_last_written(files, path)) as file, zipfile.ZipFile(file) as archive:
            (pickled,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
            return archive.read(pickled)
    except FileNotFoundError:
        raise EOFError(
            f"without {_META}: cut short, or of a strategy that writes no such"
        ) from None
    except (ValueError, zipfile.BadZipFile):
        raise EOFError("cut short, or not written by torch.save") from None


def _step(content: bytes) -> int:
    """Return the number that follows ``global_step`` in a pickle, -1 if there is none."""
    key = False
    try:
        for operation, argument, _ in pickletools.genops(content):
            if key and isinstance(argument, int) and operation.name in _NUMBERS:
                return argument
            if isinstance(argument, str):
                key = argument == "global_step"
    except ValueError:  # of another kind of pickle
        pass
    return -1
