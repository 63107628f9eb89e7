"""Ranks that have torch already: forks of one process, which spares each of them 2 to 4 s of CPU.

A test starts them by `Popen` as by that of subprocess, and they are its children. The command is
``[sys.executable, PROGRAM, ...]`` or ``[sys.executable, "-m", MODULE, ...]``. What torch reads from
the environment while it is imported cannot be set for one of them, and they have one thread.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import runpy
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

_BYTES = 1 << 17  # of a command with its environment
_server: tuple[subprocess.Popen[bytes], socket.socket] | None = None


class Popen(subprocess.Popen[Any]):
    """``subprocess.Popen``, without what changes the process before its program begins."""

    def _execute_child(  # noqa: PLR0917
        self,
        args: list[str],
        executable: Any,
        preexec_fn: Any,
        close_fds: Any,
        pass_fds: Any,
        cwd: Any,
        env: Any,
        startupinfo: Any,
        creationflags: Any,
        shell: Any,
        p2cread: int,
        p2cwrite: int,
        c2pread: int,
        c2pwrite: int,
        errread: int,
        errwrite: int,
        *_: Any,
    ) -> None:
        assert not any((preexec_fn, pass_fds, shell))
        asked = {
            "words": [os.fspath(word) for word in args[1:]],
            "cwd": os.fspath(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
        }
        streams = [own if fd == -1 else fd for own, fd in enumerate((p2cread, c2pwrite, errwrite))]
        end = server()[1]
        try:
            socket.send_fds(end, [json.dumps(asked).encode()], streams)
            self.pid = int(end.recv(64))
        except BaseException:  # such as a test's time that is up: its answer may come later
            stop()
            raise
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]


def server() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Return the process that is forked, and our end of its socket."""
    global _server
    if _server is None:
        end, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        env.pop("PYTHONPATH", None)
        command, nowhere = [sys.executable, __file__], subprocess.DEVNULL
        with its:
            _server = subprocess.Popen(command, stdin=its.fileno(), stdout=nowhere, env=env), end
    return _server


def stop() -> None:
    """End the process that is forked; its forks go on."""
    global _server
    if _server is not None:
        process, end = _server
        _server = None
        process.kill()
        process.wait()
        end.close()


def serve(own: socket.socket) -> dict[str, Any]:
    """Fork for each request; return it in the process that is to become the program."""
    while True:
        message, streams, _, _ = socket.recv_fds(own, _BYTES, 3)
        if not message:
            os._exit(0)
        reader, writer = os.pipe()
        between = os.fork()
        if between == 0:  # it ends at once, and its child becomes one of the tests' process
            if pid := os.fork():
                os.write(writer, str(pid).encode())
                os._exit(0)
            for fd in (reader, writer):
                os.close(fd)
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            asked: dict[str, Any] = json.loads(message)
            return asked
        os.close(writer)
        said = os.read(reader, 64)
        os.waitpid(between, 0)
        for fd in (reader, *streams):
            os.close(fd)
        own.send(said)


def become(words: list[str], cwd: str, env: dict[str, str]) -> None:
    """Run the program, as the interpreter would."""
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    named = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    is_module = words[0] == "-m"
    sys.argv = words[1:] if is_module else words
    first = cwd if is_module else str(Path(words[0]).resolve().parent)
    sys.path[:] = [first, *named, *sys.path[1:]]
    if is_module:
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(words[0], run_name="__main__")


def main() -> None:
    """Import what is slow, then serve."""
    import torch._dynamo
    import torch.distributed  # noqa: F401

    own = socket.socket(fileno=os.dup(0))
    gc.freeze()  # a fork that looks at all objects would copy them
    asked = serve(own)
    own.close()
    code: Any = 0
    try:
        become(**asked)
    except SystemExit as error:
        code = error.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    leave(code)


def leave(code: Any) -> None:
    """End as the interpreter does, without taking torch apart, which costs 1.3 s of CPU."""
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    main()
