"""One launcher's part in who leads its job, where etcd, or another register, says so.

States::

    LOOKING    it is not known who leads
    FOLLOWING  another launcher does, or did last
    CLAIMING   this one tries to
    LEADING    this one does, until another one has claimed the lead
    OVER       nothing is done any more

The launcher that has claimed last leads, and can write, even if etcd does not hear of it. `hold`
only shows others that etcd hears of the leader: they do not claim as long as it does, unless nobody
listens at the leader's address any more.
"""

from __future__ import annotations

import asyncio
import enum
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from undaunted.base.timers import Timers
from undaunted.coordinator import protocol as p
from undaunted.coordinator.lead import register as rules
from undaunted.coordinator.lead.leader import LeaderState
from undaunted.coordinator.lead.times import (
    CLAIM_PAUSE_LONGEST_S,
    FIRST_CLAIM_S,
    LAST_TURN_S,
    PAUSE_FIRST_S,
    PAUSE_LONGEST_S,
    REGISTER_TURN_S,
    RELEASE_S,
)
from undaunted.coordinator.service.asking import anew, living
from undaunted.coordinator.service.register import Leads, RegisterError, Won

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from undaunted.coordinator.lead import messages as c
    from undaunted.coordinator.lead.leader import Leader
    from undaunted.coordinator.protocol import Ledger
    from undaunted.coordinator.service.participant import Participant
    from undaunted.coordinator.service.register import Register
    from undaunted.coordinator.wire.network import Network

_NS = 1_000_000_000
_ENDED = (
    "the job has ended without this launcher: etcd says so, or has nothing of it, and no other "
    "launcher of its last round answers"
)
During = Literal["look", "claim", "hold", "write"]


@dataclass(frozen=True)
class Launcher:
    """This launcher.

    Attributes:
        node: its name.
        incarnation: another one for each launcher that is started.
        address: where others reach it.
        run_id: the job.
        attempt: see `protocol.Ledger`.
        lease_s: of followers.
    """

    node: str
    incarnation: str
    address: str
    run_id: str
    attempt: int
    lease_s: float


class State(enum.Enum):
    """See the module's documentation."""

    LOOKING = enum.auto()
    FOLLOWING = enum.auto()
    CLAIMING = enum.auto()
    LEADING = enum.auto()
    OVER = enum.auto()


