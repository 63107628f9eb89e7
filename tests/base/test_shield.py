"""Children of a process outlive a stop signal that nobody above them has sent, and end by one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    os.uname().machine not in ("x86_64", "aarch64"), reason="needs code for the processor"
)

# `send` has another process send a signal, and waits until it has been delivered.
BEGIN = """
import multiprocessing, os, re, signal, subprocess, sys, time
from pathlib import Path
from undaunted.base import shield

def send(pid, *names):
    for name in names or ("TERM",):
        subprocess.run(["kill", "-s", name, str(pid)], check=True)

def wait_until_none_is_pending(pid):
    until = time.monotonic() + 20
    while time.monotonic() < until:
        status = Path(f"/proc/{pid}/status").read_text()
        if not re.search("^S..Pnd:.*[1-9a-f]", status, re.MULTILINE):
            return
        os.sched_yield()

def answer(connection, method=""):
    signal.signal(signal.SIGUSR2, lambda *_: connection.send("USR2"))
    if method:
        ours, theirs = multiprocessing.Pipe()
        child = multiprocessing.get_context(method).Process(target=answer, args=(theirs,))
        child.start()
        connection.send(child.pid)
        assert ours.recv() == child.pid
        connection.send("begun")
        connection.recv()
        ours.send("still there?")
        connection.send(ours.recv())
        child.terminate()
        child.join()
        connection.send(child.exitcode)
    connection.send(os.getpid())
    while True:
        connection.send(connection.recv())

def tell_blocked(connection):
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    connection.send(sorted(number.name for number in blocked))

def begin(method, *arguments):
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context(method)
    child = context.Process(target=answer, args=(theirs, *arguments))
    child.start()
    return child, ours
"""
METHODS = pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])


def run(tmp_path, code: str, *words: str) -> str:
    path = tmp_path / "program.py"
    indented = "".join(f"    {line}\n" for line in code.splitlines())
    begun = "if __name__ == '__main__':\n    assert shield.begin([signal.SIGTERM])\n"
    path.write_text(f"{BEGIN}\n{begun}{indented}")
    command = [sys.executable, str(path), *words]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=100, cwd=tmp_path, env=env
    )
    assert ended.returncode == 0, ended.stderr
    assert not ended.stderr
    return ended.stdout


@METHODS
def test_of_multiprocessing(tmp_path, method):
    out = run(
        tmp_path,
        """
child, connection = begin(sys.argv[1])
send(child.pid)  # while it begins
assert connection.recv() == child.pid
send(child.pid, "TERM", "USR1", "TERM")
connection.send("still there?")
print(connection.recv())
send(child.pid, "USR2")  # now, as a wait that another signal has begun anew is not interrupted
assert connection.recv() == "USR2"  # a handler of its own is its own
for end in (child.terminate, lambda: os.kill(child.pid, signal.SIGTERM)):
    end()
    child.join()
    print(child.exitcode)
    child, connection = begin(sys.argv[1])
    connection.recv()
child.kill()
""",
        method,
    )
    assert out.splitlines() == ["still there?", "-15", "-15"]


@METHODS
@pytest.mark.parametrize("above", ["fork", "spawn", "forkserver"])
def test_below_another_child(tmp_path, method, above):
    out = run(
        tmp_path,
        """
above, connection = begin(*sys.argv[1:])
child = connection.recv()
assert connection.recv() == "begun"
send(above.pid)
send(child)
connection.send("go on")
print(connection.recv())
print(connection.recv())
above.terminate()
above.join()
print(above.exitcode)
""",
        above,
        method,
    )
    assert out.splitlines() == ["still there?", "-15", "-15"]


@METHODS
def test_a_child_that_has_not_begun_yet_is_ended_all_the_same(tmp_path, method):
    """The signal of somebody else waits, and the kernel drops a second one."""
    out = run(
        tmp_path,
        """
for _ in range(3):
    child, _ = begin(sys.argv[1])
    send(child.pid)
    child.terminate()
    child.join(60)
    print(child.exitcode)
    child.kill()
""",
        method,
    )
    assert {*out.split()} <= {"-15", "-9"}


@METHODS
def test_pools(tmp_path, method):
    out = run(
        tmp_path,
        """
with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
    for child in multiprocessing.active_children():
        send(child.pid)
    print(pool.map(abs, [-1, -2, -3]))
""",
        method,
    )
    assert out == "[1, 2, 3]\n"


def test_the_server_of_forkserver(tmp_path):
    out = run(
        tmp_path,
        """
from multiprocessing import forkserver
forkserver.ensure_running()
server = forkserver._forkserver._forkserver_pid
send(server)
child, connection = begin("forkserver")
assert connection.recv() == child.pid
print(server == forkserver._forkserver._forkserver_pid)
child.terminate()
""",
    )
    assert out == "True\n"


def test_programs_end_by_the_signal(tmp_path):
    out = run(
        tmp_path,
        """
def in_child():
    pass
for more in ({}, {"preexec_fn": in_child}):
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, **more)
    send(child.pid)
    print(child.wait())
pid = os.posix_spawnp("sleep", ["sleep", "100"], os.environ)
send(pid)
print(os.waitpid(pid, 0)[1])
read, write = os.pipe()
pid = os.fork()
if pid == 0:
    os.close(read)  # the other end closes as the program begins
    os.execvp("sleep", ["sleep", "100"])
