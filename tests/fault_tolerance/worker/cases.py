"""The behaviour table: small programs that must not be able to tell how they were started.

Each runs under plain ``python -u``, fresh and warm; standard output, standard error and the exit
status must be the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from textwrap import dedent


@dataclass(frozen=True)
class Case:
    """One program. ``files`` maps names in the working directory to their text or bytes."""

    name: str
    main: str | bytes = ""
    kind: str = "script"
    target: str = "main.py"
    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    files: dict[str, str | bytes] = field(default_factory=dict)

    def sources(self) -> dict[str, bytes]:
        texts = {**({"main.py": self.main} if self.main else {}), **self.files}
        return {
            name: dedent(text).lstrip("\n").encode() if isinstance(text, str) else text
            for name, text in texts.items()
        }


LOOK_AROUND = '''
    """The docstring."""
    import os, sys, __main__
    def shown(value):
        return repr(value) if isinstance(value, (str, dict, type(None))) else type(value).__name__
    print([(k, shown(v)) for k, v in globals().items() if k not in ("os", "sys", "shown")])
    print(__main__.__dict__ is globals(), sys.modules["__main__"] is __main__)
    print(sys.argv, sys.orig_argv, sys.path, sys.flags, sys.executable, sys.warnoptions)
    print(getattr(__spec__, "name", None), getattr(__spec__, "origin", None))
'''

PROCESS = """
    import faulthandler, gc, locale, os, resource, signal, sys, threading, time
    print(sorted(os.environ.items()))
    print(os.getcwd(), os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid())
    print(sorted(os.readlink(f"/proc/self/fd/{n}") for n in ("0", "1", "2")), sys.stdin.read())
    fds = {int(n) for n in os.listdir("/proc/self/fd")}
    print(sorted(n for n in fds if n > 2 and os.path.exists(f"/proc/self/fd/{n}")))
    print([(s, signal.getsignal(s)) for s in signal.valid_signals()])
    print(signal.pthread_sigmask(signal.SIG_BLOCK, []), faulthandler.is_enabled())
    thread = threading.current_thread()
    print(len(os.listdir("/proc/self/task")), threading.active_count(), thread.name)
    print(threading.main_thread() is thread)
    print(threading.get_native_id() == os.getpid() == thread.native_id)
    print(gc.isenabled(), gc.get_threshold(), sys.getrecursionlimit(), sys.gettrace())
    print(locale.getlocale(), sys.getfilesystemencoding(), time.tzname, time.timezone)
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        print(stream.encoding, stream.errors, stream.isatty(), stream.name, type(stream.buffer))
    print(sys.exc_info(), os.umask(0o022))
    print(resource.getrlimit(resource.RLIMIT_CORE), sys.excepthook is sys.__excepthook__)
"""

PICKLED = """
    from __future__ import annotations
    import dataclasses, inspect, linecache, pickle, sys

    @dataclasses.dataclass
    class Point:
        x: int
        y: "list[int]"

    def area(p: Point) -> int:
        return p.x

    if __name__ == "__main__":
        again = pickle.loads(pickle.dumps([Point(1, [2]), area]))
        print(again[0], again[1] is area, Point.__module__, inspect.getsource(area))
        print(linecache.getline(__file__, 9), inspect.getfile(Point) == __file__)
        print(area.__annotations__)
"""

NOT_INHERITED = """
    def f(x: print) -> len: ...
    print(f.__annotations__)
"""

CHAINED = """
    def inner():
        try:
            {}["key"]
        except KeyError as error:
            raise ValueError("from") from error
    def middle():
        try:
            inner()
        except ValueError:
            raise RuntimeError("during")
    middle()
"""

THREADS = """
    import atexit, sys, threading
    started = threading.Event()
    def work():
        started.wait(10)
        print("thread", flush=True)
        sys.exit(5)
    def fails():
        started.wait(10)
        raise ValueError("in a thread")
    atexit.register(print, "atexit 1")
    atexit.register(print, "atexit 2")
    first = threading.Thread(target=work)
    first.start()
    started.set()
    first.join()
    threading.Thread(target=fails, name="named").start()
    sys.stdout.write("no newline at the end")
