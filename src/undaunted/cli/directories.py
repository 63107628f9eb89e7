"""The directories of a run: made before anything starts, or refused with the remedy."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path

from undaunted.base.directories import make_private
from undaunted.cli.messages import UsageError

RUNS = "undaunted-runs"  # in the current directory
_PROBE_BYTES = 4096  # enough to notice a full disk


def make_run_dir(wanted: str | None, name: str, cwd: str) -> tuple[Path, str]:
    """Make the run directory, mode 0700, and make sure that it can be written to.

    Args:
        wanted: ``--run-dir``; None means ``undaunted-runs/NAME`` in ``cwd``, or in a directory of
            this user below ``$TMPDIR`` where that cannot be written to.
        name: name of the run as one component of a path.
        cwd: what relative paths are relative to.

    Returns:
        The absolute path, and a line for the user ("" if all is as expected).

    Raises:
        UsageError: the directory that was asked for, or no directory at all, is usable.
    """
    if wanted is not None:
        _check_given("--run-dir", wanted)
        path = Path(cwd, wanted)
        try:
            _make_usable(path)
        except OSError as error:
            raise UsageError(f"--run-dir {wanted}: {_why(error)}; {_remedy(error)}") from None
        return path, ""
    path = Path(cwd, RUNS, name)
    try:
        _make_usable(path)
    except OSError as error:
        fallback = _fallback(name)
        return (
            fallback,
            f"{path.parent} cannot be used ({_why(error)}): this run is in {fallback}",
        )
    _point_latest_to(path)
    return path, ""


def make_log_dir(wanted: str | None, name: str, run_dir: Path, cwd: str) -> Path:
    """Make a directory for redirected output that no other run uses.

    Args:
        wanted: ``--log-dir``; None means the run directory.
        name: name of the run; with ``wanted`` it names the directory in it.
        run_dir: directory of the run.
        cwd: what relative paths are relative to.

    Raises:
        UsageError: it cannot be made.
    """
    if wanted is not None:
        _check_given("--log-dir", wanted)
    base = run_dir / "logs" if wanted is None else Path(cwd, wanted, name)
    try:
        make_private(base.parent)
        path = _make_unique(base)
        _probe(path)
    except OSError as error:
        raise UsageError(f"--log-dir {wanted or base}: {_why(error)}; {_remedy(error)}") from None
    return path


def _check_given(option: str, wanted: str) -> None:
    if not wanted.strip():
        raise UsageError(
            f"{option} is empty; name a directory (. is the current one), or leave it out"
        )


def _make_unique(base: Path) -> Path:
    """Make ``base``, or ``base-2`` and so on if that is taken."""
    path, number = base, 1
    while not _make_new(path):
        number += 1
        path = base.with_name(f"{base.name}-{number}")
    return path


def _make_new(path: Path) -> bool:
    try:
        path.mkdir(0o700)
    except FileExistsError:
        return False
    return True


def _make_usable(path: Path) -> None:
    """Make a directory that only this user may write to, and try to write to it."""
    make_private(path)
    mode = path.stat().st_mode
    if not stat.S_ISDIR(mode):
        raise NotADirectoryError(0, "it is not a directory", str(path))
    if mode & stat.S_IWOTH:
        raise PermissionError(0, "every user may write to it (chmod o-w)", str(path))
    _probe(path)


def _probe(directory: Path) -> None:
    """Write a file and remove it."""
    # On another node a launcher with the same pid may do the same now.
    path = directory / f".probe-{secrets.token_hex(8)}"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, bytes(_PROBE_BYTES))
    finally:
        os.close(fd)
        path.unlink()


def _fallback(name: str) -> Path:
    """Make a run directory below $TMPDIR in a directory that nobody else can have prepared."""
    base = Path(os.environ.get("TMPDIR") or "/tmp") / f"undaunted-{os.getuid()}"  # noqa: S108 - checked below
    try:
        base.mkdir(0o700, parents=True, exist_ok=True)
        status = base.lstat()
        mine = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
        if not mine or stat.S_IMODE(status.st_mode) & 0o022:
            raise PermissionError(0, "it belongs to somebody else or others may write to it")
        _make_usable(base / name)
    except OSError as error:
        raise UsageError(
            f"no directory for this run: {base}: {_why(error)}; "
            "give --run-dir with a directory you can write to"
        ) from None
    return base / name


def _point_latest_to(run_dir: Path) -> None:
    """Let ``latest`` beside the run directory name it. A convenience: failing does not matter."""
    link = run_dir.with_name("latest")
    temporary = run_dir.with_name(f".latest-{os.getpid()}")
    try:
        temporary.symlink_to(run_dir.name)
        temporary.replace(link)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _remedy(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "make room there, or name another directory"
    return "name a directory you can write to"


def _why(error: OSError) -> str:
    from undaunted.base.process import refusal  # not on the way to a run

    return refusal(error)
