from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.coordinator.lead.seats import LISTENS, ledger, table
from undaunted.coordinator import protocol as p
from undaunted.coordinator.lead import messages as c
from undaunted.coordinator.lead.leader import ENDED_TIMES, Leader, LeaderState
from undaunted.coordinator.lead.tables import Tables
from undaunted.coordinator.lead.times import LINGER_S
from undaunted.coordinator.policy import messages as m
from undaunted.coordinator.policy.config import PolicyConfig

if TYPE_CHECKING:
    from types import UnionType

S = 1_000_000_000
EPOCH = 10


class Harness:
    """A leader on node a, with a clock, and what it has said on each link."""

    def __init__(
        self,
        *,
        known: p.Ledger | None = None,
        lost: str = "",
        store: bool = False,
        disk: bool = True,
        attempt: int = 0,
        stops_s: float = 0.0,
        **config: object,
    ) -> None:
        """``disk``: what is to be written down is, at once, where that is no matter of etcd."""
        self.disk = disk and not store
        policy = {"min_nodes": 3, "max_nodes": 4, "max_restarts": 3, **config}
        about = c.LeaderConfig(
            run_id="job",
            policy=PolicyConfig(**policy),
            node="a",
            incarnation="a1",
            takeover=not store,
            store=store,
            attempt=attempt,
        )
        self.leader = Leader(about, known or p.Ledger(run_id=""), EPOCH, lost, (), stops_s)
        self.now = 1000 * S
        self.timers: dict[str, tuple[int, int]] = {}
        self.said: dict[int, list[p.Message]] = {}
        self.out: list[c.LeaderCommand] = []
        self.links: dict[str, int] = {}
        self.last_link = 0
        self.handle(c.Begin())

    def handle(self, event: c.LeaderEvent) -> list[c.LeaderCommand]:
        commands = self.leader.handle(event, self.now)
        self.out += commands
        for command in commands:
            match command:
                case c.SetTimer():
                    due = self.now + round(command.delay_s * S)
                    self.timers[command.name] = (due, command.round)
                case c.Send(link=link, message=message):
                    self.said.setdefault(link, []).append(message)
                case c.Persist(ledger=ledger) if self.disk:
                    written = self.handle(c.Persisted(ledger.version))
                    commands = [*commands, *written]
                case c.Close(link=link):
                    self.links = {node: each for node, each in self.links.items() if each != link}
        return commands

    def pass_time(self, seconds: float, *, alive: str = "") -> None:
        """Let timers fire; nodes of ``alive`` renew every second."""
        end = self.now + round(seconds * S)
        renewal = self.now + S
        while True:
            due = [(at, name) for name, (at, _) in self.timers.items()]
            if alive:
                due.append((renewal, ""))
            at, name = min(due, default=(end + 1, ""))
            if at > end:
                self.now = end
                return
            self.now = max(self.now, at)
            if name:
                _, number = self.timers.pop(name)
                self.handle(c.TimerFired(name, number))
                continue
            renewal += S
            for node in alive:
                if node in self.links:
                    self.say(node, p.Renew(epoch=self.leader.epoch))

    # --- what followers do ----------------------------------------------------------------------

    def hello(
        self, node: str, *, incarnation: str = "", follows: bool = True, **changes: object
    ) -> int:
        """Introduce a node, which says at once that it follows."""
        self.last_link += 1
        about = {
            "node": node,
            "incarnation": incarnation or f"{node}1",
            "slots": 2,
            "address": LISTENS.format(node),
        }
        self.links[node] = self.last_link
        hello = p.Hello(**{**about, **changes})
        self.handle(c.Received(self.last_link, hello))
        if follows and node in self.links and self.heard(node, p.Welcome):
            about = {"round": changes.get("round", -1), "epoch": self.leader.epoch}
            self.say(node, p.Renew(**about))
        return self.last_link

    def say(self, node: str, message: p.Message) -> list[c.LeaderCommand]:
        return self.handle(c.Received(self.links[node], message))

    def prepared(self, nodes: str) -> None:
        for node in nodes:
            order, known = self.heard(node, p.PrepareOrder)[-1], self.learnt(node)
            assert known.version == order.version
            first = next(s for s in known.pending if s.group_rank == 0)
            mine = node == first.node
            self.say(
                node,
                p.Prepared(
                    epoch=self.leader.epoch,
                    version=order.version,
                    round=known.pending_round,
                    master_addr="host" if mine else "",
                    master_port=7777 if mine else 0,
                ),
            )

    def report(self, node: str, kind: type, number: int, **about: object) -> None:
        if kind is not m.Preempted:
            about = {"round": self.leader.ledger.round, **about}
        self.say(node, p.Report(number=number, event=kind(node=node, **about)))

    def heard(self, node: str, kind: type | UnionType) -> list[Any]:
        """Messages of a type, or commands of the policy that came with orders."""
        said = self.said.get(self.links[node], [])
        commands = [each.command for each in said if isinstance(each, p.Order)]
        return [each for each in (*said, *commands) if isinstance(each, kind)]

    def orders(self, node: str, kind: type) -> list[p.Order]:
        return [each for each in self.heard(node, p.Order) if isinstance(each.command, kind)]

    def learnt(self, node: str) -> p.Ledger:
        """The ledger as that follower knows it."""
        tables = Tables()
        ledgers = [tables.filled(each) for each in self.heard(node, p.Learn)]
        assert ledgers[-1] is not None
        return ledgers[-1]

    def lose(self, node: str, reason: str = "reset") -> None:
        self.handle(c.Closed(self.links.pop(node), reason))

    def remarks(self, node: str) -> str:
        return "\n".join(each.text for each in self.heard(node, m.Say))

    # --- ways -----------------------------------------------------------------------------------

    def running(self, nodes: str = "abc") -> Harness:
        for node in nodes:
            self.hello(node)
        self.pass_time(3, alive=nodes)
        self.prepared(nodes[:3])
        assert self.leader.ledger.running
        return self

    def stop_all(self, nodes: str, number: int) -> None:
        for node in nodes:
            self.report(node, m.NodeStopped, number)


def test_first_round_begins_when_enough_have_acknowledged():
    harness = Harness()
    for node in "abc":
        harness.hello(node)
        assert harness.heard(node, p.Welcome)[0].epoch == EPOCH
    harness.pass_time(3, alive="abc")
    harness.prepared("ab")
    assert not harness.heard("a", m.Start)
    harness.prepared("c")
    starts = [harness.heard(node, m.Start)[0] for node in "abc"]
    assert {(each.master_addr, each.master_port) for each in starts} == {("host", 7777)}
    prepared = harness.learnt("b")
    changes = [order.change for node in "abc" for order in harness.orders(node, m.Start)]
    assert {each.prepared for each in changes} == {prepared.version}
    known = p.started(prepared, changes[0].version)
    assert known == harness.leader.ledger
    assert [seat.node for seat in known.table] == ["a", "b", "c"]
    assert (known.round, known.running, known.fenced) == (0, True, True)


