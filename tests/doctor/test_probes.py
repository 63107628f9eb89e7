"""Facts of machines that were made up: files, programs, answers of servers."""

from __future__ import annotations

import errno
import os
import socket
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from undaunted.base.cgroups import memory_left
from undaunted.coordinator.wire.address import Address
from undaunted.doctor import probes as disks
from undaunted.doctor import probes as file_systems
from undaunted.doctor import probes as kernel
from undaunted.doctor import probes as module
from undaunted.doctor import probes as names
from undaunted.doctor import probes as software
from undaunted.doctor.checks import judge
from undaunted.doctor.facts import Asked, Cgroup, Facts, Gpus, Remote
from undaunted.doctor.known_issues import known_issues
from undaunted.doctor.probes import (
    Children,
    Said,
    file_system,
    kernel_driver,
    local_addresses,
    look_up,
    manager_runs,
    mount_of,
    of_cgroup,
    of_etcd,
    of_gpus,
    of_names,
    of_remotes,
    of_slurm,
    of_software,
    parse_answer,
    parse_config,
    parse_lines,
    reach,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from undaunted.doctor.facts import Trial


def write_tree(root: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write files below ``root`` and return it."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


# --- kernel ---------------------------------------------------------------------------------------


def test_this_machine() -> None:
    facts = Facts(**kernel.of_kernel())
    assert facts.versions.keys() == {"linux", "python"}
    assert facts.cpus
    assert facts.memory
    assert facts.limits["nofile"].soft is None or facts.limits["nofile"].soft > 0
    assert facts.capabilities is not None
    assert "net.ipv4.ip_local_port_range" in facts.settings


def test_files_of_another_machine(tmp_path: Path) -> None:
    root = write_tree(
        tmp_path,
        {
            "proc/meminfo": "MemTotal:  1024 kB\nMemFree: 1 kB\n",
            "proc/self/status": "Name:\tcat\nCapEff:\t0000000000080000\n",
            "proc/self/oom_score_adj": "-17\n",
            "proc/sys/vm/overcommit_memory": "2\n",
            "sys/class/infiniband/mlx5_1/x": "",
            "sys/class/infiniband/mlx5_0/x": "",
            "run/.containerenv": "",
        },
    )
    facts = Facts(**kernel.of_kernel(root))
    assert facts.memory == 2**20
    assert facts.capabilities == 1 << 19
    assert facts.oom_score_adj == -17
    assert facts.settings == {"vm.overcommit_memory": "2"}
    assert facts.rdma == ("mlx5_0", "mlx5_1")
    assert facts.in_container


@pytest.mark.parametrize("content", ["", "\0\xff\n" * 9, "CapEff: x", "MemTotal: -1 kB", "nan"])
def test_garbage_and_nothing(tmp_path: Path, content: str) -> None:
    names = ("meminfo", "self/status", "self/oom_score_adj", "sys/vm/overcommit_memory")
    for root in (tmp_path, write_tree(tmp_path, {f"proc/{name}": content for name in names})):
        facts = Facts(**kernel.of_kernel(root))
        assert (facts.memory, facts.capabilities, facts.oom_score_adj) == (None, None, None)
        assert not [f for f in judge(facts, Asked(), known_issues()) if f.id == "D01"]


def test_a_file_that_is_a_directory_or_endless(tmp_path: Path) -> None:
    assert kernel.read_text(tmp_path) is None
    endless = kernel.read_text(tmp_path / "none")
    assert endless is None
    large = write_tree(tmp_path, {"large": b"x" * 10**6}) / "large"
    assert len(kernel.read_text(large) or "") < 10**6


def test_only_known_variables_are_kept() -> None:
    environ = {"NCCL_DEBUG": "WARN", "MASTER_PORT": "29500", "API_KEY": "secret"}
    found = kernel.environ_of(environ, ["NCCL_DEBUG"])
    assert found == {"NCCL_DEBUG": "WARN", "MASTER_PORT": "29500"}


def test_remove_ipc(tmp_path: Path) -> None:
    assert kernel.settings(tmp_path, 1000) == {}
    (tmp_path / "run/systemd/users").mkdir(parents=True)
    assert kernel.settings(tmp_path, 1000) == {"RemoveIPC": "yes"}
    assert kernel.settings(tmp_path, 0) == {}  # logind leaves system users alone
    write_tree(tmp_path, {"etc/systemd/logind.conf": "[Login]\n#RemoveIPC=yes\nRemoveIPC = no\n"})
    assert kernel.settings(tmp_path, 1000) == {"RemoveIPC": "no"}
    write_tree(tmp_path, {"etc/systemd/logind.conf.d/9.conf": "RemoveIPC=yes\n"})
    assert kernel.settings(tmp_path, 1000) == {"RemoveIPC": "yes"}


def test_pods_are_containers(tmp_path: Path) -> None:
    assert not kernel.in_container(tmp_path, {})
    assert kernel.in_container(tmp_path, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})


# --- cgroup ---------------------------------------------------------------------------------------


GROUP = "sys/fs/cgroup/job"


def test_version_2_the_tightest_limit_counts(tmp_path: Path) -> None:
    root = write_tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/job/step\n",
            f"{GROUP}/step/memory.max": "max\n",
            f"{GROUP}/step/pids.max": "max\n",
            f"{GROUP}/memory.max": "1000\n",
            f"{GROUP}/memory.current": "800\n",
            f"{GROUP}/memory.stat": "anon 500\ninactive_file 300\n",
            f"{GROUP}/memory.events": "low 0\noom 1\noom_kill 4\n",
            f"{GROUP}/pids.max": "100\n",
            f"{GROUP}/pids.current": "7\n",
            "sys/fs/cgroup/memory.max": "2000\n",
        },
    )
    assert of_cgroup(root) == Cgroup(
        memory_max=1000, memory_now=500, oom_kills=4, pids_max=100, pids_now=7
    )


