"""The template when its agent leaves at an awkward moment."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from undaunted.fault_tolerance.worker import messages

BOOT = str(Path(messages.__file__).with_name("boot.py"))
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


def test_what_packages_have_registered_for_the_end_is_not_done_by_the_template(
    tmp_path: Path,
) -> None:
    (tmp_path / "registers.py").write_text(
        "import atexit, sys; atexit.register(print, 'the end', file=sys.stderr)"
    )
    ours, theirs = socket.socketpair()
    with ours, theirs:
        fd = theirs.fileno()
        template = subprocess.Popen(
            [sys.executable, "-u", BOOT, "template", str(fd)],
            pass_fds=[fd],
            env=dict(
                os.environ, PYTHONPATH=os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
            ),
            stderr=subprocess.PIPE,
            text=True,
        )
        messages.send(ours, messages.Prepare(modules=["registers"]), 5.0)
        ready = messages.receive(ours, 60.0)
        assert isinstance(ready, messages.Ready)
        assert ready.modules == ["registers"]
    said = template.communicate(timeout=60)[1]
    assert (template.returncode, said) == (0, "")