def test_the_first_round_of_fewer_than_max_waits_until_a_leader_elsewhere_has_asked():
    harness = Harness()
    for node in "abc":
        harness.hello(node)
    harness.pass_time(2.5, alive="abc")
    assert not harness.heard("a", p.PrepareOrder)
    harness.hello("d")
    assert harness.heard("a", p.PrepareOrder), "nobody else can be in the job"


@pytest.mark.parametrize("epoch", [EPOCH - 1, EPOCH + 1])
def test_a_launcher_of_another_start_deposes_nobody_and_is_told_to_end(epoch):
    harness = Harness().running()
    other = ledger("axy", birth=99, round=7, epoch=epoch)
    link = harness.hello("x", ledger=other, round=7, running=True, promised=epoch)
    (refused,) = harness.said[link]
    assert not refused.final, "perhaps its own job elects a leader"
    harness.pass_time(20, alive="abc")
    link = harness.hello("x", ledger=other, round=7, promised=epoch)
    (refused,) = harness.said[link]
    assert refused.final
    assert harness.leader.state is LeaderState.LEADING


def test_a_launcher_of_an_earlier_attempt_is_told_to_end_though_members_have_no_votes():
    harness = Harness(attempt=2)
    left = ledger("ab", birth=99, round=7, epoch=EPOCH - 1, committee=(), fenced=False)
    (refused,) = harness.said[harness.hello("b", incarnation="b0", ledger=left)]
    assert refused.final
    for node in "abc":
        harness.hello(node)
    assert harness.learnt("b").attempt == 2


def test_a_launcher_of_another_start_does_not_take_the_name_of_one_of_this_start():
    harness = Harness()
    left = ledger("abc", birth=99, round=7, epoch=EPOCH + 1)
    harness.hello("b", incarnation="b0", ledger=left)
    for node in "abc":
        harness.hello(node)
        assert harness.heard(node, p.Welcome)
    harness.pass_time(20, alive="abc")
    harness.prepared("abc")
    assert harness.heard("b", m.Start)


def test_a_spare_learns_the_table():
    harness = Harness().running("abcd")
    assert not harness.heard("d", m.Start)
    assert harness.learnt("d") == harness.leader.ledger
    assert harness.leader.ledger.running


def test_a_failure_stops_all_and_starts_again():
    harness = Harness().running()
    harness.report("b", m.NodeFailed, 1, detail="rank 2: exit code 1")
    stops = [harness.heard(node, m.Stop)[0] for node in "abc"]
    assert {each.round for each in stops} == {0}
    assert harness.orders("a", m.Stop)[0].change.restarts_used == 1
    assert not harness.leader.ledger.running
    assert harness.heard("b", p.Beat)[-1].acknowledged == 1
    harness.stop_all("ac", 1)
    harness.report("b", m.NodeStopped, 2)
    harness.prepared("abc")
    assert harness.heard("c", m.Start)[-1].round == 1


def test_reports_that_come_twice_count_once():
    harness = Harness(max_restarts=1).running()
    for _ in range(3):
        harness.report("b", m.NodeFailed, 1, detail="x")
    assert harness.leader.policy.restarts_used == 1
    assert harness.leader.state is LeaderState.LEADING


def test_a_restart_sends_no_table_to_nodes_that_have_it():
    harness = Harness().running("abc")
    harness.report("b", m.NodeFailed, 1, detail="x")
    harness.stop_all("ac", 1)
    harness.stop_all("b", 2)
    harness.prepared("abc")
    for node in "abc":
        prepares = [each for each in harness.heard(node, p.Learn) if each.pending]
        assert [each.ledger.table + each.ledger.pending for each in prepares] == [()]
    assert harness.leader.ledger.round == 1


@pytest.mark.parametrize("knows", [False, True])
def test_a_node_that_comes_back_gets_the_table_unless_it_names_it(knows: bool):
    harness = Harness().running("abc")
    known = harness.leader.ledger
    harness.lose("c")
    tables = Tables().of(known) if knows else ()
    harness.hello("c", ledger=p.brief(known), brief=True, tables=tables, round=0)
    learnt = harness.heard("c", p.Learn)[0]
    assert (learnt.ledger.table == known.table) == (not knows)
    assert (learnt.table in tables) == knows


def test_a_reset_is_noticed_at_once_and_a_spare_takes_the_place():
    harness = Harness().running("abcd")
    harness.lose("c")
    assert "node c is lost: reset" in harness.heard("a", m.Stop)[0].reason
    harness.stop_all("ab", 1)
    harness.prepared("abd")
    assert {s.node for s in harness.leader.ledger.table} == {"a", "b", "d"}
    assert harness.leader.ledger.round == 1


def test_silence_is_noticed_after_the_lease():
    harness = Harness().running()
    harness.pass_time(4.9, alive="ab")
    assert not harness.heard("a", m.Stop)
    harness.pass_time(2, alive="ab")
    assert "nothing was heard of it for 5 s" in harness.heard("a", m.Stop)[0].reason
    assert "c" not in harness.links


@pytest.mark.parametrize("answered", [True, False])
def test_a_node_may_say_what_was_answered_with_its_next_renewal(answered: bool) -> None:
    """It is lost where it hears no answer, though it is heard."""
    harness = Harness().running()
    first = before = harness.now
    for _ in range(5):
        said = before if answered else first
        harness.say("c", p.Renew(epoch=EPOCH, sent=harness.now, round=0, answered=said))
        before = harness.now
        harness.pass_time(1.6, alive="ab")
    assert ("c" in harness.links) == answered


def test_one_that_lost_a_leader_which_stood_still_keeps_its_place():
    harness = Harness().running()
    harness.hello("d")
    harness.pass_time(1, alive="abcd")
    harness.report("b", m.NodeFailed, 1, detail="x")
    harness.now += 4 * S
    harness.lose("c", "end of file")
    for node in "ab":
        harness.report(node, m.NodeStopped, 2)
    harness.pass_time(1, alive="abd")
    assert not harness.leader.ledger.pending, "a spare is there, and waits"
    harness.hello("c", round=0, promised=1)
    assert {seat.node for seat in harness.leader.ledger.pending} == {"a", "b", "c"}


def test_all_that_stood_still_together_go_on():
    harness = Harness().running()
    harness.now += 60 * S
    harness.pass_time(0)
    harness.pass_time(20, alive="abc")
    assert len(harness.links) == 3
    assert not any(harness.heard(node, m.Stop) for node in "abc")
    harness.pass_time(7, alive="ab")
    assert harness.heard("a", m.Stop), "a lease later who is lost is lost"


