"""The launcher in surroundings that users have: other builds of Python, kernels, environments."""

from __future__ import annotations

import ast
import contextlib
import os
import platform
import re
import shlex
import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import undaunted
from tests.e2e.launcher import Launcher, launched

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

SRC = Path(undaunted.__file__).parent
# Names that a build of Python has or lacks: they need a C library newer than 2.17, or the headers
# of a kernel newer than 3.10, which is what builds for all of Linux are made with.
OPTIONAL = re.compile(
    r"memfd_create|MFD_\w+|pidfd_\w+|PIDFD_\w+|P_PIDFD|CLD_\w+|copy_file_range|getrandom|GRND_\w+"
    r"|RWF_\w+|splice|SPLICE_\w+|close_range|CLONE_\w+|unshare|setns|login_tty|EPOLLEXCLUSIVE"
    r"|EFD_\w+_|F_ADD_SEALS|F_GET_SEALS|F_SEAL_\w+|F_OFD_\w+|MADV_(?:FREE|WIPE\w+|KEEP\w+|COLD"
    r"|PAGEOUT|POPULATE\w+)|MAP_(?:FIXED_NOREPLACE|SHARED_VALIDATE|SYNC)|SO_INCOMING_CPU"
    r"|TCP_(?:NOTSENT_LOWAT|CC_INFO|SAVE\w*|FASTOPEN\w*|ULP|ZEROCOPY\w*)|SCHED_DEADLINE"
    r"|timerfd_\w+|TFD_\w+|posix_spawn_file_actions_\w+|POSIX_SPAWN_CLOSEFROM|EX_NOTFOUND"
)
MODULES = ("os", "posix", "signal", "socket", "select", "fcntl", "mmap", "resource", "time")
OLD_BUILD = """
    import fcntl, mmap, os, posix, re, resource, select, signal, socket, time
    for module in (os, posix, signal, socket, select, fcntl, mmap, resource, time):
        for name in dir(module):
            if re.fullmatch({pattern!r}, name):
                delattr(module, name)
    def without(name, at, words):
        there = getattr(os, name)
        def call(*args, **kwargs):
            if len(args) > at or any(kwargs.get(word) for word in words):
                raise NotImplementedError(f"{{name}}: {{words}} unavailable on this platform")
            return there(*args, **kwargs)
        setattr(os, name, call)
    if {old_calls!r}:  # their functions are there, and refuse what came later
        without("posix_spawn", 3, ("setsid", "scheduler"))
        without("posix_spawnp", 3, ("setsid", "scheduler"))
        without("preadv", 3, ("flags",))
        without("pwritev", 3, ("flags",))
"""
JOB = """
    import os, undaunted
    again = os.environ["TORCHELASTIC_RESTART_COUNT"]
    undaunted.step(int(again))
    print("rank", os.environ["RANK"], "in round", again, flush=True)
    if again == "0" and os.environ["RANK"] == "1":
        os.kill(os.getpid(), 9)
    print("done", flush=True)
"""


def used() -> Iterator[tuple[Path, str, str]]:
    """Yield these names of these modules that our code uses; no module where it looks for one."""
    files = {path: path.read_text() for path in sorted(SRC.rglob("*.py"))}
    for path in (path for path, text in files.items() if OPTIONAL.search(text)):
        for node in ast.walk(ast.parse(files[path])):
            match node:
                case ast.Attribute(value=ast.Name(id=module), attr=name) if module in MODULES:
                    found = path, module, name
                case ast.Call(
                    func=ast.Name(id="getattr" | "hasattr"),
                    args=[ast.Name(id=module), ast.Constant(value=str(name)), *_],
                ) if module in MODULES:
                    found = path, "", name
                case _:
                    continue
            if OPTIONAL.fullmatch(name):
                yield found


def taken_away() -> list[str]:
    return sorted({name for _, _, name in used()})