"""

MULTIPROCESSING = """
    import multiprocessing, os, sys
    class Thing:
        def __init__(self, n): self.n = n
    def work(thing, queue):
        queue.put((thing.n + 1, type(thing).__module__, sys.argv[1:], __name__, os.getcwd()))
    print("top", __name__, flush=True)
    if __name__ == "__main__":
        for method in ("fork", "spawn", "forkserver"):
            context = multiprocessing.get_context(method)
            queue = context.Queue()
            child = context.Process(target=work, args=(Thing(1), queue))
            child.start()
            print(method, queue.get(timeout=30), flush=True)
            child.join()
            print(child.exitcode, flush=True)
        with context.Pool(1) as pool:
            print(pool.map(abs, [-1, -2]))
"""

CHILDREN = """
    import os, subprocess, sys
    print(subprocess.run(["echo", "hello"], capture_output=True))
    print(subprocess.run([sys.executable, "-c", "import sys; print(sys.flags.unbuffered)"],
                         capture_output=True, text=True).stdout)
    for code in ("sys.exit(3)", "1/0", "os._exit(4)", "pass"):
        pid = os.fork()
        if pid == 0:
            exec(code)
            print("child goes on")
            sys.exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    sys.exit(9)
"""

AT_THE_END = """
    import atexit, logging, sys, weakref
    class Kept: pass
    kept = Kept()
    weakref.finalize(kept, print, "finalized")
    def last():
        print(sys.last_type, sys.last_value, "atexit", __name__, "__main__" in sys.modules)
        sys.last_value.__traceback__.tb_frame.f_code.co_name == "<module>" or print("other")
    atexit.register(last)
    logging.basicConfig()
    logging.getLogger("x").warning("logged")
    raise ValueError("the end")
"""

DELETED = """
    import sys
    class Noisy:
        def __del__(self): print("deleted", file=sys.stderr)
    kept = Noisy()
"""

HOOK = """
    import sys, traceback
    def hook(kind, value, trace):
        frames = [frame.name for frame in traceback.extract_tb(trace)]
        print("hook", kind, value, frames, value.__traceback__ is trace, sys.excepthook is hook)
    sys.excepthook = hook
    def f(): 1 / 0
    f()
"""

GROUP = """
    import sys
    if sys.version_info < (3, 11): raise ValueError("no groups")
    e = ValueError("a")
    e.add_note("a note")
    raise ExceptionGroup("group", [e, TypeError("b")])
"""

WARNS = """
    import warnings
    def old(): warnings.warn("old", DeprecationWarning, stacklevel=2)
    old()
    old()
    warnings.warn("user")
    open(__file__)
    assert __debug__
    "a" is "b"