def test_who_missed_a_leader_that_stood_still_hears_that_the_job_has_ended():
    harness = Harness(min_nodes=2, max_nodes=2, max_restarts=0).running("ab")
    harness.now += 15 * S
    harness.pass_time(0)
    assert harness.leader.state is LeaderState.LEADING, "they may have stood still as well"
    harness.pass_time(12)
    assert harness.leader.state is LeaderState.ENDED
    assert not harness.links
    assert c.Done() not in harness.out
    for node in "ab":
        harness.hello(node, round=0, running=True, promised=EPOCH)
    assert all(harness.heard(node, m.Stop) for node in "ab")


def lost_as_the_leader_stood_still(harness: Harness, *nodes: str) -> None:
    """A minute later the leader goes on, and first finds that these have closed connections."""
    harness.now += 60 * S
    for node in nodes:
        harness.lose(node, "end of file")


def test_a_leader_that_stood_still_starts_nothing_on_what_was_said_before():
    harness = Harness()
    for node in "abc":
        harness.hello(node)
    harness.pass_time(3, alive="abc")
    harness.prepared("ab")
    harness.now += 6 * S
    harness.prepared("c")
    assert not harness.heard("a", m.Start), "c has said so before, perhaps"
    harness.pass_time(3, alive="abc")
    assert harness.heard("a", m.Start), "all stood still"


def test_a_leader_that_stood_still_does_not_blame_those_that_have_gone_on_without_it():
    harness = Harness(max_restarts=0).running()
    lost_as_the_leader_stood_still(harness, "b", "c")
    (stop,) = harness.heard("a", m.Stop)
    assert "stood still for 1 min 00 s" in stop.reason
    assert not {"node b is lost", "node c is lost"} & set(stop.reason.split(":"))
    assert "b" not in {each.node for each in harness.heard("a", m.Blamed)}


def test_a_leader_that_stood_still_decides_nothing_before_it_knows_whether_it_leads():
    harness = Harness(max_restarts=0).running()
    lost_as_the_leader_stood_still(harness, "b")
    assert not harness.heard("a", m.Decided), "a and c may be left of the committee"
    asked = [each.address for each in harness.out if isinstance(each, c.Ask)]
    assert LISTENS.format("b") in asked
    about = {"node": "b", "incarnation": "b1", "epoch": EPOCH + 1, "lost": False}
    answer = p.MissAnswer(**about, leader="c:1", round=0, ledger_epoch=EPOCH + 1)
    harness.handle(c.Answered("b", answer))
    assert harness.leader.state is LeaderState.DEPOSED
    assert not [each for each in harness.said[harness.last_link] if isinstance(each, m.Decided)]


def test_a_leader_that_stood_still_and_still_leads_decides_about_what_has_happened_since():
    harness = Harness(max_restarts=0).running()
    lost_as_the_leader_stood_still(harness, "b")
    for node in "ac":
        harness.say(node, p.Renew(epoch=EPOCH))
    assert "node b is lost" in harness.heard("a", m.Stop)[0].reason


def of_two(**config: object) -> Harness:
    """A job of two nodes, so that nobody can replace its leader, which has stood still."""
    harness = Harness(min_nodes=2, max_nodes=2, **config).running("ab")
    harness.now += 20 * S
    harness.lose("b", "end of file")
    return harness


def test_who_comes_back_to_a_leader_that_stood_still_and_nobody_could_replace_goes_on():
    harness = of_two(max_restarts=0)
    harness.pass_time(2, alive="a")
    harness.hello("b", round=0, running=True, promised=EPOCH)
    harness.pass_time(20, alive="ab")
    assert not any(harness.heard(node, m.Stop | m.Decided) for node in "ab")
    for node in "ab":
        (said,) = harness.heard(node, m.Say)
        assert "node a" in said.text
        assert "stood still for 20.0 s" in said.text


def test_who_does_not_come_back_to_a_leader_that_stood_still_is_not_to_blame():
    harness = of_two()
    harness.pass_time(9, alive="a")
    assert not harness.heard("a", m.Stop)
    harness.pass_time(2, alive="a")
    (stop,) = harness.heard("a", m.Stop)
    assert "node a" in stop.reason
    harness.report("a", m.NodeStopped, 1)
    (blamed,) = harness.heard("a", m.Blamed)
    assert (blamed.node, blamed.lost, blamed.paused) == ("a", False, True)


def test_a_leader_that_stands_still_again_and_again_decides_all_the_same():
    harness = of_two()
    for _ in range(12):
        harness.pass_time(1.9, alive="a")
        harness.now += 4 * S
    assert harness.heard("a", m.Stop)


def test_who_has_stopped_its_ranks_since_the_leader_stood_still_is_not_to_blame():
    harness = of_two()
    harness.hello("b", round=0, running=True, promised=EPOCH, follows=False)
    about = {"detail": "the coordinator is gone", "victim": True, "cut_off": True}
    harness.report("b", m.NodeFailed, 1, **about)
    harness.pass_time(2, alive="ab")
    assert harness.heard("b", m.Stop), "what is left of its round is stopped"
    for node, number in (("a", 1), ("b", 2)):
        harness.report(node, m.NodeStopped, number)
    (blamed,) = harness.heard("a", m.Blamed)
    assert (blamed.node, blamed.victims) == ("a", ())
    assert "b had lost the coordinator as well" in blamed.line
    harness.prepared("ab")
    assert harness.heard("b", m.Start)[-1].round == 1


def test_who_stops_its_ranks_before_its_loss_is_decided_about_joins_after_it():
    harness = of_two()
    harness.hello("b", round=0, running=True, promised=EPOCH, follows=False)
    harness.report("b", m.NodeFailed, 1, detail="the coordinator is gone", victim=True)
    harness.report("b", m.NodeStopped, 2)
    harness.pass_time(2, alive="ab")
    harness.report("a", m.NodeStopped, 1)
    harness.prepared("ab")
    assert harness.heard("b", m.Start)[-1].round == 1


def test_a_leader_that_stood_still_starts_nothing_before_a_loss_is_decided_about():
    harness = Harness(min_nodes=2, max_nodes=2)
    for node in "ab":
        harness.hello(node)
    harness.prepared("b")
    harness.now += 20 * S
    harness.lose("b", "end of file")
    harness.hello("b", promised=EPOCH, follows=False)
    harness.say("a", p.Renew(epoch=EPOCH))
    harness.prepared("a")
    assert not harness.heard("a", m.Start), "b may be another launcher, which knows no table"
    harness.pass_time(2, alive="ab")
    harness.prepared("ab")
    assert harness.heard("a", m.Start)


