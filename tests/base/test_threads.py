from __future__ import annotations

import subprocess
import sys
import threading

from undaunted.base import threads

PROGRAM = """
import os, threading
from undaunted.base import threads
threads.start(lambda: (threading.Event().wait(0.05), os.write(1, b"done")), "test")
"""


def test_it_is_a_daemon_with_a_name() -> None:
    ended = threading.Event()
    thread = threads.start(lambda: ended.wait(20), "test")
    assert thread.name == "undaunted-test"
    assert thread.daemon
    threads.settle(0.01)
    assert thread.is_alive()
    ended.set()
    threads.settle(20)
    assert not thread.is_alive()


def test_the_end_of_the_process_waits_for_it() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True)
    assert done.stdout == b"done"