def test_the_limit_that_leaves_least_counts_and_file_caches_are_left(tmp_path: Path) -> None:
    root = write_tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/job/step\n",
            f"{GROUP}/step/memory.max": "1000\n",
            f"{GROUP}/step/memory.current": "100\n",
            f"{GROUP}/memory.max": "2000\n",
            f"{GROUP}/memory.current": "1990\n",
            f"{GROUP}/memory.stat": "inactive_file 100\nactive_file 200\n",
        },
    )
    assert of_cgroup(root) == Cgroup(memory_max=2000, memory_now=1690)
    assert memory_left(root) == 310


def test_version_1(tmp_path: Path) -> None:
    root = write_tree(
        tmp_path,
        {
            "proc/self/cgroup": "8:pids:/job\n4:memory:/job\n0::/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "1000\n",
            "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "900\n",
            "sys/fs/cgroup/memory/job/memory.stat": "total_inactive_file 100\n",
            "sys/fs/cgroup/memory/job/memory.oom_control": "under_oom 0\noom_kill 2\n",
            "sys/fs/cgroup/pids/job/pids.max": "50\n",
        },
    )
    found = Cgroup(memory_max=1000, memory_now=800, oom_kills=2, pids_max=50)
    assert of_cgroup(root) == found


def test_a_group_that_is_not_shown_inside_of_the_container(tmp_path: Path) -> None:
    root = write_tree(
        tmp_path,
        {"proc/self/cgroup": "0::/../../elsewhere\n", "sys/fs/cgroup/memory.max": "1000\n"},
    )
    assert of_cgroup(root).memory_max == 1000


@pytest.mark.parametrize("text", ["", "\0", "0:", "::::\n", "0::relative\n", "x\n" * 100])
def test_garbage(tmp_path: Path, text: str) -> None:
    root = write_tree(tmp_path, {"proc/self/cgroup": text, "sys/fs/cgroup/memory.max": "\xff"})
    assert of_cgroup(root) == Cgroup()


def test_nothing_at_all(tmp_path: Path) -> None:
    assert of_cgroup(tmp_path) == Cgroup()


