from __future__ import annotations

import io
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from undaunted.health import checks as health_checks
from undaunted.health.answers import PROGRAM, Examination, first_line, request
from undaunted.health.check import Check, Finding, Settings, has_gpus, needed, nics
from undaunted.health.check_node import checks_of, finding_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Fields of `Settings` that ask for a check on any node, each with a value.
ASKED: dict[str, Any] = {
    "nic_monitor": True,
    "link_state_path": "/{nic}",
    "mounts": True,
    "storage_paths": ("/a",),
    "segment_file": "/a",
    "xid": True,
    "ecc": True,
    "ethernet": True,
    "clock_s": 0.1,
    "disk_bytes": 1,
    "commands": (("/a",),),
    "endpoint": "/a",
}
# Those that ask for checks of what a node has, and those that say more of what is asked for.
OF_HARDWARE = ("gpus", "nic_link")
DETAILS = (
    *("visible_devices", "pci_topology", "link_down_path", "disk_paths", "import_path", "root"),
)
OF_RANKS = "nvlink"  # a module that functions use in their ranks


class Program:
    """The program, as it is started on any node: without site-packages."""

    def __init__(self, sock: socket.socket, child: subprocess.Popen[bytes]) -> None:
        self.sock, self.child = sock, child
        self.lines = sock.makefile("rb")

    def tell(self, *lines: bytes) -> None:
        self.sock.sendall(b"".join(lines))

    def examine(self, seen: dict[str, Any], answers: int) -> Examination:
        one = Examination(1, seen)
        for _ in range(answers):
            one.take(self.lines.readline(), 0.0)
        return one


@contextmanager
def program() -> Iterator[Program]:
    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    with ours:
        with theirs:
            child = subprocess.Popen(
                [sys.executable, "-I", "-S", PROGRAM, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
            )
        try:
            one = Program(ours, child)
            yield one
            one.lines.close()
        finally:
            ours.close()
            child.send_signal(signal.SIGCONT)
            assert child.wait(60) in (0, 1)


def settings(root: Path, **more: Any) -> Settings:
    return Settings(root=str(root), **more)


def test_a_line_per_check_and_it_remembers(tmp_path: Path) -> None:
    state = tmp_path / "sys/class/infiniband/mlx5_0/ports/1/state"
    state.parent.mkdir(parents=True)
    state.write_text("4: ACTIVE\n")
    seen: dict[str, Any] = {}
    told = settings(tmp_path, storage_paths=(str(tmp_path), str(tmp_path / "none")))
    with program() as one:
        one.tell(first_line(told, seen), request(1, periodic=False))
        report = one.examine(seen, 4).report()
        assert [(r.name, r.subject, r.failed) for r in report.results] == [
            ("NIC link", "", False),
            ("storage", str(tmp_path), False),
            ("storage", str(tmp_path / "none"), True),
        ]
        assert all(r.seconds is not None and r.seconds >= 0 for r in report.results)
        one.tell(request(1, periodic=True))
        assert one.examine(seen, 1).report().results == []
    assert seen["NIC link "] == {"mlx5_0 port 1": "ACTIVE"}
    state.write_text("1: DOWN\n")
    with program() as one:  # another one, which is told what was seen
        one.tell(first_line(told, seen), request(1, periodic=False))
        assert "was ACTIVE and is DOWN" in one.examine(seen, 4).report().problem()


def test_what_hangs_stops_neither_the_others_nor_the_end(tmp_path: Path) -> None:
    nic = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    nic.mkdir(parents=True)
    os.mkfifo(nic / "state")  # to open it takes a writer
    with program() as one:
        told = settings(tmp_path, storage_paths=(str(tmp_path),))
        one.tell(first_line(told, {}), request(1, periodic=False))
        examination = one.examine({}, 2)
        assert examination.wait_s(9.0) == 1.0
        problem = examination.report().problem()
    assert problem == "the NIC link check did not answer within 10 s"


def test_names_that_are_no_text(tmp_path: Path) -> None:
    mounts = tmp_path / "proc/self/mountinfo"
    mounts.parent.mkdir(parents=True)
    mounts.write_bytes(b"1 2 0:50 / /m\xff\xfe rw - nfs4 server:/home rw\n")
    with program() as one:
        one.tell(first_line(settings(tmp_path, mounts=True), {}), request(1, periodic=False))
        examination = one.examine({}, 3)
    assert not examination.stuck
    assert examination.report().problem() == (
        "the nfs4 mount check of /m?? failed: No such file or directory"
    )


def test_it_ends_when_nobody_speaks() -> None:
    with program():
        pass


def test_a_check_that_is_broken_finds_nothing() -> None:
    class Broken(Check):
        name = "broken"

        def run(self, seen: dict[str, Any]) -> Finding | None:
            raise KeyError(seen["none"])

    found = finding_of(Broken(), {})
    assert found is not None
    assert not found.failed
    assert "KeyError" in found.text


def test_what_is_needed_where_nothing_is(tmp_path: Path) -> None:
    nothing = settings(tmp_path)
    assert not needed(nothing)
    assert checks_of(nothing) == []
    assert not has_gpus(str(tmp_path))
    assert nics(str(tmp_path)) == []


@pytest.mark.parametrize("field", ASKED)
def test_what_is_asked_for_is_made_on_any_node(field: str, tmp_path: Path) -> None:
    asked = settings(tmp_path, disk_paths=("/a",), **{field: ASKED[field]})
    assert needed(asked)
    assert checks_of(asked)


def test_each_setting_asks_for_a_check_or_is_known_as_a_detail() -> None:
    assert set(Settings._fields) == {*ASKED, *OF_HARDWARE, *DETAILS}


def test_all_modules_with_checks_are_used(tmp_path: Path) -> None:
    for device in ("dev/nvidia0", "sys/class/infiniband/mlx5_0"):
        (tmp_path / device).mkdir(parents=True)
    made = checks_of(settings(tmp_path, disk_paths=("/a",), **ASKED))
    used = {type(check).__module__.rpartition(".")[2] for check in made}
    there = {module.name for module in pkgutil.iter_modules(health_checks.__path__)}
    assert used == there - {OF_RANKS}


def test_what_is_needed_where_there_is_hardware(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    assert needed(settings(tmp_path))
    assert not needed(settings(tmp_path, gpus=False))
    assert [check.name for check in checks_of(settings(tmp_path))] == ["GPU"]
    (tmp_path / "sys/class/infiniband/mlx5_0").mkdir(parents=True)
    assert needed(settings(tmp_path, gpus=False))
    assert not needed(settings(tmp_path, gpus=False, nic_link=False))


def test_the_program_needs_only_the_standard_library() -> None:
    code = (
        "import sys, json; sys.path.append(sys.argv[1]);"
        "from undaunted.health.check_node import checks_of;"
        "from undaunted.health.check import Settings; checks_of(Settings());"
        "print(json.dumps(sorted(sys.modules)))"
    )
    root = PROGRAM.removesuffix("/undaunted/health/check_node.py")
    out = subprocess.check_output([sys.executable, "-I", "-S", "-c", code, root], timeout=60)
    modules = json.loads(io.BytesIO(out).read())
    assert "msgspec" not in modules
    assert not any(name.startswith("xml") for name in modules)  # only where it is needed