"""

PACKAGE: dict[str, str | bytes] = {
    "pkg/__init__.py": "print('package', __name__)",
    "pkg/__main__.py": LOOK_AROUND,
    "pkg/tool.py": LOOK_AROUND + "    from . import other\n    print(other.__name__)\n",
    "pkg/other.py": "import sys; print(sys.argv[0])",
    "pkg/fails.py": "def f(): raise ValueError('x')\nf()\n",
    "pkg/bare/__init__.py": "",
    "broken/__init__.py": "import missing_module",
    "broken/tool.py": "",
    "space/tool.py": "print(__name__, __package__)",
}


def module(target: str, *args: str) -> Case:
    return Case(f"module {target}", kind="module", target=target, args=args, files=PACKAGE)


CASES = [
    Case("look around", LOOK_AROUND, args=("a b", "", "--x=ü", "\udcff")),
    Case("dot path", LOOK_AROUND, target="./main.py"),
    Case("path with dots", LOOK_AROUND, target="sub/../main.py", files={"sub/x": ""}),
    Case("subdirectory", "", target="sub/main.py", files={"sub/main.py": LOOK_AROUND}),
    Case("imports a sibling", "import sibling", files={"sibling.py": "print(__name__, __file__)"}),
    Case("shadows ours", "import spec, torchless; print(spec.X)",
         files={"spec.py": "X = 1", "torchless.py": "", "messages.py": "1/0", "signal.py": "1/0"}),
    Case("no output", "pass"),
    Case("empty", target="empty.py", files={"empty.py": ""}),
    Case("process", PROCESS, env={"TZ": "Asia/Tokyo", "EMPTY": "", "ODD": "\udcff=\n"}),
    Case("pickled", PICKLED),
    Case("future not inherited", NOT_INHERITED),
    module("pkg.tool", "1", "2"),
    module("pkg"),
    module("pkg.fails"),
    module("pkg.bare"),
    module("pkg.tool.py"),
    module("nosuch"),
    module("nosuch.module"),
    module("broken.tool"),
    module("space.tool"),
    module("space"),
    module("main.py"),
    Case("directory", target="app", files={"app/__main__.py": LOOK_AROUND, "app/x.py": ""}),
    Case("directory without main", target="app", files={"app/x.py": ""}),
    Case("directory that fails", target="app", files={"app/__main__.py": "1/0"}),
    Case("not found", target="nosuch.py"),
    Case("not found in a directory", target="no/such.py"),
    Case("under a file", target="main.py/x.py", main="pass"),
    Case("exception", "def f(x):\n    raise ValueError(x)\nf('ü')\n"),
    Case("chained", CHAINED),
    Case("from None", "try: 1/0\nexcept Exception: raise KeyError(3) from None"),
    Case("group", GROUP),
    Case("unprintable", "class E(Exception):\n    def __str__(self): 1/0\nraise E"),
    Case("syntax error", "print('not reached')\ndef f(:\n    pass\n"),
    Case("indentation error", "if 1:\npass\n"),
    Case("syntax error in import", "import bad", files={"bad.py": "x = = 1\n"}),
    Case("compiled syntax error", "compile('a b', 'name', 'exec')"),
    Case("import error", "import nosuch"),
    Case("exit none", "import sys; sys.exit()"),
    Case("exit zero", "raise SystemExit(0)"),
    Case("exit 3", "import sys; print('x', end=''); sys.exit(3)"),
    Case("exit -1", "import sys; sys.exit(-1)"),
    Case("exit 261", "import sys; sys.exit(261)"),
    Case("exit text", "import sys; sys.exit('bye ü')"),
    Case("exit object", "import sys; sys.exit([1, 2])"),
    Case("exit while handling", "try: 1/0\nfinally: raise SystemExit(4)"),
    Case("exit in atexit", "import atexit, sys; atexit.register(sys.exit, 4)"),
    Case("failing atexit", "import atexit\natexit.register(int, 'x')"),
    Case("keyboard interrupt",
         "import atexit; atexit.register(print, 'x'); raise KeyboardInterrupt"),
    Case("module keyboard interrupt", kind="module", target="m",
         files={"m.py": "raise KeyboardInterrupt"}),
    Case("sigint", "import os, signal; os.kill(os.getpid(), signal.SIGINT); print('?')"),
    Case("sigterm", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"),
    Case("sigkill", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"),
    Case("sigpipe", "import os, signal; os.kill(os.getpid(), signal.SIGPIPE); print('ignored')"),
    Case("segfault", "import ctypes; ctypes.string_at(0)"),
    Case("abort", "import os; print('x'); os.abort()"),
    Case("os._exit", "import os; print('x'); os._exit(7)"),
    Case("exec", "import os, sys; os.execv('/bin/sh', ['sh', '-c', 'echo hi; exit 6'])"),
    Case("hook", HOOK),
    Case("hook and exit", "import sys; sys.excepthook = print; sys.exit(2)"),
    Case("threads", THREADS),
    Case("multiprocessing", MULTIPROCESSING, args=("x",)),
    Case("children", CHILDREN),
    Case("at the end", AT_THE_END),
    Case("deleted at the end", DELETED),
    Case("warns", WARNS),
    Case("warns with -W", WARNS, env={"PYTHONWARNINGS": "error"}),
    Case("input", "input()"),
    Case("asyncio", "import asyncio\nasync def f(): raise ValueError(1)\nasyncio.run(f())"),
    Case("binary output", "import sys; sys.stdout.buffer.write(b'\\xff\\0'); print('x')"),
    Case("byte order mark", b"\xef\xbb\xbfprint('x')\n"),
    Case("latin-1", b"# coding: latin-1\nprint('\xe4'); 1/0 # \xe4\n"),
    Case("windows lines", b"print('''a\r\nb''')\r\n1/0\r\n"),
    Case("no last newline", b"x = 1\nprint(x)"),
    Case("form feed", b"\x0cprint('x')"),
]  # fmt: skip
