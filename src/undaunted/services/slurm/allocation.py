"""The variables of a Slurm job, the start of its launchers, and what follows: pure.

See docs/design/srun.md.
"""

from __future__ import annotations

import re
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from undaunted.base.text import count

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PORTS = range(20000, 30000)  # below those that the kernel gives away
_SPECIAL_STEPS = 0xFFFFFFF0  # ids from here on are no steps of srun: batch script, salloc's shell
_CPUS = re.compile(r"(\d+)(?:\(x\d+\))?")
AGAIN = ("preempted", "too_few_nodes")
ELSEWHERE = ("suspect", "straggler")
_BLAMED = re.compile(r"\(node ([^)]+)\)")
# A launcher that could not begin, or found its node unhealthy.
_UNFIT = re.compile(r"node (\S+): Exited with exit code (?:1|2|126|127)\b")
_AWAY = ("Unable to contact slurm controller", "timed out", "has not answered", "refused")
_NAMES = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")
_BRACKETS = re.compile(r"\[([^\]]*)\]")
# An error of srun. Of a node that Slurm takes for lost the launcher may live.
_TASKS_ENDED = re.compile(r"(\S+): tasks? [\d,-]+: ([^\r\n]+)")
# They would have a launcher see a part of its node only, or start several of them.
_OF_TASKS = (
    *("SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_NTASKS_PER_GPU", "SLURM_CPU_BIND"),
    *(
        "SLURM_CPUS_PER_GPU",
        "SLURM_NTASKS_PER_CORE",
        "SLURM_NTASKS_PER_SOCKET",
        "SLURM_DISTRIBUTION",
    ),
)


class Allocation(NamedTuple):
    """The job in which this process is.

    Attributes:
        job: its number, of a task of an array its own one.
        name: by which Slurm's commands know it and nothing else: ``17``, or ``16_1`` in an array.
        nodes: how many it has.
        node_list: which, as Slurm writes it.
        first: the first of them.
        cpus: of the node that has the fewest for this job; 0 = Slurm does not say.
        gpus: of this node for this job; 0 = none.
        partition: where it runs.
        restarts: how often Slurm has started it again.
    """

    job: int
    name: str
    nodes: int
    node_list: str
    first: str
    cpus: int
    gpus: int
    partition: str
    restarts: int

    @property
    def run_id(self) -> str:
        """Name of the run."""
        return f"slurm-{self.job}"

    @property
    def port(self) -> int:
        """The port at which the launchers meet: two jobs that share a node differ."""
        return PORTS.start + self.job % len(PORTS)


class Next(NamedTuple):
    """The fate of the job.

    Attributes:
        again: it goes back to the queue.
        without: nodes that it shall not get then, with commas between; "" = all may do.
        why: words for the user about that; "" = there is nothing to say.
    """

    again: bool
    without: str = ""
    why: str = ""


def allocation(environ: Mapping[str, str], *, of_task: bool = False) -> Allocation:
    """Read the variables of a batch script, or of a shell in an allocation.

    Args:
        environ: the variables.
        of_task: a task that srun has started reads them.

    Raises:
        ValueError: this is no such place; the message says what to do.
    """
    if not environ.get("SLURM_JOB_ID"):
        raise ValueError(
            "this is no job of Slurm (SLURM_JOB_ID is not set): call it in a script for sbatch, or "
            "in a shell of salloc; elsewhere `undaunted run` starts the ranks of one node"
        )
    job = _number(environ, "SLURM_JOB_ID")
    if is_task(environ) and not of_task:
        raise ValueError(
            f"srun has started this as a task of step {job}.{environ['SLURM_STEP_ID']}: leave srun "
            "out, `undaunted srun` calls it; or start `undaunted run` with srun"
        )
    if environ.get("SLURM_HET_SIZE", "1") not in {"", "1"}:
        raise ValueError(
            "this is a heterogeneous job (SLURM_HET_SIZE): start its launchers by hand, as in "
            "srun --het-group=0,1 undaunted run ..."
        )
    node_list = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST", "")
    try:
        first = next(node_names(node_list), "")
    except ValueError:
        first = ""
    if not first:
        raise ValueError(f"SLURM_JOB_NODELIST is {node_list!r}, which names no node")
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    return Allocation(
        job=job,
        name=f"{array}_{task}" if array and task else str(job),
        nodes=_number(environ, "SLURM_JOB_NUM_NODES", "SLURM_NNODES"),
        node_list=node_list,
        first=first,
        cpus=_fewest_cpus(environ.get("SLURM_JOB_CPUS_PER_NODE", "")),
        gpus=int(gpus) if (gpus := environ.get("SLURM_GPUS_ON_NODE", "")).isdecimal() else 0,
        partition=environ.get("SLURM_JOB_PARTITION", ""),
        restarts=int(again) if (again := environ.get("SLURM_RESTART_COUNT", "")).isdecimal() else 0,
    )


