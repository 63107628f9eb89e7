"""The leak check itself: what it finds, what it lets pass."""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from pathlib import Path

import pytest

from tests import leaks

pytest_plugins = ["pytester"]

HEADER = """
import gc, mmap, os, subprocess, sys, threading, uuid
import pytest
from tests import leaks
SLEEP = [sys.executable, "-S", "-c", "import signal; signal.pause()"]
"""


@pytest.fixture
def run_inner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    """Runs tests under the plugin in a pytest process of their own."""

    def run(code: str) -> pytest.RunResult:
        pytester.makepyfile(HEADER + code)
        monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
        monkeypatch.setenv("TMPDIR", str(pytester.path))  # a lock of its own: the only session
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        return pytester.runpytest_subprocess("-p", "tests.leaks", "-rA", "--tb=short")

    return run


def test_each_kind_of_leftover_fails_its_test_and_is_named(run_inner):
    result = run_inner(
        """
leaks.GRACE_S = 0.1
kept = []

def test_file(tmp_path):
    kept.append(os.open(tmp_path / "leaked.txt", os.O_CREAT))

def test_pipe():
    kept.extend(os.pipe())

def test_memfd():
    kept.append(os.memfd_create("pages"))

def test_map():
    fd = os.memfd_create("arena")
    os.ftruncate(fd, 4096)
    kept.append(mmap.mmap(fd, 4096, trackfd=False) if sys.version_info >= (3, 13) else None)
    if kept[-1] is None:
        import ctypes
        libc = ctypes.CDLL(None)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap(None, 4096, 1, 1, fd, 0)
    os.close(fd)

def test_thread():
    stop = threading.Event()
    kept.append(stop)
    threading.Thread(target=stop.wait, name="reader", daemon=True).start()

def test_process():
    kept.append(subprocess.Popen(SLEEP))

def test_orphan_in_a_session_of_its_own():
    code = "import os, subprocess, sys; "
    code += "subprocess.Popen(sys.argv[1:], start_new_session=True); os._exit(0)"
    subprocess.run([sys.executable, "-S", "-c", code, *SLEEP], check=True)

def test_shm():
    path = f"/dev/shm/undaunted-leak-test-{uuid.uuid4().hex}"
    os.close(os.open(path, os.O_CREAT | os.O_RDWR))
    kept.append(path)

def test_clean():
    for path in kept:
        if isinstance(path, str):
            os.unlink(path)
"""
    )
    result.assert_outcomes(passed=9, errors=8)
    for pattern in (
        "fds: *leaked.txt",
        "fds: pipe:*(2 times)",
        "fds: /memfd:pages*",
        "maps: /memfd:arena*",
        "threads: reader *",
        "processes: pid *signal.pause*",
        "shm: /dev/shm/undaunted-leak-test-*",
    ):
        result.stdout.fnmatch_lines_random(f"*{pattern}")


def test_what_is_accounted_for_passes(run_inner):
    result = run_inner(
        """
@pytest.fixture(scope="module")
def server():
    with subprocess.Popen(SLEEP, stdin=subprocess.PIPE) as process:
        yield process
        process.kill()

def test_first_user_of_a_wider_fixture(server):
    assert server.poll() is None

def test_second_user(server):
    assert server.poll() is None

@pytest.mark.leaves("fds", "maps")
def test_exempt():
    os.memfd_create("kept")

def test_cycle_holds_a_descriptor():
    class Node: pass
    node = Node()
    node.me, node.file = node, os.fdopen(os.open("/dev/null", os.O_RDONLY), closefd=True)
    node.file.close()

def test_thread_that_is_ending():
    threading.Thread(target=lambda: None).start()

def test_process_that_is_ending():
    child = subprocess.Popen(SLEEP)
    child.kill()
    child.returncode = -9  # whoever waits is not this test
"""
    )
    result.assert_outcomes(passed=6)
    assert result.ret == 0


def test_leftover_process_is_killed(run_inner):
    result = run_inner(
        """
leaks.GRACE_S = 0.1
def test_leaky():
    print("child", subprocess.Popen(SLEEP).pid, "end")
"""
    )
    line = next(line for line in result.outlines if line.startswith("child"))
    assert not Path(f"/proc/{line.split()[1]}").exists()
    assert result.ret == 1


def test_unknown_kind_is_refused(run_inner):
    result = run_inner('@pytest.mark.leaves("sockets")\ndef test_x(): pass\n')
    result.stdout.fnmatch_lines(["*leaves('sockets'): the kinds are processes, *"])


def test_session_end_names_what_is_left(run_inner):
    result = run_inner(
        """
leaks.GRACE_S = 0.1

@pytest.fixture(scope="session")
def forgotten():
    return subprocess.Popen(SLEEP)

def test_uses_it(forgotten):
    pass
"""
    )
    result.stdout.fnmatch_lines(["*the session left processes behind*", "*signal.pause*"])
    assert result.ret == 1


def test_shm_is_not_judged_beside_another_session(run_inner, pytester):
    path = Path(f"/dev/shm/undaunted-leak-test-{os.getpid()}")
    with (pytester.path / f"undaunted-tests-{os.getuid()}.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        result = run_inner(f"def test_shm(): open({str(path)!r}, 'w').close()\n")
    path.unlink()
    result.assert_outcomes(passed=1)


def test_a_difference_counts_what_is_new():
    before = leaks.Snapshot({"fds": Counter({"a": 1, "b": 2})})
    after = leaks.Snapshot({"fds": Counter({"a": 3, "c": 1}), "maps": Counter()})
    left = after.minus(before)
    assert left.found == {"fds": Counter({"a": 2, "c": 1})}
    assert left.lines() == ["fds: a (2 times)", "fds: c"]


def test_a_file_of_shm_that_a_strange_process_has_open_is_not_ours(tmp_path):
    mine = tmp_path / "mine"
    mine.touch()
    assert not leaks.used_by_others(str(mine))
    assert leaks.used_by_others(str(tmp_path / "gone"))


def test_reading_a_process_that_is_gone():
    assert leaks.read_process(2**22) is None
    here = leaks.read_process(os.getpid())
    assert here is not None
    assert here.parent == os.getppid()