def test_a_leader_that_stood_still_and_hears_that_the_job_had_begun_forgets_nothing_of_it():
    """Its disk was lost, so that it took the job for a new one; what was ordered holds for it."""
    harness = Harness(min_nodes=2, max_nodes=2)
    harness.hello("a")
    harness.now += 20 * S
    harness.report("a", m.LimitsOrdered, 1, limits={"step": 60.0}, by="somebody")
    about = {"leader": "a", "excluded": {"d": "bad NIC"}, "history": b"failures"}
    known = ledger("bc", round=4, restarts_used=1, **about)
    harness.hello("b", round=4, ledger=known)
    harness.pass_time(30, alive="ab")
    knows = harness.leader.ledger
    assert knows.pending_round == 5
    assert (knows.excluded, knows.history) == ({"d": "bad NIC"}, b"failures")
    assert (knows.restarts_used, knows.limits.limits) == (2, {"step": 60.0})


def test_one_that_is_lost_long_after_the_leader_stood_still_is_replaced():
    harness = Harness().running()
    harness.hello("d")
    harness.now += 4 * S
    harness.pass_time(2, alive="abcd")
    harness.lose("c", "end of file")
    for node in "ab":
        harness.report(node, m.NodeStopped, 1)
    assert {seat.node for seat in harness.leader.ledger.pending} == {"a", "b", "d"}


def test_orders_are_sent_again_to_one_that_has_not_seen_them():
    harness = Harness().running()
    last = harness.orders("b", m.Start)[0].number
    harness.report("a", m.NodeFailed, 1, detail="x")
    before = harness.links["b"]
    harness.hello("b", round=0, running=True, last_order=last, promised=EPOCH)
    assert c.Close(before) in harness.out
    assert len(harness.heard("b", m.Stop)) == 1
    assert not harness.heard("b", m.Start)


def test_a_node_that_comes_back_is_stopped_before_it_is_a_candidate():
    harness = Harness().running("abcd")
    harness.lose("c")
    harness.hello("c", round=0, running=True, promised=EPOCH)
    stop = harness.heard("c", m.Stop)[0]
    assert stop.round == 0
    harness.stop_all("ab", 1)
    harness.report("c", m.NodeStopped, 1)
    harness.pass_time(0.5, alive="abcd")
    nodes = {seat.node for seat in harness.leader.ledger.pending}
    assert len(nodes) == 3
    assert {"a", "b"} < nodes


def test_one_that_was_excluded_hears_of_it_though_its_connection_breaks_and_a_round_follows():
    harness = Harness().running("abcd")
    harness.report("b", m.ExclusionRequested, 1, description="bad NIC")
    for node in "abc":
        harness.report(node, m.NodeStopped, 2)
    harness.hello("b", round=0, promised=EPOCH)
    assert harness.heard("b", m.End)[0].outcome is m.Outcome.EXCLUDED


def test_all_learn_who_is_excluded_though_the_round_goes_on_and_know_it_with_a_table():
    harness = Harness().running("abcd")
    harness.report("a", m.ExclusionOrdered, 1, target="d", by="somebody")
    assert [list(harness.learnt(node).excluded) for node in "abc"] == [["d"]] * 3
    assert harness.leader.ledger.running
    harness.report("c", m.NodeFailed, 1, detail="x")
    harness.leader.policy.history = b"what failed"
    harness.stop_all("abc", 2)
    known = harness.learnt("b")
    assert (known.pending_round, list(known.excluded), known.history) == (1, ["d"], b"what failed")


def test_its_place_is_kept_for_it_while_it_stops():
    harness = Harness().running("abcd")
    harness.lose("c")
    harness.hello("c", round=0, running=True, promised=EPOCH)
    harness.stop_all("ab", 1)
    assert harness.leader.ledger.pending_round == 0
    harness.report("c", m.NodeStopped, 1)
    harness.prepared("abc")
    assert {seat.node for seat in harness.leader.ledger.table} == {"a", "b", "c"}


def test_a_second_agent_of_a_node_waits_for_the_end_of_the_first():
    harness = Harness().running()
    first = harness.links["b"]
    harness.hello("b", incarnation="b2")
    refused = harness.said[harness.last_link][0]
    assert "node b has an agent already" in refused.reason
    assert "--node-name" in refused.reason
    assert refused.taken
    assert not refused.final
    harness.links["b"] = first
    harness.lose("b")
    harness.hello("b", incarnation="b2")
    assert harness.heard("b", p.Welcome)


def test_a_start_needs_a_majority_of_the_committee():
    harness = Harness(min_nodes=1, max_nodes=3, elastic=True)
    harness.running("abc")
    harness.lose("b")
    harness.lose("c")
    harness.stop_all("a", 1)
    assert len(harness.heard("a", m.Start)) == 1
    harness.pass_time(10, alive="a")
    said = harness.remarks("a")
    assert "1 of the 3 launchers" in said
    assert "2 are needed (missing: b, c)" in said
    harness.hello("c", round=0, running=False, promised=EPOCH)
    harness.pass_time(10.1, alive="ac")
    harness.prepared("ac")
    assert harness.leader.ledger.round == 1


def test_without_votes_a_leader_waits_until_the_old_world_is_over():
    known = ledger("b", leader="", committee=(), fenced=False, running=True)
    harness = Harness(known=known, min_nodes=1, max_nodes=1)
    harness.hello("x")
    harness.pass_time(12, alive="x")
    harness.prepared("x")
    assert not harness.heard("x", m.Start)
    harness.pass_time(70, alive="x")
    if not harness.heard("x", m.Start):
        harness.prepared("x")
    assert harness.heard("x", m.Start)[0].round == 1


def test_later_agents_of_the_nodes_go_on_where_the_earlier_ones_ended():
    known = ledger("abc", round=7, restarts_used=1, committee=(), fenced=False)
    harness = Harness(known=known)
    for node in "abc":
        harness.hello(node, incarnation=f"{node}2")
    harness.pass_time(12, alive="abc")
    harness.prepared("abc")
    assert harness.heard("a", m.Start)[0].round == 8
    assert harness.leader.ledger.restarts_used == 2


def test_every_old_member_is_waited_for_before_the_next_round():
    known = ledger("bc", committee=(), fenced=False, leader="")
    harness = Harness(known=known, min_nodes=1, max_nodes=2)
    harness.hello("b", round=0, running=False, ledger=known)
    harness.pass_time(11, alive="b")
    harness.prepared("b")
    assert not harness.heard("b", m.Start), "nobody knows whether c still runs"
    harness.hello("c", incarnation="c2")
    harness.pass_time(2, alive="bc")
    assert harness.heard("b", m.Start)[0].round == 1


def test_a_restarted_leader_leaves_healthy_ranks_alone():
    known = ledger("abc")
    harness = Harness(known=known)
    for node in "abc":
        harness.hello(node, round=0, running=True, ledger=known, promised=1)
    assert harness.leader.state is LeaderState.LEADING
    harness.pass_time(30, alive="abc")
    assert not harness.heard("a", m.Stop)
    harness.report("b", m.NodeFailed, 1, detail="x")
    assert harness.heard("a", m.Stop)[0].round == 0


