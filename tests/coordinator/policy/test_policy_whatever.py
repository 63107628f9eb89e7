"""Whatever arrives in whatever order, the job policy keeps its promises."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.coordinator.policy.driving import of
from undaunted.coordinator.policy import messages as m
from undaunted.coordinator.policy.config import Pace, PolicyConfig
from undaunted.coordinator.policy.messages import NO_ITERATIONS, Iterations
from undaunted.coordinator.policy.policy import JobPolicy, PolicyState
from undaunted.coordinator.policy.round import MOST_EXCLUDED
from undaunted.coordinator.policy.verdict import Advice, Attempt, Case, Ruling

NAMES = ["a", "b", "c", "d", "e"]


def _first(case: Case) -> Ruling:
    return Ruling("it", case.places[0].node)


def _advise(action: str, history: bytes, attempt: Attempt) -> Advice:
    """Every round that fails, and the one that is blamed is to be left out."""
    blamed = attempt.blamed
    nodes = (blamed.node,) if blamed else ()
    advised = m.Advised(attempt.round, action, "so", nodes) if blamed else None
    history += b"x" * (attempt.round + 1 - len(history))
    return Advice(advised, history, repeats=3 + attempt.round if blamed else 0)


def _pace(number: int, places: tuple[m.Place, ...]) -> Pace:
    """Nodes say which of their ranks are slow, or are no more."""
    first = {place.node: place.first_rank for place in places}

    def told(node: str, times: bytes) -> list[m.Slow]:
        over, lost = times == b"over", 0.05 if times == b"little" else 0.3
        return [m.Slow(number, node, first[node], "so", over, 0.5, lost)] if times else []

    return told


CONFIGS = st.builds(
    PolicyConfig,
    min_nodes=st.integers(1, 3),
    max_nodes=st.integers(1, 5),
    elastic=st.booleans(),
    min_healthy=st.booleans(),
    segment=st.sampled_from([0, 0, 2]),
    replacement_group_size=st.sampled_from([0, 0, 2]),
    max_restarts=st.integers(0, 3),
    restart_intensity=st.sampled_from([None, (1, 60.0), (2, 60.0), (3, 60.0)]),
    max_no_progress_cycles=st.integers(0, 2),
    rule=st.sampled_from(
        [None, lambda _: Ruling(), lambda case: Ruling("it", case.places[0].node)]
    ),
    advise=st.sampled_from(
        [None, *(partial(_advise, to) for to in ("restart", "exclude", "stop"))]
    ),
    act=st.booleans(),
    pace=st.sampled_from([None, _pace, _pace]),
    slow_ranks=st.sampled_from(["log", "exclude", "exclude", "stop"]),
)
INFOS = st.builds(
    m.NodeInfo,
    st.sampled_from(NAMES),
    st.integers(1, 2),
    st.none() | st.integers(0, 4),
    st.sampled_from(["", "x"]),
    st.sampled_from(["", "1"]),
)
ITERATIONS = st.builds(Iterations, st.none() | st.just(0), st.none() | st.integers(0, 3))


@dataclass
class Agent:
    """A node, as it is: what it was told, and whether ranks run on it."""

    runs: int | None = None  # the round
    stopping: bool = False


@dataclass
class World:
    """What the commands have made of the nodes."""

    config: PolicyConfig
    agents: dict[str, Agent] = field(default_factory=dict)
    excluded: set[str] = field(default_factory=set)
    prepare: m.Prepare | None = None
    timers: dict[str, m.SetTimer] = field(default_factory=dict)
    started: list[int] = field(default_factory=list)
    blamed: set[tuple[int, str]] = field(default_factory=set)
    advised: set[int] = field(default_factory=set)
    left_out: set[int] = field(default_factory=set)  # rounds
    ended: m.Outcome | None = None
    quorum: bool = True
    missing: set[str] = field(default_factory=set)  # members that a new leader has yet to miss

    def leave_out_slow(self, node: str) -> None:
        assert self.config.slow_ranks == "exclude"
        assert len(self.excluded) < MOST_EXCLUDED
        assert len(self.started) not in self.left_out, "one in a round"
        others = self.agents.keys() - self.excluded - {node}  # it may have been lost meanwhile
        assert len(others) >= self.config.min_nodes
        self.left_out.add(len(self.started))
        self.excluded.add(node)

    def obey(self, command: m.Command) -> None:
        match command:
            case m.Prepare(round=number, places=places):
                assert self.quorum
                assert number == len(self.started), "rounds are numbered one by one"
                assert not any(agent.runs is not None for agent in self.agents.values())
                check_places(places)
                assert len(places) >= self.config.min_nodes
                assert {place.node for place in places} <= self.agents.keys() - self.excluded
                self.prepare = command
            case m.Start():
                agent = self.agents[command.node]  # it is there
                assert command.node not in self.excluded
                assert agent.runs is None
                agent.runs, agent.stopping = command.round, False
            case m.Stop() if command.node in self.missing:
                pass  # nobody hears it
            case m.Stop():
                assert self.agents[command.node].runs == command.round
                self.agents[command.node].stopping = True
            case m.Gather():
                assert self.agents[command.node].runs == command.round
            case m.End():
                known = self.agents.pop(command.node, None)
                assert known is None or known.runs is None, "nothing runs when a node is dismissed"
            case m.Blamed():
                # Where healthy nodes went on after a hang, what ends the round later is said too.
                said = {line for number, line in self.blamed if number == command.round}
                assert not said or self.config.min_healthy, "said once"
                assert command.line not in said, "said once"
                self.blamed.add((command.round, command.line))
            case m.Advised(round=number, action=action):
                assert number not in self.advised, "said once"
                self.advised.add(number)
                if command.done:
                    assert self.config.act
                    assert action in {"exclude", "stop"}
                    self.excluded |= set(command.nodes) if action == "exclude" else set()
            case m.SetTimer():
                assert command.delay_s > 0
                self.timers[command.name] = command


def check_places(places: tuple[m.Place, ...]) -> None:
    ranks = [r for p in places for r in range(p.first_rank, p.first_rank + p.slots)]
    assert ranks == list(range(len(ranks))), "each rank in exactly one place"
    assert len({place.node for place in places}) == len(places)


def goes_on(machine: AnyJob) -> bool:
    return not machine.policy.ended


class AnyJob(RuleBasedStateMachine):
    @initialize(config=CONFIGS, infos=st.lists(INFOS, max_size=5, unique_by=lambda i: i.name))
    def begin(self, config: PolicyConfig, infos: list[m.NodeInfo]) -> None:
        self.policy = JobPolicy(config)
        self.world = World(config)
        for info in infos:
            self.join(info)

    def feed(self, event: m.Event) -> list[m.Command]:
        was_ended, excluded = self.policy.ended, set(self.policy.roster.excluded)
        commands = self.policy.handle(event)
        for node in self.policy.roster.excluded.keys() - excluded - self.world.excluded:
            if "was slow" in self.policy.roster.excluded[node]:
                self.world.leave_out_slow(node)
        if was_ended:
            assert [type(command) for command in commands] in ([], [m.End])
        starts = of(m.Start, commands)
        if starts:
            assert self.world.prepare is not None
            assert {s.node for s in starts} == {p.node for p in self.world.prepare.places}
            assert {s.round for s in starts} == {len(self.world.started)}
            self.world.started.append(starts[0].round)
        for command in commands:
            self.world.obey(command)
        if self.policy.ended and not was_ended:
            assert not self.world.agents, "the end reaches every node that is there"
        return commands

    # --- what brings the job forward ------------------------------------------------------------

    @rule(info=INFOS)
    @precondition(goes_on)
    def join(self, info: m.NodeInfo) -> None:
        self.world.agents.setdefault(info.name, Agent())
        self.feed(m.NodeJoined(info))

    @rule()
    @precondition(goes_on)
    def go_on(self) -> None:
        """Whatever is waited for happens: nodes come, learn the table, stop."""
        match self.policy.state:
            case PolicyState.FORMING:
                self.world.quorum = True
                self.feed(m.QuorumRegained())
                for name in NAMES:
                    if name not in self.world.agents and self.policy.state is PolicyState.FORMING:
                        self.join(m.NodeInfo(name, 1, domain="x", group="1"))
                for name in ("pause", "last_call", "return"):
                    if self.policy.state is PolicyState.FORMING and name in self.world.timers:
                        self.fire(name)
            case PolicyState.PREPARING:
                self.accept()
            case PolicyState.STOPPING:
                for node, agent in list(self.world.agents.items()):
                    if agent.runs is not None:
                        self.stop_one(node)

    @rule()
    @precondition(lambda self: goes_on(self) and self.policy.state is PolicyState.PREPARING)
    def accept(self) -> None:
        assert self.world.prepare is not None
        self.feed(m.TableAccepted(self.world.prepare.round, "", 0))

    # --- what happens to nodes ------------------------------------------------------------------

    @rule(data=st.data())
    @precondition(lambda self: goes_on(self) and self.world.agents)
    def lose(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from(sorted(self.world.agents)))
        del self.world.agents[node]
        self.feed(m.NodeLost(node, f"node {node} is lost"))

    @rule(node=st.sampled_from(NAMES))
    @precondition(goes_on)
    def come_back(self, node: str) -> None:
        if node not in self.world.agents:
            assert self.feed(m.NodeReturns(node)) == []

    def pick(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(self.runners()))

    def runners(self) -> list[str]:
        return [node for node, agent in self.world.agents.items() if agent.runs is not None]

    @rule(data=st.data(), victim=st.booleans())
    @precondition(lambda self: self.runners())
    def fail(self, data: st.DataObject, victim: bool) -> None:
        self.feed(m.NodeFailed(self.pick(data), self.policy.round, "exit code 1", victim))

    @rule(data=st.data())
    @precondition(lambda self: self.runners())
    def suspect(self, data: st.DataObject) -> None:
        self.feed(m.HangSuspected(self.pick(data), self.policy.round))

    @rule(data=st.data())
    @precondition(lambda self: self.runners())
    def show(self, data: st.DataObject) -> None:
        self.feed(m.NodeEvidence(self.pick(data), self.policy.round, b"seen"))

    @rule(data=st.data(), times=st.sampled_from([b"", b"little", b"much", b"much", b"over"]))
    @precondition(lambda self: self.runners())
    def tell_times(self, data: st.DataObject, times: bytes) -> None:
        self.feed(m.NodeTimes(self.pick(data), self.policy.round, times))

    @rule(data=st.data())
    @precondition(lambda self: self.runners())
    def slow_for_long(self, data: st.DataObject) -> None:
        self.feed(m.NodeTimes(self.pick(data), self.policy.round, b"much"))
        if "slow" in self.world.timers:
            self.fire("slow")
        for node in self.runners():
            self.feed(m.NodeTimes(node, self.policy.round, b""))

    @rule(data=st.data())
    @precondition(lambda self: self.runners())
    def finish(self, data: st.DataObject) -> None:
        self.feed(m.NodeFinished(self.pick(data), self.policy.round))

    @rule(data=st.data(), ok=st.booleans(), seen=ITERATIONS, text=st.sampled_from(["", "why"]))
    @precondition(lambda self: self.runners())
    def stop(self, data: st.DataObject, ok: bool, seen: Iterations, text: str) -> None:
        self.stop_one(self.pick(data), ok, seen, text)

    def stop_one(
        self, node: str, ok: bool = False, seen: Iterations = NO_ITERATIONS, text: str = ""
    ) -> None:
        self.world.agents[node].runs = None
        self.feed(m.NodeStopped(node, self.policy.round, ok, (), seen, text))

    # --- what is rare ---------------------------------------------------------------------------

    @rule(
        data=st.data(),
        kind=st.sampled_from(["exclude", "unhealthy", "preempt", "shut down", "quorum", "timer"]),
        node=st.sampled_from(NAMES),
    )
    @precondition(goes_on)
    def something_rare(self, data: st.DataObject, kind: str, node: str) -> None:
        match kind:
            case "exclude" if node in self.runners():
                self.world.excluded.add(node)
                self.feed(m.ExclusionRequested(node, self.policy.round, ""))
            case "unhealthy":
                self.feed(m.NodeUnhealthy(node, self.policy.round, "no GPU"))
            case "preempt":
                number = data.draw(st.sampled_from([2, 15]))
                self.feed(m.Preempted(node, number, "a signal"))
            case "shut down" if node in self.runners() and self.policy.round > 1:
                self.feed(m.ShutdownRequested(node, self.policy.round, ""))
            case "quorum":
                self.world.quorum = not self.world.quorum
                there = self.world.quorum
                self.feed(m.QuorumRegained() if there else m.QuorumLost("nobody answers"))
            case "timer" if self.world.timers:
                self.fire(data.draw(st.sampled_from(sorted(self.world.timers))))

    @rule(
        kind=st.sampled_from(["restart", "exclude", "limits", "stop", "few"]),
        node=st.sampled_from(NAMES),
        save=st.booleans(),
    )
    @precondition(goes_on)
    def somebody_orders(self, kind: str, node: str, save: bool) -> None:
        number, by = self.policy.round, "a person"
        match kind:
            case "restart":
                self.feed(m.RestartOrdered(node, number, by, save))
            case "exclude":
                ended = self.policy.ended
                self.feed(m.ExclusionOrdered("a", number, node, by, save))
                assert self.policy.ended == ended, "a person may be wrong"
            case "stop" if number > 1:
                self.feed(m.StopOrdered(node, number, by, save))
            case "few":
                self.feed(m.StopOrdered(node, number, by, few="no other can come"))
            case "limits":
                self.feed(m.LimitsOrdered(node, number, {"heartbeat": 9.0}, by))

    def fire(self, name: str) -> None:
        timer = self.world.timers.pop(name)
        if name == "stop" and timer.round == self.upcoming:
            for agent in self.world.agents.values():
                agent.runs = None  # gives up nodes on which something may run
        self.feed(m.TimerFired(name, timer.round))

    @rule()
    @precondition(lambda self: self.policy.running)
    def take_over(self) -> None:
        """Another leader goes on with what survives the old one."""
        old, agents = self.policy, self.world.agents
        here = old.roster.here
        self.policy = JobPolicy.restored(
            self.world.config,
            round=old.round,
            nodes=[
                msgspec.structs.replace(
                    here.get(place.node) or m.NodeInfo(place.node, 1), slots=place.slots
                )
                for place in old.places
            ],
            memory=old.memory,
        )
        assert self.policy.places == old.places
        self.world.timers.clear()
        self.world.quorum = True
        members = [place.node for place in old.places]
        for node in list(agents):
            if node not in members:
                self.feed(m.NodeJoined(here[node]))
        for node in agents.keys() & set(members):
            agents[node].runs = old.round  # what it has reported will be reported again
        self.world.missing = {node for node in members if node not in agents}
        for node in sorted(self.world.missing):
            self.feed(m.NodeLost(node, f"node {node} has not come back"))
            self.world.missing.discard(node)

    @rule(node=st.sampled_from(NAMES), number=st.integers(-1, 9))
    def something_stale(self, node: str, number: int) -> None:
        if number == self.policy.round:
            return
        for event in (
            m.NodeFailed(node, number, "late"),
            m.HangSuspected(node, number),
            m.NodeEvidence(node, number),
            m.NodeFinished(node, number),
            m.NodeStopped(node, number),
            m.ExclusionRequested(node, number, ""),
            m.ShutdownRequested(node, number, ""),
            m.RestartOrdered(node, number, ""),
        ):
            assert self.feed(event) == []

    @rule(info=INFOS)
    @precondition(lambda self: self.policy.ended)
    def join_too_late(self, info: m.NodeInfo) -> None:
        assert self.policy.ending is not None
        (end,) = self.feed(m.NodeJoined(info))
        assert isinstance(end, m.End)
        assert end.outcome is self.policy.ending.outcome
        assert self.feed(m.NodeLost(info.name, "x")) == []
        assert self.feed(m.Preempted(info.name, 15, "SIGTERM")) == []

    # --- always -----------------------------------------------------------------------------------

    @invariant()
    def the_budget_holds(self) -> None:
        if hasattr(self, "policy"):
            assert 0 <= self.policy.restarts_used <= self.world.config.max_restarts

    @invariant()
    def a_restart_counts_until_its_timer_runs_out(self) -> None:
        if not hasattr(self, "policy"):
            return
        recent, limit = self.policy.intensity.recent, self.policy.config.restart_intensity
        assert len(recent) <= (limit[0] if limit else 0)
        assert {f"forget {number}" for number in recent} <= self.world.timers.keys()

    @invariant()
    def what_runs_is_one_round(self) -> None:
        if not hasattr(self, "policy"):
            return
        rounds = {agent.runs for agent in self.world.agents.values()} - {None}
        assert rounds <= {self.policy.round}
        if self.policy.state in {PolicyState.FORMING, PolicyState.PREPARING, PolicyState.ENDED}:
            assert not rounds

    @invariant()
    def whoever_waits_has_a_timer(self) -> None:
        """Every wait for others has a deadline, as soon as anybody is there."""
        if not hasattr(self, "policy"):
            return
        if not self.world.agents:
            return
        names = {timer.name for timer in self.world.timers.values() if timer.round == self.upcoming}
        match self.policy.state:
            case PolicyState.FORMING:
                assert names & {"join", "last_call", "pause"}
            case PolicyState.PREPARING:
                assert "prepare" in names
            case PolicyState.STOPPING:
                assert "stop" in names
            case PolicyState.RUNNING if self.policy.last.examination is not None:
                assert "evidence" in names or self.policy.last.examination.over

    @property
    def upcoming(self) -> int:
        forming = self.policy.state in {PolicyState.FORMING, PolicyState.PREPARING}
        return self.policy.round + forming


def test_whatever_arrives() -> None:
    run_state_machine_as_test(
        AnyJob, settings=settings(max_examples=40, stateful_step_count=40, deadline=None)
    )
