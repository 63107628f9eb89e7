"""From facts to findings: a function for each subject, and the table of them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.base.sizes import GIB, MIB, size, whole
from undaunted.base.text import format_duration, one_line
from undaunted.doctor.network_checks import NETWORK, network
from undaunted.doctor.versions import parse_range, parse_version, unaffected

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from undaunted.doctor.advice import Advice, Severity
    from undaunted.doctor.facts import Asked, Facts, Trial
    from undaunted.doctor.known_issues import Case, KnownIssues, SettingIssue, VersionIssue


# --- versions with known bugs ---------------------------------------------------------------------


SOFTWARE = "versions"
# Written as their makers do.
NAMES = {
    "nccl": "NCCL",
    "python": "Python",
    "torch": "torch",
    "linux": "Linux",
    "nvidia-driver": "NVIDIA driver",
    "transformer-engine": "TransformerEngine",
    "megatron-core": "Megatron Core",
    "lightning": "Lightning",
}


def software(facts: Facts, asked: Asked, issues: KnownIssues) -> list[Advice]:
    """Look for torch and for calls of the launcher; compare every version with every range."""
    findings = [*_torch(facts, issues), *_launcher(facts, issues)]
    for issue in issues.versions:
        version = facts.versions.get(issue.component, "")
        if version and issue.concerns(asked.features) and _affected(version, issue, facts):
            name = NAMES.get(issue.component, issue.component)
            wanted = unaffected(issue.ranges)
            findings.append(issue.finding(SOFTWARE, f"{name} {version}", wanted=wanted))
    return findings


def _torch(facts: Facts, issues: KnownIssues) -> list[Advice]:
    """Without torch the ranks of most programs end at once."""
    issue = issues.setting("D03")
    python = one_line(facts.python)
    if facts.torch_problem:
        found = f"{python} cannot import torch: {facts.torch_problem}"
        return [issue.finding(SOFTWARE, found, wanted=issue.wanted)]
    if python and "torch" not in facts.versions and "software" not in facts.unknown:
        found = f"there is no torch for {python}"
        return [issue.finding(SOFTWARE, found, "warn", wanted=issue.wanted)]
    return []


def _launcher(facts: Facts, issues: KnownIssues) -> list[Advice]:
    """Look for functions of the kernel and of Python that the launcher uses."""
    findings = []
    if facts.refused:
        found = f"Linux {facts.versions.get('linux', '')} refuses {', '.join(facts.refused)}"
        issue = issues.setting("D04")
        findings.append(issue.finding(SOFTWARE, found, wanted=issue.wanted))
    if facts.lacking:
        found = f"this build of Python lacks {', '.join(facts.lacking)}"
        issue = issues.setting("D05")
        findings.append(issue.finding(SOFTWARE, found, wanted=issue.wanted))
    return findings


def _affected(version: str, issue: VersionIssue, facts: Facts) -> bool:
    if issue.arch and facts.arch not in issue.arch:
        return False
    if issue.installed and issue.installed not in facts.versions:
        return False
    if any(facts.environ.get(name) == value for name, value in issue.unless.items()):
        return False
    try:
        number = parse_version(version)
    except ValueError:
        return False  # a build of somebody's own: nothing is known about it
    return any(parse_range(text).includes(number) for text in issue.ranges)


# --- variables of the environment that hurt -------------------------------------------------------


ENVIRONMENT = "environment variables"


def environment(facts: Facts, asked: Asked, issues: KnownIssues) -> list[Advice]:
    """Look at each variable of each issue; the first case that holds counts."""
    findings = []
    for issue in issues.variables:
        if not issue.concerns(asked.features):
            continue
        for name in issue.variables:
            value = facts.environ.get(name)
            for case in issue.cases:
                if _concerns(case, name, facts, asked) and holds(case, value):
                    found = f"{name} is not set" if value is None else f"{name}={one_line(value)}"
                    findings.append(
                        issue.finding(ENVIRONMENT, found, case.severity, wanted=issue.wanted)
                    )
                    break
    return findings


def holds(case: Case, value: str | None) -> bool:
    """Return whether a value (None = not set) is what a case is about."""
    if value is None:
        return case.unset
    word = value.strip()
    folded = word.casefold()
    return (
        case.is_set
        or folded in (text.casefold() for text in case.values)
        or (bool(case.other_than) and folded not in (t.casefold() for t in case.other_than))
        or word.startswith(tuple(case.starts))
        or (case.contains != "" and case.contains in word)
        or _beyond(case, word)
    )


def _beyond(case: Case, word: str) -> bool:
    try:
        number = float(word)
    except ValueError:
        return False
    return (case.below is not None and number < case.below) or (
        case.above is not None and number > case.above
    )


def _concerns(case: Case, name: str, facts: Facts, asked: Asked) -> bool:
    if case.variables and name not in case.variables:
        return False
    if case.needs and case.needs not in facts.versions:
        return False
    if case.features and asked.features.isdisjoint(case.features):
        return False
    return asked.features.isdisjoint(case.not_for)


# --- GPUs and what belongs to them ----------------------------------------------------------------


GPUS = "GPUs"


def gpu(facts: Facts, asked: Asked, issues: KnownIssues) -> list[Advice]:
    """The driver answers, fits its library, and wants nothing; switches are managed."""
    gpus = facts.gpus
    if not gpus.present:
        return []
    issue = issues.setting("L22")
    findings = []
    if gpus.problem:
        findings.append(issue.finding(GPUS, f"the driver: {gpus.problem}"))
    if gpus.states:
        findings.append(issue.finding(GPUS, gpus.states))
    if gpus.nvswitch and gpus.fabric_manager is False:
        # In a container its process cannot be seen.
        severity: Severity = "warn" if facts.in_container else "fail"
        found = "there are NVLink switches, and no fabric manager runs"
        findings.append(issue.finding(GPUS, found, severity))
    library = facts.versions.get("nvidia-driver", "")
    if library and gpus.kernel_driver and library != gpus.kernel_driver:
        found = f"the kernel's driver is {gpus.kernel_driver}, the library {library}"
        findings.append(issue.finding(GPUS, found, wanted="the same"))
    if gpus.count is not None and (asked.nproc_per_node or 0) > gpus.count:
        found = f"{gpus.count} GPUs, for {asked.nproc_per_node} ranks"
        findings.append(issue.finding(GPUS, found, "warn", wanted="a GPU for each rank"))
    return findings


# --- room in /dev/shm -----------------------------------------------------------------------------


SHARED_MEMORY = "shared memory"
_FEW = 128 * 1024 * 1024  # what containers give unless asked (64 MB), and somewhat more


def shared_memory(facts: Facts, asked: Asked, issues: KnownIssues) -> list[Advice]:
    """A GiB free, and room for a checkpoint where one is kept in memory."""
    issue = issues.setting("L01")
    shm = facts.file_systems.get("shm")
    if shm is None:
        return []
    if shm.problem:
        return [
            issue.finding(SHARED_MEMORY, f"{shm.path}: {shm.problem}", "fail", wanted=issue.wanted)
        ]
    if shm.free is None or shm.size is None:
        return []
    needed = max(GIB, asked.checkpoint_bytes if "async-checkpoint" in asked.features else 0)
    if shm.free >= needed:
        return []
    found = f"{shm.path} has {size(shm.free)} free of {size(shm.size)}"
    severity: Severity = "fail" if shm.size <= _FEW else "warn"
    return [issue.finding(SHARED_MEMORY, found, severity, wanted=f"{size(needed)} free")]


# --- memory: limits of the container, and who goes when it is short -------------------------------


MEMORY = "memory"
_PER_RANK = 2 * GIB  # torch with CUDA takes about this before it has any data


def memory(facts: Facts, asked: Asked, issues: KnownIssues) -> list[Advice]:
    """The limit of the container, out-of-memory kills, overcommit, scores, core files."""
    return [
        *_container(facts, asked, issues),
        *_overcommit(facts, issues),
        *_core_files(facts, asked, issues),
    ]


def _container(facts: Facts, asked: Asked, issues: KnownIssues) -> list[Advice]:
    issue = issues.setting("L10")
    group = facts.cgroup
    findings = []
    if group.memory_max is not None:
        free = group.memory_max - (group.memory_now or 0)
        needed = max(_PER_RANK * (asked.nproc_per_node or 1), asked.checkpoint_bytes)
        if free < needed:
            found = f"the container may use {size(group.memory_max)}, {size(max(0, free))} more"
            findings.append(issue.finding(MEMORY, found, wanted=f"{size(needed)} free"))
    if group.oom_kills:
        found = (
            f"out of memory, the kernel has killed {group.oom_kills} processes in this container"
        )
        findings.append(issue.finding(MEMORY, found, wanted="none"))
    return findings


def _overcommit(facts: Facts, issues: KnownIssues) -> list[Advice]:
    issue = issues.setting("L11")
    findings = []
    if whole(facts.settings.get("vm.overcommit_memory")) == 2:
        found = "vm.overcommit_memory is 2"
        findings.append(issue.finding(MEMORY, found, wanted="0 or 1"))
    if facts.oom_score_adj is not None and facts.oom_score_adj > 0:
        found = f"oom_score_adj is {facts.oom_score_adj}: this shell's processes are killed first"
        findings.append(issue.finding(MEMORY, found, "info", wanted="0 or less"))
    return findings


def _core_files(facts: Facts, asked: Asked, issues: KnownIssues) -> list[Advice]:
    core = facts.limits.get("core")
    pattern = facts.settings.get("kernel.core_pattern", "")
    if core is None or core.soft == 0 or pattern.startswith("|"):
        return []  # none, or a program takes care of them
    if core.soft is not None and core.soft * (asked.nproc_per_node or 1) < GIB:
        return []
    large = "of any size" if core.soft is None else f"of {size(core.soft)}"
    found = f"each rank that crashes may leave a core file {large} (ulimit -c)"
    return [issues.setting("L11").finding(MEMORY, found, "info", wanted="ulimit -c 0")]


# --- limits of this process (ulimit), which ranks inherit -----------------------------------------


LIMITS = "limits"
_FILES = 65536
_FEW_FILES = 4096
_FEW_LOCKED = 64 * MIB  # what systems give unless asked is 64 KiB to 8 MiB


def limits(facts: Facts, asked: Asked, issues: KnownIssues) -> list[Advice]:
    """Open files, locked memory, stack, and who has set them."""
    return [
        *_open_files(facts, issues),
        *_locked_memory(facts, asked, issues),
        *_stack(facts, asked, issues),
        *_handed_on(facts, issues),
    ]


def _open_files(facts: Facts, issues: KnownIssues) -> list[Advice]:
    files = facts.limits.get("nofile")
    if files is None or files.soft is None or files.soft >= _FILES:
        return []
    found = f"ulimit -n is {files.soft}"
    if files.hard is None or files.hard > files.soft:
        most = "unlimited" if files.hard is None else str(files.hard)
        found += f" (up to {most} allowed)"
    severity: Severity = "warn" if files.soft < _FEW_FILES else "info"
    return [issues.setting("L03").finding(LIMITS, found, severity, wanted=str(_FILES))]


def _locked_memory(facts: Facts, asked: Asked, issues: KnownIssues) -> list[Advice]:
    locked = facts.limits.get("memlock")
    rdma = bool(facts.rdma) or "rdma" in asked.features
    if locked is None or locked.soft is None or not rdma:
        return []
    found = f"ulimit -l is {size(locked.soft)}, and there is {_devices(facts)}"
    few = locked.soft <= _FEW_LOCKED
    return [
        issues.setting("L02").finding(LIMITS, found, "fail" if few else "warn", wanted="unlimited")
    ]


def _devices(facts: Facts) -> str:
    return f"RDMA ({', '.join(facts.rdma[:4])})" if facts.rdma else "to be RDMA"


def _stack(facts: Facts, asked: Asked, issues: KnownIssues) -> list[Advice]:
    stack = facts.limits.get("stack")
    if stack is None or stack.soft is not None:
        return []
    severity: Severity = "warn" if "nvl72" in asked.features else "info"
    issue = issues.setting("L05")
    return [issue.finding(LIMITS, "ulimit -s is unlimited", severity, wanted="8192 KiB")]


def _handed_on(facts: Facts, issues: KnownIssues) -> list[Advice]:
    """Slurm's own record of the limits of the submitting shell, where it has handed them on."""
    files = facts.limits.get("nofile")
    told = facts.environ.get("SLURM_RLIMIT_NOFILE", "")
    if files is None or files.soft is None or not told.isdecimal():
        return []
    if int(told) != files.soft or files.soft >= _FILES:
        return []
    found = f"Slurm has handed on ulimit -n {told} of the shell that submitted the job"
    return [issues.setting("L06").finding(LIMITS, found, wanted=str(_FILES))]


