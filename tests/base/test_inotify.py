import select

import pytest

from undaunted.base.inotify import Inotify


@pytest.fixture
def inotify():
    inotify = Inotify()
    yield inotify
    inotify.close()


def ready(inotify, timeout_ms):
    poller = select.poll()
    poller.register(inotify, select.POLLIN)
    return bool(poller.poll(timeout_ms))


def test_growth_wakes_and_draining_forgets(tmp_path, inotify):
    path = tmp_path / "log"
    path.write_bytes(b"")
    inotify.watch(str(path))
    assert not ready(inotify, 0)
    for _ in range(3):
        path.write_bytes(b"x")
        assert ready(inotify, 5000)
        inotify.drain()
        assert not ready(inotify, 0)
    inotify.drain()


def test_a_directory_grows_with_its_files(tmp_path, inotify):
    inotify.watch(str(tmp_path))
    (tmp_path / "new").touch()
    assert ready(inotify, 5000)
    inotify.drain()
    (tmp_path / "new").write_bytes(b"x")
    assert ready(inotify, 5000)
    inotify.drain()
    (tmp_path / "new").unlink()
    assert not ready(inotify, 0)


def test_missing_file_is_an_error(tmp_path, inotify):
    with pytest.raises(FileNotFoundError, match="missing"):
        inotify.watch(str(tmp_path / "missing"))


def test_close_may_come_twice():
    inotify = Inotify()
    inotify.close()
    inotify.close()
