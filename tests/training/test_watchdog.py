from __future__ import annotations

import subprocess
import sys

HANGS = """
import sys, threading
from undaunted.training.watchdog import Watchdog
watchdog = Watchdog(0.2, lambda: 7)
def stands_still():
    sys.stdin.readline()
stands_still()
watchdog.close()
print(threading.active_count())
"""


def test_stacks_are_printed_once_when_nothing_moves():
    started = subprocess.Popen(
        [sys.executable, "-c", HANGS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with started:
        assert started.stderr is not None
        seen = [started.stderr.readline()]
        while "in stands_still" not in seen[-1]:
            seen.append(started.stderr.readline())
            assert seen[-1], "".join(seen)
        out, rest = started.communicate("\n", timeout=30)
    assert "".join([*seen, rest]).count("Timeout") == 1
    assert out == "1\n"


def test_it_ends_with_progress():
    code = "import itertools\nfrom undaunted.training.watchdog import Watchdog\n"
    code += "steps = itertools.count()\nwatchdog = Watchdog(3600, lambda: next(steps))\n"
    code += "watchdog.close()"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    assert ended.stderr == ""