def is_task(environ: Mapping[str, str]) -> bool:
    """Return whether srun has started this process, and not sbatch or salloc."""
    step = environ.get("SLURM_STEP_ID", "")
    return step.isdecimal() and int(step) < _SPECIAL_STEPS


def slips(
    environ: Mapping[str, str], *, several: bool, endpoint: str, ranks: int, cpus: int
) -> Iterator[str]:
    """Yield how a launcher in a job of Slurm cannot have been meant; a second line has the remedy.

    Nothing of it is refused: there are reasons for all of it. Of a step the first task tells.

    Args:
        environ: the launcher's.
        several: it looks for others, by ``--nnodes``.
        endpoint: the host where it looks first, "" = not by a host.
        ranks: how many it starts.
        cpus: how many it may use.
    """
    if not environ.get("SLURM_JOB_ID") or environ.get("SLURM_PROCID", "0") != "0":
        return
    node_list = environ.get("SLURM_JOB_NODELIST", "")
    nodes = _count(environ, "SLURM_JOB_NUM_NODES")
    tasks = _count(environ, "SLURM_STEP_NUM_TASKS") if is_task(environ) else 1
    if nodes > 1 and not is_task(environ):
        yield (
            f"the job has {nodes} nodes ({node_list}), but srun did not start this launcher: it "
            "runs here alone\n  `undaunted srun` instead of `undaunted run` starts one on each node"
        )
    if tasks > 1 and not several:
        yield (
            f"srun starts {tasks} launchers, and each of them runs the whole job alone\n"
            "  `undaunted srun` runs one job on all nodes; srun --ntasks=1 starts only one"
        )
    if several and nodes > 1 and endpoint and node_list and not _is_in(endpoint, node_list):
        yield (
            f"{endpoint} of --rdzv-endpoint is no node of this job ({node_list})\n"
            "  `undaunted coordinator` must run there; otherwise name the first node, or use "
            "`undaunted srun`"
        )
    if cpus == 1 < ranks:
        yield (
            f"this launcher and its {ranks} ranks share one CPU, as Slurm gives a task no more by "
            "default\n  ask for more: sbatch --exclusive or --cpus-per-task, and `undaunted srun`, "
            "which takes all of them, or srun --cpus-per-task"
        )


