"""Files below a root are opened; whatever leads elsewhere, or is no file, is not."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from undaunted.base.roots import RefusedError, Roots


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "logs"
    (root / "job").mkdir(parents=True)
    (root / "job" / "a.log").write_text("content")
    (tmp_path / "secret").write_text("secret")
    return root


def content(roots: Roots, path: Path | str) -> str:
    opened = roots.open(str(path))
    with os.fdopen(opened.fd) as file:
        return file.read()


def refusal(roots: Roots, path: Path | str) -> str:
    with pytest.raises(RefusedError) as caught:
        roots.open(str(path))
    assert "secret" not in str(caught.value).replace(str(path), "")
    return caught.value.code


def test_a_file_is_opened_by_any_path_that_leads_to_it(root: Path) -> None:
    roots = Roots([root])
    (root / "link").symlink_to(root / "job" / "a.log")
    (root.parent / "way").symlink_to(root)
    for path in ("job/a.log", "job/../job/./a.log", "../logs/job/a.log", "link", "../way/link"):
        assert content(roots, f"{root}/{path}") == "content"
    opened = roots.open(f"{root}/link")
    status = os.fstat(opened.fd)
    os.close(opened.fd)
    assert opened.path == str(root / "job" / "a.log")
    assert opened.stamp == (status.st_mtime_ns, 7, status.st_ino)


def test_a_root_may_be_a_link_and_there_may_be_several(root: Path, tmp_path: Path) -> None:
    (tmp_path / "way").symlink_to(root)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "b.log").write_text("b")
    roots = Roots([tmp_path / "way", tmp_path / "more"])
    assert roots.folders == (str(root), str(tmp_path / "more"))
    assert content(roots, tmp_path / "way" / "job" / "a.log") == "content"
    assert content(roots, tmp_path / "more" / "b.log") == "b"


def test_what_lies_outside_is_refused_whether_or_not_it_is_there(
    root: Path, tmp_path: Path
) -> None:
    roots = Roots([root])
    (root / "out").symlink_to(tmp_path / "secret")
    (root / "up").symlink_to(tmp_path)
    (root / "nowhere").symlink_to(tmp_path / "gone")
    (tmp_path / "logs-of-others").mkdir()
    (tmp_path / "logs-of-others" / "a.log").write_text("secret")
    for path in (
        *(root / "out", root / "up" / "secret", root / "up" / "gone", root / "nowhere"),
        *(f"{root}/../secret", f"{root}/../gone", f"{root}/job/../../secret"),
        *(tmp_path / "logs-of-others" / "a.log", tmp_path / "logs-of-others" / "gone"),
        *("/etc/passwd", "/gone", "/proc/self/environ", "/proc/self/fd/0", "/dev/zero", "/"),
        *("/proc/1/fd/0", "/proc/1/cwd", "/proc/1/root/gone", "/proc/self/mem"),
        f"/proc/self/root{tmp_path}/secret",
    ):
        assert refusal(roots, path) == "outside_root", path


def test_only_regular_files_are_opened(root: Path, tmp_path: Path) -> None:
    roots = Roots([root])
    os.mkfifo(root / "fifo")
    (root / "pipe").symlink_to(root / "fifo")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(root / "socket"))
        for name in ("fifo", "pipe", "socket", "job", "."):
            assert refusal(roots, root / name) == "not_regular", name


def test_paths_that_are_none(root: Path) -> None:
    roots = Roots([root])
    (root / "loop").symlink_to("loop")
    for path in ("", "a.log", "./a.log", f"{root}/a\0b", f"{root}/\ud800", f"{root}/{'x' * 300}"):
        assert refusal(roots, path) == "invalid_path", path
    assert refusal(roots, f"{root}/" + "x/" * 5000) == "invalid_path"
    assert refusal(roots, root / "loop") == "invalid_path"
    Path(os.fsdecode(os.fsencode(root) + b"/\xff")).touch()
    (root / "to-no-text").symlink_to(os.fsdecode(b"\xff"))
    assert refusal(roots, root / "to-no-text") == "invalid_path"
    assert refusal(roots, root / "gone") == "not_found"
    assert refusal(roots, root / "job" / "a.log" / "x") == "not_found"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_this_user_may_not_read(root: Path) -> None:
    roots = Roots([root])
    (root / "job" / "a.log").chmod(0)
    assert refusal(roots, root / "job" / "a.log") == "not_readable"
    (root / "job").chmod(0)
    try:
        assert refusal(roots, root / "job" / "a.log") == "not_readable"
    finally:
        (root / "job").chmod(0o700)


def test_a_link_that_is_changed_meanwhile_leads_nowhere_else(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = Roots([root])
    (root / "link").symlink_to(root / "job" / "a.log")
    look = os.readlink

    def looked(path: str) -> str:
        found = look(path)
        (root / "link").unlink()
        (root / "link").symlink_to(tmp_path / "secret")
        return found

    monkeypatch.setattr("os.readlink", looked)
    assert content(roots, root / "link") == "content"


@pytest.mark.parametrize("folder", ["/", "/proc/self/root", "gone", "logs/job/a.log"])
def test_folders_that_are_no_roots(
    root: Path, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root.parent)
    with pytest.raises(ValueError, match="name the"):
        Roots([root, folder])


def test_names_in_a_folder_are_listed(root: Path, tmp_path: Path) -> None:
    roots = Roots([root])
    (root / "way").symlink_to(root / "job")
    (root / "out").symlink_to(tmp_path)
    assert roots.names(str(root / "way")) == (str(root / "job"), ["a.log"])
    for path, code in {
        *((root / "out", "outside_root"), (tmp_path, "outside_root"), (root / "gone", "not_found")),
        *((root / "job" / "a.log", "not_found"), ("logs", "invalid_path")),
    }:
        with pytest.raises(RefusedError) as caught:
            roots.names(str(path))
        assert caught.value.code == code, path


def test_a_path_that_is_too_long_is_not_repeated(root: Path) -> None:
    with pytest.raises(RefusedError, match="has 5001 bytes; 4095 are possible") as caught:
        Roots([root]).open("/" + "x" * 5000)
    assert len(str(caught.value)) < 200
