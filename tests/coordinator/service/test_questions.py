"""Who may ask, how many at a time, and who is asked in the end."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.coordinator.wire.talk import Recorder, on_loop, serving, terms
from undaunted.coordinator import protocol as p
from undaunted.coordinator.lead.leader import Leader
from undaunted.coordinator.lead.messages import LeaderConfig
from undaunted.coordinator.policy.config import PolicyConfig
from undaunted.coordinator.service import leading as leading_module
from undaunted.coordinator.service import questions
from undaunted.coordinator.service.asking import answer_of
from undaunted.coordinator.service.leading import Leading
from undaunted.coordinator.service.participant import Participant
from undaunted.coordinator.service.questions import Questions
from undaunted.coordinator.wire.client import connect
from undaunted.coordinator.wire.connection import WireError
from undaunted.coordinator.wire.network import Sockets

if TYPE_CHECKING:
    from undaunted.coordinator.wire.handshake import Terms

PERSON = terms(run_id="", node="")
LONGEST = p.MAX_ANSWER_BYTES


class Answers:
    """Answers with the question and who asks; with ``held``, not before that is set."""

    def __init__(self, *, held: bool = False) -> None:
        self.by: list[str] = []
        self.go_on = asyncio.Event()
        if not held:
            self.go_on.set()

    async def __call__(self, data: bytes, by: str) -> bytes:
        self.by.append(by)
        await self.go_on.wait()
        return data


async def asked(port: int, question: p.Question, person: Terms = PERSON) -> p.Message:
    address = f"127.0.0.1:{port}"
    return await answer_of(address, question, Sockets(person), timeout_s=30, longest=LONGEST)


@on_loop
async def test_a_question_is_answered_and_it_is_said_who_asks() -> None:
    answers = Answers()
    async with serving(Questions(answers)) as server:  # type: ignore[arg-type]
        assert await asked(server.port, p.Question(data=b"why")) == p.Answer(data=b"why")
        await asked(server.port, p.Question(data=b"why", by="somebody\nelse" + "!" * 1000))
    assert answers.by[0].startswith("undaunted ctl (127.0.0.1:")
    assert answers.by[1].startswith("somebody")
    assert len(answers.by[1].splitlines()) == 1
    assert len(answers.by[1]) <= 100


@on_loop
async def test_a_long_answer_gets_through() -> None:
    async def long(data: bytes, by: str) -> bytes:
        return b"x" * 4_000_000

    async with serving(Questions(long)) as server:  # type: ignore[arg-type]
        answer = await asked(server.port, p.Question(data=b""))
        assert isinstance(answer, p.Answer)
        assert len(answer.data) == 4_000_000


@on_loop
async def test_too_many_at_a_time_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "MOST_AT_ONCE", 2)
    answers = Answers(held=True)
    async with serving(Questions(answers)) as server:  # type: ignore[arg-type]
        waiting = [asyncio.ensure_future(asked(server.port, p.Question(data=b""))) for _ in "12"]
        while len(answers.by) < 2:
            await asyncio.sleep(0)
        refused = await asked(server.port, p.Question(data=b""))
        assert isinstance(refused, p.Refused)
        assert "2 others ask" in refused.reason
        answers.go_on.set()
        assert await asyncio.gather(*waiting) == [p.Answer(data=b"")] * 2
        assert await asked(server.port, p.Question(data=b"")) == p.Answer(data=b"")


@on_loop
async def test_what_is_ordered_by_somebody_who_has_given_up_is_not_carried_out() -> None:
    """As after a pause of the launcher: when the question is read, its end is there as well."""
    answers, client = Answers(held=True), Recorder()
    ended = asyncio.Event()

    class Desk(Questions):
        def closed(self, connection: Any, reason: str) -> None:
            super().closed(connection, reason)
            ended.set()

    async with serving(Desk(answers)) as server:  # type: ignore[arg-type]
        connection = await connect(f"127.0.0.1:{server.port}", client, PERSON)
        connection.send(p.Question(data=b"stop"))
        connection.close("I have waited for long enough")
        await ended.wait()
    assert answers.by == []


@on_loop
async def test_who_goes_while_it_is_answered_is_forgotten() -> None:
    answers, client = Answers(held=True), Recorder()
    desk = Questions(answers)
    async with serving(desk) as server:  # type: ignore[arg-type]
        connection = await connect(f"127.0.0.1:{server.port}", client, PERSON)
        connection.send(p.Question(data=b""))
        while not answers.by:
            await asyncio.sleep(0)
        connection.close("enough")
        while desk._asking:
            await asyncio.sleep(0)


@on_loop
async def test_who_does_not_take_its_answer_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "TAKE_S", 0.01)
    client = Recorder()
    async with serving(Questions(Answers())) as server:  # type: ignore[arg-type]
        connection = await connect(f"127.0.0.1:{server.port}", client, PERSON)
        connection.send(p.Question(data=b""))
        await client.until(lambda: bool(client.ends))


@pytest.mark.parametrize(
    "said", [[p.Renew(epoch=1)], [p.Question(data=b""), p.Question(data=b"")]], ids=["other", "two"]
)
@on_loop
async def test_who_says_something_else_is_left(said: list[p.Message]) -> None:
    client = Recorder()
    async with serving(Questions(Answers(held=True))) as server:  # type: ignore[arg-type]
        connection = await connect(f"127.0.0.1:{server.port}", client, PERSON)
        for message in said:
            connection.send(message)
        await client.until(lambda: bool(client.ends))
    assert client.messages == []


@on_loop
async def test_who_says_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "FIRST_MESSAGE_S", 0.01)
    client = Recorder()
    async with serving(Questions(Answers())) as server:  # type: ignore[arg-type]
        await connect(f"127.0.0.1:{server.port}", client, PERSON)
        await client.until(lambda: bool(client.ends))


# --- at the port of a job -------------------------------------------------------------------------


def listener_of(node: str, leader: str = "") -> Participant:
    """Of a node, or "" = of a coordinator alone; it follows a leader at an address."""
    listener = Participant()
    if node:
        follower: Any = SimpleNamespace(
            config=SimpleNamespace(node=node),
            leader=leader,
            lease_s=5.0,
            knows=SimpleNamespace(ledger=p.Ledger(run_id="job7", leader="a")),
        )
        left_s = -7.0 if leader else None
        following: Any = SimpleNamespace(follower=follower, lease_left_s=left_s)
        listener.following = following
    return listener


def lead(
    listener: Participant, node: str, others: dict[str, str], *, connected: bool = False
) -> None:
    about = LeaderConfig(run_id="job7", policy=PolicyConfig(), node=node)
    seats = enumerate(others.items())
    table = tuple(
        p.Seat(node=n, incarnation="i", address=a, group_rank=i, first_rank=i, slots=1)
        for i, (n, a) in seats
    )
    leader = Leader(about, p.Ledger(run_id="job7", round=0, table=table))
    none: Any = None
    listener.leading = Leading(leader, Sockets(terms()), keep=none, done=none)
    if connected:
        leader.heard = lambda: dict.fromkeys(others, 0)  # type: ignore[method-assign]


@on_loop
async def test_one_that_does_not_lead_says_who_does() -> None:
    listener = listener_of("b", "there:29400")
    listener.serve_questions("b", Answers())
    async with serving(listener) as server:
        for node in ("", "c"):
            said = await asked(server.port, p.Question(data=b"why", node=node))
            assert isinstance(said, p.Refused)
            assert said.leader == "there:29400"
            for words in ("--node b asks this node", "led by node a", "last heard of 12.0 s ago"):
                assert words in said.reason
        said = await asked(server.port, p.Question(data=b"why", node="b"))
        assert said == p.Answer(data=b"why"), "it was asked by its name"


@pytest.mark.parametrize("node", ["a", ""], ids=["node", "alone"])
@on_loop
async def test_the_leader_answers_and_has_others_answer(node: str) -> None:
    other, own = Answers(), Answers()
    at_b, at_leader = listener_of("b"), listener_of(node)
    at_b.serve_questions("b", other)
    at_leader.serve_questions(node, own)
    async with serving(at_b) as b, serving(at_leader) as server:
        lead(at_leader, node, {"b": f"127.0.0.1:{b.port}", "c": "", "d": "127.0.0.1:9"})
        assert await asked(server.port, p.Question(data=b"1")) == p.Answer(data=b"1")
        assert await asked(server.port, p.Question(data=b"2", node="b")) == p.Answer(data=b"2")
        assert len(own.by) == len(other.by) == 1
        assert other.by[0].startswith("undaunted ctl (127.0.0.1:")
        for asks, text in (
            ("c", "node c takes no connections (takeover=0): ask on its machine"),
            ("d", "node d: 127.0.0.1:9: connection refused"),
            ("e", "node e is not in the job, which has b, c, d"),
        ):
            said = await asked(server.port, p.Question(data=b"3", node=asks))
            assert isinstance(said, p.Refused)
            assert (said.reason, said.leader) == (text, "")


@pytest.mark.parametrize("there", [{}, {"c": ""}, {"a": "127.0.0.1:9"}])
@on_loop
async def test_an_order_is_passed_on_only_to_others_that_can_be_asked(
    there: dict[str, str],
) -> None:
    listener = listener_of("a")
    lead(listener, "a", there, connected=True)
    assert listener.leading is not None
    assert isinstance(await listener.leading.pass_on_order(b"stop", "me"), p.Refused)


@on_loop
async def test_an_order_is_passed_on_to_another_node_with_who_asks() -> None:
    answers, at_b, at_leader = Answers(), listener_of("b"), listener_of("a")
    at_b.serve_questions("b", answers)
    async with serving(at_b) as b:
        there = {"a": "127.0.0.1:9", "b": f"127.0.0.1:{b.port}", "c": ""}
        lead(at_leader, "a", there, connected=True)
        assert at_leader.leading is not None
        said = await at_leader.leading.pass_on_order(b"stop", "me")
        assert said == p.Answer(data=b"stop")
        assert answers.by == ["me"]


@on_loop
async def test_a_node_that_does_not_answer_the_leader_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leading_module, "PASS_ON_S", 0.05)
    at_b, at_leader = listener_of("b"), listener_of("a")
    at_b.serve_questions("b", Answers(held=True))
    at_leader.serve_questions("a", Answers())
    async with serving(at_b) as b, serving(at_leader) as server:
        lead(at_leader, "a", {"b": f"127.0.0.1:{b.port}"})
        said = await asked(server.port, p.Question(data=b"", node="b"))
        assert isinstance(said, p.Refused)
        assert "no answer within 50 ms" in said.reason


@on_loop
async def test_a_leader_that_is_replaced_meanwhile_refuses() -> None:
    listener = listener_of("a", "there:29400")
    listener.serve_questions("a", Answers())
    said = await listener._pass_on(p.Question(data=b"", node="b"), "me")
    assert isinstance(said, p.Refused)
    assert said.leader == "there:29400"


@on_loop
async def test_where_nobody_answers_people_they_are_refused() -> None:
    async with serving(listener_of("a")) as server:
        assert isinstance(await asked(server.port, p.Question(data=b"")), p.Refused)


@on_loop
async def test_the_end_of_a_connection_is_the_reason_why_there_is_no_answer() -> None:
    closes = Recorder(lambda connection, _: connection.close("enough"))
    async with serving(closes) as server:
        with pytest.raises(WireError, match="the other side closed the connection"):
            await asked(server.port, p.Question(data=b""))