def test_a_restarted_leader_misses_who_does_not_come_back():
    known = ledger("abc", restarts_used=1)
    harness = Harness(known=known, min_nodes=2)
    for node in "ab":
        harness.hello(node, round=0, running=True, ledger=known, promised=1)
    harness.pass_time(9, alive="ab")
    assert not harness.heard("a", m.Stop)
    harness.pass_time(2, alive="ab")
    assert "node c is lost" in harness.heard("a", m.Stop)[0].reason
    assert harness.leader.policy.restarts_used == 2


def test_a_restarted_leader_whose_own_agent_was_started_again_as_well():
    known = ledger("abc")
    harness = Harness(known=known)
    harness.hello("a", incarnation="a2")
    for node in "bc":
        harness.hello(node, round=0, running=True, ledger=known, promised=1)
    harness.pass_time(11, alive="abc")
    reason = harness.heard("b", m.Stop)[0].reason
    assert reason == "node a is lost: its launcher was started again"


def test_reports_that_come_while_it_recovers_are_not_lost():
    known = ledger("abc")
    harness = Harness(known=known)
    for node in "ab":
        harness.hello(node, round=0, running=True, ledger=known, promised=1)
    harness.report("b", m.NodeFailed, 1, detail="rank 3: exit code 9")
    assert not harness.heard("a", m.Stop)
    harness.hello("c", round=0, running=True, ledger=known, promised=1)
    assert "exit code 9" in harness.heard("a", m.Stop)[0].reason


def test_one_of_an_older_round_that_stops_while_it_recovers_is_a_candidate():
    known = ledger("abc", epoch=1, round=4)
    harness = Harness(known=known)
    harness.hello("d", round=2, running=True, promised=1)
    assert [stop.round for stop in harness.heard("d", m.Stop)] == [2], "at once"
    harness.report("d", m.NodeStopped, 1, round=2)
    for node in "ab":
        harness.hello(node, round=4, running=True, ledger=known, promised=1)
    harness.pass_time(10.1, alive="abd")
    harness.stop_all("ab", 1)
    assert {seat.node for seat in harness.leader.ledger.pending} == {"a", "b", "d"}
    assert len({stop.number for stop in harness.orders("d", m.Stop)}) == 1


def test_a_takeover_starts_without_the_lost_leader():
    known = ledger("xab", leader="x")
    harness = Harness(known=known, lost="x", min_nodes=2)
    for node in "ab":
        harness.hello(node, round=0, running=True, ledger=known, promised=EPOCH)
    reason = harness.heard("a", m.Stop)[0].reason
    assert "node x is lost: it led the job, and the others cannot reach it" in reason
    harness.stop_all("ab", 1)
    harness.prepared("ab")
    assert {s.node for s in harness.leader.ledger.table} == {"a", "b"}


def test_the_number_of_a_round_that_another_leader_has_prepared_is_not_used_again():
    known = ledger("xab", leader="x", pending_round=1, pending=table("xab"))
    harness = Harness(known=known, lost="x", min_nodes=2)
    for node in "ab":
        harness.hello(node, round=0, running=True, ledger=known, promised=EPOCH)
    harness.stop_all("ab", 1)
    harness.prepared("ab")
    assert harness.heard("a", m.Start)[0].round == 2
    assert harness.leader.policy.round == 2


def test_a_fresh_leader_learns_from_its_followers_that_a_job_has_begun():
    known = ledger("bcd", round=7, epoch=50, restarts_used=2, leader="", committee=(), fenced=False)
    harness = Harness()
    harness.hello("a")
    harness.hello("b", round=7, running=True, ledger=known, promised=50)
    assert harness.leader.state is LeaderState.RECOVERING
    assert harness.leader.epoch > 50
    for node in "cd":
        harness.hello(node, round=7, running=True, ledger=known, promised=50)
    assert harness.leader.policy.round == 7
    assert not harness.heard("b", m.Stop)
    assert harness.leader.policy.restarts_used == 2


def test_who_told_it_of_the_job_hears_of_a_later_round_that_others_tell_of():
    harness = Harness()
    harness.hello("d", ledger=ledger("abd", round=4, epoch=50, version=20), promised=50)
    assert harness.learnt("d").round == 4
    known = ledger("bce", round=5, epoch=50, version=22)
    harness.hello("b", round=5, running=True, ledger=known, promised=50)
    assert harness.learnt("d") == harness.learnt("b")
    assert harness.learnt("d").round == 5


def test_a_promise_to_a_later_epoch_is_answered_by_a_later_one():
    harness = Harness().running()
    last = 2 * EPOCH * p.ORDERS_PER_EPOCH
    harness.hello("b", round=0, running=True, promised=99, last_order=last)
    assert harness.leader.epoch > 99
    assert harness.heard("a", p.Welcome)[-1].epoch == harness.leader.epoch
    harness.report("c", m.NodeFailed, 1, detail="x")
    assert harness.orders("b", m.Stop)[-1].epoch == harness.leader.epoch
    assert harness.orders("b", m.Stop)[-1].number > (EPOCH + 1) * p.ORDERS_PER_EPOCH


def test_what_a_leader_knows_is_of_a_later_epoch_once_a_quorum_follows_under_that():
    """Others may have begun a round that it has not heard of: it must not pass for newer."""
    harness = Harness().running()
    known = harness.leader.ledger
    harness.hello("b", round=0, running=True, promised=99, ledger=known)
    assert harness.learnt("b").epoch == harness.leader.ledger.epoch == EPOCH
    later = msgspec.structs.replace(known, epoch=99, version=known.version + 2, round=1)
    assert p.newer(later, harness.learnt("b"))
    harness.say("a", p.Renew(epoch=EPOCH))
    assert harness.leader.ledger.epoch == EPOCH, "that does not count"
    harness.say("c", p.Renew(epoch=harness.leader.epoch))
    assert harness.leader.ledger.epoch == harness.leader.epoch > 99
    assert harness.learnt("a") == harness.learnt("b") == harness.leader.ledger


def test_no_table_is_prepared_before_that():
    harness = Harness().running()
    harness.hello("b", round=0, running=True, promised=99, follows=False)
    harness.report("c", m.NodeFailed, 1, detail="x")
    harness.stop_all("abc", 2)
    assert harness.leader.ledger.pending_round <= harness.leader.ledger.round
    for node in "ac":
        harness.say(node, p.Renew(epoch=harness.leader.epoch))
    assert harness.leader.ledger.pending_round == 1
    version = harness.leader.ledger.version
    assert all(harness.heard(node, p.PrepareOrder)[-1].version == version for node in "abc")


