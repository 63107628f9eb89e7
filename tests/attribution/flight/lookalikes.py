"""Look-alikes of NCCL Flight Recorder dumps, of simulated jobs whose fault is known.

``generate(seed, world, version, fault)`` simulates the ranks of a Megatron-like job (tensor, data
and pipeline groups, 1F1B schedule), lets a fault strike, runs until nothing can move, and writes
the dump of every rank that still can write one. ``Truth`` says who was at fault.

How the simulated job works, after torch's ProcessGroupNCCL and FlightRecorder:

- The *host* of a rank launches its program's operations in order. It may run ahead of its device
  by some operations, and blocks where the program needs a value (``SYNC``).
- On the *device* an operation starts when the one before it in its communicator's stream is done,
  and all that the compute stream waited for at the launch. A collective is done when all members
  have started it, a send when its recv has started, and the other way round.
- The end state does not depend on the order in which the ranks are simulated: every rule only
  waits for things that never become undone.

What a dump shows of it depends on the job's settings (``Form``). Start events exist only with
TORCH_NCCL_ENABLE_TIMING, which is off by default: without them a pending operation stays
"scheduled", and no group has a last started one. Sends and receives of one batch are recorded
without events, "scheduled" for ever, and are followed by an entry "nccl:coalesced" with the state.
"""

from __future__ import annotations

import json
import pickle
from collections import deque
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from random import Random
from typing import Any, Literal, NamedTuple, get_args

Fault = Literal[
    "host_lag",  # the host of one rank stops launching
    "device_lag",  # the device of one rank stops
    "no_dump",  # one rank's process is killed
    "mismatch",  # one rank calls something else than its peers
    "p2p_host_lag",  # as host_lag, at a send or recv
    "p2p_device_lag",  # as device_lag, at a send or recv
    "two_host_lag",
    "two_no_dump",
    "node_host_lag",  # the hosts of all ranks of a node stop
    "node_no_dump",
    "lost_dump",  # host_lag, and the dump of an innocent rank is lost
]
Version = Literal["2.5", "2.9", "2.10"]
FAULTS: tuple[Fault, ...] = get_args(Fault)
VERSIONS: tuple[Version, ...] = get_args(Version)
NODE = 8  # ranks per node
ITERATIONS = 3  # simulated; the fault strikes in the last but one
SYNC = "sync"  # the host waits for its compute stream
JOIN = "join "  # + kind: the compute stream waits for the operations launched as this kind
NEVER = 1 << 60

# world -> (tensor, data, pipeline) sizes
LAYOUTS = {
    16: ((2, 2, 4), (4, 2, 2), (2, 4, 2), (4, 4, 1), (1, 4, 4)),
    64: ((4, 4, 4), (2, 8, 4), (8, 4, 2), (4, 2, 8)),
}


@dataclass(frozen=True)
class Truth:
    """What happened, and which answers the dumps allow.

    If ``ambiguous``, nobody can tell the culprits from the dumps alone: then an answer is right if
    it names all of ``must`` and nobody outside ``may``, with one of ``causes``.
    """

    culprits: tuple[int, ...]
    cause: str
    missing: tuple[int, ...]  # ranks without a dump
    ambiguous: bool
    must: frozenset[int]
    may: frozenset[int]
    causes: frozenset[str]

    def accepts(self, ranks: set[int] | frozenset[int]) -> bool:
        """Whether these culprits are a right answer."""
        return bool(ranks) and self.must <= ranks <= self.may


@dataclass(frozen=True)
class Form:
    """What of a job is written, and how."""

    version: Version
    encoding: Literal["torch", "torch json", "pickle", "json"]  # the last two: written by Python
    timing: bool  # start events exist
    only_active: bool
    frames: bool
    tuples: bool  # sizes as tuples
    eager: bool  # communicators exist before their first use
    described: bool  # the job gave its groups descriptions
    # Retired entries that are not completed: "timed out" ones wait; as torch goes on after them
    # (TORCH_NCCL_ASYNC_ERROR_HANDLING=0) they are counted as the last completed as well. Those
    # "left behind" are done: there is a later one that is the last completed.
    retired: Literal["as is", "timed out", "timed out and counted", "left behind"]
    ring: int  # entries kept at most
    protocol: int
    name: str  # of a file, before the rank


@dataclass(frozen=True)
class Lookalike:
    """The dumps of one job.

    ``traits`` say in words what is special about the fault, and about the job: "batched" sends and
    receives, "small broadcasts".
    """

    dumps: dict[int, bytes]
    names: dict[int, str]
    truth: Truth
    form: Form
    traits: frozenset[str]


class Scenario(NamedTuple):
    """Arguments of ``generate``."""

    seed: int
    world: int
    version: Version
    fault: Fault


class Group(NamedTuple):
    """A process group; its name counts all groups of the job."""

    name: str
    desc: str
    ranks: tuple[int, ...]


class Call(NamedTuple):
    """One operation as the host of a rank calls it."""

    group: int
    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    dtype: str
    joined: str = ""  # "": the compute stream waits for it at once; else at the join of this name
    legs: tuple[tuple[bool, int], ...] = ()  # p2p: (is it a send, the other global rank)
    root: int = -1

    def content(self) -> tuple[Any, ...]:
        """What all members of a collective have to agree on."""
        return (self.kind, self.inputs, self.outputs, self.dtype)


Program = list["Call | str"]