class Candidacy:
    """See the module's documentation. For as long as its launcher takes part.

    Args:
        launcher: this one.
        register: of the job.
        listener: of this node; its leader and its follower learn who leads.
        network: to ask the members of a ledger that was left.
        lead: begins to lead, with an epoch, the ledger of the leader before, the node of that one
            if it was lost, members that are not waited for, and for how long its ranks may live.
        give_up: ends this launcher.
        say: shows a line.
    """

    def __init__(
        self,
        launcher: Launcher,
        register: Register,
        listener: Participant,
        network: Network,
        lead: Callable[[int, Ledger, str, tuple[str, ...], float], None],
        give_up: Callable[[str], None],
        say: Callable[[str], None],
    ) -> None:
        self._launcher, self._register = launcher, register
        self._listener, self._network = listener, network
        self._begin_to_lead, self._give_up, self._say = lead, give_up, say
        self._state = State.LOOKING
        self._seen: Leads | None = None  # last
        self._missed: c.Missed | None = None  # None = a leader is followed, or may be found
        self._ended_epoch = 0  # nobody listens any more where the leader of that one did
        self._claims = False  # it is this launcher's turn in a moment
        self._trouble = Trouble()
        # while leading, or after it
        self._leader: Leader | None = None
        self._epoch = 0
        self._hold_end_ns = 0
        self._held = False
        self._unwritten: tuple[Ledger, Callable[[int], None]] | None = None
        self._writing = False
        self._unwritten_ns = 0  # since when a table could not be written, 0 = none waits
        self._timers = Timers()
        self._tasks: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._releasing: set[asyncio.Task[None]] = set()

    # --- what the launcher wants ----------------------------------------------------------------

    def begin(self) -> None:
        """Find out who leads, or lead."""
        if self._watching is not None:
            self._watching.cancel()
        self._watching = self._start(self._watch())

    def keep(self, ledger: Ledger, written: Callable[[int], None]) -> None:
        """Have a ledger written, unless a later one is; ``written`` hears when it is there."""
        if self._state is State.LEADING:
            self._unwritten = ledger, written
            self._write()

    def missed(self, missed: c.Missed) -> None:
        """The follower here cannot reach the leader."""
        known, seen = self._missed, self._seen
        lost = missed.lost or (known is not None and known.lost)
        self._missed = msgspec.structs.replace(missed, lost=lost)
        if missed.ended and seen is not None and seen.address == missed.ended:
            self._ended_epoch = seen.epoch
        if known is None and self._state is State.FOLLOWING:
            self.begin()  # the watch may be of a member of etcd that is gone as well
        self._claim_if_due()

    def found(self) -> None:
        """The follower here follows a leader."""
        self._missed, self._claims = None, False

    def node_is_done(self) -> None:
        """This node does not take part any more; it goes on leading if others need that."""
        if self._listener.leading is None:
            self._withdraw()

    def leading_is_over(self) -> None:
        """The leader here has nothing more to do; unless the job has ended, there must be one."""
        deposed = self._leader is not None and self._leader.state is LeaderState.DEPOSED
        if deposed and self._state is State.LEADING:
            self._release(self._epoch)
            self._step_down()

    async def close(self) -> None:
        """Give the lead to others, in 3 s at most; of a job that is over only that is left."""
        leader = self._leader
        over = leader is not None and leader.state is LeaderState.ENDED
        self._withdraw(ended=p.ended(leader.ledger) if leader is not None and over else None)
        if self._releasing:
            await asyncio.wait(self._releasing, timeout=RELEASE_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._register.close()

    # --- who leads ------------------------------------------------------------------------------

    async def _watch(self) -> None:
        try:
            async for seen in self._register.watch():
                self._trouble_is_over("look")
                self._saw(seen)
        except RegisterError as error:
            self._failed("look", error)

    def _saw(self, seen: Leads) -> None:
        self._seen, mine = seen, seen.incarnation == self._launcher.incarnation
        match self._state:
            case State.OVER | State.CLAIMING:
                return  # the answer to the claim says more
            case State.LEADING if mine and seen.epoch == self._epoch:
                return
            case State.LEADING if seen.as_of < self._epoch:
                return  # of before the claim
            case State.LEADING:
                other = "another launcher leads the job"
                self._lost(other if seen.epoch else "the leader's key in etcd is gone")
                return
        if seen.epoch and mine:
            self._state = State.LOOKING  # that was given up, or its answer was lost
            self._release(seen.epoch)
            return
        self._state = State.FOLLOWING if seen.epoch else State.LOOKING
        self._follow(seen.address, epoch=seen.epoch)
        self._claim_if_due()

    def _follow(self, address: str, reason: str = "", epoch: int = 0) -> None:
        """Tell the follower who leads; "" = nobody, for a reason if it is known."""
        if self._listener.following is not None:
            self._listener.following.leader_at(address, reason, epoch)

    @property
    def _may_claim(self) -> bool:
        seen, missed = self._seen, self._missed
        if seen is None or self._state not in {State.LOOKING, State.FOLLOWING}:
            return False
        if not seen.epoch:
            return True
        return missed is not None and (not seen.held or seen.epoch == self._ended_epoch)

    def _claim_if_due(self) -> None:
        """Claim in its turn; another one's claim is seen before, as a rule."""
        claimed, self._claims = self._claims, self._may_claim
        if self._claims and not claimed:
            after_s = max(self._turn_s, self._trouble.left_s("claim"))
            self._timers.set("claim", after_s, self._claim)

    @property
    def _turn_s(self) -> float:
        missed = self._missed
        chance_s = FIRST_CLAIM_S * (zlib.crc32(self._launcher.incarnation.encode()) % 100) / 100
        if missed is None:
            return chance_s
        if missed.turn is None:
            return LAST_TURN_S + chance_s
        return min(missed.turn * REGISTER_TURN_S, LAST_TURN_S)

    def _claim(self) -> None:
        if self._claims and self._may_claim:
            assert self._seen is not None
            self._claims, self._state = False, State.CLAIMING
            self._start(self._try_to_lead(self._seen))

    async def _try_to_lead(self, before: Leads) -> None:
        asked_ns = self._network.now_ns()
        try:
            answer = await self._register.claim(before.epoch)
        except RegisterError as error:
            self._failed("claim", error)
            return
        if isinstance(answer, Won):
            if await self._has_ended(answer.ledger):
                self._release(answer.epoch)
                self._withdraw()
                self._give_up(_ENDED)
                return
            ledger = p.NO_LEDGER if answer.ledger is None else await self._inherited(answer.ledger)
            self._trouble_is_over("claim")
            self._won(answer.epoch, ledger, before, asked_ns)
            return
        self._trouble_is_over("claim")
        if self._state is State.CLAIMING:
            self._state = State.LOOKING
        self._saw(answer)

    async def _has_ended(self, left: Ledger | None) -> bool:
        """Whether the job has ended without this launcher: the register says so, or has nothing.

        Not if it has nothing and others of the last round live: then what it kept was lost.
        """
        known = self._known
        if known is None or known.round < 0:
            return False
        if left is not None:
            later = (left.epoch, left.version) >= (known.epoch, known.version)
            return not left.run_id and later
        me = (self._launcher.node, self._launcher.incarnation)
        if not {*map(rules.voter, known.table)} - {me}:
            return False
        return not (await living(known, self._network)).keys() - {me}

    @property
    def _known(self) -> Ledger | None:
        """The ledger that the follower here knows."""
        following = self._listener.following
        return None if following is None else following.follower.knows.told

    async def _inherited(self, ledger: Ledger) -> Ledger:
        """Return the ledger if its job goes on, as members live or this node followed its leader.

        Otherwise one of a job that begins anew: that one was killed, or etcd did not answer at its
        end.
        """
        known = self._known
        if not ledger.run_id:
            return ledger  # that job has ended
        if ledger.attempt >= self._launcher.attempt:
            if known is not None and known.round >= 0 and known.birth == ledger.birth:
                return ledger
            if ledger.round < 0 or await living(ledger, self._network):
                return ledger
        start = f"an earlier start of {self._launcher.run_id}"
        self._say(f"the job begins anew: no launcher of {start} answers")
        return anew(ledger)

    def _won(self, epoch: int, ledger: Ledger, before: Leads, asked_ns: int) -> None:
        if self._state is not State.CLAIMING:
            self._release(epoch)
            return
        missed, self._missed = self._missed, None
        self._state, self._epoch = State.LEADING, epoch
        self._unwritten, self._writing, self._unwritten_ns = None, False, 0
        self._held, self._hold_end_ns = True, asked_ns + round(self._register.hold_s * _NS)
        self._set_expire()
        self._timers.set("hold", self._register.hold_s / 3, self._hold)
        lost = missed is not None and missed.lost
        ended = lost and 0 < before.epoch == self._ended_epoch
        self._lead(epoch, ledger, lost=lost, ended=ended)

    def _lead(self, epoch: int, ledger: Ledger, *, lost: bool, ended: bool) -> None:
        """Serve the job; ``ended``: the launcher that led has ended, and its ranks with it."""
        following, stops_s, promised = self._listener.following, 0.0, 0
        node = ledger.leader if ledger.run_id else ""
        if node not in {"", self._launcher.node}:
            self._say(f"this node takes over the coordination of the job from node {node}")
        if following is not None:
            promised = following.follower.knows.promised
            if lost and not ended:
                stops_s = following.follower.leader_stops_s(self._network.now_ns())
        if epoch <= max(promised, ledger.epoch):  # an etcd that has lost everything, or another one
            latest = max(promised, ledger.epoch)
            epoch = rules.next_epoch(latest, self._launcher.incarnation)
        self._begin_to_lead(epoch, ledger, node if lost else "", (), stops_s)
        self._leader = None if self._listener.leading is None else self._listener.leading.leader
        self._follow(self._launcher.address, epoch=epoch)

    def _lost(self, reason: str) -> None:
        """Lead no more: the leader here hears of it, and it is decided anew who does."""
        if self._state is State.LEADING:
            self._step_down()
            self._say(f"this node coordinates the job no more: {reason}")
            if self._listener.leading is not None:
                self._listener.leading.deposed(reason)

    def _step_down(self) -> None:
        self._state, self._seen, self._unwritten = State.LOOKING, None, None
        self.begin()

    def _withdraw(self, *, ended: Ledger | None = None) -> None:
        """Take part no more; ``ended``: the job is over, and this is what is left of it."""
        leads, self._state = self._state is State.LEADING, State.OVER
        self._timers.cancel()
        if leads:
            self._release(self._epoch, ended=ended)

    # --- while this one leads -------------------------------------------------------------------

    def _leads(self, epoch: int) -> bool:
        return self._state is State.LEADING and self._epoch == epoch

    def _hold(self) -> None:
        if self._state is State.LEADING:
            self._start(self._show_others(self._epoch))

    async def _show_others(self, epoch: int) -> None:
        asked_ns = self._network.now_ns()
        try:
            held = await self._register.hold(epoch)
        except RegisterError as error:
            if self._leads(epoch):
                pause_s = self._failed("hold", error)
                self._timers.set("hold", min(pause_s, self._register.hold_s / 3), self._hold)
            return
        if not self._leads(epoch):
            return
        if not held:
            self._lost("another launcher leads the job")
            return
        self._trouble_is_over("hold")
        now, hold_s = self._network.now_ns(), self._register.hold_s
        self._timers.set("hold", max(0.0, hold_s / 3 - (now - asked_ns) / _NS), self._hold)
        self._hold_end_ns = max(self._hold_end_ns, asked_ns + round(hold_s * _NS))
        if self._hold_end_ns > now:
            self._set_expire()
            self._note_held(held=True)

    def _set_expire(self) -> None:
        left_ns = self._hold_end_ns - self._network.now_ns()
        self._timers.set("expire", max(0.0, left_ns / _NS), self._expire)

    def _expire(self) -> None:
        if self._state is not State.LEADING:
            return
        if self._network.now_ns() < self._hold_end_ns:
            self._set_expire()
        else:
            self._note_held(held=False)

    def _note_held(self, *, held: bool) -> None:
        """Tell the leader whether others can see that it is there, when that has changed."""
        if held == self._held:
            return
        self._held = held
        if not held:
            self._say(
                "etcd does not hear this launcher, which coordinates the job: nothing new is "
                "started until it does; what runs goes on while most nodes are here"
            )
        if self._listener.leading is not None:
            self._listener.leading.holds(held=held)

    def _write(self) -> None:
        if self._state is State.LEADING and not self._writing and self._unwritten is not None:
            (ledger, written), self._unwritten, self._writing = self._unwritten, None, True
            self._start(self._write_down(ledger, written, self._epoch))

    async def _write_down(self, ledger: Ledger, written: Callable[[int], None], epoch: int) -> None:
        try:
            leads = await self._register.write(epoch, ledger)
        except RegisterError as error:
            if self._leads(epoch):
                self._unwritten = self._unwritten or (ledger, written)
                self._write_later(self._failed("write", error))
            return
        if not self._leads(epoch):
            return
        if not leads:
            self._lost("another launcher leads the job")
            return
        self._writing, self._unwritten_ns = False, 0
        self._trouble_is_over("write")
        written(ledger.version)
        self._write()

    def _write_later(self, pause_s: float) -> None:
        """Another launcher may reach etcd where this one does not: let it start the next round."""
        assert self._unwritten is not None
        self._writing, (ledger, _) = False, self._unwritten
        now, lease_s = self._network.now_ns(), self._launcher.lease_s
        waits = ledger.pending_round > ledger.round
        self._unwritten_ns = (self._unwritten_ns or now) if waits else 0
        if waits and now - self._unwritten_ns >= round(lease_s * _NS):
            away = f"etcd could not be reached for {lease_s:g} s"
            self._release(self._epoch)
            self._lost(f"{away}, and a round waits for it")
        else:
            self._timers.set("write", pause_s, self._write)

    # --- etcd is away, and back -----------------------------------------------------------------

    def _failed(self, during: During, error: RegisterError) -> float:
        """Look again, if that is what failed; return after how many seconds to try again."""
        begins = self._state in {State.LOOKING, State.CLAIMING}
        if error.final and begins and not self._trouble.has_worked:
            self._withdraw()
            self._give_up(str(error))
            return 0.0
        first = self._trouble.note(during)
        pause_s = self._trouble.left_s(during)
        if begins:
            self._follow("", str(error))
        if first and self._state is not State.OVER:
            again = "it is tried again and again, nothing new is started until then"
            self._say(f"{error}; {again}")
        if during == "claim" and self._state is State.CLAIMING:
            # It may have been done although the answer was lost.
            self._state, self._seen, during = State.LOOKING, None, "look"
        if during == "look" and self._state is not State.OVER:
            self._timers.set("look", pause_s, self.begin)
        return pause_s

    def _trouble_is_over(self, during: During) -> None:
        if self._trouble.over(during) and self._state is not State.OVER:
            self._say("etcd answers again")

    # --- tasks ----------------------------------------------------------------------------------

    def _release(self, epoch: int, *, ended: Ledger | None = None) -> None:
        task = self._start(self._give_back(epoch, ended))
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)

    async def _give_back(self, epoch: int, ended: Ledger | None) -> None:
        try:
            await self._register.release(epoch, ended=ended)
        except RegisterError as error:
            if ended is not None:
                self._say(f"{error}; the ledger of the job is left there")

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class Trouble:
    """With a register: what has failed counts until the same thing works.

    Attributes:
        has_worked: it has answered once.
    """

    def __init__(self) -> None:
        self.has_worked = False
        self._pauses_s: dict[During, float] = {}

    def note(self, during: During) -> bool:
        """Note a failure; return whether it is the first one of any kind."""
        first = not self._pauses_s
        longest_s = CLAIM_PAUSE_LONGEST_S if during == "claim" else PAUSE_LONGEST_S
        before_s = self._pauses_s.get(during, PAUSE_FIRST_S / 2)
        self._pauses_s[during] = min(2 * before_s, longest_s)
        return first

    def left_s(self, during: During) -> float:
        """Return how long to wait before the next try, 0 = it works."""
        return self._pauses_s.get(during, 0.0)

    def over(self, during: During) -> bool:
        """Note that something works; return whether nothing fails any more, and something did."""
        self.has_worked = True
        return self._pauses_s.pop(during, None) is not None and not self._pauses_s