def old_build(place: Path, pattern: str, *, old_calls: bool = True) -> str:
    """Make a place for PYTHONPATH that takes names away from every interpreter of a job."""
    place.mkdir()
    code = textwrap.dedent(OLD_BUILD).format(pattern=pattern, old_calls=old_calls)
    (place / "sitecustomize.py").write_text(code)
    return os.pathsep.join([str(place), *filter(None, [os.environ.get("PYTHONPATH", "")])])


@pytest.mark.parametrize("mode", ["warm", "fresh"])
def test_a_python_that_was_built_for_an_old_c_library(tmp_path: Path, mode: str) -> None:
    path = old_build(tmp_path / "site", OPTIONAL.pattern)
    options = ("--nproc-per-node", "2", "--max-restarts", "1", "--worker-start", mode)
    with launched(tmp_path, JOB, *options, PYTHONPATH=path) as launcher:
        assert launcher.finish() == 0, launcher.text
    assert launcher.text.count("in round 1") == 2
    assert "Traceback" not in launcher.text


@pytest.mark.parametrize("name", taken_away())
def test_a_python_that_lacks_one_name(tmp_path: Path, name: str) -> None:
    path = old_build(tmp_path / "site", name, old_calls=False)
    with launched(tmp_path, JOB, "--max-restarts", "0", PYTHONPATH=path) as launcher:
        assert launcher.finish() == 0, launcher.text
    assert "Traceback" not in launcher.text


def test_names_that_a_python_may_lack_are_looked_for_where_they_are_used() -> None:
    looked_for = {(path, name) for path, module, name in used() if not module}
    bare = {
        f"{path.relative_to(SRC)}: {module}.{name}"
        for path, module, name in used()
        if module and (path, name) not in looked_for
    }
    assert bare == set()


# A filter of system calls may give either error.
@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("pidfd_open", "ENOSYS"),
        ("memfd_create", "EPERM"),
        ("eventfd2", "ENOSYS"),
        ("fallocate", "EPERM"),
        ("prctl", "ENOSYS"),
    ],
)
def test_a_kernel_without_a_call_that_is_needed(tmp_path: Path, call: str, error: str) -> None:
    if not shutil.which("strace"):
        pytest.skip("no strace")
    inject = ("strace", "-f", "-qq", "-o", "/dev/null", "-e", f"inject={call}:error={error}")
    (tmp_path / "train.py").write_text("print('trains')")
    launcher = Launcher(["--run-dir", "run", "train.py"], tmp_path, enter=inject)
    try:
        assert launcher.finish() == 2
    finally:
        launcher.close()
    first = launcher.seen[0]
    assert call.removesuffix("2") in first
    assert platform.release() in first
    assert "seccomp" in launcher.text
    assert "Traceback" not in launcher.text
    assert "trains" not in launcher.text
    assert not launcher.run_dir.exists()


def other_python(folder: Path, content: str) -> str:
    path = folder / "other python"
    path.write_text(f"#!/bin/bash\n{content}\n")
    path.chmod(0o755)
    return str(path)


# As wrappers in Python do, such as that of conda.
CLOSES = """exec {python} -c '
import subprocess, sys
sys.exit(subprocess.run([sys.executable, *sys.argv[1:]]).returncode)' "$@"
"""


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('exec {python} -S -E "$@"', ("msgspec", "pip install")),
        ("echo undaunted asks: 3 8 1 1", ("Python 3.8", "3.11")),
        (
            CLOSES,
            ("closes the descriptors", "close_fds"),
        ),
        ("echo hello; echo cannot load the image >&2; exit 7", ("7", "cannot load the image")),
    ],
)
def test_an_interpreter_that_ranks_cannot_use(
    tmp_path: Path, content: str, words: tuple[str, ...]
) -> None:
    python = other_python(tmp_path, content.format(python=shlex.quote(sys.executable)))
    with launched(tmp_path, "print('trains')", PYTHON_EXEC=python) as launcher:
        assert launcher.finish() == 2
    assert f"PYTHON_EXEC: {python}" in launcher.seen[0]
    assert all(word in launcher.text for word in words)
    assert "Traceback" not in launcher.text
    assert not launcher.run_dir.exists()