# --- file systems ---------------------------------------------------------------------------------


MOUNTS = r"""
22 1 0:1 / / rw,relatime shared:1 - ext4 /dev/sda rw
23 22 0:2 / /data rw,noexec,nosuid shared:2 master:1 - nfs4 server:/data rw
24 22 0:3 / /data/with\040space rw - tmpfs tmpfs rw
25 22 0:4 / /data rw,exec - xfs /dev/sdb rw
garbage
26 22
""".lstrip()


@pytest.mark.parametrize(
    ("path", "kind", "options"),
    [
        ("/", "ext4", ("rw", "relatime")),
        ("/database", "ext4", ("rw", "relatime")),
        ("/data/a", "xfs", ("rw", "exec")),
        ("/data/with space/a", "tmpfs", ("rw",)),
    ],
)
def test_mounts(path: str, kind: str, options: tuple[str, ...]) -> None:
    assert mount_of(path, MOUNTS) == (kind, options)


@pytest.mark.parametrize("text", ["", "- -\n", "\0 - \n", " - ".join("abc")])
def test_mounts_that_cannot_be_read(text: str) -> None:
    assert mount_of("/", text) == ("", ())


def test_a_directory(tmp_path: Path) -> None:
    found = file_system(str(tmp_path), writable=True)
    assert found.problem == ""
    assert found.kind
    assert found.size
    assert found.free is not None
    without_proc = file_system(str(tmp_path), write_tree(tmp_path, {}))
    assert (without_proc.kind, without_proc.problem) == ("", "")


def test_what_is_not_there_or_may_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert file_system(str(tmp_path / "none")).problem == "No such file or directory"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert file_system(str(tmp_path)).problem == ""
    assert file_system(str(tmp_path), writable=True).problem == "this user may not write there"


def test_a_server_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    back = threading.Event()
    real = os.statvfs

    def hanging(path: str) -> os.statvfs_result:
        back.wait(60)
        return real(path)

    monkeypatch.setattr(file_systems, "_ANSWER_S", 0.05)
    monkeypatch.setattr(os, "statvfs", hanging)
    before = set(threading.enumerate())
    assert file_system(str(tmp_path)).problem == "no answer within 0 s"
    back.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(60)


def test_both_places_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    found = file_systems.of_file_systems()["file_systems"]
    assert found.keys() == {"shm", "tmp"}
    assert (found["tmp"].path, found["tmp"].problem) == (str(tmp_path), "")


def test_a_directory_that_is_of_no_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    found = file_systems.of_file_systems()["file_systems"]["tmp"]
    assert found.path == str(tmp_path / "none")
    assert found.problem.startswith("nothing can be written there, /")


# --- disks ----------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disks, "BYTES", 4 * 1024 * 1024)


def tried(path: Path, deadline_s: float = 60.0) -> Trial:
    with Children() as children:
        return disks.of_disk(children, str(path), "checkpoints", deadline_s)


def test_a_directory_of_a_disk(tmp_path: Path) -> None:
    found = tried(tmp_path)
    assert found.problem == ""
    assert found.written == 4 * 1024 * 1024
    assert found.seconds > 0
    assert found.file_system.free
    assert list(tmp_path.iterdir()) == []


def test_one_that_is_not_there_yet(tmp_path: Path) -> None:
    found = tried(tmp_path / "run" / "checkpoints")
    assert found.problem == ""
    assert found.written
    assert list(tmp_path.iterdir()) == []


def test_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert tried(tmp_path / "file").problem == f"{tmp_path / 'file'} is no directory"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_of_others(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert tried(tmp_path).problem == "Permission denied"


def test_a_place_that_nobody_can_write() -> None:
    assert tried(disks.Path("/proc")).problem


def test_a_disk_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "hangs.py"
    program.write_text("import signal\nsignal.pause()\n")
    monkeypatch.setattr(disks, "DISK_PROGRAM", program)
    assert tried(tmp_path, 0.2).problem == "no answer within 200 ms"


# --- gpus -----------------------------------------------------------------------------------------


VERSION = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.20  Release Build\n"
    "GCC version:  gcc version 12.2.0\n"
)


