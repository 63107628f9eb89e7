from __future__ import annotations

import os

import pytest

from undaunted.shared_utils.os_utils import validate_directory, validate_filepath


def test_directories(tmp_path):
    validate_directory(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").touch()
    for name, problem in [
        ("none", "does not exist"),
        ("link", "is a symbolic link"),
        ("file", "is no directory"),
    ]:
        with pytest.raises(OSError, match=problem):
            validate_directory(tmp_path / name)


def test_directories_of_everybody(tmp_path):
    tmp_path.chmod(0o777)
    with pytest.raises(PermissionError, match="by everybody"):
        validate_directory(tmp_path)
    tmp_path.chmod(0o1777)
    validate_directory(tmp_path)
    tmp_path.chmod(0o700)


def test_directories_of_others(tmp_path, monkeypatch):
    real = os.lstat(tmp_path)
    other = os.stat_result((*real[:4], 4711, *real[5:]))
    monkeypatch.setattr("undaunted.shared_utils.os_utils.os.lstat", lambda path: other)
    with pytest.raises(PermissionError, match="belongs to user 4711"):
        validate_directory(tmp_path)


def test_directories_that_cannot_be_written_to(tmp_path, monkeypatch):
    monkeypatch.setattr("undaunted.shared_utils.os_utils.os.access", lambda path, mode: False)
    with pytest.raises(PermissionError, match="cannot be written to"):
        validate_directory(tmp_path)


def test_files(tmp_path):
    validate_filepath(tmp_path / "none")
    (tmp_path / "file").touch()
    validate_filepath(tmp_path / "file")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling").symlink_to("none")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "dangling"):
        with pytest.raises(OSError, match="is a symbolic link"):
            validate_filepath(tmp_path / name)
    with pytest.raises(OSError, match="is no regular file"):
        validate_filepath(tmp_path / "pipe")
