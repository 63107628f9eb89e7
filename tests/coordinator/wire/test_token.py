from __future__ import annotations

import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from undaunted.coordinator.wire import token as module
from undaunted.coordinator.wire.token import LONGEST, TokenError, find_token

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "correct-horse-battery"


def token_file(tmp_path: Path, content: str = SECRET + "\n", mode: int = 0o600) -> Path:
    path = tmp_path / "token"
    path.write_text(content)
    path.chmod(mode)
    return path


def refusal(path: Path | None, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(TokenError) as caught:
        find_token(environ or {}, path)
    assert SECRET not in str(caught.value)
    return str(caught.value)


def test_none_given() -> None:
    assert find_token({}) == b""
    assert find_token({"UNDAUNTED_TOKEN": ""}) == b""


def test_from_the_environment() -> None:
    assert find_token({"UNDAUNTED_TOKEN": f" {SECRET} "}) == SECRET.encode()


def test_a_file_comes_before_the_environment(tmp_path: Path) -> None:
    environ = {"UNDAUNTED_TOKEN": "another-token-another"}
    assert find_token(environ, token_file(tmp_path)) == SECRET.encode()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o620, 0o460, 0o644, 0o444])
def test_a_file_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = token_file(tmp_path, mode=mode)
    assert refusal(path) == (
        f"token file {path}: others may use it (mode {mode:04o}); run chmod 600 on it, or "
        "mount a Secret of Kubernetes with defaultMode: 0400"
    )


def test_a_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, fstat = token_file(tmp_path), os.fstat

    def of_another(fd: int) -> os.stat_result:
        known = list(fstat(fd))
        known[stat.ST_UID] = os.geteuid() + 1
        return os.stat_result(known)

    monkeypatch.setattr(os, "fstat", of_another)
    assert "belongs to user" in refusal(path)


@pytest.mark.parametrize("mode", [0o400, 0o440])
def test_a_secret_of_kubernetes_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    """A link to a file of root; with fsGroup its group may read it."""
    version = tmp_path / "..2026_11_22"
    version.mkdir()
    file = token_file(version, mode=mode)
    (tmp_path / "..data").symlink_to(version.name)
    (tmp_path / "token").symlink_to("..data/token")
    assert find_token({}, tmp_path / "token") == SECRET.encode()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    if file.stat().st_uid == 0:
        assert find_token({}, tmp_path / "token") == SECRET.encode()


def test_what_a_symbolic_link_leads_to_is_judged(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(token_file(tmp_path, mode=0o644))
    assert "others may use it (mode 0644)" in refusal(link)


def test_a_pipe_and_a_directory_are_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    assert "is no regular file" in refusal(pipe)
    assert "is no regular file" in refusal(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "no") == f"token file {tmp_path / 'no'}: No such file or directory"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is empty; make one with"),
        (" \n", "is empty; make one with"),
        ("short", "the token has 5 characters, it needs at least 16"),
        ("x" * (LONGEST + 1), f"has {LONGEST + 1} bytes, a token has at most {LONGEST}"),
    ],
)
def test_contents_that_are_no_token(tmp_path: Path, content: str, says: str) -> None:
    assert says in refusal(token_file(tmp_path, content))


def test_a_short_token_in_the_environment_is_not_shown() -> None:
    text = refusal(None, {"UNDAUNTED_TOKEN": "hunter2"})
    assert text.startswith("UNDAUNTED_TOKEN: the token has 7 characters")
    assert "hunter2" not in text


def test_a_file_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "token"
    first = find_token({}, path, create=True)
    assert len(first) == 64
    assert path.stat().st_mode & 0o777 == 0o600
    assert find_token({}, path, create=True) == first
    assert os.listdir(tmp_path) == ["token"]


def test_launchers_that_make_it_at_once_agree(tmp_path: Path) -> None:
    path = tmp_path / "token"
    together = threading.Barrier(8)

    def launcher(_: int) -> bytes:
        together.wait(30)
        return find_token({}, path, create=True)

    with ThreadPoolExecutor(8) as pool:
        tokens = set(pool.map(launcher, range(8)))
    assert len(tokens) == 1
    assert os.listdir(tmp_path) == ["token"]


def test_nothing_is_made_through_a_link(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TokenError, match="No such file"):
        find_token({}, link, create=True)
    assert os.listdir(tmp_path) == ["link"]


def test_a_disk_that_hangs_is_waited_for_no_longer_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    finished = threading.Event()

    def hang(path: Path, *, create: bool) -> bytes:
        released.wait(30)
        finished.set()
        return b""

    monkeypatch.setattr(module, "_attempt", hang)
    monkeypatch.setattr(module, "_DISK_S", 0.01)
    assert "the disk has not answered" in refusal(tmp_path / "token")
    released.set()
    assert finished.wait(30)