@pytest.mark.parametrize("mode", ["warm", "fresh"])
@pytest.mark.parametrize(
    "content", ['{python} "$@"; exit $?', 'echo a banner; (bash -c \'{python} "$@"\' bash "$@")']
)
def test_an_interpreter_that_starts_python_as_its_child(
    tmp_path: Path, content: str, mode: str
) -> None:
    python = other_python(tmp_path, content.format(python=shlex.quote(sys.executable)))
    options = ("--nproc-per-node", "2", "--max-restarts", "1", "--worker-start", mode)
    script = """
        import os, sys, undaunted
        undaunted.step(0)
        again = os.environ["TORCHELASTIC_RESTART_COUNT"]
        print("rank", os.environ["RANK"], "in round", again, flush=True)
        sys.exit(3 if (again, os.environ["RANK"]) == ("0", "1") else 0)
    """
    with launched(tmp_path, script, *options, PYTHON_EXEC=python) as launcher:
        assert launcher.finish() == 0, launcher.text
    assert launcher.text.count("in round 1") == 2


@pytest.mark.parametrize("script", ["script", "-"])
def test_a_script_that_can_be_read_only_once(tmp_path: Path, script: str) -> None:
    os.mkfifo(tmp_path / "script")
    launcher = Launcher(["--run-dir", "run", script], tmp_path)
    try:
        assert launcher.finish() == 2
    finally:
        launcher.close()
    assert "only once" in launcher.seen[0]
    assert "write it to a file" in launcher.seen[0]
    assert not launcher.run_dir.exists()


@pytest.fixture
def one_cpu(tmp_path: Path) -> Iterator[Path]:
    """A control group below one that may use the time of one CPU."""
    version_1 = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").exists()
    group = Path("/sys/fs/cgroup", "cpu" if version_1 else "", f"undaunted-{os.getpid()}")
    inner = group / "inner"
    try:
        inner.mkdir(parents=True)
        file, text = ("cpu.cfs_quota_us", "100000") if version_1 else ("cpu.max", "100000 100000")
        (group / file).write_text(text)
        yield inner
    except OSError as error:
        pytest.skip(f"no control groups here: {error}")
    finally:
        for folder in (inner, group):
            with contextlib.suppress(OSError):
                folder.rmdir()


def test_as_many_ranks_as_the_control_group_has_time_for(tmp_path: Path, one_cpu: Path) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one CPU anyway")
    script = "import os; print('ranks:', os.environ['WORLD_SIZE'], '')"
    (tmp_path / "train.py").write_text(script)
    enter = ("bash", "-c", f'echo $$ > {one_cpu}/cgroup.procs; exec "$@"', "bash")
    command = ["--run-dir", "run", "--nproc-per-node", "auto", "train.py"]
    launcher = Launcher(command, tmp_path, enter=enter)
    try:
        assert launcher.finish() == 0
    finally:
        launcher.close()
    assert "control group" in launcher.seen[0]
    assert launcher.text.count("ranks: 1 ") == 1


@pytest.mark.parametrize("mode", ["warm", "fresh"])
def test_a_script_that_is_gone_in_a_later_round(tmp_path: Path, mode: str) -> None:
    script = "import os, sys; os.remove(__file__); sys.exit(1)"
    with launched(tmp_path, script, "--max-restarts", "1", "--worker-start", mode) as launcher:
        assert launcher.finish() == 1
    (line,) = [line for line in launcher.seen if "FileNotFoundError" in line and "rank 0" in line]
    assert "train.py" in line
    assert "command-line argument" not in launcher.text