# --- how many processes and threads there may be, and how many will be wanted ---------------------


THREADS = "processes and threads"
_THREADS_PER_RANK = 64
_LEAST = 4097


def threads(facts: Facts, asked: Asked, issues: KnownIssues) -> list[Advice]:
    """The limits of user and container, and OMP_NUM_THREADS."""
    return [*_allowed(facts, asked, issues), *_oversubscribed(facts, asked, issues)]


def _allowed(facts: Facts, asked: Asked, issues: KnownIssues) -> list[Advice]:
    issue = issues.setting("L04")
    threads = max(1, whole(facts.environ.get("OMP_NUM_THREADS")) or 1)
    wanted = max(_LEAST, _THREADS_PER_RANK * (asked.nproc_per_node or 1) * threads)
    findings = []
    limit = facts.limits.get("nproc")
    if limit is not None and limit.soft is not None and limit.soft < wanted:
        found = f"ulimit -u is {limit.soft}"
        findings.append(issue.finding(THREADS, found, wanted=f"at least {wanted}"))
    most = facts.cgroup.pids_max
    if most is not None and most < wanted:
        now = (
            ""
            if facts.cgroup.pids_now is None
            else f", of which {facts.cgroup.pids_now} are in use"
        )
        found = f"pids.max of the container is {most}{now}"
        findings.append(issue.finding(THREADS, found, wanted=f"at least {wanted}"))
    return findings