def test_a_leader_that_nobody_has_elected_leads_no_table_that_others_may_elect_from():
    known = ledger("bcd", round=4, epoch=5)
    harness = Harness()
    harness.hello("b", round=4, running=True, ledger=known, promised=5)
    assert (harness.leader.ledger.epoch, harness.leader.ledger.version) == (5, known.version)
    harness.hello("c", round=4, running=True, ledger=known, promised=5)
    assert harness.leader.ledger.epoch == harness.leader.epoch


def test_orders_that_may_have_been_refused_are_given_again_under_a_later_epoch():
    harness = Harness().running()
    harness.report("c", m.NodeFailed, 1, detail="x")
    assert len(harness.heard("a", m.Stop)) == 1
    harness.hello("b", round=0, running=True, promised=99)
    first, again = harness.orders("a", m.Stop)
    assert (first.epoch, again.epoch) == (EPOCH, harness.leader.epoch)
    assert first.number == again.number


def test_acknowledgements_of_an_earlier_table_do_not_count():
    harness = Harness()
    for node in "abc":
        harness.hello(node)
    harness.pass_time(3, alive="abc")
    order = harness.heard("a", p.PrepareOrder)[-1]
    late = p.Prepared(epoch=EPOCH, version=order.version - 1, round=0)
    for node in "abc":
        harness.say(node, late)
    assert not harness.heard("a", m.Start)


def test_a_late_acknowledgement_of_an_earlier_table_undoes_nothing():
    harness = Harness()
    for node in "abcd":
        harness.hello(node)
    harness.pass_time(1.5, alive="abcd")
    early = harness.heard("a", p.PrepareOrder)[-1].version
    harness.lose("c")
    harness.prepared("a")
    harness.say("a", p.Prepared(epoch=EPOCH, version=early, round=0))
    harness.prepared("bd")
    assert harness.leader.ledger.round == 0


def test_an_acknowledgement_that_was_lost_with_its_connection_is_asked_for_again():
    harness = Harness()
    for node in "abc":
        harness.hello(node)
    harness.pass_time(3, alive="abc")
    harness.prepared("ab")
    last = harness.heard("c", p.PrepareOrder)[-1].number
    harness.hello("c", last_order=last, promised=EPOCH)
    harness.prepared("c")
    assert harness.leader.ledger.round == 0


def test_all_stops_of_one_decision_have_one_version():
    harness = Harness().running()
    harness.report("b", m.NodeFailed, 1, detail="x")
    assert len({harness.orders(node, m.Stop)[0].change.version for node in "abc"}) == 1


def test_one_that_knows_of_a_later_round_ends_this_leader():
    harness = Harness().running()
    mine = harness.leader.ledger
    later = p.Ledger(run_id="job", epoch=EPOCH + 5, birth=mine.birth, round=1, table=mine.table)
    harness.hello("x", ledger=later, promised=EPOCH + 5)
    assert harness.leader.state is LeaderState.DEPOSED
    assert c.Done("") in harness.out


def test_one_of_an_earlier_start_of_the_job_does_not():
    harness = Harness().running()
    old = p.Ledger(run_id="job", epoch=3, birth=2, round=9)
    harness.hello("x", ledger=old, promised=3)
    assert harness.leader.state is LeaderState.LEADING


def test_members_that_are_not_here_are_asked_whom_they_follow():
    harness = Harness().running()
    harness.lose("c")
    harness.pass_time(2, alive="ab")
    assert {ask.node for ask in harness.out if isinstance(ask, c.Ask)} == {"c"}


def test_it_stands_down_for_an_earlier_leader_if_a_quorum_has_agreed_to_that_one_only():
    harness = Harness().running()
    answer = p.MissAnswer(
        node="c",
        incarnation="c1",
        epoch=50,
        lost=False,
        round=0,
        leader="host-b:1",
        ledger_epoch=50,
    )
    harness.lose("c")
    harness.hello("b", round=0, running=True, promised=99)
    assert harness.leader.epoch > 99
    harness.handle(c.Answered("c", answer))
    assert harness.leader.state is LeaderState.DEPOSED


def test_without_a_quorum_it_stays_if_the_other_leader_will_give_way():
    harness = Harness().running()
    answer = p.MissAnswer(
        node="c", incarnation="c1", epoch=3, lost=False, round=0, leader="host-b:1", ledger_epoch=3
    )
    harness.lose("b")
    harness.lose("c")
    harness.handle(c.Answered("c", answer))
    assert harness.leader.state is LeaderState.LEADING


def test_one_that_is_lost_while_preparing_is_replaced():
    harness = Harness()
    for node in "abcd":
        harness.hello(node)
    harness.pass_time(1.5, alive="abcd")
    harness.prepared("ab")
    harness.lose("c")
    harness.prepared("abd")
    assert {s.node for s in harness.leader.ledger.table} == {"a", "b", "d"}


def test_a_preparation_that_was_called_off_is_not_started():
    harness = Harness().running("abcd")
    harness.lose("c")
    harness.stop_all("ab", 1)
    harness.lose("b")
    assert "cannot go on" in harness.leader.policy.no_quorum
    harness.hello("c", round=0, running=True, promised=EPOCH)
    harness.hello("b", round=0, promised=EPOCH)
    assert not harness.leader.policy.no_quorum
    assert not harness.leader.policy.preparing, "c keeps its place while it stops"
    version = harness.leader.ledger.version
    for node in "abd":
        late = p.Prepared(epoch=EPOCH, version=version, round=1, master_addr="x", master_port=1)
        harness.say(node, late)
    assert harness.leader.ledger.round == 0
    harness.report("c", m.NodeStopped, 1)
    harness.prepared("abc")
    assert harness.leader.ledger.round == 1


def test_stands_down_for_a_later_leader():
    harness = Harness().running()
    harness.lose("b")
    harness.lose("c")
    answer = p.MissAnswer(
        node="c",
        incarnation="c1",
        epoch=99,
        lost=False,
        round=0,
        leader="host-b:1",
        ledger_epoch=EPOCH,
    )
    harness.handle(c.Answered("c", answer))
    assert harness.out[-1] == c.Done("host-b:1")
    assert harness.said[1][-1].leader == "host-b:1"
    assert harness.handle(c.Received(1, p.Renew(epoch=EPOCH))) == []


@pytest.mark.parametrize(
    "answer",
    [
        p.MissAnswer(node="c", incarnation="c1", epoch=99, lost=True, round=0),
        p.MissAnswer(
            node="c", incarnation="c1", epoch=EPOCH, lost=False, round=0, leader="host-b:1"
        ),
        None,
    ],
)
def test_other_answers_change_nothing(answer):
    harness = Harness().running()
    assert harness.handle(c.Answered("c", answer)) == []