def _count(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() else 1


def _is_in(host: str, node_list: str) -> bool:
    """Return whether a host is one of these nodes, as far as its name can tell."""
    if host == "localhost" or host.startswith("127."):
        return False
    name = host.partition(".")[0]
    if name.isdecimal() or ":" in host:
        return True  # an address may be anybody's
    try:
        # n1-ib is another network of n1.
        return any(re.match(rf"{re.escape(one)}(?!\w)", name) for one in node_names(node_list))
    except ValueError:
        return True


def node_names(text: str) -> Iterator[str]:
    """Yield the nodes of a list such as ``n[1-3,07],gpu4``, in its order.

    Raises:
        ValueError: it is something else.
    """
    if "[" in _BRACKETS.sub("", text):
        raise ValueError(f"{text!r} is no list of nodes")
    for part in _NAMES.findall(text):
        pieces = _BRACKETS.split(part)  # a text, what is in brackets, a text, ...
        choices = [_numbers(piece) if at % 2 else [piece] for at, piece in enumerate(pieces)]
        yield from map("".join, product(*choices))


def _numbers(text: str) -> Iterator[str]:
    """Yield the numbers of ``1-3,07``, with their zeros."""
    for part in text.split(","):
        low, _, high = part.partition("-")
        for number in range(int(low), int(high or low) + 1):
            yield f"{number:0{len(low)}}"


def _number(environ: Mapping[str, str], *names: str) -> int:
    for name in names:
        if text := environ.get(name, ""):
            if text.isdecimal() and int(text):
                return int(text)
            raise ValueError(f"{name} is {text!r}, which is no number of Slurm's")
    raise ValueError(f"{names[0]} is not set, though this is a job of Slurm")


def _fewest_cpus(text: str) -> int:
    """Read ``72(x2),36``."""
    found = [_CPUS.fullmatch(part) for part in text.split(",")]
    return min((int(one[1]) for one in found if one is not None), default=0)


def nodes_option(given: tuple[int, int] | None, spares: int, allocated: int) -> str:
    """Return ``MIN:MAX`` for the launchers.

    Args:
        given: of ``--nnodes``; None = it was not.
        spares: how many nodes wait until another one is lost.
        allocated: how many there are.

    Raises:
        ValueError: there are too few.
    """
    if given is None:
        if spares >= allocated:
            raise ValueError(
                f"--spares {spares}: the job has {count(allocated, 'node')}, and none would be "
                "left to train; ask for more (sbatch --nodes), or for fewer spares"
            )
        return f"{allocated - spares}:{allocated}"
    fewest, most = given
    if fewest > allocated:
        nodes = f"{fewest}:{most}" if fewest != most else str(fewest)
        raise ValueError(
            f"--nnodes {nodes}: the job has {count(allocated, 'node')}; ask for more "
            "(sbatch --nodes), or need fewer"
        )
    return f"{fewest}:{max(most, allocated)}"


def step_words(here: Allocation, name: str, extra: Sequence[str]) -> list[str]:
    """Return ``srun`` with the options that start one launcher on each node.

    Args:
        here: the allocation.
        name: of the step.
        extra: more options for srun; they count more.
    """
    words = [
        *("srun", f"--job-name={name}", f"--nodes={here.nodes}", f"--ntasks={here.nodes}"),
        *("--ntasks-per-node=1", "--no-kill", "--kill-on-bad-exit=0", "--wait=0"),
        *("--export=ALL", "--input=none"),
    ]
    if here.cpus:
        words.append(f"--cpus-per-task={here.cpus}")
    if here.gpus:
        words.append(f"--gpus-per-node={here.gpus}")
    return [*words, *extra]


def step_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for ``srun``: without those that divide a node among tasks."""
    return {name: text for name, text in environ.items() if name not in _OF_TASKS}


def read_step(text: str, name: str) -> str:
    """Return the id of the step of this name, "" if it is not in squeue's ``%i|%j``."""
    for line in text.splitlines():
        step, _, known = line.strip().partition("|")
        if known == name:
            return step
    return ""


def read_ended(error: str) -> dict[str, str]:
    """Return the nodes whose task has ended, and how, by an error of srun (without its name)."""
    if (found := _TASKS_ENDED.match(error)) is None:
        return {}
    names, how = found.groups()
    try:
        return dict.fromkeys(node_names(names), how.strip())
    except ValueError:
        return {}


def is_ending(complaint: str) -> bool:
    """Return whether a command of Slurm complains that the job, or the step, has ended."""
    return "Invalid job id" in complaint or "already completing" in complaint


def is_away(complaint: str) -> bool:
    """Return whether a command of Slurm complains that nobody answers it."""
    return any(words in complaint for words in _AWAY)


def what_next(
    outcome: str,
    reason: str,
    came_to: int | None,
    before: int | None,
    *,
    restarts: int,
    requeues: int,
) -> Next:
    """Decide whether the job goes back to the queue.

    Args:
        outcome: of this start, as in the journal; "" = no end is recorded.
        reason: why it has ended, as in the journal.
        came_to: the highest iteration that a rank began in this start, None = not known.
        before: the same of all starts before.
        restarts: how often Slurm has started the job again.
        requeues: how often it may at most.
    """
    if outcome not in (*AGAIN, *ELSEWHERE):
        return Next(again=False)
    if restarts >= requeues:
        limit = f"{count(restarts, 'start')} again already, --requeues is {requeues}"
        return Next(again=False, why=f"not queued again: {limit}")
    if came_to is not None and before is not None and came_to <= before:
        return Next(
            again=False,
            why=f"not queued again: this start came to iteration {came_to}, no further than one "
            "before: has each start too little time (sbatch --time, --signal)? Does it resume?",
        )
    if outcome in AGAIN:
        return Next(again=True, without=",".join(_UNFIT.findall(reason)))
    blamed = _BLAMED.search(reason)
    return Next(again=True, without=blamed[1] if blamed else "")
