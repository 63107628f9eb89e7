import errno
import os
import stat
from pathlib import Path

import pytest

from undaunted.cli import directories
from undaunted.cli.directories import make_log_dir, make_run_dir
from undaunted.cli.messages import UsageError


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def tmpdir_variable(tmp_path, monkeypatch):
    path = tmp_path / "tmpdir"
    path.mkdir()
    monkeypatch.setenv("TMPDIR", str(path))
    return path


@pytest.fixture
def refuse(monkeypatch):
    """Let writing fail below the given directories, also for root."""

    def install(number, *paths):
        probe = directories._probe

        def failing(directory):
            if any(directory.is_relative_to(path) for path in paths):
                raise OSError(number, os.strerror(number))
            probe(directory)

        monkeypatch.setattr(directories, "_probe", failing)

    return install


def test_default_is_private_and_latest_points_to_it(tmp_path):
    for name in ("one", "two"):
        path, notice = make_run_dir(None, name, str(tmp_path))
        assert path == tmp_path / "undaunted-runs" / name
        assert notice == ""
        assert mode(path) == mode(path.parent) == 0o700
        assert (path.parent / "latest").resolve() == path
        assert list(path.iterdir()) == []


def test_latest_is_only_a_convenience(tmp_path):
    (tmp_path / "undaunted-runs" / "latest").mkdir(parents=True)
    path, notice = make_run_dir(None, "one", str(tmp_path))
    assert path.is_dir()
    assert notice == ""
    assert {entry.name for entry in path.parent.iterdir()} == {"one", "latest"}


def test_named_directory_is_made_or_used(tmp_path):
    assert make_run_dir("a/b", "one", str(tmp_path)) == (tmp_path / "a" / "b", "")
    assert mode(tmp_path / "a") == mode(tmp_path / "a" / "b") == 0o700
    (tmp_path / "mine").mkdir(0o755)
    assert make_run_dir(str(tmp_path / "mine"), "one", "/")[0] == tmp_path / "mine"


def test_launchers_with_one_pid_on_several_nodes_make_one_directory(tmp_path, monkeypatch):
    """Each container counts from 1, and launchers start at the same moment."""
    write, others = os.write, iter([make_run_dir])

    def meanwhile(fd, content):
        for other in others:
            assert other("run", "one", str(tmp_path)) == (tmp_path / "run", "")
        return write(fd, content)

    monkeypatch.setattr(directories.os, "write", meanwhile)
    assert make_run_dir("run", "one", str(tmp_path)) == (tmp_path / "run", "")
    assert list((tmp_path / "run").iterdir()) == []


def test_named_directory_that_cannot_be_used_is_an_error(tmp_path, refuse):
    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    refuse(errno.ENOSPC, tmp_path / "full")
    for name, reason in {
        "file": "it is not a directory",
        "file/x": "Not a directory",
        "open": "every user may write to it",
        "full": "No space left on device",
    }.items():
        with pytest.raises(UsageError) as caught:
            make_run_dir(name, "one", str(tmp_path))
        assert str(caught.value).startswith(f"--run-dir {name}: {reason}")
        remedy = "make room there" if name == "full" else "name a directory you can write to"
        assert remedy in str(caught.value)


def test_an_empty_name_does_not_mean_the_current_directory(tmp_path):
    with pytest.raises(UsageError, match=r"--run-dir is empty; name a directory \(. is"):
        make_run_dir("", "one", str(tmp_path))
    with pytest.raises(UsageError, match="--log-dir is empty"):
        make_log_dir(" ", "one", tmp_path, str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_default_falls_back_below_tmpdir(tmp_path, tmpdir_variable, refuse):
    refuse(errno.EROFS, tmp_path / "undaunted-runs")
    path, notice = make_run_dir(None, "one", str(tmp_path))
    assert path == tmpdir_variable / f"undaunted-{os.getuid()}" / "one"
    assert mode(path) == mode(path.parent) == 0o700
    assert "Read-only file system" in notice
    assert str(path) in notice


@pytest.mark.parametrize("trap", ["link", "writable", "file"])
def test_fallback_that_others_prepared_is_refused(tmp_path, tmpdir_variable, refuse, trap):
    refuse(errno.EROFS, tmp_path / "undaunted-runs")
    base = tmpdir_variable / f"undaunted-{os.getuid()}"
    if trap == "link":
        base.symlink_to(tmp_path)
    elif trap == "file":
        base.touch()
    else:
        base.mkdir()
        base.chmod(0o770)
    with pytest.raises(UsageError, match=r"no directory for this run: .*give --run-dir"):
        make_run_dir(None, "one", str(tmp_path))


def test_log_dirs_are_never_shared_between_runs(tmp_path):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    made = [make_log_dir(None, "id", run_dir, "/") for _ in range(3)]
    assert [path.name for path in made] == ["logs", "logs-2", "logs-3"]
    named = [make_log_dir("out", "id", run_dir, str(tmp_path)) for _ in range(2)]
    assert named == [tmp_path / "out" / "id", tmp_path / "out" / "id-2"]
    assert mode(named[0]) == 0o700


def test_log_dir_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="--log-dir file: Not a directory; name a directory"):
        make_log_dir("file", "id", Path("/"), str(tmp_path))