def test_the_end_reaches_everybody_and_the_leader_is_done():
    harness = Harness().running("abcd")
    for node in "abc":
        harness.report(node, m.NodeFinished, 1)
    for node in "abc":
        harness.report(node, m.NodeStopped, 2, all_ok=True)
    ends = {node: harness.heard(node, m.End)[0].outcome.value for node in "abcd"}
    assert set(ends.values()) == {"finished"}
    assert harness.leader.state is LeaderState.ENDED
    for node in "abc":
        harness.lose(node, "the job has ended")
    assert c.Done() not in harness.out
    harness.lose("d", "the job has ended")
    assert harness.out[-1] == c.Done()


def test_the_leader_does_not_wait_for_ever_for_one_that_does_not_hear_of_the_end():
    harness = Harness().running()
    for node in "abc":
        harness.report(node, m.NodeFinished, 1)
    for node in "abc":
        harness.report(node, m.NodeStopped, 2, all_ok=True)
    harness.pass_time(3.1)
    assert c.Done() in harness.out


def test_followers_of_the_leader_before_have_time_to_hear_of_the_end():
    known = ledger("xab", leader="x")
    harness = Harness(known=known, lost="x", min_nodes=2)
    for node in "ab":
        harness.hello(node, round=0, running=True, ledger=known, promised=EPOCH)
        harness.report(node, m.Preempted, 1, signal=15, signal_name="SIGTERM")
    harness.stop_all("ab", 2)
    assert harness.leader.state is LeaderState.ENDED
    for node in "ab":
        harness.lose(node, "the job has ended")
    harness.pass_time(9)
    assert c.Done() not in harness.out
    harness.hello("x", promised=EPOCH)
    assert harness.heard("x", m.End)[0].outcome is m.Outcome.PREEMPTED
    harness.pass_time(1.1)
    assert c.Done() in harness.out


def test_one_that_missed_the_end_hears_of_it_when_it_is_back():
    harness = Harness().running()
    for node in "abc":
        harness.report(node, m.NodeFinished, 1)
    harness.report("a", m.NodeStopped, 2, all_ok=True)
    harness.report("b", m.NodeStopped, 2, all_ok=True)
    harness.report("c", m.NodeStopped, 2, all_ok=True)
    harness.lose("c")
    harness.hello("c", round=0, running=False, promised=EPOCH)
    assert harness.heard("c", m.End)[0].outcome is m.Outcome.FINISHED


def ended_while_it_stood_still() -> Harness:
    """The leader has lost both nodes as it stood still; they are back, and stop their ranks."""
    harness = Harness(min_nodes=2, max_nodes=2, max_restarts=0).running("ab")
    harness.now += 17 * S
    harness.pass_time(12)
    assert harness.leader.state is LeaderState.ENDED
    for node in "ab":
        harness.hello(node, round=0, running=True, promised=EPOCH)
    return harness


def test_the_leader_stays_until_those_that_stop_their_ranks_have_heard_of_the_end():
    harness = ended_while_it_stood_still()
    harness.pass_time(40, alive="ab")
    assert c.Done() not in harness.out
    for node in "ab":
        harness.report(node, m.NodeStopped, 1)
        assert harness.heard(node, m.End)[0].outcome is m.Outcome.FAILED
    harness.pass_time(LINGER_S, alive="ab")
    assert c.Done() in harness.out


def test_the_leader_does_not_wait_for_ever_for_ranks_that_do_not_stop():
    harness = ended_while_it_stood_still()
    harness.pass_time(harness.leader.linger_s, alive="ab")
    assert c.Done() in harness.out


def test_a_shutdown_is_said_to_be_of_the_one_who_asked_for_it():
    harness = Harness().running()
    about = {"description": "not worth a restart", "by": "the attribution service"}
    harness.report("a", m.ShutdownRequested, 1, **about)
    stop = harness.heard("b", m.Stop)[0]
    assert stop.reason == (
        "the attribution service on node a asked for a shutdown: not worth a restart"
    )


def test_strangers_are_ignored():
    harness = Harness().running()
    assert harness.handle(c.Received(99, p.Renew(epoch=EPOCH))) == []
    assert harness.handle(c.Closed(99, "x")) == []
    of_another_node = p.Report(number=1, event=m.NodeFailed("b", 0, "x"))
    assert harness.say("a", of_another_node) == []
    assert harness.leader.state is LeaderState.LEADING


def test_a_node_that_renews_and_never_acknowledges_is_replaced():
    harness = Harness(join_timeout_s=20.0)
    for node in "abcd":
        harness.hello(node)
    harness.prepared("ac")
    harness.pass_time(21, alive="abcd")
    (end,) = harness.heard("b", m.End)
    assert end.outcome is m.Outcome.EXCLUDED
    harness.prepared("acd")
    assert [seat.node for seat in harness.leader.ledger.table] == ["a", "c", "d"]


# --- the committee, and silence -------------------------------------------------------------------


def two_rounds() -> Harness:
    """Round 1 of a, b and c has begun after one of a, b and x."""
    harness = Harness(known=ledger("abx"))
    for node in "abc":
        harness.hello(node, round=0, running=False, ledger=ledger("abx"))
    harness.pass_time(30, alive="abc")
    harness.prepared("abc")
    assert harness.heard("c", m.Start)
    return harness


def confirm(harness: Harness, nodes: str, **more: object) -> None:
    number = harness.leader.ledger.round
    for node in nodes:
        harness.say(node, p.Renew(epoch=harness.leader.epoch, round=number, **more))


def keepers(harness: Harness) -> str:
    return "".join(each.node for each in harness.leader.ledger.committee)


def take(harness: Harness, nodes: str) -> None:
    """Have nodes acknowledge the ledger that they were told last."""
    for node in nodes:
        order = harness.heard(node, p.PrepareOrder)[-1]
        known = p.Prepared(epoch=harness.leader.epoch, version=order.version, round=-1)
        harness.say(node, known)


def test_the_committee_goes_along_with_a_table_and_the_one_before_is_left_with_its_start() -> None:
    harness = two_rounds()
    assert set(keepers(harness)) == set("abc")
    assert not harness.leader.ledger.before


def test_a_member_that_is_gone_is_replaced_without_a_restart_once_a_majority_of_both_agrees():
    harness = two_rounds()
    confirm(harness, "abc")
    harness.hello("d")
    harness.hello("e")
    take(harness, "abc")
    harness.pass_time(2, alive="abcde")
    ledger = harness.leader.ledger
    assert (len(ledger.committee), len(ledger.before)) == (5, 3)
    take(harness, "ad")
    assert harness.leader.ledger.before, "two of five"
    take(harness, "e")
    assert harness.leader.ledger.before, "one of the three"
    take(harness, "b")
    assert not harness.leader.ledger.before
    assert (harness.leader.ledger.round, harness.leader.ledger.running) == (1, True)


