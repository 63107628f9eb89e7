from __future__ import annotations

import faulthandler
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.attribution import stacks
from undaunted.attribution.stacks import (
    Frame,
    innermost_user_frame,
    is_stdlib,
    is_torch,
    is_user_code,
    parse_dumps,
    parse_last_dump,
    parse_traceback,
)

from .samples import sample

TWO_THREADS = """\
Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait

Current thread 0x00007f02 (most recent call first):
  File "/home/user/train.py", line 7 in load_batch
  File "/home/user/train.py", line 31 in <module>
"""


def test_reads_threads_and_frames() -> None:
    (dump,) = parse_dumps(TWO_THREADS)
    assert [(t.id, t.current, len(t.frames)) for t in dump.threads] == [
        ("0x00007f01", False, 1),
        ("0x00007f02", True, 2),
    ]
    assert dump.main is dump.threads[1]
    assert dump.main.frames[0] == Frame("/home/user/train.py", 7, "load_batch")
    assert str(dump.main.frames[0]) == "load_batch (train.py:7)"


def test_threads_of_the_user_come_first() -> None:
    def thread(number: int, *files: str, current: str = "Thread") -> str:
        lines = [f'  File "{file}", line {number} in run\n' for file in files]
        return f"{current} 0x{number} (most recent call first):\n{''.join(lines)}"

    ours, stdlib = str(Path(stacks.__file__)), "/usr/lib/python3.11/threading.py"
    text = "\n".join(
        (
            thread(4, ours, stdlib, current="Current thread"),
            thread(3, "/home/ann/data.py", stdlib),
            thread(2, stdlib, ours, stdlib),
            thread(1, "/home/ann/train.py", stdlib, ours),
        )
    )
    seen = [each.id for each in parse_dumps(stacks.users_first(text))[0].threads]
    assert seen == ["0x1", "0x3", "0x2", "0x4"]
    assert sorted(stacks.users_first(text).split()) == sorted(text.split())
    for other in ("", "no dump at all", "  File "):
        assert stacks.users_first(other).strip() == other.strip()


def test_several_dumps_are_told_apart() -> None:
    later = TWO_THREADS.replace("line 7", "line 8")
    dumps = parse_dumps(TWO_THREADS + "\n" + later)
    assert [len(dump.threads) for dump in dumps] == [2, 2]
    last = parse_last_dump(TWO_THREADS + later)
    assert last is not None
    assert last.main is not None
    assert last.main.frames[0].line == 8


def test_newer_pythons_name_threads_and_add_native_frames() -> None:
    text = """\
Thread 0x00007f01 [pin_memory] (most recent call first):
  <no Python frame>

Current thread 0x00007f02 [python] (most recent call first):
  Garbage-collecting
  File "/home/user/train.py", line 7 in load_batch

Current thread's C stack trace (most recent call first):
  Binary file "/usr/bin/python3", at _Py_DumpStack+0x31 [0x5f]
"""
    (dump,) = parse_dumps(text)
    assert [thread.name for thread in dump.threads] == ["pin_memory", "python"]
    assert [len(thread.frames) for thread in dump.threads] == [0, 1]


def test_the_main_thread_of_a_dump_without_its_oldest_threads() -> None:
    """faulthandler stops after 100 threads; then the one that took the signal is the best guess."""
    text = TWO_THREADS.replace("Current thread", "Thread").replace("Thread", "Current thread", 1)
    (whole,) = parse_dumps(text)
    assert whole.main is whole.threads[1]
    (cut,) = parse_dumps(text + "...\n")
    assert not cut.complete
    assert cut.main is cut.threads[0]


@pytest.mark.parametrize("text", ["", "garbage", '  File "x", line 1 in f\n', "...\n", "\x00" * 99])
def test_nothing_to_read(text: str) -> None:
    assert parse_last_dump(text) is None


@given(st.integers(0, len(TWO_THREADS)))
def test_a_dump_that_was_cut_off_gives_what_is_whole(at: int) -> None:
    for dump in parse_dumps(TWO_THREADS[:at]):
        for thread in dump.threads:
            assert all(frame.file.endswith(".py") for frame in thread.frames)