# --- the job ------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _groups(layout: tuple[int, int, int], gap: int) -> tuple[Group, ...]:
    """All groups in the order in which every rank calls ``new_group``; gloo ones leave gaps."""
    tensor, data, pipe = layout
    ranks = range(tensor * data * pipe)
    # rank = t + tensor * (d + data * p)
    same_data = [
        tuple(r for r in ranks if _place(r, layout)[::2] == (t, p))
        for p in range(pipe)
        for t in range(tensor)
    ]
    same_model = [tuple(r for r in ranks if _place(r, layout)[1] == d) for d in range(data)]
    same_tensor = [tuple(range(first, first + tensor)) for first in range(0, len(ranks), tensor)]
    same_pipe = [
        tuple(r for r in ranks if _place(r, layout)[:2] == (t, d))
        for d in range(data)
        for t in range(tensor)
    ]
    made = [Group("0", "default_pg", tuple(ranks))]
    name = 1
    for desc, all_members in (
        ("DATA_PARALLEL_GROUP", same_data),
        ("DATA_PARALLEL_GROUP_WITH_CP", same_data),  # never used
        ("CONTEXT_PARALLEL_GROUP", [(r,) for r in ranks]),  # never used
        ("MODEL_PARALLEL_GROUP", same_model),
        ("TENSOR_MODEL_PARALLEL_GROUP", same_tensor),
        ("PIPELINE_MODEL_PARALLEL_GROUP", same_pipe),
        ("EMBEDDING_GROUP", [tuple(dict.fromkeys((m[0], m[-1]))) for m in same_pipe]),
        ("POSITION_EMBEDDING_GROUP", [(m[0],) for m in same_pipe]),  # never used
    ):
        for members in all_members:
            made.append(Group(str(name), desc, members))
            name += 1 + (gap if desc.startswith("DATA") else 0)
    return tuple(made)


def _place(rank: int, layout: tuple[int, int, int]) -> tuple[int, int, int]:
    tensor, data, _ = layout
    return rank % tensor, rank // tensor % data, rank // (tensor * data)


@dataclass(frozen=True)
class _Habits:
    """How this job trains, the same on all ranks."""

    microbatches: int
    layers: int  # collectives of the tensor group per pass through a stage
    batched: bool  # sends and receives of both directions are launched as one
    waits_for_p2p: bool  # the host waits after each send or receive
    sequence_parallel: bool
    buckets: int
    hidden: int
    log_every: int


