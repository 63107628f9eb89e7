"""Finds out facts; decides nothing. What may hang has a deadline, what may crash a process."""

from __future__ import annotations

import contextlib
import http.client
import os
import platform
import queue
import re
import resource
import shutil
import signal
import socket
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from undaunted.base import system_calls
from undaunted.base.cgroups import keyed, memory_limit, own_directories, usable_cpus
from undaunted.base.child import Program, Programs
from undaunted.base.deadline import within
from undaunted.base.process import script_command
from undaunted.base.text import format_duration, one_line
from undaunted.doctor.facts import Cgroup, FileSystem, Gpus, Limit, Names, Remote, Trial
from undaunted.health.check import GPU_DEADLINE_S, has_gpus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from undaunted.base.child import ProgramEnd
    from undaunted.coordinator.wire.address import Address


# --- programs that are asked something and may hang or crash: what each says, or why it does not --


class Said(NamedTuple):
    """The output of a program.

    Attributes:
        output: its standard output, at most 1 MiB, as far as it came.
        problem: why that is not all, "" = it is.
        late: it was killed at its deadline.
    """

    output: bytes
    problem: str = ""
    late: bool = False


class Children(Programs):
    """Owner of the programs; its threads may ask at the same time. A context manager."""

    def ask(
        self, argv: Sequence[str], deadline_s: float, env: Mapping[str, str] | None = None
    ) -> Said:
        """Run a program in another session, without input; return its output.

        Args:
            argv: program and arguments.
            deadline_s: then it and what it has started in its session is killed, seconds.
            env: its environment, None = as here.
        """
        try:
            end = self.run(Program(argv, deadline_s, env=env))
        except InterruptedError:
            return Said(b"", "interrupted")
        except OSError as error:
            return Said(b"", f"cannot be started: {error.strerror}")
        if end.code is None:
            return Said(end.output, f"no answer within {format_duration(deadline_s)}", late=True)
        return Said(end.output, _problem(end.code, end))


def _problem(code: int, end: ProgramEnd) -> str:
    if not code:
        return ""
    lines = end.errors.decode("utf-8", "replace").strip().splitlines()
    last = f": {one_line(lines[-1], longest=200)}" if lines else ""
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}{last}"
    return f"exit code {code}{last}"


# --- the kernel: its version, its settings, capabilities, limits, containers ----------------------


ROOT = Path("/")
_MOST_BYTES = 256 * 1024
_SETTINGS = (
    "kernel.yama.ptrace_scope",
    "kernel.core_pattern",
    "vm.overcommit_memory",
    "net.core.somaxconn",
    "net.ipv4.ip_local_port_range",
)
_LIMITS = {
    "nofile": resource.RLIMIT_NOFILE,
    "memlock": resource.RLIMIT_MEMLOCK,
    "nproc": resource.RLIMIT_NPROC,
    "stack": resource.RLIMIT_STACK,
    "core": resource.RLIMIT_CORE,
}
# Variables that checks look at, beside those of the known issues.
_VARIABLES = (
    "MASTER_PORT",
    "OMP_NUM_THREADS",
    "KUBERNETES_SERVICE_HOST",
    "SLURM_JOB_ID",
    "SLURM_KILL_BAD_EXIT",
    "SLURM_RLIMIT_NOFILE",
    "SLURM_WAIT",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
)
_FIRST_USER = 1000  # RemoveIPC leaves system users alone


def read_text(path: Path) -> str | None:
    """Return the beginning of a file, None if it cannot be read."""
    try:
        with path.open("rb", buffering=0) as file:
            return (file.read(_MOST_BYTES) or b"").decode("utf-8", "replace").strip()
    except OSError:
        return None


def of_kernel(root: Path = ROOT) -> dict[str, Any]:
    """Return facts that are in files of the kernel."""
    return {
        "lacking": tuple(system_calls.lacking_names()),
        "refused": tuple(system_calls.refused()),
        "arch": platform.machine(),
        "versions": {"linux": platform.release(), "python": platform.python_version()},
        "cpus": usable_cpus(root),
        "memory": keyed(root / "proc/meminfo", "MemTotal:", 1024),
        "limits": limits(),
        "settings": settings(root, os.getuid()),
        "capabilities": capabilities(read_text(root / "proc/self/status") or ""),
        "oom_score_adj": _number(read_text(root / "proc/self/oom_score_adj")),
        "in_container": in_container(root, os.environ),
        "rdma": _listed(root / "sys/class/infiniband"),
    }


