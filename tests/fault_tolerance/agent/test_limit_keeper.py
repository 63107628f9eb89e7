from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from undaunted.fault_tolerance.agent import limit_keeper
from undaunted.fault_tolerance.agent.limit_keeper import LimitKeeper, read
from undaunted.fault_tolerance.agent.watch import Callbacks, PageWatch
from undaunted.fault_tolerance.config import FaultToleranceConfig
from undaunted.progress import learning
from undaunted.progress import writer as writer_module
from undaunted.progress.area import PageArea
from undaunted.progress.limits import Limits
from undaunted.progress.samples import HEARTBEAT, SECTION, Knowledge, Samples
from undaunted.progress.snapshot import PageSnapshot, Phase
from undaunted.progress.timeouts import Expired
from undaunted.progress.writer import PageWriter

S = 10**9
LONG = round(learning.OBSERVED_S * S)
STEADY = Samples(5000, 50 * S)


@pytest.fixture(autouse=True)
def fresh_writer():
    yield
    if isinstance(writer_module.current, PageWriter):
        writer_module.current.detach()
    writer_module.current = writer_module._NotYet()


class FakeJournal:
    def __init__(self):
        self.changes = []
        self.said = []
        self.files = {}

    def record(self, event):
        self.changes.append((event.limits, event.sources))

    def write_text(self, path, text):
        self.files[path] = text
        Path(path).write_text(text)

    def say(self, text):
        self.said.append(text)


class Node:
    """The parts of an agent around the keeper."""

    def __init__(self, tmp_path, limits=Limits(), **config):  # noqa: B008 - frozen
        self.area = PageArea.create(1)
        self.journal = FakeJournal()
        self.passed = []
        nothing = lambda *args: None  # noqa: E731
        self.watch = PageWatch(
            self.area,
            limits,
            Callbacks(lambda *args: self.passed.append(args), *[nothing] * 6),
        )
        self.path = tmp_path / "learned-limits-here.json"
        config = SimpleNamespace(
            run_dir=str(tmp_path),
            node="here",
            limits=limits,
            ft=FaultToleranceConfig(safety_factor=4),
            **config,
        )
        self.keeper = LimitKeeper(config, self.area, self.watch, self.journal, self.journal.say)

    def attach(self):
        return PageWriter.attach(self.area.env_value(0))

    def told(self):
        """What ranks read of their limits."""
        return msgspec.json.decode(self.attach().limits_json(), type=Limits)


@pytest.fixture
def start(tmp_path):
    """Starts a node on the event loop of the test; closes what it has opened."""
    nodes = []

    def start_(**options):
        nodes.append(Node(tmp_path, **options))
        return nodes[-1]

    yield start_
    for node in nodes:
        node.area.close()


def remember(tmp_path, *entries, version=limit_keeper.VERSION):
    content = msgspec.json.encode({"version": version, "entries": entries})
    (tmp_path / "learned-limits-here.json").write_bytes(content)


def known(world_size=2, heartbeat=STEADY, **sections):
    samples = {HEARTBEAT: heartbeat} | {SECTION + name: of for name, of in sections.items()}
    return Knowledge(world_size=world_size, observed_ns=LONG, samples=samples)


def in_loop(call):
    async def run():
        return call()

    return asyncio.run(run())


# --- what is kept ---------------------------------------------------------------------------------


def test_a_job_teaches_its_successor(tmp_path, start):
    def both():
        remember(tmp_path, known(step=STEADY))
        first = start()
        first.keeper.begin_round(2)
        limits, sources = first.journal.changes[0]
        assert limits.keys() == {"heartbeat", "section:step"}
        assert sources["heartbeat"].startswith("learned from 5000 samples, longest 50.0 s")
        assert first.watch.learned["heartbeat"].limit_s == limits["heartbeat"]
        writer = first.attach()
        for _ in range(8):
            writer.heartbeat()
        first.keeper.limit_ended_rank(
            Expired("heartbeat", "", 0, 0, 130.0, 100.0, sources["heartbeat"])
        )
        first.keeper.end_round()
        writer.detach()
        second = start()
        second.keeper.begin_round(2)
        assert second.watch.learned["heartbeat"].limit_s == 200.0
        second.keeper.end_round()

    in_loop(both)


