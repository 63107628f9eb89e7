"""What the variables of a Slurm job tell, how its launchers are started, what follows: pure.

See docs/design/srun.md.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from undaunted.base.text import count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PORTS = range(20000, 30000)  # below those that the kernel gives away
_SPECIAL_STEPS = 0xFFFFFFF0  # ids from here on are no steps of srun: batch script, salloc's shell
_CPUS = re.compile(r"(\d+)(?:\(x\d+\))?")
AGAIN = ("preempted", "too_few_nodes")
ELSEWHERE = ("suspect", "straggler")
_BLAMED = re.compile(r"\(node ([^)]+)\)")
# They would have a launcher see a part of its node only, or start several of them.
_OF_TASKS = (
    *("SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_NTASKS_PER_GPU", "SLURM_CPU_BIND"),
    *("SLURM_NTASKS_PER_CORE", "SLURM_NTASKS_PER_SOCKET", "SLURM_DISTRIBUTION"),
)


class Allocation(NamedTuple):
    """The job in which this process is.

    Attributes:
        job: its number, of a task of an array its own one.
        name: by which Slurm's commands know it and nothing else: ``17``, or ``16_1`` in an array.
        nodes: how many it has.
        node_list: which, as Slurm writes it.
        cpus: of the node that has the fewest for this job; 0 = Slurm does not say.
        gpus: of this node for this job; 0 = none.
        partition: where it runs.
        restarts: how often Slurm has started it again.
    """

    job: int
    name: str
    nodes: int
    node_list: str
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
        """Where the launchers meet: two jobs that share a node differ."""
        return PORTS.start + self.job % len(PORTS)


class Next(NamedTuple):
    """What becomes of the job.

    Attributes:
        again: it goes back to the queue.
        without: the node that it shall not get then, "" = all may do.
        why: words for the user about that; "" = there is nothing to say.
    """

    again: bool
    without: str = ""
    why: str = ""


def allocation(environ: Mapping[str, str]) -> Allocation:
    """Read the variables of a batch script, or of a shell in an allocation.

    Raises:
        ValueError: this is no such place; the message says what to do.
    """
    if not environ.get("SLURM_JOB_ID"):
        raise ValueError(
            "this is no job of Slurm (SLURM_JOB_ID is not set): call it in a script for sbatch, or "
            "in a shell of salloc; elsewhere `undaunted run` starts the ranks of one node"
        )
    job = _number(environ, "SLURM_JOB_ID")
    step = environ.get("SLURM_STEP_ID", "")
    if step.isdecimal() and int(step) < _SPECIAL_STEPS:
        raise ValueError(
            f"srun has started this as a task of step {job}.{step}: leave srun out, `undaunted "
            "srun` calls it; or start `undaunted run` with srun"
        )
    if environ.get("SLURM_HET_SIZE", "1") not in {"", "1"}:
        raise ValueError(
            "this is a heterogeneous job (SLURM_HET_SIZE): start its launchers by hand, as in "
            "srun --het-group=0,1 undaunted run ..."
        )
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    return Allocation(
        job=job,
        name=f"{array}_{task}" if array and task else str(job),
        nodes=_number(environ, "SLURM_JOB_NUM_NODES", "SLURM_NNODES"),
        node_list=environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST", ""),
        cpus=_fewest_cpus(environ.get("SLURM_JOB_CPUS_PER_NODE", "")),
        gpus=int(gpus) if (gpus := environ.get("SLURM_GPUS_ON_NODE", "")).isdecimal() else 0,
        partition=environ.get("SLURM_JOB_PARTITION", ""),
        restarts=int(again) if (again := environ.get("SLURM_RESTART_COUNT", "")).isdecimal() else 0,
    )


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
        raise ValueError(
            f"--nnodes {fewest}:{most}: the job has {count(allocated, 'node')}; ask for more "
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


def what_next(
    outcome: str, reason: str, starts: Sequence[int | None], *, restarts: int, requeues: int
) -> Next:
    """Decide whether the job goes back to the queue.

    Args:
        outcome: of the job, as in the journal; "" = no end is recorded.
        reason: why it has ended, as in the journal.
        starts: of all starts of the job, in their order: the highest iteration that a rank began,
            None = not known.
        restarts: how often Slurm has started it again.
        requeues: how often it may at most.
    """
    if outcome not in (*AGAIN, *ELSEWHERE):
        return Next(again=False)
    if restarts >= requeues:
        limit = f"{count(restarts, 'start')} again already, --requeues is {requeues}"
        return Next(again=False, why=f"not queued again: {limit}")
    if not _got_on(starts):
        return Next(
            again=False,
            why=f"not queued again: this start came to iteration {starts[-1]}, no further than one "
            "before: has each start too little time (sbatch --time, --signal)? Does it resume?",
        )
    if outcome in AGAIN:
        return Next(again=True)
    blamed = _BLAMED.search(reason)
    return Next(again=True, without=blamed[1] if blamed else "")


def _got_on(starts: Sequence[int | None]) -> bool:
    """Whether the last start came further than all before it, as far as that is known."""
    if not starts or starts[-1] is None:
        return True
    before = (one for one in starts[:-1] if one is not None)
    return starts[-1] > max(before, default=-1)