def environ_of(environ: Mapping[str, str], known: Iterable[str]) -> dict[str, str]:
    """Return the variables that known issues are about, and no others: they may be secrets."""
    names = {*known, *_VARIABLES}
    return {name: value for name, value in environ.items() if name in names}


def settings(root: Path, user: int) -> dict[str, str]:
    """Return settings of the kernel, and RemoveIPC of logind where that is at work."""
    found = {}
    for name in _SETTINGS:
        text = read_text(root / "proc/sys" / name.replace(".", "/"))
        if text is not None:
            found[name] = text
    if user >= _FIRST_USER and (root / "run/systemd/users").is_dir():
        found["RemoveIPC"] = remove_ipc(root)
    return found


def remove_ipc(root: Path) -> str:
    """Return RemoveIPC of logind: the last file that says something counts; ``yes`` unless said."""
    value = "yes"
    folder = root / "etc/systemd"
    for path in (folder / "logind.conf", *sorted((folder / "logind.conf.d").glob("*.conf"))):
        for line in (read_text(path) or "").splitlines():
            name, equals, text = line.partition("=")
            if equals and name.strip() == "RemoveIPC":
                value = text.strip()
    return value


def limits() -> dict[str, Limit]:
    """Return the limits of this process."""
    found = {}
    for name, number in _LIMITS.items():
        soft, hard = (
            None if value == resource.RLIM_INFINITY else value
            for value in resource.getrlimit(number)
        )
        found[name] = Limit(soft, hard)
    return found


def capabilities(status: str) -> int | None:
    """Return the effective capabilities in ``/proc/self/status``."""
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            try:
                return int(value.strip(), 16)
            except ValueError:
                return None
    return None


def in_container(root: Path, environ: Mapping[str, str]) -> bool:
    """Return whether this looks like a container."""
    marks = (".dockerenv", "run/.containerenv")
    return "KUBERNETES_SERVICE_HOST" in environ or any((root / mark).exists() for mark in marks)