class _Program:
    """Writes the program of one rank."""

    def __init__(
        self, rank: int, layout: tuple[int, int, int], groups: tuple[Group, ...], habits: _Habits
    ):
        self.rank, self.habits = rank, habits
        self.stage, self.stages = _place(rank, layout)[2], layout[2]
        self.replicas = layout[1]
        self.by_desc: dict[str, int] = {}
        for index, group in enumerate(groups):
            if rank in group.ranks:
                self.by_desc[group.desc] = index
        self.groups = groups
        self.steps: Program = []
        pipe = groups[self.by_desc["PIPELINE_MODEL_PARALLEL_GROUP"]].ranks
        self.before = pipe[self.stage - 1] if self.stage else None
        self.after = pipe[self.stage + 1] if self.stage + 1 < self.stages else None
        width = habits.hidden
        self.passes = (
            (
                ("_all_gather_base", (width,), (width * layout[0],), "BFloat16"),
                ("_reduce_scatter_base", (width * layout[0],), (width,), "BFloat16"),
            )
            if habits.sequence_parallel
            else (("all_reduce", (4, width), (4, width), "BFloat16"),)
        )

    def collective(
        self,
        desc: str,
        kind: str,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...] | None = None,
        dtype: str = "Float",
        joined: str = "",
        root: int = -1,
    ) -> None:
        index = self.by_desc.get(desc)
        if index is None or len(self.groups[index].ranks) < 2:
            return
        self.steps.append(Call(index, kind, inputs, outputs or inputs, dtype, joined, root=root))

    def compute(self) -> None:
        for layer in range(self.habits.layers):
            self.collective("TENSOR_MODEL_PARALLEL_GROUP", *self.passes[layer % len(self.passes)])

    def exchange(self, *legs: tuple[bool, int | None]) -> None:
        present = tuple((sends, peer) for sends, peer in legs if peer is not None)
        if not present:
            return
        pipe = self.by_desc["PIPELINE_MODEL_PARALLEL_GROUP"]
        sizes = (4, 1, self.habits.hidden)
        if self.habits.batched:
            self.steps.append(Call(pipe, "coalesced", sizes, sizes, "BFloat16", "", present))
        else:
            for sends, peer in present:
                kind = "send" if sends else "recv"
                self.steps.append(
                    Call(pipe, kind, sizes, sizes, "BFloat16", "p2p", ((sends, peer),))
                )
            self.steps.append(JOIN + "p2p")
        if self.habits.waits_for_p2p:
            self.steps.append(SYNC)

    def load(self) -> None:
        if self.stage in (0, self.stages - 1):
            root = self.groups[self.by_desc["TENSOR_MODEL_PARALLEL_GROUP"]].ranks[0]
            self.collective(
                "TENSOR_MODEL_PARALLEL_GROUP", "broadcast", (8, 4097), dtype="Long", root=root
            )

    def forward(self) -> None:
        self.load()
        self.compute()

    def iteration(self, number: int) -> None:
        """One step of training, pipelined 1F1B."""
        total = self.habits.microbatches
        warm = min(self.stages - 1 - self.stage, total)
        for _ in range(warm):
            self.exchange((False, self.before))
            self.forward()
            self.exchange((True, self.after))
        if total > warm:
            self.exchange((False, self.before))
        for steady in range(total - warm):
            self.forward()
            self.exchange((True, self.after), (False, self.after))
            self.compute()
            if steady == total - warm - 1:
                if not warm:
                    self.reduce_gradients()
                self.exchange((True, self.before))
            else:
                self.exchange((False, self.before), (True, self.before))
        for cooling in range(warm):
            self.exchange((False, self.after))
            self.compute()
            if cooling == warm - 1:
                self.reduce_gradients()
            self.exchange((True, self.before))
        self.step(number)

    def reduce_gradients(self) -> None:
        for bucket in range(self.habits.buckets):
            size = 1 << (16 + bucket % 3)
            self.collective(
                "DATA_PARALLEL_GROUP",
                "_reduce_scatter_base",
                (size * self.replicas,),
                (size,),
                joined="gradients",
            )

    def step(self, number: int) -> None:
        """The optimizer, and what is logged."""
        hidden = self.habits.hidden
        self.steps.append(JOIN + "gradients")
        if self.stage in (0, self.stages - 1) and self.stages > 1:
            self.collective("EMBEDDING_GROUP", "all_reduce", (50304, hidden // 8))
        self.collective("MODEL_PARALLEL_GROUP", "all_reduce", (1,))  # norm of the gradients
        self.steps.append(SYNC)
        for bucket in range(self.habits.buckets):
            size = 1 << (16 + bucket % 3)
            self.collective(
                "DATA_PARALLEL_GROUP",
                "_all_gather_base",
                (size,),
                (size * self.replicas,),
                "BFloat16",
                "parameters",
            )
        self.steps.append(JOIN + "parameters")
        if self.stage == self.stages - 1:
            self.collective("DATA_PARALLEL_GROUP", "all_reduce", (1,))  # the loss
            self.steps.append(SYNC)
        if number % self.habits.log_every == 0:
            self.collective("default_pg", "all_reduce", (8,), dtype="Long")
            self.collective("default_pg", "all_reduce_barrier", (1,))
            self.steps.append(SYNC)


# --- the simulation -----------------------------------------------------------------------------


class _Work:
    """One operation launched by one rank."""

    __slots__ = (
        "call",
        "created",
        "done",
        "earliest",
        "followers",
        "ids",
        "legs_left",
        "meets",
        "rank",
        "started",
        "step",
        "waits",
    )

    def __init__(self, rank: _Rank, call: Call, step: int, ids: tuple[int, int, int, int]):
        self.rank, self.call, self.step, self.ids = rank, call, step, ids
        self.created = self.earliest = rank.now
        self.started = self.done = 0
        self.waits = 0
        self.legs_left = 0
        self.followers: list[_Work] = []
        self.meets: list[_Meet] = []


class _Meet:
    """Where the members of one collective, or both sides of a message, meet."""

    __slots__ = ("arrived", "content", "launched", "members", "poisoned")

    def __init__(self, members: tuple[int, ...]):
        self.members = members
        self.launched: dict[int, _Work] = {}
        self.arrived: dict[int, _Work] = {}
        self.content: tuple[Any, ...] | None = None
        self.poisoned = False  # it is never done


class _Rank:
    """Host and device of one rank. Stops are steps of the program: it is not carried out."""

    def __init__(self, number: int, program: Program, ahead: int, now: int):
        self.number, self.program, self.ahead, self.now = number, program, ahead, now
        self.step = 0
        self.host_stop = len(program)
        self.device_stop = NEVER
        self.stuck_at = NEVER  # the device starts the operation of this step and never ends it
        self.half_done_at = NEVER  # of this step's operation only some peers see the end
        self.jams_at = NEVER  # this step's operation is never done anywhere
        self.compute: list[_Work] = []  # what the compute stream waits for
        self.loose: dict[str, list[_Work]] = {}
        self.streams: dict[Any, _Work] = {}
        self.in_flight = 0
        self.parked = False
        self.works: list[_Work] = []
        self.counts: dict[int, list[int]] = {}  # group -> collectives, p2p, operations
        self.status: dict[int, list[int]] = {}  # group -> last enqueued, started, completed
        self.records = 0
        self.messages: dict[tuple[int, int, int], int] = {}


class _Job:
    def __init__(
        self, groups: tuple[Group, ...], ranks: list[_Rank], rng: Random, small_broadcasts: bool
    ):
        self.groups, self.ranks, self.rng = groups, ranks, rng
        self.small_broadcasts = small_broadcasts  # the root of one need not wait for anybody
        self.meets: dict[Any, _Meet] = {}
        self.runnable = deque(ranks)
        self.ready: list[_Work] = []

    def run(self) -> None:
        while self.runnable:
            rank = self.runnable.popleft()
            rank.parked = False
            while rank.step < rank.host_stop and self._advance(rank):
                rank.step += 1
                while self.ready:
                    self._start(self.ready.pop())

    def _advance(self, rank: _Rank) -> bool:
        """The host carries out its next step, or parks."""
        step = rank.program[rank.step]
        if not isinstance(step, str):
            if rank.in_flight >= rank.ahead:
                rank.parked = True
                return False
            self._launch(rank, step)
        elif step == SYNC:
            if any(not work.done for work in rank.compute):
                rank.parked = True
                return False
            rank.now = max([rank.now, *(work.done for work in rank.compute)])
        else:
            joined = rank.loose.pop(step.removeprefix(JOIN), [])
            rank.compute = [w for w in (*rank.compute, *joined) if not w.done] or rank.compute[-1:]
        return True

    def _launch(self, rank: _Rank, call: Call) -> None:
        rank.now += 20_000 + int(self.rng.random() * 150_000)
        counts = rank.counts[call.group]
        counts[1 if call.legs else 0] += 1
        counts[2] += max(1, len(call.legs))
        work = _Work(rank, call, rank.step, (counts[0], counts[1], counts[2], rank.records))
        rank.records += 1 if call.kind != "coalesced" else len(call.legs) + 1
        rank.works.append(work)
        rank.in_flight += 1
        rank.status[call.group][0] = counts[1 if call.legs else 0]
        self._invite(work)
        # a message that is not in a batch has a communicator of its two ranks
        stream = call.group if call.kind not in ("send", "recv") else (call.group, call.legs[0][1])
        before = rank.streams.get(stream)
        dependencies = {w for w in rank.compute if not w.done}
        if before is not None and not before.done:
            dependencies.add(before)
        for other in dependencies:
            other.followers.append(work)
        work.waits = len(dependencies)
        rank.streams[stream] = work
        if call.joined:
            rank.loose.setdefault(call.joined, []).append(work)
        else:
            rank.compute = [work]
        if not work.waits:
            self.ready.append(work)

    def _invite(self, work: _Work) -> None:
        rank, call = work.rank, work.call
        if call.legs:
            keys: list[Any] = []
            for sends, peer in call.legs:
                way = (call.group, *((rank.number, peer) if sends else (peer, rank.number)))
                rank.messages[way] = number = rank.messages.get(way, 0) + 1
                keys.append((way, number, tuple(sorted((rank.number, peer)))))
        else:
            keys = [(call.group, work.ids[0], self.groups[call.group].ranks)]
        for key in keys:
            meet = self.meets.get(key)
            if meet is None:
                meet = self.meets[key] = _Meet(key[2])
            meet.launched[rank.number] = work
            content = call.content()[1:] if call.legs else call.content()
            if meet.content is None:
                meet.content = content
            elif meet.content != content:
                meet.poisoned = True
            if rank.step == rank.jams_at:
                meet.poisoned = True
            work.meets.append(meet)
        work.legs_left = len(keys)

    def _start(self, work: _Work) -> None:
        rank, call = work.rank, work.call
        if work.step >= rank.device_stop:
            return
        work.started = work.earliest + 5_000
        status = rank.status[call.group]
        status[1] = max(status[1], work.ids[1 if call.legs else 0])
        for meet in work.meets:
            meet.arrived[rank.number] = work
            if meet.poisoned:
                continue
            if self.small_broadcasts and call.kind == "broadcast":
                self._pass_on(meet, call.root)
            elif len(meet.arrived) == len(meet.members):
                self._meet(list(meet.arrived.values()))

    def _pass_on(self, meet: _Meet, root: int) -> None:
        """A small broadcast goes round the ring, and waits for nobody behind."""
        at = meet.members.index(root)
        for member in meet.members[at:] + meet.members[:at]:
            work = meet.arrived.get(member)
            if work is None:
                return
            if not work.done and work.legs_left:
                self._meet([work])

    def _meet(self, works: list[_Work]) -> None:
        if any(w.step == w.rank.half_done_at for w in works) and len(works) > 1:
            works = [w for w in works if w.step != w.rank.half_done_at and self.rng.random() < 0.5]
        end = max((w.started for w in works), default=0) + 30_000 + int(self.rng.random() * 400_000)
        for work in works:
            work.legs_left -= 1
            if not work.legs_left and work.step != work.rank.stuck_at:
                self._complete(work, end)

    def _complete(self, work: _Work, end: int) -> None:
        rank, call = work.rank, work.call
        work.done = end
        rank.in_flight -= 1
        rank.status[call.group][2] = work.ids[1 if call.legs else 0]
        for other in work.followers:
            other.waits -= 1
            other.earliest = max(other.earliest, end)
            if not other.waits:
                self.ready.append(other)
        if rank.parked:
            rank.parked = False
            rank.now = max(rank.now, end)
            self.runnable.append(rank)


# --- the fault ----------------------------------------------------------------------------------


@dataclass
class _Plan:
    """The fault that strikes, with all that the truth needs to know about it."""

    cause: str
    culprits: list[int]
    missing: list[int] = field(default_factory=list)
    traits: set[str] = field(default_factory=set)
    # Ranks among whom the dumps cannot tell, whatever they show; empty: they may tell.
    suspects: frozenset[int] = frozenset()
    # Peers who are done with the message the culprit is stuck in, where that cannot be seen: both
    # sides number their messages for themselves, and an entry that is gone has no other trace.
    partners: frozenset[int] = frozenset()


def _is_call(step: Call | str) -> bool:
    return not isinstance(step, str)


def _strike(
    fault: Fault, job: _Job, span: dict[int, tuple[int, int]], form: Form, whole: bool
) -> _Plan:
    """Choose culprits and moments.

    ``span``: of each rank the steps in which the fault strikes. ``whole``: the dumps hold all that
    was ever called.
    """
    rng, world = job.rng, len(job.ranks)
    match fault:
        case "host_lag" | "p2p_host_lag" | "lost_dump" | "two_host_lag":
            count = 2 if fault == "two_host_lag" else 1
            plan = _Plan("host_lag", sorted(rng.sample(range(world), count)))
            _stop_hosts(job, plan, span, at_p2p=fault == "p2p_host_lag")
            if fault == "lost_dump":
                plan.missing = [rng.choice([r for r in range(world) if r not in plan.culprits])]
            return plan
        case "node_host_lag" | "node_no_dump":
            first = rng.randrange(world // NODE) * NODE
            ranks = list(range(first, first + NODE))
            if fault == "node_no_dump":
                return _kill(job, ranks, span)
            plan = _Plan("host_lag", ranks)
            _stop_hosts(job, plan, span, at_p2p=False)
            return plan
        case "no_dump":
            return _kill(job, [rng.randrange(world)], span)
        case "two_no_dump":
            return _kill(job, sorted(rng.sample(range(world), 2)), span)
        case "device_lag" | "p2p_device_lag":
            steps = _moments(job, culprit := rng.randrange(world), span, fault[:3] == "p2p")
            return _stop_device(job, culprit, rng.choice(steps), form.timing, whole)
        case "mismatch":
            return _mismatch(job, rng.randrange(world), span)


def _moments(job: _Job, number: int, span: dict[int, tuple[int, int]], at_p2p: bool) -> list[int]:
    """Steps of the rank at which a fault can strike: its launches, or those of messages."""
    program = job.ranks[number].program
    steps = [step for step in range(*span[number]) if _is_call(program[step])]
    return [s for s in steps if program[s].legs] if at_p2p else steps


def _stop_hosts(job: _Job, plan: _Plan, span: dict[int, tuple[int, int]], at_p2p: bool) -> None:
    share = job.rng.random()  # ranks of one fault stop at about the same moment
    for number in plan.culprits:
        steps = _moments(job, number, span, at_p2p)
        near = min(0.999, max(0.0, share + job.rng.uniform(-0.05, 0.05)))
        job.ranks[number].host_stop = steps[int(near * len(steps))]


def _kill(job: _Job, ranks: list[int], span: dict[int, tuple[int, int]]) -> _Plan:
    """The processes are gone: hosts and devices stop, these somewhat behind their hosts."""
    plan = _Plan("no_dump", ranks, missing=ranks)
    _stop_hosts(job, plan, span, at_p2p=False)
    for number in ranks:
        rank = job.ranks[number]
        steps = [s for s in _moments(job, number, span, at_p2p=False) if s <= rank.host_stop]
        rank.device_stop = job.rng.choice(steps[-4:])
        if job.rng.random() < 0.4:  # in the middle of an operation
            plan.traits.add("half done")
            rank.half_done_at = rank.device_stop
            rank.device_stop += 1
            rank.host_stop = max(rank.host_stop, rank.device_stop)
    return plan


def _stop_device(job: _Job, number: int, step: int, timing: bool, whole: bool) -> _Plan:
    plan = _Plan("device_lag", [number])
    rank = job.ranks[number]
    call = rank.program[step]
    assert isinstance(call, Call)
    peers = frozenset(peer for _, peer in call.legs)
    kind = job.rng.choices(("before", "inside", "jam"), (55, 30, 15))[0]
    if call.kind == "broadcast" and job.small_broadcasts:
        kind = "inside"  # the others need not wait for it
    plan.traits.add(kind)
    if kind == "before":  # a kernel of its compute stream never ends
        rank.device_stop = step
    elif kind == "inside":  # the peers are done, it is not
        rank.stuck_at = step
        if not whole:
            plan.partners = peers
    else:  # all are in it, nobody gets out: a link between any two of them may be it
        rank.jams_at = step
    if kind == "jam" or (kind == "before" and not timing):
        plan.suspects = peers | {number} if peers else frozenset(job.groups[call.group].ranks)
    return plan


def _mismatch(job: _Job, number: int, span: dict[int, tuple[int, int]]) -> _Plan:
    plan = _Plan("mismatch", [number])
    rng, program = job.rng, job.ranks[number].program
    steps = [
        s
        for s in _moments(job, number, span, at_p2p=False)
        if not program[s].legs
        # its root would be done, whatever the others call
        and not (job.small_broadcasts and program[s].kind == "broadcast")
    ]
    large = [s for s in steps if len(job.groups[program[s].group].ranks) > 2]
    kind = rng.choice(("size", "dtype", "type", "order", "order", "crossed"))
    crossed = [
        s
        for s, t in pairwise(steps)
        if t == s + 1 and job.groups[program[s].group].desc == "EMBEDDING_GROUP"
    ]
    if kind == "crossed" and crossed:
        step = crossed[0]
        call = program[step]
        assert isinstance(call, Call)
        program[step], program[step + 1] = program[step + 1], call
        plan.suspects = frozenset(job.groups[call.group].ranks)
        plan.traits.add(kind)
        return plan
    step = rng.choice(large if large and rng.random() < 0.9 else steps)
    call = program[step]
    assert isinstance(call, Call)
    if kind in ("order", "crossed"):
        later = (s for s in steps if s > step and program[s].group == call.group)
        other = next((s for s in later if program[s].content() != call.content()), None)
        if other is not None:
            between = [s for s in steps if step <= s <= other and program[s].group == call.group]
            step, kind = between[-2], "order"  # two neighbours change places
            program[step], program[other] = program[other], program[step]
            call = program[step]
            assert isinstance(call, Call)
        else:
            kind = "size"
    members = job.groups[call.group].ranks
    first, *rest = call.inputs
    if kind == "size":
        program[step] = call._replace(
            inputs=(2 * first, *rest), outputs=(2 * call.outputs[0], *call.outputs[1:])
        )
    elif kind == "dtype":
        program[step] = call._replace(dtype="Half")
    elif kind == "type" and call.kind != "all_reduce":
        program[step] = call._replace(kind="all_reduce", outputs=call.inputs)
    elif kind == "type":
        outputs = (first * len(members), *rest)
        program[step] = call._replace(kind="_all_gather_base", outputs=outputs)
    plan.traits.add(kind)
    if len(members) == 2:  # two who differ: either may be wrong
        plan.suspects = frozenset(members)
    return plan


def _truth(plan: _Plan, job: _Job) -> Truth:
    culprits = frozenset(plan.culprits)
    if plan.cause == "host_lag" and len(culprits) == 2:
        # who was never reached by its fault, because the other one's came first, has none
        culprits = frozenset(r for r in culprits if job.ranks[r].step == job.ranks[r].host_stop)
    must = may = plan.suspects or culprits
    causes = {plan.cause}
    if plan.suspects:
        must = frozenset()
    elif plan.cause == "host_lag":
        must, may = _seen(culprits, job, frozenset(plan.missing))
    elif plan.cause == "device_lag":
        (culprit,) = plan.culprits
        may = culprits | _ahead_of_stop(job.ranks[culprit]) | plan.partners
        must = culprits if may == culprits else frozenset()
    lost = frozenset(plan.missing) - culprits
    if lost:
        may |= lost
        causes.add("no_dump")
    return Truth(
        culprits=tuple(sorted(culprits)),
        cause=plan.cause,
        missing=tuple(plan.missing),
        ambiguous=must != culprits or may != culprits,
        must=must,
        may=may,
        causes=frozenset(causes),
    )


def _waits(rank: _Rank, for_launch: bool) -> set[int]:
    """Ranks that have not launched, or not started, what this rank's device is waiting in."""
    return {
        member
        for work in rank.works
        if work.started and not work.done
        for meet in work.meets
        for member in meet.members
        if member not in (meet.launched if for_launch else meet.arrived)
    }


def _seen(
    culprits: frozenset[int], job: _Job, lost: frozenset[int]
) -> tuple[frozenset[int], frozenset[int]]:
    """Of ranks whose hosts stopped: who has to be named, and who may be.

    A stopped host is seen where somebody waits for its launch and it waits for nobody. One that
    itself waits, for another culprit, looks like a victim. A circle of ranks that wait for each
    other may have its cause in any of them.
    """
    waits = {rank.number: _waits(rank, for_launch=False) for rank in job.ranks}
    awaited = {r for rank in job.ranks if rank.number not in lost for r in _waits(rank, True)}
    must = frozenset(c for c in culprits if c in awaited and not waits[c])
    circle = {r for c in culprits - must for r in _reached(c, waits) if c in _reached(r, waits)}
    return must, culprits | circle


def _reached(start: int, waits: dict[int, set[int]]) -> set[int]:
    found: set[int] = set()
    new = set(waits[start])
    while new:
        found |= new
        new = {b for a in new for b in waits[a]} - found
    return found


def _ahead_of_stop(rank: _Rank) -> frozenset[int]:
    """Whom a rank with a stopped device still waits for in operations before the stop."""
    stop = min(rank.device_stop, rank.stuck_at)
    return frozenset(
        member
        for work in rank.works
        if work.step < stop and not work.done
        for meet in work.meets
        for member in meet.members
        if member not in meet.arrived
    )


# --- the dumps ----------------------------------------------------------------------------------

_STATUS = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
_FRAMES = [
    {"name": "all_reduce", "filename": "/opt/torch/distributed/distributed_c10d.py", "line": 2810},
    {"name": "train_step", "filename": "/workspace/train.py", "line": 412},
]


def _form(rng: Random, version: Version) -> Form:
    encoding = rng.choices(("torch", "torch json", "pickle", "json"), (45, 15, 20, 20))[0]
    by_torch = encoding.startswith("torch")
    names = (
        ("nccl_trace_rank_", "comm_lib_trace_rank_", "job-17_rank_") if by_torch else ("_dump_",)
    )
    return Form(
        version=version,
        encoding=encoding,
        timing=rng.random() < 0.6,
        only_active=rng.random() < (0.3 if by_torch else 0.8),
        frames=encoding in ("torch", "pickle") and rng.random() < 0.15,
        tuples=encoding == "pickle" and rng.random() < 0.5,
        eager=rng.random() < 0.4,
        described=rng.random() < 0.85,
        retired=rng.choices(
            ("as is", "timed out", "timed out and counted", "left behind"), (60, 20, 8, 12)
        )[0],
        ring=2000,
        protocol=2 if by_torch else rng.randint(2, 5),
        name=rng.choice(names),
    )


class _Writer:
    """Writes the dumps of one job."""

    def __init__(self, job: _Job, form: Form, rng: Random, world: int):
        self.job, self.form, self.rng = job, form, rng
        self.timeout = rng.choice((600_000, 1_800_000, 300_000))
        slow = rng.random() < 0.2  # clocks that are not synchronised at all
        spread = 90_000_000_000 if slow else 40_000_000
        self.offsets = [rng.randint(-spread, spread) for _ in range(-(-world // NODE))]
        self.health = not form.encoding.startswith("torch") and rng.random() < 0.5

    def write(self, rank: _Rank) -> bytes:
        encoding = self.form.encoding
        dump = self._dump(rank)
        if encoding == "torch json":
            return json.dumps(self._as_torch_json(dump)).encode()
        if encoding == "json":
            return json.dumps(dump).encode()
        return pickle.dumps(dump, protocol=self.form.protocol)

    def _dump(self, rank: _Rank) -> dict[str, Any]:
        form = self.form
        library = "comm_lib_version" if form.version == "2.10" else "nccl_version"
        mine = [i for i, group in enumerate(self.job.groups) if rank.number in group.ranks]
        local = {group: number for number, group in enumerate(mine)}
        used = [i for i in mine if rank.counts[i][2]]
        status = {i: list(rank.status[i]) for i in used}
        entries = self._entries(rank, local, status)
        config = {
            self.job.groups[i].name: self.job.groups[i] for i in (mine if form.eager else used)
        }
        dump: dict[str, Any] = {
            "version": form.version,
            "pg_config": {
                # in the order of a C++ map of strings
                name: {
                    "name": name,
                    "desc": self._desc(config[name]),
                    "ranks": str(list(config[name].ranks)),
                }
                for name in sorted(config)
            },
            library: "2.27.3",
            "pg_status": {
                str(local[i]): dict(zip(_STATUS, self._shown(status[i]), strict=True)) for i in used
            },
            "entries": entries,
        }
        if self.health:
            dump["health_check_results"] = {
                "gpu": {"status": True, "output": ""},
                "nic": {"status": True, "output": ""},
            }
        return dump

    def _desc(self, group: Group) -> str:
        return group.desc if self.form.described or group.name == "0" else "undefined"

    def _shown(self, status: list[int]) -> tuple[int, ...]:
        return (status[0], status[1] if self.form.timing else -1, status[2])

    def _entries(
        self, rank: _Rank, local: dict[int, int], status: dict[int, list[int]]
    ) -> list[dict[str, Any]]:
        form, rng = self.form, self.rng
        kept_from = rank.records - form.ring
        pending = next((w for w in rank.works if not w.done), None)
        expired = None
        if pending is not None and form.retired.startswith("timed out") and rng.random() < 0.6:
            expired = pending
            if form.retired == "timed out and counted":
                status[pending.call.group][2] = pending.ids[1 if pending.call.legs else 0]
        entries: list[dict[str, Any]] = []
        for work in rank.works:
            if work.ids[3] + len(work.call.legs) < kept_from:
                continue
            left = (
                form.retired == "left behind"
                and bool(work.done)
                and work.ids[1 if work.call.legs else 0] < status[work.call.group][2]
                and rng.random() < 0.1
            )
            if form.only_active and work.done and not left and work.call.kind != "coalesced":
                continue
            entries += [
                entry
                for entry in self._of_work(
                    rank, work, local[work.call.group], left, expired=work is expired
                )
                if entry["record_id"] >= kept_from
                and not (form.only_active and entry["state"] == "completed")
            ]
        return entries

    def _of_work(
        self, rank: _Rank, work: _Work, local: int, left: bool, expired: bool
    ) -> list[dict[str, Any]]:
        call, (collective, p2p, op, record) = work.call, work.ids
        group = self.job.groups[call.group]
        done = bool(work.done) and not left
        offset, random = self.offsets[rank.number // NODE], self.rng.random
        started = ended = None
        if self.form.timing and work.started and not (left and random() < 0.5):
            started = work.started + offset + int(random() * 100_000_000)
        if done:
            ended = max(started or 0, work.done + offset) + int(random() * 100_000_000)
        name = f"nccl:{call.kind}"
        if call.kind in ("send", "recv"):
            name = _message(group, rank.number, call.legs[0])
        entries = []
        if call.kind == "coalesced":
            for index, leg in enumerate(call.legs):
                ids = (record + index, collective, p2p, op - len(call.legs) + 1 + index)
                entries.append(
                    self._entry(
                        group,
                        local,
                        ids,
                        _message(group, rank.number, leg),
                        call,
                        work.created + offset + 900 * index,
                    )
                )
            record += len(call.legs)
        entry = self._entry(
            group, local, (record, collective, p2p, op), name, call, work.created + offset + 4_000
        )
        if call.kind == "coalesced":
            for key in ("input_sizes", "input_dtypes", "output_sizes", "output_dtypes"):
                entry[key] = []
        entry["state"] = "completed" if ended else "started" if started else "scheduled"
        entry["time_discovered_started_ns"] = started
        entry["time_discovered_completed_ns"] = ended
        entry["retired"] = bool(work.done) or expired
        if started and ended:
            entry["duration_ms"] = (work.done - work.started) / 1e6
        entries.append(entry)
        return entries

    def _entry(
        self,
        group: Group,
        local: int,
        ids: tuple[int, int, int, int],
        name: str,
        call: Call,
        created: int,
    ) -> dict[str, Any]:
        """An entry without events."""
        shape: Any = tuple if self.form.tuples else list
        entry: dict[str, Any] = {}
        if self.form.frames:
            entry["frames"] = _FRAMES
        entry["record_id"] = ids[0]
        entry["pg_id"] = local
        entry["process_group"] = (group.name, self._desc(group))
        if self.form.version != "2.5":
            entry["thread_name"] = "pt_main_thread"
            entry["thread_id"] = "140049956334464"
        entry |= {
            "collective_seq_id": ids[1],
            "p2p_seq_id": ids[2],
            "op_id": ids[3],
            "profiling_name": name,
            "time_created_ns": created,
            "input_sizes": shape((shape(call.inputs),)),
            "input_dtypes": [call.dtype],
            "output_sizes": shape((shape(call.outputs),)),
            "output_dtypes": [call.dtype],
            "state": "scheduled",
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": None,
            "retired": False,
            "timeout_ms": self.timeout,
            "is_p2p": bool(call.legs),
        }
        return entry

    def _as_torch_json(self, dump: dict[str, Any]) -> dict[str, Any]:
        """How torch itself writes JSON: other than its pickle in several small things."""
        for entry in dump["entries"]:
            for key in ("time_discovered_started_ns", "time_discovered_completed_ns"):
                entry[key] = entry[key] or 0
        for status in dump["pg_status"].values():
            for key, value in status.items():
                status[key] = str(value)
        if not dump["entries"]:
            del dump["entries"]
        dump["nccl_comm_state"] = {}
        return dict(sorted(dump.items()))


def _message(group: Group, rank: int, leg: tuple[bool, int]) -> str:
    me, peer = group.ranks.index(rank), group.ranks.index(leg[1])
    return f"nccl:send {me}->{peer}" if leg[0] else f"nccl:recv {me}<-{peer}"


# --- all together -------------------------------------------------------------------------------


def generate(seed: int, world: int, version: Version, fault: Fault) -> Lookalike:
    """The dumps of one simulated job; the same arguments give the same bytes.

    From the seed ``DEEP`` on the job has run long enough to fill rings of 2000 entries (slow).
    """
    rng = Random(f"{seed} {world} {version} {fault}")
    form = _form(rng, version)
    job, span, ran_before = _start_job(rng, world, seed >= DEEP, fault.startswith("p2p"))
    whole = not ran_before and not form.only_active and seed < DEEP
    plan = _strike(fault, job, span, form, whole)
    job.run()
    truth = _truth(plan, job)
    if any(w.call.kind == "coalesced" for rank in job.ranks for w in rank.works[-20:]):
        plan.traits.add("batched")
    if job.small_broadcasts:
        plan.traits.add("small broadcasts")
    done = [r.number for r in job.ranks if r.step == len(r.program)]
    assert not done, f"ranks {done} have come to the end of the program: the fault stopped nothing"
    if ran_before and seed < DEEP:
        form = _with_ring(form, job, rng)
    writer = _Writer(job, form, rng, world)
    writing = [rank for rank in job.ranks if rank.number not in plan.missing]
    ending = ".json" if form.encoding == "json" else ""
    return Lookalike(
        dumps={rank.number: writer.write(rank) for rank in writing},
        names={rank.number: f"{form.name}{rank.number}{ending}" for rank in writing},
        truth=truth,
        form=form,
        traits=frozenset(plan.traits),
    )


def _start_job(
    rng: Random, world: int, deep: bool = False, messages: bool = False
) -> tuple[_Job, dict[int, tuple[int, int]], int]:
    """A job before its first simulated step, and the steps of each rank in which to strike."""
    layout = rng.choice([sizes for sizes in LAYOUTS[world] if sizes[2] > 1 or not messages])
    groups = _groups(layout, rng.choice((0, 1)))
    habits = _Habits(
        microbatches=rng.randint(2, 5 if world < 64 else 3),
        layers=rng.randint(1, 2),
        batched=rng.random() < 0.5,
        waits_for_p2p=rng.random() < 0.3,
        sequence_parallel=rng.random() < 0.5,
        buckets=rng.randint(1, 3),
        hidden=rng.choice((1024, 4096)),
        log_every=rng.choice((1, 2)),
    )
    cycles = rng.choice((0, rng.randint(1, 5000)))  # before the simulation
    iterations = 90 if deep else ITERATIONS
    ahead = rng.randint(3, 40)
    epoch = 1_795_370_343_055_937_460
    ranks = []
    span = {}
    for number in range(world):
        writer = _Program(number, layout, groups, habits)
        if not cycles:
            writer.collective("default_pg", "all_reduce_barrier", (1,))
            writer.steps.append(SYNC)
        marks = []
        for iteration in range(iterations):
            marks.append(len(writer.steps))
            writer.iteration(iteration)
        rank = _Rank(
            number, writer.steps, ahead + rng.randint(0, 3), epoch + rng.randint(0, 3_000_000)
        )
        span[number] = (marks[-2], marks[-1])
        _remember(rank, groups, marks[habits.log_every] if cycles else 0, cycles)
        ranks.append(rank)
    return _Job(groups, ranks, rng, small_broadcasts=rng.random() < 0.3), span, cycles


def _remember(rank: _Rank, groups: tuple[Group, ...], end: int, cycles: int) -> None:
    """Count what was called before the simulation: its steps before ``end``, ``cycles`` times."""
    rank.counts = {i: [0, 0, 0] for i, group in enumerate(groups) if rank.number in group.ranks}
    for step in rank.program[:end]:
        if isinstance(step, Call):
            counts = rank.counts[step.group]
            counts[1 if step.legs else 0] += cycles
            counts[2] += cycles * max(1, len(step.legs))
            rank.records += cycles * (len(step.legs) + 1 if step.kind == "coalesced" else 1)
    rank.status = {
        group: [last] * 3 if (last := counts[0] or counts[1]) else [-1] * 3
        for group, counts in rank.counts.items()
    }


def _with_ring(form: Form, job: _Job, rng: Random) -> Form:
    """A ring so small that it is full, and so large that it keeps what is pending."""
    recorded = [
        sum(len(w.call.legs) + 1 if w.call.kind == "coalesced" else 1 for w in r.works)
        for r in job.ranks
    ]
    pending = [
        r.records - next((w.ids[3] for w in r.works if not w.done), r.records) for r in job.ranks
    ]
    smallest = min(recorded)
    return replace(form, ring=max(*pending, rng.randint(min(24, smallest), smallest)))


DEEP = 10_000
# Of 16 ranks many, of 64 some, and a few with full rings of 2000 entries.
SCENARIOS = (
    *(
        Scenario(seed, 16, version, fault)
        for fault in FAULTS
        for version in VERSIONS
        for seed in range(6)
    ),
    *(
        Scenario(seed, 64, version, fault)
        for fault in FAULTS
        for version in VERSIONS
        for seed in range(2)
    ),
    Scenario(DEEP, 16, "2.9", "host_lag"),
    Scenario(DEEP + 1, 16, "2.10", "device_lag"),
)
