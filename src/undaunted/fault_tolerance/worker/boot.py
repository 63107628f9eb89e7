"""First file of every template and every fresh worker; run by path, never imported.

    python -u boot.py template FD [words for ps]
    python -u boot.py fresh FD [words for ps]

Python puts the directory of this file first in ``sys.path``; that goes before anything is imported,
so that nothing here, and nothing in the working directory either, shadows a module of that name.
In a worker, this and `run_program.run` are the only frames below the user's program.
"""

import sys

if not getattr(sys.flags, "safe_path", False):
    del sys.path[0]

try:
    import undaunted.fault_tolerance.worker  # noqa: F401 - is it there?
except ModuleNotFoundError as error:
    if error.name is None or not "undaunted.fault_tolerance.worker".startswith(error.name):
        raise
    # Not installed for this interpreter, or -E or -I keep it out: take this copy, last in line.
    sys.path.append(__file__.rsplit("/", 4)[0])

import atexit
import os

from undaunted.fault_tolerance.worker import leaving

atexit.register(leaving.leave)  # the first to be registered is the last to run

_MODE, _FD = sys.argv[1], int(sys.argv[2])
if _MODE == "template":
    from undaunted.fault_tolerance.worker.template import serve

    _SPEC = serve(_FD)
else:
    from undaunted.fault_tolerance.worker.bootstrap import read_spec

    _SPEC = read_spec(_FD)

if _SPEC is None:
    # A template that nobody needs any more. What packages have registered for the end is for ranks,
    # and to destroy all modules takes 0.15 s with torch, for which a restart may have to wait.
    os._exit(0)
else:
    from undaunted.fault_tolerance.worker import bootstrap, run_program

    _PAGE = bootstrap.become(_SPEC, forked=_MODE == "template")
    run_program.run(_SPEC, _PAGE, interpreter=sys.orig_argv[: -len(sys.argv)])
