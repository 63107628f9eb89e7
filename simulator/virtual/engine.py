"""The simulation: machines, processes and a network in virtual time, all from one seed.

The same seed and the same calls give the same run, event for event, on every machine.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from simulator.virtual.messages import (
    CancelTimer,
    Close,
    Closed,
    Command,
    Connect,
    Event,
    Exit,
    Listen,
    Send,
    SetTimer,
    Started,
    TimerFired,
    Told,
)
from simulator.virtual.network import (
    Machine,
    Network,
    NetworkRules,
    Process,
    Running,
    Timer,
)
from simulator.virtual.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from simulator.virtual.network import Cut, Endpoint

    # Called with the time, the name of the process and the event it is about to handle.
    Trace = Callable[[int, str, Event], None]

_STARTED = Started()


class Simulation:
    """A world of its own.

    Attributes:
        random: the only source of chance; scenarios may use it as well.
        schedule: the clock.
        events: number of events that processes have handled.
    """

    def __init__(
        self, seed: int, *, rules: NetworkRules | None = None, trace: Trace | None = None
    ) -> None:
        """Begin at time 0, with no machine.

        Args:
            seed: decides everything that is left to chance.
            rules: how the network behaves; default: `NetworkRules`.
            trace: told every event before it is handled.
        """
        self.random = Random(seed)  # noqa: S311 - chance that can be repeated is the point
        self.schedule = Schedule()
        self.events = 0
        self._trace = trace
        self._network = Network(self.schedule, self.random, rules or NetworkRules(), self._deliver)
        self._processes: dict[str, Running] = {}
        self._carry_out: dict[type, Callable[[Running, Any], None]] = {
            Send: self._send,
            SetTimer: self._set_timer,
            CancelTimer: self._cancel_timer,
            Connect: self._network.connect,
            Listen: self._listen,
            Close: self._close,
            Exit: self._exit,
        }

    @property
    def now(self) -> int:
        """Nanoseconds since the beginning."""
        return self.schedule.now

    @property
    def sent(self) -> int:
        """Number of messages put on the network."""
        return self._network.sent

    # --- running --------------------------------------------------------------------------------

    def run(self, until_ns: int, *, stop: Callable[[], bool] | None = None) -> None:
        """Go on to a moment, or until ``stop()`` is true after something happened."""
        self.schedule.run(until_ns, stop=stop)

    def at(self, time_ns: int, action: Callable[[Any], object], argument: Any = None) -> None:
        """Call ``action(argument)`` at a moment: for faults and for what is no process."""
        self.schedule.at(time_ns, action, argument)

    # --- machines and processes -----------------------------------------------------------------

    def boot(self, machine: str) -> None:
        """Add a machine, or give power back to one; nothing runs on it."""
        known = self._network.machines.get(machine)
        if known is None:
            self._network.machines[machine] = Machine(machine)
        else:
            known.alive = True

    def has_power(self, machine: str) -> bool:
        """Whether a machine is there and runs."""
        known = self._network.machines.get(machine)
        return known is not None and known.alive

    def start(self, name: str, behaviour: Process, machine: str) -> None:
        """Start a process on a machine that has power; its name must be free."""
        assert not self.is_alive(name), f"{name} runs already"
        host = self._network.machines[machine]
        assert host.alive, f"{machine} has no power"
        running = Running(name, behaviour, host)
        self._processes[name] = running
        host.processes.append(running)
        self.schedule.at(self.now, self._first, running)

    def is_alive(self, name: str) -> bool:
        """Whether a process of that name runs; a paused one does."""
        return name in self._processes

    def is_paused(self, name: str) -> bool:
        """Whether a process of that name stands still."""
        running = self._processes.get(name)
        return running is not None and running.paused

    def runs(self, name: str, behaviour: Process) -> bool:
        """Whether the process of that name is this one."""
        running = self._processes.get(name)
        return running is not None and running.behaviour is behaviour

    def kill(self, name: str) -> None:
        """End a process at once; its machine closes its connections."""
        running = self._processes.get(name)
        if running is not None:
            self._end(running, silently=False)

    def power_off(self, machine: str) -> None:
        """End everything on a machine; nobody is told."""
        host = self._network.machines[machine]
        host.alive = False
        for running in list(host.processes):
            self._end(running, silently=True)

    def pause(self, name: str) -> None:
        """Stop a process as SIGSTOP does: events queue up, timers fire late."""
        running = self._processes.get(name)
        if running is not None:
            running.paused = True

    def resume(self, name: str) -> None:
        """Let it go on with what has queued up."""
        running = self._processes.get(name)
        if running is None or not running.paused:
            return
        running.paused = False
        while running.backlog and running.alive and not running.paused:
            self._handle(running, *running.backlog.popleft())

    def slow(self, name: str, delay_ns: int) -> None:
        """Let a process take so long over every event; 0 = as fast as ever."""
        running = self._processes.get(name)
        if running is not None:
            running.slow_ns = delay_ns

    def tell(self, name: str, what: Any) -> None:
        """Give a process something that does not come over the network."""
        running = self._processes.get(name)
        if running is not None:
            self._deliver(running, Told(what), None)

    # --- the network ----------------------------------------------------------------------------

    def slow_network(self, max_delay_ns: int) -> None:
        """Let every message take up to so long, one way."""
        self._network.slow(max_delay_ns)

    def cut(self, sources: Collection[str], targets: Collection[str]) -> Cut:
        """Let nothing pass from the ones to the others; both ways takes two cuts."""
        return self._network.cut(sources, targets)

    def heal(self, cut: Cut) -> None:
        """End a cut."""
        self._network.heal(cut)

    def reaches(self, source: str, target: str) -> bool:
        """Whether what one machine sends to another arrives at once: no cut is in between."""
        return not self._network.blocked(source, target)

    def listens(self, address: str) -> bool:
        """Whether a process listens at an address."""
        return self._network.listener(address) is not None

    def break_connections(self, one: str, other: str) -> int:
        """Reset every connection between two machines; return how many."""
        return self._network.break_connections(one, other)

    # --- delivery -------------------------------------------------------------------------------

    def _first(self, running: Running) -> None:
        if running.alive:
            self._deliver(running, _STARTED, None)

    def _deliver(self, running: Running, event: Event, endpoint: Endpoint | None) -> None:
        now = self.schedule.now
        if running.slow_ns or running.busy_until > now:
            running.busy_until = max(running.busy_until, now) + running.slow_ns
            self.schedule.at(running.busy_until, self._handle_late, (running, event, endpoint))
        else:
            self._handle(running, event, endpoint)

    def _handle_late(self, item: tuple[Running, Event, Endpoint | None]) -> None:
        self._handle(*item)

    def _handle(self, running: Running, event: Event, endpoint: Endpoint | None) -> None:
        if not running.alive:
            return
        if running.paused:
            running.backlog.append((event, endpoint))
            return
        if endpoint is not None:
            if not endpoint.open:
                return  # the process has closed it in the meantime
            if type(event) is Closed:
                endpoint.open = False
                running.endpoints.pop(endpoint.number, None)
        if type(event) is TimerFired:
            timer = running.timers[event.name]
            if not timer.due:
                return  # set anew or cancelled in the meantime
            timer.due = False
        now = self.schedule.now
        self.events += 1
        if self._trace is not None:
            self._trace(now, running.name, event)
        carry_out = self._carry_out
        commands: Iterable[Command] = running.behaviour.handle(event, now)
        for command in commands:
            carry_out[type(command)](running, command)
            if not running.alive:
                return

    # --- commands -------------------------------------------------------------------------------

    def _send(self, running: Running, command: Send) -> None:
        endpoint = running.endpoints.get(command.connection)
        if endpoint is not None:
            self._network.send(endpoint, command.message)

    def _close(self, running: Running, command: Close) -> None:
        endpoint = running.endpoints.get(command.connection)
        if endpoint is not None:
            self._network.close(endpoint)

    def _listen(self, running: Running, command: Listen) -> None:
        self._network.listen(running, command.address)

    def _exit(self, running: Running, _command: Exit) -> None:
        self._end(running, silently=False)

    def _set_timer(self, running: Running, command: SetTimer) -> None:
        timer = running.timers.get(command.name)
        if timer is None:
            timer = running.timers[command.name] = Timer(running, command.name)
        deadline = self.schedule.now + command.delay_ns
        timer.deadline = deadline
        timer.due = False
        if timer.queued is None or deadline < timer.queued:
            timer.queued = deadline
            self.schedule.at(deadline, self._timer_due, (timer, deadline))

    def _cancel_timer(self, running: Running, command: CancelTimer) -> None:
        timer = running.timers.get(command.name)
        if timer is not None:
            timer.deadline = None
            timer.due = False

    def _timer_due(self, item: tuple[Timer, int]) -> None:
        timer, queued = item
        if timer.queued != queued or not timer.owner.alive:
            return  # an earlier entry has taken its place
        timer.queued = None
        deadline = timer.deadline
        if deadline is None:
            return
        if deadline > self.schedule.now:
            timer.queued = deadline
            self.schedule.at(deadline, self._timer_due, (timer, deadline))
            return
        timer.deadline = None
        timer.due = True
        self._deliver(timer.owner, timer.fired, None)

    def _end(self, running: Running, *, silently: bool) -> None:
        running.alive = False
        running.backlog.clear()
        running.timers.clear()
        self._network.forget(running, silently=silently)
        running.machine.processes.remove(running)
        if self._processes.get(running.name) is running:
            del self._processes[running.name]