def test_several_nodes_without_a_token_end_before_the_start(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "home").touch()  # nothing can be made below it
    command = ["--run-dir", "run", "--nnodes", "2", "--local-addr", "127.0.0.1"]
    command += ["--rdzv-endpoint", "192.0.2.1:29400", "train.py"]
    home = {"HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": "", "UNDAUNTED_TOKEN": ""}
    launcher = Launcher(command, tmp_path, home)
    try:
        assert launcher.finish() == 2
    finally:
        launcher.close()
    assert "UNDAUNTED_TOKEN" in launcher.text


def test_the_line_about_the_report_can_be_pasted(tmp_path: Path) -> None:
    place = tmp_path / "my runs"
    place.mkdir()
    with launched(place, "") as launcher:
        assert launcher.finish() == 0
        words = shlex.split(launcher.wait_for(r"report: (undaunted report .*)")[1])
        assert words == ["undaunted", "report", str(launcher.run_dir)]


# What a shell does before it becomes the launcher: in one job as much as does not hide each other.
SURROUNDINGS = {
    "no standard input": "exec 0<&-",
    "no standard output": "exec 1>&-",
    "no standard error": "exec 2>&-",
    "no standard streams": "exec 0<&- 1>&- 2>&-",
    "more descriptors, low priority, no core files, no limit of the stack": (
        "exec 3</dev/null 9>/dev/null 63</dev/null; renice -n 15 $$ >/dev/null; "
        "ulimit -c 0; ulimit -s unlimited 2>/dev/null"
    ),
    "few variables": 'exec env -i PYTHONPATH="$PYTHONPATH" "$@"',
    "an empty PATH, no HOME, a TMPDIR that is a file, files for everybody": (
        "umask 0; unset HOME; export PATH= TMPDIR=$PWD/train.py"
    ),
    "no PATH, folders that are not there, files for the owner": (
        "umask 077; unset PATH; export HOME=/nonexistent TMPDIR=/nonexistent"
    ),
    "an ASCII locale, bytes that are no text": (
        "export LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 ODD=$'a\\xffb'; f() { :; }; export -f f"
    ),
    "a safe path, optimised, no byte code": (
        "export PYTHONSAFEPATH=1 PYTHONOPTIMIZE=2 PYTHONDONTWRITEBYTECODE=1"
    ),
    "another encoding, development mode, warnings that are errors": (
        "export PYTHONIOENCODING=latin-1 PYTHONDEVMODE=1 "
        "PYTHONWARNINGS=error PYTHONWARNDEFAULTENCODING=1"
    ),
    "ignored signals, a proxy that leads nowhere, a job of a scheduler that is over": (
        "trap '' CHLD INT TERM HUP PIPE; export http_proxy=http://127.0.0.1:9 "
        "all_proxy=http://127.0.0.1:9 SLURM_JOB_ID=1 SLURM_JOB_END_TIME=1"
    ),
}


@pytest.mark.parametrize("mode", ["warm", "fresh"])
@pytest.mark.parametrize("surrounding", SURROUNDINGS)
def test_a_job_comes_to_its_end_wherever_it_is_started(
    tmp_path: Path, surrounding: str, mode: str
) -> None:
    script = """
        import os, pathlib, undaunted
        rank, again = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
        undaunted.step(int(again))
        pathlib.Path(f"began-{rank}-{again}").touch()
        if again == "0":
            os.kill(os.getpid(), 9)
    """
    (tmp_path / "train.py").write_text(textwrap.dedent(script))
    enter = ("bash", "-c", f'{SURROUNDINGS[surrounding]}; exec "$@"', "bash")
    command = ["--run-dir", "run", "--nproc-per-node", "2", "--max-restarts", "1"]
    launcher = Launcher([*command, "--worker-start", mode, "train.py"], tmp_path, enter=enter)
    try:
        assert launcher.finish() == 0, launcher.text
    finally:
        launcher.close()
    assert {path.name for path in tmp_path.glob("began-?-1")} == {"began-0-1", "began-1-1"}
    assert "Traceback" not in launcher.text
    assert {event["mode"] for event in launcher.events("workers_spawned")} == {mode}