def test_a_machine_without() -> None:
    with Children() as children:
        assert of_gpus(children, module.Path("/nonexistent")) == (Gpus(), "")


def test_a_machine_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_tree(
        tmp_path,
        {
            "dev/nvidia0": "",
            "proc/driver/nvidia/version": VERSION,
            "proc/driver/nvidia-nvswitch/devices/0": "",
            "proc/1/comm": "init\n",
            "proc/77/comm": "nv-fabricmanage\n",
            "program.py": """print('{"version": "570.133.20", "count": 8}')\n""",
        },
    )
    monkeypatch.setattr(module, "DRIVER_PROGRAM", root / "program.py")
    with Children() as children:
        gpus, version = of_gpus(children, root)
    assert version == "570.133.20"
    assert gpus == Gpus(
        present=True,
        count=8,
        kernel_driver="570.133.20",
        nvswitch=True,
        fabric_manager=True,
    )


def test_a_driver_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_tree(
        tmp_path, {"dev/nvidia0": "", "program.py": "import signal\nsignal.pause()\n"}
    )
    monkeypatch.setattr(module, "DRIVER_PROGRAM", root / "program.py")
    with Children() as children:
        gpus, version = of_gpus(children, root, deadline_s=0.2)
    assert gpus == Gpus(present=True, problem="no answer within 200 ms")
    assert version == ""


@pytest.mark.parametrize("output", [b"", b"\xff", b"[]", b'{"count": "many"}'])
def test_answers_that_cannot_be_read(output: bytes) -> None:
    assert parse_answer(output, "").problem == "what it says cannot be read"
    assert parse_answer(output, "killed by SIGBUS").problem == "killed by SIGBUS"


def test_versions_of_the_kernel_module() -> None:
    assert kernel_driver(VERSION) == "570.133.20"
    old = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  525.60.13  Wed Nov 30 06:39:21 UTC 2022"
    assert kernel_driver(old) == "525.60.13"
    assert kernel_driver("garbage") == ""


def test_fabric_manager(tmp_path: Path) -> None:
    assert manager_runs(tmp_path) is None
    assert manager_runs(write_tree(tmp_path, {"proc/1/comm": "init"})) is False


# --- names ----------------------------------------------------------------------------------------


FIB_TRIE = """\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     |-- 10.0.0.0
        /24 link UNICAST
     |-- 10.0.0.5
        /32 host LOCAL
     |-- 127.0.0.1
        /32 host LOCAL
     |-- 10.0.0.255
        /32 link BROADCAST
"""
IF_INET6 = "00000000000000000000000000000001 01 80 10 80       lo\nzz 01\n"