@given(
    st.text()
    | st.lists(st.sampled_from([*TWO_THREADS.splitlines(), "...", "\x00", "é"])).map("\n".join)
)
def test_garbage_never_raises(text: str) -> None:
    for dump in parse_dumps(text):
        assert dump.main is not None
        innermost_user_frame(dump.main.frames)
    parse_traceback(text)


def test_what_this_python_writes_is_read() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="waits")
    thread.start()
    try:
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            dump = parse_last_dump(file.read())
    finally:
        stop.set()
        thread.join()
    assert dump is not None
    assert len(dump.threads) >= 2
    assert dump.main is not None
    assert dump.main.current
    assert dump.main.frames[0].function == "test_what_this_python_writes_is_read"


@pytest.mark.parametrize(
    ("file", "stdlib", "torch", "user"),
    [
        ("/usr/lib/python3.11/threading.py", True, False, False),
        ("/opt/conda/lib/python3.13t/queue.py", True, False, False),
        ("/usr/lib64/python3.10/json/decoder.py", True, False, False),
        ("<frozen runpy>", True, False, False),
        ("/usr/lib/python3/dist-packages/numpy/core.py", False, False, False),
        ("/opt/venv/lib/python3.11/site-packages/torch/_tensor.py", False, True, False),
        ("/opt/pytorch/torch/nn/modules/module.py", False, True, False),
        ("/opt/venv/lib/python3.11/site-packages/megatron/training.py", False, False, False),
        ("/opt/venv/lib/python3.11/site-packages/undaunted/progress/api.py", False, False, False),
        ("/home/user/train.py", False, False, True),
        ("train.py", False, False, True),
        ("<string>", False, False, True),
        ("/home/user/lib/python/model.py", False, False, True),
        ("/home/user/torch/model.py", False, False, True),
    ],
)
def test_whose_code_it_is(file: str, stdlib: bool, torch: bool, user: bool) -> None:
    frame = Frame(file, 1, "f")
    assert (is_stdlib(frame), is_torch(frame), is_user_code(frame)) == (stdlib, torch, user)


def test_user_frame_falls_back_to_packages_then_torch_then_anything() -> None:
    stdlib = Frame("/usr/lib/python3.11/threading.py", 1, "wait")
    torch = Frame("/x/site-packages/torch/_tensor.py", 2, "backward")
    package = Frame("/x/site-packages/megatron/train.py", 3, "train")
    user = Frame("/home/user/train.py", 4, "main")
    assert innermost_user_frame([stdlib, torch, package, user]) == user
    assert innermost_user_frame([stdlib, torch, package]) == package
    assert innermost_user_frame([stdlib, torch]) == torch
    assert innermost_user_frame([stdlib]) == stdlib
    assert innermost_user_frame([]) is None
    generated = Frame("<string>", 7, "__init__")
    assert innermost_user_frame([package, generated, user]) == user
    assert innermost_user_frame([package, generated]) == generated


def test_our_own_frames_are_skipped() -> None:
    import undaunted.faults.injectors as ours

    user = Frame("/home/user/train.py", 4, "main")
    assert innermost_user_frame([Frame(ours.__file__, 1, "_sleep"), user]) == user


def test_the_user_frame_of_a_real_data_loader() -> None:
    dump = parse_last_dump(sample("loader-rank1"))
    assert dump is not None
    assert len(dump.threads) == 3
    assert dump.main is not None
    assert str(innermost_user_frame(dump.main.frames)) == "train_step (train.py:22)"


def test_traceback_of_a_chain_is_that_of_the_last_exception() -> None:
    code = (
        "def load():\n try: 1/0\n except ZeroDivisionError as e: raise KeyError('x') from e\nload()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    frames = parse_traceback(done.stderr)
    assert [(f.file, f.line, f.function) for f in frames] == [
        ("<string>", 3, "load"),
        ("<string>", 4, "<module>"),
    ]


def test_traceback_with_the_prefix_torch_puts_before_lines() -> None:
    text = sample("peer-lost-traceback")
    prefixed = "\n".join(f"[rank0]: {line}" for line in text.splitlines())
    assert parse_traceback(prefixed) == parse_traceback(text)
    assert parse_traceback(text)[0].function == "all_reduce"