def test_what_rounds_show_adds_up(tmp_path, start, monkeypatch):
    monkeypatch.setattr(learning, "OBSERVED_S", 0.0)
    monkeypatch.setattr(learning, "MANY", 40)

    def rounds():
        node = start()
        for _ in range(2):
            node.keeper.begin_round(2)
            node.area.reset(0)
            writer = node.attach()
            for beats in (6, 30):
                for _ in range(beats):
                    writer.heartbeat()
                node.keeper._look()
            node.keeper.end_round()
            writer.detach()
            writer_module.current = writer_module._NotYet()
        (entry,) = read(str(node.path))[0]
        assert (entry.world_size, entry.of(HEARTBEAT).count) == (2, 60)
        node.keeper.begin_round(2)
        assert node.watch.learned.keys() == {"heartbeat"}
        node.keeper.begin_round(3)
        assert node.watch.learned == {}
        node.keeper.end_round()

    in_loop(rounds)


def test_learning_can_be_switched_off(tmp_path, start):
    def off():
        remember(tmp_path, known(step=STEADY))
        node = start(limits=Limits(learn=False))
        node.keeper.begin_round(2)
        assert node.watch.learned == {}
        node.keeper.end_round()

    in_loop(off)


def test_another_program_is_not_taught(tmp_path, start):
    def other():
        remember(tmp_path, known(step=STEADY))
        node = start()
        node.keeper.begin_round(2)
        assert node.watch.learned
        writer = node.attach()
        with writer.section("something new"):
            pass
        node.keeper._look()
        assert node.watch.learned == {}
        assert node.journal.changes[-1] == ({}, {})
        node.keeper.end_round()
        writer.detach()

    in_loop(other)


def test_entries_for_other_numbers_of_ranks_are_kept(tmp_path, start):
    def one_more():
        remember(tmp_path, known(2), known(4), known(8))
        node = start()
        node.keeper.begin_round(4)
        node.keeper.end_round()
        assert [entry.world_size for entry in read(str(node.path))[0]] == [4, 2, 8]

    in_loop(one_more)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b'{"version": 3, "entries": [3]}', b"\xff\xfe", b"[" * 100_000,
        b'{"version": 3, "entries": [{"world_size": 1, "samples": {"a": {"count": -1}}}]}',
        b'{"version": 3, "entries": [{"world_size": 1, "samples": {"a": {"longest_ns": -1}}}]}',
        b'{"version": 99}', b" " * (1 << 20) + b"{}",
    ],
)  # fmt: skip
def test_garbage_is_said_and_replaced(tmp_path, start, content):
    def begin():
        (tmp_path / "learned-limits-here.json").write_bytes(content)
        node = start()
        (line,) = node.journal.said
        assert line.endswith("; limits are learned anew")
        node.keeper.begin_round(2)
        assert node.watch.learned == {}
        node.keeper.end_round()

    in_loop(begin)


def test_what_another_version_has_left_is_said_and_learned_anew(tmp_path, start):
    content = b"""{"version": 2, "entries": [{"world_size": 2, "observed_ns": 100000000000000,
        "samples": {"heartbeat": {"counts": {"90": 5000}, "longest_ns": 10000000000},
                    "initial_heartbeat": {"counts": {"95": 3}, "longest_ns": 20000000000}}}]}"""
    (tmp_path / "learned-limits-here.json").write_bytes(content)

    def begin():
        node = start()
        (line,) = node.journal.said
        assert "has version 2" in line
        node.keeper.begin_round(2)
        assert node.watch.learned == {}
        node.keeper.end_round()

    in_loop(begin)


def test_no_file_is_nothing_to_talk_about(tmp_path):
    assert read(str(tmp_path / "none")) == ([], "")
    entries, problem = read(str(tmp_path))
    assert (entries, "cannot be read" in problem) == ([], True)


def test_the_end_of_a_round_that_never_began_writes_nothing(start):
    node = start()
    node.keeper.end_round()
    assert read(str(node.path)) == ([], "")


# --- a hang ---------------------------------------------------------------------------------------


def test_a_hang_is_noticed_at_the_learned_limit(tmp_path, start):
    quick = Samples(5000, 10**7)

    async def hang():
        remember(tmp_path, known(heartbeat=quick))
        node = start(limits=Limits(floor_s=0.05))
        done = asyncio.Event()
        node.watch.callbacks.limit_passed = lambda *args: (node.passed.append(args), done.set())
        node.watch.open()
        node.keeper.begin_round(2)
        writer = node.attach()
        writer.heartbeat()
        node.watch.hold_to_limits([1])
        for _ in range(6):
            writer.heartbeat()
        node.keeper._look()  # the rank is past its warm-up now
        await asyncio.wait_for(done.wait(), 20)
        ((index, expired),) = node.passed
        assert (index, expired.watch) == (0, "heartbeat")
        assert 0.01 < expired.limit_s <= 0.1 <= expired.age_s + 0.1
        assert expired.source.startswith("learned from")
        node.watch.close()
        node.keeper.end_round()
        writer.detach()

    asyncio.run(hang())