def _number(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None


def _listed(directory: Path) -> tuple[str, ...]:
    try:
        return tuple(sorted(os.listdir(directory)))
    except OSError:
        return ()


# --- control groups, versions 1 and 2: the tightest limits on the way from this process up --------


def of_cgroup(root: Path = ROOT) -> Cgroup:
    """Return the limits, None for what is not limited or cannot be read."""
    found: dict[str, int | None] = {}
    if (memory := memory_limit(root)) is not None:
        found = {"memory_max": memory.most, "memory_now": memory.used, "oom_kills": memory.kills}
    for controller in ("", "pids"):
        found |= _pids(own_directories(controller, root))
    return Cgroup(**found)


def _pids(groups: list[Path]) -> dict[str, int | None]:
    limited = [
        (most, group) for group in groups if (most := _in_file(group / "pids.max")) is not None
    ]
    if not limited:
        return {}
    most, group = min(limited, key=lambda pair: pair[0])
    return {"pids_max": most, "pids_now": _in_file(group / "pids.current")}


def _in_file(path: Path) -> int | None:
    text = read_text(path) or ""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else None


# --- file systems: how large, of what kind, mounted how. A path may be on a server that is away ---


_ANSWER_S = 5.0


def of_file_systems(root: Path = ROOT) -> dict[str, Any]:
    """Return the facts about /dev/shm and the directory for temporary files."""
    try:
        temporary = tempfile.gettempdir()
    except OSError as error:
        tmp = FileSystem(path=os.environ.get("TMPDIR", "/tmp"), problem=str(error))  # noqa: S108
    else:
        tmp = file_system(temporary, root, writable=True)
        asked = os.environ.get("TMPDIR", "")
        if asked and os.path.abspath(asked) != temporary:  # noqa: PTH100
            tmp = FileSystem(
                path=asked, problem=f"nothing can be written there, {temporary} is used instead"
            )
    return {"file_systems": {"shm": file_system("/dev/shm", root, writable=True), "tmp": tmp}}  # noqa: S108


def file_system(path: str, root: Path = ROOT, *, writable: bool = False) -> FileSystem:
    """Return what is known about the file system at ``path``, within 5 s.

    Args:
        path: a directory.
        root: where ``/proc`` is.
        writable: that this user cannot write there is a problem.
    """
    late = FileSystem(path=path, problem=f"no answer within {_ANSWER_S:.0f} s")
    return within(_ANSWER_S, lambda: _look(path, root, writable=writable), late)


def _look(path: str, root: Path, *, writable: bool) -> FileSystem:
    try:
        status = os.statvfs(path)
        real = os.path.realpath(path)
    except OSError as error:
        return FileSystem(path=path, problem=error.strerror or str(error))
    kind, options = mount_of(real, read_text(root / "proc/self/mountinfo") or "")
    problem = ""
    if writable and not os.access(path, os.W_OK | os.X_OK):
        problem = "this user may not write there"
    return FileSystem(
        path=path,
        kind=kind,
        options=options,
        size=status.f_blocks * status.f_frsize,
        free=status.f_bavail * status.f_frsize,
        free_inodes=status.f_favail if status.f_files else None,
        problem=problem,
    )


def mount_of(path: str, mountinfo: str) -> tuple[str, tuple[str, ...]]:
    """Return kind and options of the mount that holds ``path``; the last of the longest counts."""
    best: tuple[int, str, tuple[str, ...]] = (-1, "", ())
    for line in mountinfo.splitlines():
        head, dash, tail = line.partition(" - ")
        words, kinds = head.split(), tail.split()
        if not dash or len(words) < 6 or not kinds:
            continue
        point = _unescaped(words[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best[0]:
            best = (len(point), kinds[0], tuple(words[5].split(",")))
    return best[1], best[2]


def _unescaped(text: str) -> str:
    """Undo the octal of spaces, tabs, line feeds and backslashes."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


# --- a trial of directories: can they be written, and how fast ------------------------------------


DISK_PROGRAM = Path(__file__).with_name("programs") / "disk_program.py"
BYTES = 64 * 1024 * 1024
WRITE_S = 5.0
DISK_S = 20.0
_PLACE_S = 5.0


class _DiskAnswer(msgspec.Struct):
    written: int = 0
    seconds: float = 0.0
    direct: bool = False
    problem: str = ""


def of_disk(children: Children, path: str, purpose: str, deadline_s: float = DISK_S) -> Trial:
    """Write to a directory for a trial; where it does not exist, to what will hold it."""
    place = within(_PLACE_S, lambda: nearest(Path(path)), None)
    if place is None:
        late = f"no answer within {_PLACE_S:.0f} s"
        return Trial(path=path, purpose=purpose, file_system=FileSystem(path=path), problem=late)
    if not place.is_dir():
        return Trial(
            path=path,
            purpose=purpose,
            file_system=FileSystem(path=path),
            problem=f"{place} is no directory",
        )
    command = script_command(DISK_PROGRAM, str(place), str(BYTES), str(WRITE_S))
    said = children.ask(command, deadline_s)
    try:
        answer = msgspec.json.decode(said.output, type=_DiskAnswer)
    except (msgspec.DecodeError, ValueError):
        answer = _DiskAnswer(problem=said.problem or "the trial has said nothing")
    return Trial(
        path=path,
        purpose=purpose,
        file_system=file_system(str(place)),
        written=answer.written,
        seconds=answer.seconds,
        direct=answer.direct,
        problem=answer.problem,
    )


def nearest(path: Path) -> Path:
    """Return the path, or the nearest above it that exists."""
    for place in (path, *path.parents):
        if place.exists():
            return place
    return Path("/")


# --- NVIDIA GPUs: devices, driver, fabric manager -------------------------------------------------


DRIVER_PROGRAM = Path(__file__).with_name("programs") / "driver_program.py"
_KERNEL_VERSION = re.compile(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s")
_MANAGER = "nv-fabricmanage"  # the kernel keeps 15 characters of a name


class _DriverAnswer(msgspec.Struct):
    version: str = ""
    count: int | None = None
    states: str = ""
    problem: str = ""


def of_gpus(
    children: Children, root: Path = ROOT, deadline_s: float = GPU_DEADLINE_S
) -> tuple[Gpus, str]:
    """Return what there is, and the version of the driver's library, "" = unknown."""
    if not has_gpus(str(root)):
        return Gpus(), ""
    said = children.ask(script_command(DRIVER_PROGRAM), deadline_s)
    answer = parse_answer(said.output, said.problem)
    switches = (root / "proc/driver/nvidia-nvswitch/devices").is_dir()
    gpus = Gpus(
        present=True,
        count=answer.count,
        kernel_driver=kernel_driver(read_text(root / "proc/driver/nvidia/version") or ""),
        problem=answer.problem,
        nvswitch=switches,
        fabric_manager=manager_runs(root) if switches else None,
        states=answer.states,
    )
    return gpus, answer.version


def parse_answer(output: bytes, problem: str) -> _DriverAnswer:
    """Return what the program has said; ``problem`` if that is nothing."""
    try:
        return msgspec.json.decode(output, type=_DriverAnswer)
    except (msgspec.DecodeError, ValueError):
        return _DriverAnswer(problem=problem or "what it says cannot be read")


def kernel_driver(text: str) -> str:
    """Return the version in ``/proc/driver/nvidia/version``, "" = none."""
    found = _KERNEL_VERSION.search(text + " ")
    return found[1] if found is not None else ""


def manager_runs(root: Path) -> bool | None:
    """Return whether a process is called as the fabric manager; None = they cannot be listed."""
    try:
        pids = [name for name in os.listdir(root / "proc") if name.isdecimal()]
    except OSError:
        return None
    return any(read_text(root / "proc" / pid / "comm") == _MANAGER for pid in pids)


# --- names: what this host is called, and whether other hosts can be found and reached ------------


LOOK_UP_S = 5.0
CONNECT_S = 3.0
# Of all hosts together: those that are not through by then are named.
ALL_S = 30.0
_AT_ONCE = 64


def look_up(host: str, timeout_s: float = LOOK_UP_S) -> tuple[tuple[str, ...], str]:
    """Return the numeric addresses of a name and why there are none.

    The look-up runs in a daemon thread, which is left behind when time runs out.
    """
    answers: queue.SimpleQueue[tuple[tuple[str, ...], str]] = queue.SimpleQueue()

    def run() -> None:
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            answers.put((tuple(dict.fromkeys(str(one[4][0]) for one in found)), ""))
        except (OSError, UnicodeError) as error:
            text = getattr(error, "strerror", None) or "it cannot be a name"
            answers.put(((), f"the name cannot be resolved: {text}"))

    threading.Thread(target=run, name="undaunted-look-up", daemon=True).start()
    try:
        return answers.get(timeout=timeout_s)
    except queue.Empty:
        late = format_duration(timeout_s)
        return (), f"the name server has not answered within {late}"


def of_names(root: Path = ROOT) -> Names:
    """Return what this host is called and where that leads."""
    host = socket.gethostname()
    addresses, problem = look_up(host)
    inet6 = read_text(root / "proc/net/if_inet6")
    return Names(
        host=host,
        addresses=addresses,
        local=local_addresses(read_text(root / "proc/net/fib_trie") or "", inet6 or ""),
        problem=problem,
        ipv6=bool(inet6),
        interfaces=_interfaces(),
        loopback=_loopback(),
    )


def _interfaces() -> tuple[str, ...]:
    try:
        return tuple(name for _, name in socket.if_nameindex())
    except OSError:
        return ()


def _loopback() -> str:
    """Return why nobody can connect to 127.0.0.1, where the ranks of one node meet."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=CONNECT_S).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def local_addresses(fib_trie: str, if_inet6: str) -> tuple[str, ...]:
    """Return the addresses of this host, from the files of ``/proc/net`` with these names."""
    found = []
    last = ""
    for line in fib_trie.splitlines():
        words = line.split()
        if words[:1] == ["|--"] and len(words) == 2:
            last = words[1]
        elif words == ["/32", "host", "LOCAL"] and last:
            found.append(last)
    for line in if_inet6.splitlines():
        digits = line.partition(" ")[0]
        try:
            found.append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)))
        except (ValueError, OSError):
            continue
    return tuple(dict.fromkeys(found))


def of_remotes(hosts: Sequence[Address], all_s: float = ALL_S) -> tuple[Remote, ...]:
    """Resolve and reach hosts, some at once, in ``all_s`` seconds at most."""
    deadline = time.monotonic() + all_s
    todo: queue.SimpleQueue[Address] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[Address, Remote]] = queue.SimpleQueue()
    for address in hosts:
        todo.put(address)

    def run() -> None:
        while time.monotonic() < deadline:
            try:
                address = todo.get_nowait()
            except queue.Empty:
                return
            done.put((address, reach(address)))

    for _ in range(min(_AT_ONCE, len(hosts))):
        threading.Thread(target=run, name="undaunted-reach", daemon=True).start()
    late = f"not looked at within {format_duration(all_s)}, as others did not answer"
    found = {address: Remote(host=address.host, problem=late) for address in hosts}
    try:
        for _ in hosts:
            address, remote = done.get(timeout=max(0.0, deadline - time.monotonic()))
            found[address] = remote
    except queue.Empty:
        pass
    return tuple(found[address] for address in hosts)


def reach(address: Address, look_up_s: float = LOOK_UP_S, connect_s: float = CONNECT_S) -> Remote:
    """Resolve one name, and connect to its addresses, one after the other; not to port 0."""
    addresses, problem = look_up(address.host, look_up_s)
    if problem or not address.port:
        return Remote(host=address.host, addresses=addresses, port=address.port, problem=problem)
    began = time.monotonic()
    problem, answer = "", ""
    for number in addresses:
        try:
            socket.create_connection((number, address.port), timeout=connect_s).close()
            answer = "open"
        except ConnectionRefusedError:
            answer = answer or "refused"
        except OSError as error:
            text = error.strerror or f"no answer within {format_duration(connect_s)}"
            problem = f"port {address.port} at {number}: {text}"
        if answer == "open":
            break
    return Remote(
        host=address.host,
        addresses=addresses,
        port=address.port,
        answer=answer,
        problem="" if answer else problem,
        seconds=time.monotonic() - began,
    )


# --- settings of the Slurm cluster, as its own command tells them ---------------------------------


_SLURM_S = 10.0
_WANTED = frozenset(
    {
        "KillOnBadExit",
        "WaitTime",
        "KillWait",
        "UnkillableStepTimeout",
        "MessageTimeout",
        "JobRequeue",
    }
)


def of_slurm(children: Children, environ: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Return settings by name, and the problem; both empty outside of a job of Slurm."""
    program = shutil.which("scontrol", path=environ.get("PATH"))
    if "SLURM_JOB_ID" not in environ or program is None:
        return {}, ""
    said = children.ask([program, "show", "config"], _SLURM_S)
    return parse_config(said.output.decode("utf-8", "replace")), said.problem


def parse_config(text: str) -> dict[str, str]:
    """Return the settings that checks look at; lines are ``Name = value``."""
    found = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and name.strip() in _WANTED:
            found[name.strip()] = value.strip()
    return found


# --- the version of an etcd -----------------------------------------------------------------------


_ETCD_S = 10.0
_CONNECT_S = 5.0
_ETCD_BYTES = 4096


class _EtcdAnswer(msgspec.Struct):
    etcdserver: str


def of_etcd(host: str, port: int, deadline_s: float = _ETCD_S) -> tuple[str, str]:
    """Ask an etcd without TLS; return its version and the problem."""
    late = ("", f"{host}:{port} has not answered within {deadline_s:.0f} s")
    return within(deadline_s, lambda: _ask(host, port), late)


def _ask(host: str, port: int) -> tuple[str, str]:
    connection = http.client.HTTPConnection(host, port, timeout=_CONNECT_S)
    try:
        connection.request("GET", "/version")
        content = connection.getresponse().read(_ETCD_BYTES)
    except (OSError, UnicodeError, http.client.HTTPException) as error:
        return "", f"{host}:{port}: {getattr(error, 'strerror', None) or error}"
    finally:
        connection.close()
    try:
        return msgspec.json.decode(content, type=_EtcdAnswer).etcdserver, ""
    except (msgspec.DecodeError, ValueError):
        return "", f"{host}:{port} is no etcd, or wants TLS"


# --- versions of software -------------------------------------------------------------------------


SOFTWARE_PROGRAM = Path(__file__).with_name("programs") / "software_program.py"
SOFTWARE_S = 60.0  # torch on a network file system


class _Line(msgspec.Struct):
    versions: dict[str, str]


def of_software(
    children: Children, python: str, deadline_s: float = SOFTWARE_S
) -> tuple[dict[str, str], str, str]:
    """Return versions by component, as the interpreter of the ranks has them, and two problems.

    The first is why torch cannot be imported, the other why there is no answer; "" = none.
    """
    said = children.ask([python, str(SOFTWARE_PROGRAM), str(os.getpid())], deadline_s)
    versions, lines = parse_lines(said.output)
    if not lines:
        return versions, "", said.problem or f"{python} has said nothing"
    if lines > 1 or not said.problem:
        return versions, "", said.problem
    if said.late:  # perhaps from a slow disk
        return versions, "", f"import of torch: {said.problem}"
    return versions, said.problem, ""


def parse_lines(output: bytes) -> tuple[dict[str, str], int]:
    """Return the versions in all lines that can be read, and how many these were."""
    versions: dict[str, str] = {}
    count = 0
    for line in output.splitlines():
        try:
            versions |= msgspec.json.decode(line, type=_Line).versions
        except (msgspec.DecodeError, ValueError):
            continue  # something that an import has printed
        count += 1
    return versions, count