def test_a_leader_without_a_majority_of_the_committee_stops_its_round() -> None:
    harness = two_rounds()
    confirm(harness, "abc")
    harness.handle(c.Closed(harness.links.pop("b"), "reset"))
    assert harness.leader.policy.no_quorum == ""
    harness.handle(c.Closed(harness.links.pop("a"), "reset"))
    assert "missing: a, b" in harness.leader.policy.no_quorum


def test_two_nodes_and_a_spare_have_a_committee_of_three_once_it_is_written_down() -> None:
    harness = Harness(min_nodes=2, max_nodes=3)
    for node in "ab":
        harness.hello(node)
    harness.pass_time(3, alive="ab")
    harness.prepared("ab")
    assert keepers(harness) == ""
    harness.hello("x")
    harness.pass_time(3, alive="abx")
    assert set(keepers(harness)) == set("abx")
    assert not harness.leader.ledger.before
    assert harness.heard("x", p.PrepareOrder)


def test_a_leader_gives_way_when_a_later_one_has_prepared_a_round():
    harness = Harness(known=ledger("abc"))
    for node in "ab":
        harness.hello(node, round=0, running=True, ledger=ledger("abc"))
    harness.pass_time(30, alive="ab")
    about = {"epoch": EPOCH + 1, "version": 99, "pending_round": 9, "pending": table("cde")}
    harness.hello("c", round=0, ledger=ledger("abc", **about), promised=EPOCH + 1)
    assert harness.leader.state is LeaderState.DEPOSED


def silent_in_turn(harness: Harness, nodes: str) -> None:
    """Nodes are heard no more, a renewal after each other; node a is."""
    for node in nodes:
        harness.pass_time(0.6, alive="a")
        confirm(harness, node)
    harness.pass_time(6, alive="a")


def test_a_leader_that_is_cut_off_does_not_say_that_nodes_are_lost() -> None:
    harness = two_rounds()
    silent_in_turn(harness, "bc")
    (_, stop) = harness.heard("a", m.Stop)
    assert "is lost" not in stop.reason
    assert "missing: b, c" in stop.reason


def test_a_node_that_falls_silent_is_lost_where_the_others_are_heard() -> None:
    harness = two_rounds()
    confirm(harness, "bc")
    harness.pass_time(5.1, alive="ab")
    assert "node c is lost" in harness.heard("a", m.Stop)[-1].reason


def ended(harness: Harness, nodes: str, times: int = ENDED_TIMES) -> None:
    for node in nodes * times:
        harness.handle(c.Answered(node, None, ended=True))


def test_a_leader_without_the_others_ends_once_they_have() -> None:
    harness = two_rounds()
    for node in "bc":
        harness.lose(node, "end of file")
    ended(harness, "bc")
    assert harness.leader.state is LeaderState.LEADING, "its ranks run"
    harness.handle(c.Answered("b", None))
    harness.report("a", m.NodeStopped, 1)
    ended(harness, "b", ENDED_TIMES - 1)
    assert harness.leader.state is LeaderState.LEADING
    ended(harness, "b", 1)
    assert harness.leader.state is LeaderState.ENDED
    assert harness.heard("a", m.End)[0].outcome is m.Outcome.TOO_FEW_NODES


def test_a_leader_that_has_a_majority_goes_on_without_one_that_has_ended() -> None:
    harness = two_rounds()
    harness.lose("c", "end of file")
    for node in "ab":
        harness.report(node, m.NodeStopped, 1)
    ended(harness, "c")
    assert harness.leader.state is LeaderState.LEADING


def test_a_follower_that_hears_nothing_is_lost_and_counts_as_silent():
    harness = two_rounds()
    confirm(harness, "abc")
    harness.say("c", p.Miss(node="c", incarnation="c1", epoch=EPOCH))
    assert "c" not in harness.links, "its connection is closed"
    assert "node c is lost" in harness.heard("b", m.Stop)[-1].reason
    harness.hello("y")
    for node in "ab":
        harness.report(node, m.NodeStopped, 1)
    harness.pass_time(6, alive="aby")
    harness.prepared("aby")
    assert len(harness.heard("b", m.Start)) == 1
    harness.pass_time(3, alive="aby")
    assert len(harness.heard("b", m.Start)) == 2


@pytest.mark.parametrize(("silent", "starts"), [(False, 2), (True, 1)])
def test_a_connection_that_timed_out_does_not_mean_that_the_agent_has_ended(silent, starts):
    harness = two_rounds()
    confirm(harness, "abc")
    harness.handle(c.Closed(harness.links.pop("c"), "timed out", silent=silent))
    harness.hello("y")
    for node in "ab":
        harness.report(node, m.NodeStopped, 1)
    harness.pass_time(1, alive="aby")
    harness.prepared("aby")
    assert len(harness.heard("b", m.Start)) == starts


def test_members_are_told_when_a_spare_makes_them_replaceable_and_say_that_they_know():
    harness = Harness(min_nodes=2, max_nodes=3)
    for node in "ab":
        harness.hello(node)
    harness.pass_time(3, alive="ab")
    harness.prepared("ab")
    assert not harness.orders("b", m.Start)[0].change.replaceable
    harness.hello("x")
    confirm(harness, "b")
    assert harness.heard("b", p.Beat)[-1].replaceable
    assert not harness.leader._sessions.by_node["b"].replaceable
    confirm(harness, "b", replaceable=True)
    assert harness.leader._sessions.by_node["b"].replaceable
    harness.say("b", p.Renew(epoch=EPOCH, round=7, replaceable=True))
    assert not harness.leader._sessions.by_node["b"].replaceable, "it says so of another round"


def test_nodes_hear_for_how_long_a_majority_of_the_committee_counts_on_the_leader():
    harness = Harness().running()
    harness.pass_time(2, alive="abc")
    harness.pass_time(2, alive="a")
    harness.say("a", p.Renew(epoch=harness.leader.epoch, sent=1))
    assert harness.heard("a", p.Beat)[-1].majority_s == pytest.approx(3.0)
    harness.say("b", p.Renew(epoch=harness.leader.epoch, sent=1))
    assert harness.heard("b", p.Beat)[-1].majority_s == pytest.approx(5.0)


def test_who_is_back_but_has_not_followed_since_counts_on_no_leader():
    harness = Harness().running()
    harness.handle(c.Closed(harness.links["c"], "reset"))
    harness.pass_time(4.5, alive="a")
    harness.hello("c", follows=False)
    harness.say("a", p.Renew(epoch=harness.leader.epoch, sent=1))
    assert harness.heard("a", p.Beat)[-1].majority_s < 1


def test_without_a_committee_a_lease_is_all_that_nodes_count_on():
    harness = Harness(min_nodes=2, max_nodes=2).running("ab")
    harness.say("a", p.Renew(epoch=harness.leader.epoch, sent=1))
    assert harness.heard("a", p.Beat)[-1].majority_s is None
