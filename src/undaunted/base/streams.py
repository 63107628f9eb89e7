"""Standard streams that whoever started this process has closed."""

from __future__ import annotations

import os
import sys

_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def open_closed_streams() -> None:
    """Let closed standard streams lead to ``/dev/null``, as ``>&-`` and some services close them.

    What is opened next would otherwise get their numbers, and be written to by every child.
    """
    for fd, (name, mode) in enumerate(_STREAMS):
        if getattr(sys, name) is not None:  # the interpreter found it open
            continue
        null = os.open(os.devnull, os.O_RDWR)
        if null != fd:
            os.dup2(null, fd)
            os.close(null)
        os.set_inheritable(fd, True)
        setattr(sys, name, open(fd, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