@pytest.fixture
def hung_name_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Names are not looked up before the test is over."""
    over = threading.Event()
    before = set(threading.enumerate())

    def hanging(*args: Any, **kwargs: Any) -> Any:
        over.wait(60)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", hanging)
    yield
    over.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(60)


def test_numbers_and_names() -> None:
    assert look_up("127.0.0.1") == (("127.0.0.1",), "")
    addresses, problem = look_up("localhost")
    assert set(addresses) & {"127.0.0.1", "::1"}
    assert not problem


@pytest.mark.parametrize("host", ["a..b", "x" * 300])
def test_what_cannot_be_a_name(host: str) -> None:
    addresses, problem = look_up(host)
    assert addresses == ()
    assert problem.startswith("the name cannot be resolved: ")


@pytest.mark.usefixtures("hung_name_server")
def test_a_name_server_that_hangs() -> None:
    began = time.monotonic()
    assert look_up("node7", 0.05) == ((), "the name server has not answered within 50 ms")
    assert reach(Address("node7", 1), look_up_s=0.05).problem.startswith("the name server")
    hosts = [Address(f"node{number}", 1) for number in range(200)]
    found = of_remotes(hosts, all_s=0.1)
    assert [remote.host for remote in found] == [address.host for address in hosts]
    assert all(remote.problem for remote in found)
    assert time.monotonic() - began < 30


def test_own_name(tmp_path: Path) -> None:
    root = write_tree(tmp_path, {"proc/net/fib_trie": FIB_TRIE, "proc/net/if_inet6": IF_INET6})
    found = of_names(root)
    assert found.host == socket.gethostname()
    assert found.local == ("10.0.0.5", "127.0.0.1", "::1")
    assert found.ipv6
    assert "lo" in found.interfaces
    assert found.loopback == ""
    assert of_names(tmp_path / "nothing").ipv6 is False


@pytest.mark.parametrize("text", ["", "\0\xff", "|--\n/32 host LOCAL", "|-- a b\n"])
def test_addresses_that_cannot_be_read(text: str) -> None:
    assert local_addresses(text, text) == ()


def test_hosts_that_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert reach(Address("127.0.0.1", port)).answer == "open"
    found = reach(Address("127.0.0.1", port))
    assert (found.answer, found.problem) == ("refused", "")


def test_without_a_port_only_the_name_is_looked_at() -> None:
    assert reach(Address("127.0.0.1", 0)) == Remote(host="127.0.0.1", addresses=("127.0.0.1",))


def test_no_way_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*args: Any, **kwargs: Any) -> Any:
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    assert of_names().loopback == "Network is unreachable"


def test_a_host_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*args: Any, **kwargs: Any) -> Any:
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    found = reach(Address("127.0.0.1", 7))
    assert found.problem == "port 7 at 127.0.0.1: no answer within 3.0 s"


def test_no_more_threads_than_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "_AT_ONCE", 2)
    hosts = [Address("127.0.0.1", 1), Address("127.0.0.1", 2), Address("127.0.0.1", 3)]
    found = of_remotes(hosts)
    assert [(remote.port, remote.answer) for remote in found] == [
        (1, "refused"),
        (2, "refused"),
        (3, "refused"),
    ]


# --- slurm ----------------------------------------------------------------------------------------


CONFIG = """\
Configuration data as of 2026-11-21T10:00:00
AccountingStorageHost   = localhost
KillOnBadExit           = 0
KillWait                = 30 sec
= nothing
UnkillableStepTimeout   = 60 sec
"""


def test_the_settings_that_matter() -> None:
    assert parse_config(CONFIG) == {
        "KillOnBadExit": "0",
        "KillWait": "30 sec",
        "UnkillableStepTimeout": "60 sec",
    }
    assert parse_config("\0\n===\n") == {}


def test_its_own_command(tmp_path: Path) -> None:
    program = tmp_path / "scontrol"
    program.write_text("#!/bin/sh\necho 'KillWait = 7 sec'\n")
    program.chmod(0o700)
    with Children() as children:
        job = {"PATH": str(tmp_path), "SLURM_JOB_ID": "1"}
        assert of_slurm(children, job) == ({"KillWait": "7 sec"}, "")
        assert of_slurm(children, {"PATH": str(tmp_path)}) == ({}, "")
        assert of_slurm(children, {"PATH": "/none", "SLURM_JOB_ID": "1"}) == ({}, "")
        program.write_text("#!/bin/sh\necho 'no contact' >&2\nexit 1\n")
        assert of_slurm(children, job) == ({}, "exit code 1: no contact")


# --- etcd -----------------------------------------------------------------------------------------


def served(answer: bytes, ask: Callable[[int], tuple[str, str]]) -> tuple[str, str]:
    """What ``ask`` says of a server that gives this answer once."""

    def serve() -> None:
        sock, _ = listener.accept()
        with sock:
            sock.recv(4096)
            sock.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            return ask(listener.getsockname()[1])
        finally:
            thread.join(60)


def http(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def test_an_etcd() -> None:
    body = b'{"etcdserver":"3.5.2","etcdcluster":"3.5.0"}'
    assert served(http(body), lambda port: of_etcd("127.0.0.1", port)) == ("3.5.2", "")


def test_something_else() -> None:
    version, problem = served(http(b"hello"), lambda port: of_etcd("127.0.0.1", port))
    assert version == ""
    assert problem.endswith("is no etcd, or wants TLS")
    version, problem = served(b"\x15\x03\x01", lambda port: of_etcd("127.0.0.1", port))
    assert (version, bool(problem)) == ("", True)


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert of_etcd("127.0.0.1", port) == ("", f"127.0.0.1:{port}: Connection refused")


def test_somebody_who_says_nothing() -> None:
    before = set(threading.enumerate())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        found = of_etcd("127.0.0.1", port, deadline_s=0.05)
    assert found == ("", f"127.0.0.1:{port} has not answered within 0 s")
    for thread in set(threading.enumerate()) - before:
        thread.join(60)


# --- software -------------------------------------------------------------------------------------


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands in for the program that asks."""
    path = tmp_path / "program.py"
    monkeypatch.setattr(software, "SOFTWARE_PROGRAM", path)
    return path


