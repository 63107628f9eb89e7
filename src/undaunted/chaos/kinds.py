"""The kinds of faults of chaos runs: how each is made, and what must follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from undaunted.chaos.plan import Planned

REPLICA = "replica"
# Ways to make a checkpoint bad: those that a rank makes of what it saves, and those that the
# nemesis makes of files.
INSIDE = (REPLICA, "copy", "nan")
DISK, OTHER_RANK, STALE, TORN, WRONG_STEP = "disk", "other-rank", "stale", "torn", "wrong-step"


@dataclass(frozen=True, slots=True)
class KindOf:
    """A kind of fault.

    Attributes:
        name: as users write it.
        text: what happens, in a few words that follow "rank 1 at step 57:".
        injectors: kinds of ``undaunted.faults`` that make it in the rank, in this order.
        blame: what the launcher must find: a ``crash`` or ``hang`` of the fault's rank, or ``none``
            = nothing may fail.
        signal: the signal that must be named, "" = not looked at.
        exception: a part of the exception that must be named, "" = not looked at.
        exit_code: the exit code that must be named, None = not looked at.
        certain: whether what ``blame`` says must happen; False = it may, if the program goes on
            otherwise.
        anyone: whichever rank fails is right, as it is not the fault's rank that decides.
        outside: the nemesis makes it; the rank only tells when it is time.
        relaunch: the launcher ends and is started again.
        stops: ranks that have a session stop together; then the launcher ends with 75, and is
            started again.
        lasts: it happens again in every start.
        alters: what comes after may rightly differ from the undisturbed run.
        needs: what the machine must allow, "" = nothing special.
        hows: the ways in which it happens; () = it has no such choice.
        needs_checkpoint: it changes a checkpoint that is there already.
        save: ``ended``: a save stops half way, and an older checkpoint may be gone already;
            ``damaged``: a complete one is changed afterwards; "" = neither.
        poisons: rounds that go on from what it has left may fail or compute something else; what
            counts is the one that comes to the end.
    """

    name: str
    text: str
    injectors: tuple[str, ...]
    blame: Literal["crash", "hang", "none"] = "none"
    signal: str = ""
    exception: str = ""
    exit_code: int | None = None
    certain: bool = True
    anyone: bool = False
    outside: bool = False
    relaunch: bool = False
    stops: bool = False
    lasts: bool = False
    alters: bool = False
    needs: str = ""
    hows: tuple[str, ...] = ()
    needs_checkpoint: bool = False
    save: Literal["", "ended", "damaged"] = ""
    poisons: bool = False

    def place(self, how: str) -> Literal["early", "anywhere", "late"]:
        """Return in which half of the middle of a run it should come.

        What changes a checkpoint needs one, and some ways an older one as well; what a rank makes
        of its next save takes two more saves.
        """
        if how in INSIDE and self.hows:
            return "early"
        return "late" if self.needs_checkpoint else "anywhere"

    def injection(self, planned: Planned) -> str:
        """Return the fault as ``undaunted run --inject-fault`` takes it.

        The first injector has the id of ``planned``; others ``ID.2`` and so on.
        """
        if self.hows and planned.how in INSIDE:
            # A rank that saves for all may be another than the one that is planned.
            rank = planned.rank if planned.how == REPLICA else "all"
            where = f"rank={rank},iteration={planned.iteration}"
            return f"bad-save:{where},how={planned.how},id={planned.id}"
        return ";".join(
            _one(injector, planned, number, self.outside)
            for number, injector in enumerate(self.injectors, start=1)
        )


def _one(injector: str, planned: Planned, number: int, outside: bool) -> str:
    name = planned.id if number == 1 else f"{planned.id}.{number}"
    text = f"{injector}:rank={planned.rank},iteration={planned.iteration},id={name}"
    lasts = planned.seconds is not None and not outside
    return f"{text},seconds={planned.seconds:g}" if lasts else text


_ALL = (
    KindOf(
        "exception", "raises an exception", ("exception",), blame="crash", exception="InjectedError"
    ),
    KindOf("crash", "aborts in native code", ("abort",), blame="crash", signal="SIGABRT"),
    KindOf("exit", "exits with code 1", ("exit",), blame="crash", exit_code=1),
    KindOf("kill", "is killed", ("sigkill",), blame="crash", signal="SIGKILL"),
    KindOf("segfault", "touches invalid memory", ("segfault",), blame="crash", signal="SIGSEGV"),
    KindOf("oom", "runs out of memory", ("oom",), blame="crash", exception="MemoryError"),
    KindOf("hang", "hangs in Python code", ("sleep",), blame="hang"),
    KindOf("gil", "hangs in native code and keeps the interpreter's lock", ("gil",), blame="hang"),
    KindOf("stop", "is stopped by SIGSTOP", ("sigstop",), blame="hang"),
    KindOf(
        "torn-write",
        "is killed in the middle of its next large write",
        ("torn-write",),
        blame="crash",
        certain=False,
        anyone=True,  # a program that writes for it gets an error, which any rank may tell of
        save="ended",
    ),
    KindOf(
        "nan",
        "gets NaN as gradients of one update",
        ("nan",),
        blame="crash",
        certain=False,
        anyone=True,
        alters=True,
    ),
    KindOf(
        "wrong-result",
        "computes one wrong bit of a gradient",
        ("wrong-result",),
        blame="crash",
        certain=False,
        anyone=True,
        alters=True,
    ),
    KindOf(
        "wrong-result-always",
        "begins to compute a wrong bit of a gradient in each step",
        ("wrong-result-always",),
        blame="crash",
        certain=False,
        anyone=True,
        lasts=True,
        alters=True,
    ),
    KindOf("slow", "pauses in some steps", ("slow",)),
    KindOf(
        "sigterm",
        "the launcher gets SIGTERM and is started again",
        ("call",),
        outside=True,
        relaunch=True,
    ),
    KindOf(
        "preempt",
        "gets SIGTERM",
        ("sigterm",),
        blame="crash",
        signal="SIGTERM",
        certain=False,
        anyone=True,  # those that it leaves alone may fail before it
        stops=True,
    ),
    KindOf("deadline", "gets notice that its time is nearly over", ("deadline",), stops=True),
    KindOf(
        "corrupt-checkpoint",
        "the newest file of the checkpoints is damaged, then the rank is killed",
        ("call", "sigkill"),
        blame="crash",
        signal="SIGKILL",
        outside=True,
        needs_checkpoint=True,
        save="damaged",
    ),
    KindOf(
        "bad-checkpoint",
        "the newest checkpoint is made bad, then a rank is killed",
        ("call", "sigkill"),
        blame="crash",
        certain=False,
        anyone=True,  # each rank that saves
        outside=True,
        hows=(*INSIDE, DISK, OTHER_RANK, STALE, TORN, WRONG_STEP),
        needs_checkpoint=True,
        poisons=True,
    ),
    KindOf(
        "disk-full",
        "the disk of the checkpoints is full for a while",
        ("call",),
        blame="crash",
        certain=False,
        anyone=True,
        outside=True,
        needs="a small file system in a mount namespace",
        save="ended",
    ),
    KindOf(
        "slow-network",
        "the network is slow for a while",
        ("call",),
        outside=True,
        needs="a network namespace",
    ),
)

KINDS: Mapping[str, KindOf] = {kind.name: kind for kind in _ALL}
"""Every kind by its name, in the order in which they are listed for users."""


def injections(faults: Iterable[Planned]) -> str:
    """Return the faults of one run as ``undaunted run --inject-fault`` takes them."""
    return ";".join(KINDS[fault.kind].injection(fault) for fault in faults)