# --- calculated limits ----------------------------------------------------------------------------

REQUEST = {"heartbeat": [90.0, 3.0], "sections": {"a": 2.0}, "out_of_section": 1.0}


def test_calculated_limits_are_applied_and_told(tmp_path, start):
    def calculate():
        remember(tmp_path, known(a=STEADY))
        node = start(limits=Limits(floor_s=0.5))
        node.keeper.begin_round(2)
        assert node.told().safety_factor == 4.0
        assert node.keeper.take(json.dumps({"timeouts": REQUEST}).encode()) == b"ok"
        limits = node.watch.limits
        assert (limits.initial_heartbeat_s, limits.heartbeat_s) == (90.0, 3.0)
        assert (limits.sections, limits.out_of_section_s) == ({"a": 2.0}, 1.0)
        assert set(limits.sources.values()) == {"calculated"}
        assert node.watch.learned == {}
        assert node.told() == limits
        assert node.journal.changes[-1][0] == {
            "initial_heartbeat": 90.0, "heartbeat": 3.0, "section:a": 2.0, "out_of_section": 1.0
        }  # fmt: skip
        node.keeper.end_round()
        node.keeper.begin_round(2)
        assert node.watch.limits == limits
        node.keeper.end_round()

    in_loop(calculate)


def test_a_rank_may_ask_whether_anybody_is_there(start):
    assert start().keeper.take(b'{"confirm": true}') == b"ok"


def test_other_requests_are_for_others(start):
    def ask():
        keeper = start().keeper
        for payload in (b'{"action": "Continue"}', b"[]", b"\xff", b""):
            assert keeper.take(payload) is None

    in_loop(ask)


def test_a_request_that_makes_no_sense_changes_nothing(start):
    def ask():
        node = start()
        before = node.watch.limits
        reply = node.keeper.take(b'{"timeouts": 3}')
        assert reply.startswith(b"limits that make no sense: ")
        assert node.watch.limits == before

    in_loop(ask)


def test_a_process_that_has_not_initialised_is_held_to_what_was_configured(start):
    node = start(limits=Limits(initial_heartbeat_s=77.0))
    node.keeper.take(b'{"timeouts": {"heartbeat": [100, 3]}}')
    assert node.watch.limits_for(PageSnapshot(phase=Phase.STARTING)).initial_heartbeat_s == 77.0
    page = PageSnapshot(phase=Phase.INITIALIZED)
    assert node.watch.limits_for(page).initial_heartbeat_s == 100.0


# --- ordered by hand ------------------------------------------------------------------------------


def test_an_ordered_limit_holds_at_once_and_in_later_rounds(start):
    def both():
        node = start()
        node.keeper.begin_round(2)
        assert node.keeper.order({"heartbeat": 600.0, "section:save": None}, "a person")
        assert node.told().heartbeat_s == 600.0
        for limits in (node.watch.limits, node.watch.configured):
            assert limits.heartbeat_s == 600.0
            assert limits.sections == {"save": None}
            assert limits.sources["heartbeat"] == limits.sources["section:save"] == "a person"
        assert node.journal.changes[-1] == (
            {"heartbeat": 600.0, "section:save": None},
            {"heartbeat": "a person", "section:save": "a person"},
        )
        node.keeper.end_round()
        node.keeper.begin_round(2)
        assert node.watch.limits.heartbeat_s == 600.0
        node.keeper.end_round()

    in_loop(both)


def test_what_is_ordered_is_not_learned_and_not_calculated(tmp_path, start):
    def both():
        remember(tmp_path, known())
        node = start()
        node.keeper.begin_round(2)
        assert "heartbeat" in node.watch.learned
        node.keeper.order({"heartbeat": 600.0}, "a person")
        assert node.watch.learned == {}
        request = {"timeouts": {"heartbeat": [70.0, 80.0], "out_of_section": 90.0}}
        assert node.keeper.take(json.dumps(request).encode()) == b"ok"
        limits = node.watch.limits
        assert (limits.heartbeat_s, limits.sources["heartbeat"]) == (600.0, "a person")
        assert (limits.initial_heartbeat_s, limits.out_of_section_s) == (70.0, 90.0)
        node.keeper.end_round()

    in_loop(both)


def test_the_same_order_again_is_no_news(start):
    def both():
        node = start()
        assert node.keeper.order({"heartbeat": 600.0}, "a person")
        assert node.keeper.order({"out_of_section": 5.0}, "another one")
        assert not node.keeper.order({"heartbeat": 600.0, "out_of_section": 5.0}, "another one")
        assert node.keeper.order({"heartbeat": 601.0}, "a person")

    in_loop(both)
