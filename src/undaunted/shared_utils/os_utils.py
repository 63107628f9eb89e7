"""Paths that are safe to write to: no symbolic link, nothing that another user can replace."""

from __future__ import annotations

import os
import stat


def validate_directory(dir_path: str | os.PathLike[str]) -> None:
    """Check that a directory can be used for files of this process.

    It exists, is no symbolic link, belongs to this user or root, and can be written to and entered.
    Where others can write to it, the sticky bit must keep them from replacing files (as in /tmp).

    Raises:
        OSError: one of these does not hold; the message says which.
    """
    path = os.fspath(dir_path)
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist") from None
    if stat.S_ISLNK(found.st_mode):
        raise OSError(f"{path} is a symbolic link; name the directory itself")
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(f"{path} is no directory")
    if found.st_uid not in (0, os.geteuid()):
        raise PermissionError(f"{path} belongs to user {found.st_uid}")
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        raise PermissionError(f"{path} can be written to by everybody; chmod o-w it")
    if not os.access(path, os.W_OK | os.X_OK):
        raise PermissionError(f"{path} cannot be written to")


def validate_filepath(file_path: str | os.PathLike[str]) -> None:
    """Check that a file is a regular one and no symbolic link; it need not exist.

    Raises:
        OSError: it is something else.
    """
    path = os.fspath(file_path)
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISLNK(mode):
        raise OSError(f"{path} is a symbolic link; name the file itself")
    if not stat.S_ISREG(mode):
        raise OSError(f"{path} is no regular file")