def _oversubscribed(facts: Facts, asked: Asked, issues: KnownIssues) -> list[Advice]:
    threads = whole(facts.environ.get("OMP_NUM_THREADS"))
    ranks = asked.nproc_per_node or 1
    if threads is None or facts.cpus is None or threads * ranks <= facts.cpus:
        return []
    found = f"OMP_NUM_THREADS={threads} with {ranks} ranks on {facts.cpus} CPUs"
    issue = next(issue for issue in issues.variables if issue.id == "E23")
    wanted = str(max(1, facts.cpus // ranks))
    return [issue.finding(THREADS, found, wanted=wanted)]


# --- whether one process may look into another: stacks of hung ranks, shared descriptors ----------


TRACING = "tracing and capabilities"
_SYS_PTRACE = 1 << 19
_SYS_NICE = 1 << 23
_NEEDS_NICE = parse_range(">=2.24")


def tracing(facts: Facts, asked: Asked, issues: KnownIssues) -> list[Advice]:  # noqa: ARG001
    """ptrace_scope, and capabilities in containers."""
    findings = []
    scope = whole(facts.settings.get("kernel.yama.ptrace_scope"))
    may = facts.capabilities is not None and bool(facts.capabilities & _SYS_PTRACE)
    if scope == 3 or (scope == 2 and not may):
        found = f"kernel.yama.ptrace_scope is {scope}"
        findings.append(issues.setting("L08").finding(TRACING, found, wanted="0 or 1"))
    nice = facts.capabilities is None or bool(facts.capabilities & _SYS_NICE)
    if facts.in_container and not nice and _needs_nice(facts):
        found = "this container has no SYS_NICE"
        findings.append(issues.setting("L09").finding(TRACING, found))
    return findings


def _needs_nice(facts: Facts) -> bool:
    try:
        return _NEEDS_NICE.includes(parse_version(facts.versions.get("nccl", "")))
    except ValueError:
        return False


# --- the directory for temporary files, and what logind removes -----------------------------------


TEMPORARY = "temporary files"
_REMOTE = frozenset(
    {"nfs", "nfs4", "lustre", "cifs", "smb3", "beegfs", "gpfs", "ceph", "fuse.sshfs"}
)
_CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


def temporary(facts: Facts, asked: Asked, issues: KnownIssues) -> list[Advice]:  # noqa: ARG001
    """Writable, programs allowed, local, with room; and RemoveIPC."""
    return [*_directory(facts, issues), *_remove_ipc(facts, issues)]


def _directory(facts: Facts, issues: KnownIssues) -> list[Advice]:
    issue = issues.setting("L12")
    place = facts.file_systems.get("tmp")
    if place is None:
        return []
    if place.problem:
        return [issue.finding(TEMPORARY, f"{place.path}: {place.problem}", "fail")]
    findings = []
    caches_elsewhere = all(facts.environ.get(name) for name in _CACHES)
    if "noexec" in place.options and not caches_elsewhere:
        found = f"{place.path} is mounted noexec"
        findings.append(issue.finding(TEMPORARY, found, wanted="programs allowed"))
    if place.kind in _REMOTE:
        found = f"{place.path} is on a network file system ({place.kind})"
        findings.append(issue.finding(TEMPORARY, found, wanted="a local disk"))
    if place.free is not None and place.free < GIB:
        found = f"{place.path} has {size(place.free)} free"
        severity: Severity = "fail" if not place.free else "warn"
        findings.append(issue.finding(TEMPORARY, found, severity, wanted="1 GiB free"))
    return findings


def _remove_ipc(facts: Facts, issues: KnownIssues) -> list[Advice]:
    value = facts.settings.get("RemoveIPC", "").strip().casefold()
    if value not in {"yes", "true", "1", "on"}:
        return []
    return [
        issues.setting("L07").finding(TEMPORARY, f"RemoveIPC={value} in logind.conf", wanted="no")
    ]


# --- directories for checkpoints and logs: can be written, have room, and are not too slow --------


STORAGE = "storage"
_CHECKPOINTS = 3
_FEW_INODES = 10_000
_SLOW = 20 * MIB  # bytes per second
_LOG_ROOM = GIB


def storage(facts: Facts, asked: Asked, issues: KnownIssues) -> list[Advice]:
    """The result of a trial in each directory."""
    issue = issues.setting("L21")
    return [finding for trial in facts.trials for finding in _trial(trial, asked, issue)]


def _trial(trial: Trial, asked: Asked, issue: SettingIssue) -> list[Advice]:
    where = f"{trial.path} ({trial.purpose})"
    if trial.problem:
        return [issue.finding(STORAGE, f"{where}: {trial.problem}", "fail", wanted="writable")]
    findings = [*_room(trial, where, asked, issue)]
    speed = trial.written / trial.seconds if trial.seconds > 0 else None
    if speed is None:
        return findings
    told = f"{where}: {size(speed)}/s written"
    if trial.purpose == "checkpoints" and asked.checkpoint_bytes:
        told += f", a checkpoint takes {format_duration(asked.checkpoint_bytes / speed)}"
    if speed < _SLOW:
        findings.append(issue.finding(STORAGE, told, "warn", wanted=f"{size(_SLOW)}/s or more"))
    else:
        findings.append(issue.finding(STORAGE, told, "info"))
    return findings


def _room(trial: Trial, where: str, asked: Asked, issue: SettingIssue) -> list[Advice]:
    place = trial.file_system
    findings = []
    needed = _LOG_ROOM
    if trial.purpose == "checkpoints":
        needed = max(needed, _CHECKPOINTS * asked.checkpoint_bytes)
    if place.free is not None and place.free < needed:
        severity: Severity = (
            "fail" if trial.purpose == "checkpoints" and asked.checkpoint_bytes else "warn"
        )
        found = f"{where}: {size(place.free)} free"
        findings.append(issue.finding(STORAGE, found, severity, wanted=f"{size(needed)} free"))
    if place.free_inodes is not None and place.free_inodes < _FEW_INODES:
        found = f"{where}: room for {place.free_inodes} more files"
        findings.append(issue.finding(STORAGE, found, "warn", wanted=f"{_FEW_INODES} or more"))
    return findings


# --- Slurm and Kubernetes, as seen from inside of a job -------------------------------------------


SCHEDULER = "scheduler"
MARKS = frozenset({"SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST"})  # set in jobs of these
_SHORT_S = 60
_EARLY_ENDS = (
    ("SLURM_KILL_BAD_EXIT", "KillOnBadExit", "--kill-on-bad-exit=0"),
    ("SLURM_WAIT", "WaitTime", "--wait=0"),
)


def scheduler(facts: Facts, asked: Asked, issues: KnownIssues) -> list[Advice]:  # noqa: ARG001
    """Look at the end of a job, and at the time that it has then."""
    return [*_early_end(facts, issues), *_grace(facts, issues), *_kubernetes(facts, issues)]


def _early_end(facts: Facts, issues: KnownIssues) -> list[Advice]:
    """Settings by which srun ends the launchers of all nodes because one has ended."""
    issue = issues.setting("L18")
    findings = []
    for variable, setting, option in _EARLY_ENDS:
        asked = facts.environ.get(variable)
        if asked is not None:
            if asked.strip() not in {"", "0"}:
                findings.append(issue.finding(SCHEDULER, f"{variable}={asked}", wanted="0"))
        elif _seconds(facts, setting):
            found = f"{setting} is {facts.slurm[setting]} in the cluster's configuration"
            findings.append(issue.finding(SCHEDULER, found, "warn", wanted=f"srun {option}"))
    return findings


def _grace(facts: Facts, issues: KnownIssues) -> list[Advice]:
    issue = issues.setting("L19")
    findings = []
    wait = _seconds(facts, "KillWait")
    if wait is not None and wait < _SHORT_S:
        found = f"KillWait is {wait} s: what Slurm ends is killed after that time"
        findings.append(issue.finding(SCHEDULER, found, "info", wanted="a last checkpoint's time"))
    unkillable, message = (
        _seconds(facts, "UnkillableStepTimeout"),
        _seconds(facts, "MessageTimeout"),
    )
    if unkillable is not None and message is not None and unkillable < 5 * message:
        found = f"UnkillableStepTimeout is {unkillable} s, MessageTimeout {message} s"
        findings.append(issue.finding(SCHEDULER, found, wanted=f"{5 * message} s or more"))
    return findings


def _seconds(facts: Facts, name: str) -> int | None:
    """Slurm writes ``30 sec``."""
    words = facts.slurm.get(name, "").split()
    return whole(words[0]) if words else None


def _kubernetes(facts: Facts, issues: KnownIssues) -> list[Advice]:
    if not facts.environ.get("KUBERNETES_SERVICE_HOST"):
        return []
    found = "this is a pod of Kubernetes; its grace period cannot be seen from inside"
    return [issues.setting("L20").finding(SCHEDULER, found)]


# --- what could not be found out ------------------------------------------------------------------


UNANSWERED = "not looked at"


def unanswered(facts: Facts, asked: Asked, issues: KnownIssues) -> list[Advice]:  # noqa: ARG001
    """Return a finding for each."""
    issue = issues.setting("D01")
    return [issue.finding(UNANSWERED, f"{what}: {why}") for what, why in facts.unknown.items()]


# --- all of them ----------------------------------------------------------------------------------

if TYPE_CHECKING:
    Check = Callable[[Facts, Asked, KnownIssues], list[Advice]]

CHECKS: Mapping[str, Check] = {
    SOFTWARE: software,
    ENVIRONMENT: environment,
    GPUS: gpu,
    SHARED_MEMORY: shared_memory,
    MEMORY: memory,
    LIMITS: limits,
    THREADS: threads,
    TRACING: tracing,
    TEMPORARY: temporary,
    STORAGE: storage,
    NETWORK: network,
    SCHEDULER: scheduler,
    UNANSWERED: unanswered,
}
"""The check of each subject, in the order in which they are shown."""


def judge(
    facts: Facts, asked: Asked, issues: KnownIssues, checks: Mapping[str, Check] = CHECKS
) -> list[Advice]:
    """Return what all checks find. One that breaks says so, and stops no other."""
    return [
        finding
        for subject, check in checks.items()
        for finding in _made(subject, check, facts, asked, issues)
    ]


def absent(facts: Facts) -> list[str]:
    """Return the subjects that this node does not have, or nobody has asked for."""
    there = {
        GPUS: facts.gpus.present,
        STORAGE: bool(facts.trials),
        SCHEDULER: not facts.environ.keys().isdisjoint(MARKS),
        UNANSWERED: False,
    }
    return [subject for subject, is_there in there.items() if not is_there]


def _made(
    subject: str, check: Check, facts: Facts, asked: Asked, issues: KnownIssues
) -> list[Advice]:
    try:
        return check(facts, asked, issues)
    except Exception as error:  # noqa: BLE001 - a bug of ours must not hide other findings
        why = f"this check is broken ({one_line(repr(error), longest=200)}); please report it"
        return [issues.setting("D01").finding(subject, why)]
