"""A process that is ended in the middle of a write, whoever writes."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

DEADLINE_S = 60
LIMIT = 1000
WRITER = """
import sys
sys.stdin.readline()
with open("large", "wb") as file:
    file.write(bytes(5000))
"""

BUSY_WRITER = """
import sys
log = open("own.log", "ab", buffering=0)
log.write(bytes(700))
before = open("before", "wb", buffering=0)
before.write(bytes(5000))
print("ready", flush=True)
sys.stdin.readline()
log.write(bytes(100))
with open("large", "wb") as file:
    file.write(bytes(5000))
"""


def fate(tmp_path: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own, with standard error in a file, as of a rank."""
    with (tmp_path / "log").open("a") as log:
        return subprocess.run(
            [sys.executable, "-c", f"from undaunted.faults.injectors import inject\n{code}"],
            cwd=tmp_path,
            timeout=DEADLINE_S,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )


def test_pythons_own_write_is_torn(tmp_path: Path) -> None:
    done = fate(
        tmp_path,
        f"inject('torn-write', size={LIMIT})\n"
        "open('small', 'wb').write(bytes(1000))\n"
        "with open('large', 'wb') as f: f.write(bytes(5000))\n",
    )
    assert done.returncode == -signal.SIGXFSZ
    assert (tmp_path / "small").stat().st_size == LIMIT
    assert (tmp_path / "large").stat().st_size == LIMIT
    assert not list(tmp_path.glob("core*"))


def test_a_write_of_a_library_in_another_thread_is_torn(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = fate(
        tmp_path,
        "import threading, torch\n"
        "def save():\n"
        "    inject('torn-write')\n"
        "    torch.save(torch.zeros(100_000), 'model.pt')\n"
        "thread = threading.Thread(target=save)\n"
        "thread.start()\n"
        "thread.join()\n",
    )
    assert done.returncode == -signal.SIGXFSZ
    assert (tmp_path / "model.pt").stat().st_size == 65536


def test_a_long_log_goes_on(tmp_path: Path) -> None:
    """The longest of them counts: standard error, a log opened by the program; no shared memory."""
    (tmp_path / "log").write_bytes(bytes(3000))
    done = fate(
        tmp_path,
        "import os, sys\n"
        "own = open('own.log', 'wb', buffering=0)\n"
        "own.write(bytes(2000))\n"
        "memory = os.memfd_create('shared')\n"
        "os.ftruncate(memory, 100_000)\n"
        f"inject('torn-write', size={LIMIT})\n"
        "own.write(bytes(500))\n"
        "sys.stderr.write('x' * 500)\n"
        "sys.stderr.flush()\n"
        "open('large', 'wb').write(bytes(50_000))\n",
    )
    assert done.returncode == -signal.SIGXFSZ
    assert (tmp_path / "own.log").stat().st_size == 2500
    assert (tmp_path / "log").stat().st_size == 3500
    assert (tmp_path / "large").stat().st_size == 3000 + LIMIT


def test_a_program_that_writes_for_the_rank_gets_an_error(tmp_path: Path) -> None:
    done = fate(
        tmp_path,
        "import subprocess, sys\n"
        f"code = {WRITER!r}\n"
        "child = subprocess.Popen([sys.executable, '-c', code], stdin=-1, stderr=-1, text=True)\n"
        f"inject('torn-write', size={LIMIT})\n"
        "_, error = child.communicate('go\\n')\n"
        "print(child.returncode, 'File too large' in error)\n",
    )
    assert done.stdout.split() == ["1", "True"]
    assert (tmp_path / "large").stat().st_size == LIMIT


def test_a_checkpoint_that_is_being_written_is_no_log(tmp_path: Path) -> None:
    """A program that writes for the rank is at work on the one before."""
    done = fate(
        tmp_path,
        "import subprocess, sys\n"
        f"code = {BUSY_WRITER!r}\n"
        "child = subprocess.Popen([sys.executable, '-c', code], stdin=-1, stdout=-1, text=True)\n"
        "child.stdout.readline()\n"
        f"inject('torn-write', size={LIMIT})\n"
        "child.communicate('go\\n')\n"
        "print(child.returncode)\n",
    )
    assert done.stdout.split() == ["1"]
    assert (tmp_path / "before").stat().st_size == 5000
    assert (tmp_path / "own.log").stat().st_size == 800
    assert (tmp_path / "large").stat().st_size == 700 + LIMIT


def test_a_forked_child_is_spared(tmp_path: Path) -> None:
    done = fate(
        tmp_path,
        "import os\n"
        "r, w = os.pipe()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os.read(r, 1)\n"
        "    os._exit(open('large', 'wb').write(bytes(5000)) != 5000)\n"
        f"inject('torn-write', size={LIMIT})\n"
        "os.write(w, b'g')\n"
        "print(os.waitpid(child, 0)[1])\n",
    )
    assert done.stdout.split() == ["0"]


def test_a_limit_that_is_lower_already_stays(tmp_path: Path) -> None:
    done = fate(
        tmp_path,
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (900, 900))\n"
        f"inject('torn-write', size={LIMIT})\n"
        "print(*resource.getrlimit(resource.RLIMIT_FSIZE))\n",
    )
    assert done.stdout.split() == ["900", "900"]
    assert resource.getrlimit(resource.RLIMIT_FSIZE) != (900, 900)
