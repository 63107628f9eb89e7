"""Facts of a node, and the wishes of its user: all that checks get to see.

What could not be found out is None, or absent. Facts travel to the other nodes of the job.
"""

from __future__ import annotations

import msgspec


class Limit(msgspec.Struct, frozen=True):
    """A limit of this process; None = unlimited. Bytes, or how many."""

    soft: int | None
    hard: int | None


class FileSystem(msgspec.Struct, frozen=True, kw_only=True):
    """The file system that holds a path.

    Attributes:
        path: what was asked about.
        kind: such as ``ext4``, ``tmpfs``, ``nfs4``; "" = unknown.
        options: of the mount: ``rw``, ``noexec``.
        size, free: bytes; free for this user.
        free_inodes: files that can still be made; None = the file system does not count them.
        problem: why it could not be looked at.
    """

    path: str
    kind: str = ""
    options: tuple[str, ...] = ()
    size: int | None = None
    free: int | None = None
    free_inodes: int | None = None
    problem: str = ""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was written for a trial, and removed.

    Attributes:
        path: the directory.
        purpose: ``checkpoints`` or ``logs``.
        file_system: that of the directory.
        written: bytes.
        seconds: until they were on the disk.
        direct: the cache of the system was not used.
        problem: why it could not be written, "" = it could.
    """

    path: str
    purpose: str
    file_system: FileSystem
    written: int = 0
    seconds: float = 0.0
    direct: bool = False
    problem: str = ""


class Cgroup(msgspec.Struct, frozen=True, kw_only=True):
    """The tightest limits of the control groups this process is in; None = none, or unknown."""

    memory_max: int | None = None
    memory_now: int | None = None
    oom_kills: int | None = None
    pids_max: int | None = None
    pids_now: int | None = None


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """Names of this host, and the addresses that they lead to.

    Attributes:
        host: own name.
        addresses: numeric ones that the name leads to.
        local: numeric addresses that this host really has.
        problem: why the name leads nowhere.
        ipv6: whether the kernel knows IPv6.
        interfaces: names of network interfaces; empty = unknown.
        loopback: why nobody can connect to 127.0.0.1 here, "" = one can.
    """

    host: str = ""
    addresses: tuple[str, ...] = ()
    local: tuple[str, ...] = ()
    problem: str = ""
    ipv6: bool | None = None
    interfaces: tuple[str, ...] = ()
    loopback: str = ""


class Remote(msgspec.Struct, frozen=True, kw_only=True):
    """Another host, as seen from here.

    Attributes:
        host: as it was given.
        addresses: numeric ones, as far as the name was resolved.
        port: that was connected to, 0 = none.
        answer: ``open``, ``refused`` (the host answers, nobody listens), or "".
        problem: why there is no answer.
        seconds: until the answer.
    """

    host: str
    addresses: tuple[str, ...] = ()
    port: int = 0
    answer: str = ""
    problem: str = ""
    seconds: float = 0.0


class Gpus(msgspec.Struct, frozen=True, kw_only=True):
    """NVIDIA GPUs.

    Attributes:
        present: there are device files.
        count: as the driver's library says.
        kernel_driver: version of the module in the kernel.
        problem: why the library does not answer.
        nvswitch: there are switches of NVLink.
        fabric_manager: it runs; None = unknown.
        states: what each GPU needs, as the health check says; "" = nothing.
    """

    present: bool = False
    count: int | None = None
    kernel_driver: str = ""
    problem: str = ""
    nvswitch: bool = False
    fabric_manager: bool | None = None
    states: str = ""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """One node.

    Attributes:
        node: its name.
        versions: by component: ``python``, ``linux``, ``torch``, ``nccl``, ``nvidia-driver`` ...
        unknown: what could not be found out in time or at all, and why.
        python: interpreter of the ranks; "" = it was not asked.
        torch_problem: why it cannot import torch; "" = it can, has none, or gave no answer.
        environ: variables that some known issue is about.
        lacking: functions that this build of Python lacks.
        refused: system calls that the launcher needs and that fail here, each with why.
        arch: as ``uname -m`` says.
        cpus: that this process may use.
        memory: of the machine, bytes.
        limits: by name of ulimit: ``nofile``, ``memlock``, ``nproc``, ``stack``, ``core``.
        settings: text of files of the kernel and of systemd, by name of the setting.
        file_systems: of ``/dev/shm`` and of the directory for temporary files, by these names:
            ``shm``, ``tmp``.
        cgroup: limits of the container.
        capabilities: mask of this process.
        in_container: it is in a container, as far as that can be seen.
        oom_score_adj: of this process.
        names: own name and addresses.
        rdma: InfiniBand or RoCE devices.
        gpus: NVIDIA's.
        slurm: settings of the cluster, as ``scontrol show config`` says.
        remotes: the hosts that were given.
        stores: where ranks or nodes will meet, by what says so, such as ``MASTER_ADDR``.
        trials: what writing to the directories for checkpoints and logs gave.
    """

    node: str = ""
    versions: dict[str, str] = {}
    unknown: dict[str, str] = {}
    python: str = ""
    torch_problem: str = ""
    environ: dict[str, str] = {}
    lacking: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    arch: str = ""
    cpus: int | None = None
    memory: int | None = None
    limits: dict[str, Limit] = {}
    settings: dict[str, str] = {}
    file_systems: dict[str, FileSystem] = {}
    cgroup: Cgroup = Cgroup()
    capabilities: int | None = None
    in_container: bool = False
    oom_score_adj: int | None = None
    names: Names = Names()
    rdma: tuple[str, ...] = ()
    gpus: Gpus = Gpus()
    slurm: dict[str, str] = {}
    remotes: tuple[Remote, ...] = ()
    stores: dict[str, Remote] = {}
    trials: tuple[Trial, ...] = ()


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The plans of the user.

    Attributes:
        features: of `known_issues.FEATURES`.
        nproc_per_node: ranks on this node; None = not said.
        nnodes: nodes of the job.
        port: of the rendezvous, 0 = not said.
        checkpoint_bytes: size of one checkpoint, as far as this node writes it; 0 = not said.
    """

    features: frozenset[str] = frozenset()
    nproc_per_node: int | None = None
    nnodes: int = 1
    port: int = 0
    checkpoint_bytes: int = 0
