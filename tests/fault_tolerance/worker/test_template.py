"""The template when its agent leaves at an awkward moment."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from undaunted.fault_tolerance.worker import messages

SERVE = "import sys; from undaunted.fault_tolerance.worker import template; template.serve(%d)"


def test_an_agent_that_is_gone_before_the_answer_is_no_error() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        messages.send(ours, messages.Prepare(modules=[]), 5.0)
        with theirs:
            fd = theirs.fileno()
            template = subprocess.Popen(
                [sys.executable, "-c", SERVE % fd],
                pass_fds=[fd],
                env=dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p)),
                stderr=subprocess.PIPE,
                text=True,
            )
    said = template.communicate(timeout=60)[1]
    assert (template.returncode, said) == (0, "")