def found() -> tuple[dict[str, str], str, str]:
    with Children() as children:
        return of_software(children, sys.executable)


def test_later_lines_count_more() -> None:
    lines = b'{"versions": {"torch": "2.9"}}\nnoise\n{"versions": {"torch": "2.9+cpu"}}\n'
    assert parse_lines(lines) == ({"torch": "2.9+cpu"}, 2)


@pytest.mark.parametrize("output", [b"", b"\xff\n", b"[1]\n", b'{"versions": {"a": 1}}\n', b"{}\n"])
def test_what_cannot_be_read(output: bytes) -> None:
    assert parse_lines(output) == ({}, 0)


def test_an_import_that_crashes(program: Path) -> None:
    program.write_text(
        "import os, signal\n"
        """print('{"versions": {"torch": "2.9"}}', flush=True)\n"""
        "os.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    assert found() == ({"torch": "2.9"}, "killed by SIGSEGV", "")


def test_an_interpreter_that_says_nothing(program: Path) -> None:
    program.write_text("")
    assert found() == ({}, "", f"{sys.executable} has said nothing")


def test_an_import_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    said = Said(b'{"versions": {"torch": "2.9"}}\n', "no answer within 1 min 00 s", late=True)
    with Children() as children:
        monkeypatch.setattr(children, "ask", lambda argv, deadline_s: said)
        found = of_software(children, sys.executable)
    assert found == ({"torch": "2.9"}, "", "import of torch: no answer within 1 min 00 s")


def test_no_interpreter() -> None:
    with Children() as children:
        found = of_software(children, "/no/such/python")
    assert found == ({}, "", "cannot be started: No such file or directory")


# --- child ----------------------------------------------------------------------------------------


def ask(code: str, deadline_s: float = 60.0) -> Said:
    with Children() as children:
        return children.ask([sys.executable, "-I", "-S", "-c", code], deadline_s)


def test_an_answer() -> None:
    assert ask("print('yes')") == Said(b"yes\n")


def test_what_came_before_a_bad_end_counts() -> None:
    said = ask("import sys; print('half', flush=True); sys.exit('no more')")
    assert said == Said(b"half\n", "exit code 1: no more")
    killed = ask("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert killed == Said(b"", "killed by SIGSEGV")


def test_a_program_that_hangs() -> None:
    with Children() as children:  # a shell has begun long before the deadline
        said = children.ask(["/bin/sh", "-c", "echo half; exec sleep 600"], 1.0)
    assert said == Said(b"half\n", "no answer within 1.0 s", late=True)


def test_no_such_program() -> None:
    with Children() as children:
        said = children.ask(["/no/such/program"], 1.0)
    assert said == Said(b"", "cannot be started: No such file or directory")


def test_nothing_is_asked_after_the_end() -> None:
    with Children() as children:
        pass
    assert children.ask(["/bin/true"], 60.0).problem == "interrupted"