os.close(write)
os.read(read, 1)
send(pid)
print(os.waitpid(pid, 0)[1])
""",
    )
    assert out.split() == ["-15", "-15", "15", "15"]


@pytest.mark.parametrize("more", [{}, {"close_fds": False}])  # Triton's way, by posix_spawn
@pytest.mark.parametrize("name", ["g++", "ptxas-blackwell", "ninja"])
def test_compilers_end_when_they_have_compiled(tmp_path, name, more):
    (tmp_path / name).symlink_to("/bin/cat")
    out = run(
        tmp_path,
        f"""
child = subprocess.Popen(["./{name}"], stdin=subprocess.PIPE, **{more})
send(child.pid)
child.communicate()
print(child.returncode)
""",
    )
    assert out == "0\n"


# As inductor's: reads jobs from a pipe until that is closed, and has a pool of processes.
INDUCTORS = """
import multiprocessing, os, sys

def work(job):
    return job, os.getpid()

if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(1) as pool:
        print(*sys.argv, sys.path[0], *pool.apply(work, ["begins"]), flush=True)
        for job in sys.stdin:
            print(*pool.apply(work, [job.strip()]), flush=True)
"""


@pytest.mark.parametrize("name", ["compile_worker/__main__.py", "__autotune_main__.py"])
def test_processes_of_inductor(tmp_path, name):
    path = tmp_path / "torch" / "_inductor" / name
    path.parent.mkdir(parents=True)
    path.write_text(INDUCTORS)
    out = run(
        tmp_path,
        """
def begin():
    child = subprocess.Popen(
        [sys.executable, sys.argv[1], "--workers=1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    )
    send(child.pid)  # while it begins
    *words, worker = child.stdout.readline().split()
    return child, words, worker

child, words, worker = begin()
print(words == [sys.argv[1], "--workers=1", os.path.dirname(sys.argv[1]), "begins"])
send(child.pid)
send(worker)
print(child.communicate("compiles")[0].split() == ["compiles", worker])
print(child.returncode)
child, *_ = begin()
child.terminate()
print(child.wait())
""",
        str(path),
    )
    assert out.split() == ["True", "True", "0", "-15"]
    torch = importlib.util.find_spec("torch")
    if torch is not None:
        assert (Path(torch.origin).parent / "_inductor" / name).exists()


def test_an_orphan_ends_by_the_signal(tmp_path):
    out = run(
        tmp_path,
        """
read, write = os.pipe()
pid = os.fork()
if pid == 0:
    if os.fork():
        os._exit(0)
    os.write(write, str(os.getpid()).encode())
    signal.pause()
os.close(write)
os.waitpid(pid, 0)
orphan = int(os.read(read, 20))
send(orphan)
print(os.read(read, 1))  # nobody has the other end any more
""",
    )
    assert out == "b''\n"


def test_a_handler_from_before_hears_the_parent_only(tmp_path):
    out = run(
        tmp_path,
        """
heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
read, write = os.pipe()
woken, waker = os.pipe()
os.set_blocking(waker, False)
pid = os.fork()
if pid == 0:
    signal.set_wakeup_fd(waker)
    os.write(write, b"begun")
    os.read(woken, 1)
    os._exit(10 + len(heard))
os.read(read, 5)
send(pid)
wait_until_none_is_pending(pid)  # or the next one is one with it
assert os.waitpid(pid, os.WNOHANG) == (0, 0)
os.kill(pid, signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
""",
    )
    assert out == "11\n"


def test_a_handler_from_before_interrupts_what_a_child_waits_for(tmp_path):
    out = run(
        tmp_path,
        """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
ours, theirs = multiprocessing.Pipe()
context = multiprocessing.get_context("fork")
child = context.Process(target=theirs.recv)
child.start()
while open(f"/proc/{child.pid}/stat").read().rsplit(")", 1)[1].split()[0] != "S":
    os.sched_yield()
child.terminate()
child.join(60)
print(child.exitcode)
child.kill()
""",
    )
    assert out == "7\n"


def test_a_child_that_blocks_the_signal_is_not_killed_when_it_is_ended_twice(tmp_path):
    out = run(
        tmp_path,
        """
def save(connection):
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    connection.send("saves")
    connection.recv()
    connection.send("saved")
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
ours, theirs = multiprocessing.Pipe()
child = multiprocessing.get_context("fork").Process(target=save, args=(theirs,))
child.start()
print(ours.recv())
child.terminate()
child.terminate()
ours.send("go on")
print(ours.recv())
child.join()
print(child.exitcode)
""",
    )
    assert out.split() == ["saves", "saved", "-15"]


@METHODS
def test_a_child_blocks_what_its_parent_has_blocked(tmp_path, method):
    out = run(
        tmp_path,
        """
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGUSR2})
ours, theirs = multiprocessing.Pipe()
child = multiprocessing.get_context(sys.argv[1]).Process(target=tell_blocked, args=(theirs,))
child.start()
print(*ours.recv())
child.join()
""",
        method,
    )
    assert out == "SIGUSR1 SIGUSR2\n"


def test_a_signal_after_the_end_of_python(tmp_path):
    """Libraries have functions that run then, and some take their time."""
    out = run(
        tmp_path,
        """
import ctypes
read, write = os.pipe()
pid = os.fork()
if pid == 0:
    libc = ctypes.CDLL(None)
    at_exit = libc.__cxa_atexit
    at_exit.argtypes = [ctypes.c_void_p] * 3
    at_exit(ctypes.cast(libc.pause, ctypes.c_void_p), None, None)
    at_exit(ctypes.cast(libc.close, ctypes.c_void_p), write, None)  # before
    sys.exit()
os.close(write)
os.read(read, 1)  # nobody has the other end any more
os.kill(pid, signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
""",
    )
    assert out == "-15\n"
