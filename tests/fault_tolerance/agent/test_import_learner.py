"""What the agent makes of what ranks have imported."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
import zlib
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from undaunted.base import process
from undaunted.fault_tolerance.agent import import_learner as module
from undaunted.fault_tolerance.agent.import_learner import ImportLearner, disagreement
from undaunted.fault_tolerance.worker.import_notes import RankImports
from undaunted.fault_tolerance.worker.messages import Group, Learned, Ready
from undaunted.fault_tolerance.worker.spawner import Spawned

# `timm` and `peft` are on the list.
TOLD = RankImports(
    [Group({}, ["timm", "timm.part", "peft", "pmine"])],
    {"timm": "/timm.py", "peft": "/peft.py", "pmine": "/pmine.py"},
)


def test_what_ranks_import_after_other_changes_of_variables() -> None:
    one = RankImports([Group({}, ["pone"]), Group({"A": "1", "B": "2"}, ["ptwo", "pthree.part"])])
    other = RankImports(
        [Group({}, ["pone", "pfour"]), Group({"A": "0", "B": "2"}, ["pthree.part"])]
    )
    assert disagreement(one, one) == {}
    left = disagreement(one, other)
    assert list(left) == ["pthree"], "the other one has not imported ptwo"
    assert "A" in left["pthree"]


class Job:
    """A learner among fakes. ``answers`` are the spawner's, one after the other."""

    def __init__(
        self, tmp_path: Any, answers: list[Ready | None], learn: str = "on", preload: Any = ()
    ) -> None:
        self.answers = answers
        self.has_learned = False
        self.asked: list[Learned] = []
        self.events: list[Any] = []
        self.told: dict[int, bytes | None] = {}
        self.iterations = [(0, 1), (0, 0)]
        config: Any = SimpleNamespace(
            run_dir=str(tmp_path), node="n0", learn_imports=learn, preload=preload
        )
        workers: Any = SimpleNamespace(
            all=[SimpleNamespace(pid=70 + rank, local_rank=rank) for rank in range(2)]
        )
        area: Any = SimpleNamespace(snapshot=self._page)
        journal: Any = SimpleNamespace(record=self.events.append)
        own: Any = self
        self.learner = ImportLearner(config, area, own, workers, own, journal)
        self.round: Any = SimpleNamespace(stopping=False)
        self.busy = 0  # times that somebody else asks

    def _page(self, rank: int) -> Any:
        first, now = self.iterations[rank]
        return SimpleNamespace(first_iteration=first, iteration=now)

    async def ask_idly(self, pids: Any, what: bytes) -> dict[int, bytes | None]:
        assert what == module.IMPORTS
        if self.busy:
            self.busy -= 1
            return {}
        return {pid: self.told.get(pid) for pid in pids}

    async def learn(self, learned: Learned) -> Ready | None:
        self.asked.append(learned)
        ready = self.answers.pop(0)
        self.has_learned = ready is not None and ready.learned > 0
        return ready

    def tell(self, *told: RankImports | None) -> None:
        for pid, each in zip((70, 71), told, strict=True):
            packed = zlib.compress(msgspec.msgpack.encode(each)) if each is not None else None
            self.told[pid] = packed

    def run(self) -> None:
        async def play() -> None:
            self.learner.ranks_run(self.round, Spawned([], "warm"))
            if self.learner._task is not None:
                await asyncio.wait_for(self.learner._task, 20)
            self.learner.close()

        asyncio.run(play())


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOKS_S", (0.0, 0.0, 0.0))


def ready(**about: Any) -> Ready:
    return Ready(modules=[], import_ns=5, **about)


def test_packages_are_left_until_the_template_can_fork(tmp_path: Any) -> None:
    left = {"peft": "it starts a thread"}
    job = Job(tmp_path, [ready(left=left), ready(learned=2)])
    job.tell(TOLD, TOLD)
    job.run()
    assert [each.left for each in job.asked] == [["pmine"], ["peft", "pmine"]]
    (event,) = job.events
    assert (event.modules, event.packages, event.problem) == (2, ["timm"], "")
    assert event.left.keys() == {"pmine", "peft"}
    job.run()
    assert len(job.asked) == 2, "it has learned"
    job.has_learned = False
    job.answers = [ready(learned=2)]
    job.run()
    assert len(job.asked) == 3, "the template was lost"


def test_packages_that_the_user_preloads_are_imported(tmp_path: Any) -> None:
    job = Job(tmp_path, [ready(learned=3)], preload=["pmine.models"])
    job.tell(TOLD, TOLD)
    job.run()
    assert job.asked[0].left == []


def test_none_of_the_packages_is_on_the_list(tmp_path: Any) -> None:
    job = Job(tmp_path, [])
    told = RankImports([Group({}, ["pmine"])], {"pmine": "/pmine.py"})
    job.tell(told, told)
    job.run()
    (event,) = job.events
    assert (job.asked, list(event.left), bool(event.problem)) == ([], ["pmine"], True)


@pytest.mark.parametrize(
    ("answers", "times"),
    [
        ([None], 1),
        ([ready(problem="not compared")], 1),
        ([ready(left={f"p{n}": "no"}) for n in range(20)], module._MOST_TEMPLATES),
        ([ready(left={"timm": "no", "peft": "no"})], 1),
    ],
)
def test_it_comes_to_nothing(tmp_path: Any, answers: list[Ready | None], times: int) -> None:
    job = Job(tmp_path, answers)
    job.tell(TOLD, TOLD)
    job.run()
    job.run()
    assert len(job.asked) == times
    assert (job.events[0].modules, bool(job.events[0].problem)) == (0, True)


def test_ranks_that_do_not_answer_are_asked_in_the_next_round(tmp_path: Any) -> None:
    job = Job(tmp_path, [ready(learned=3)])
    job.tell(TOLD, None)
    job.run()
    assert job.asked == []
    job.tell(TOLD, TOLD)
    job.run()
    assert len(job.asked) == 1


def test_somebody_else_asks_at_that_moment(tmp_path: Any) -> None:
    job = Job(tmp_path, [ready(learned=3)])
    job.tell(TOLD, TOLD)
    job.busy = 2
    job.run()
    assert len(job.asked) == 1


def test_a_round_that_is_over_is_not_asked(tmp_path: Any) -> None:
    for about in ("stopping", "workers"):
        job = Job(tmp_path, [])
        job.tell(TOLD, TOLD)
        if about == "stopping":
            job.round.stopping = True
        else:
            job.learner._workers.all.clear()
        job.run()
        assert job.asked == []


def test_there_is_nothing_to_learn(tmp_path: Any) -> None:
    job = Job(tmp_path, [])
    job.tell(RankImports([]), RankImports([]))
    job.run()
    other = RankImports([Group({"A": "1"}, TOLD.groups[0].modules)], TOLD.packages)
    job.tell(TOLD, other)
    job.run()
    assert (job.asked, job.events) == ([], [])


@pytest.mark.parametrize("looks", [1, 9])
def test_nothing_is_imported_before_cpu_time_is_left(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    """Ranks of a pod with a limit have the same CPU time as we: a priority does not help them."""
    busy = itertools.chain(range(0, 9 * 2 * looks, 9), itertools.repeat(9 * 2 * looks))
    monkeypatch.setattr(module, "cpu_use", lambda: [(4, next(busy))])
    job = Job(tmp_path, [ready(learned=1)])
    job.tell(TOLD, TOLD)
    job.run()
    assert len(job.asked) == 1
    assert next(busy) == 9 * 2 * looks, "not before"


@pytest.mark.parametrize("gives_way", [True, False])
def test_cpus_of_the_node_count_where_no_priority_can_be_lowered(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, gives_way: bool
) -> None:
    looks = 0

    def node_use() -> tuple[int, float]:
        nonlocal looks
        looks += 1
        return 4, 100.0 * min(looks, 6)

    monkeypatch.setattr(process, "may_lower_priority", lambda: gives_way)
    monkeypatch.setattr(module, "cpu_use", list)
    monkeypatch.setattr(module, "_node_use", node_use)
    job = Job(tmp_path, [ready(learned=1)])
    job.tell(TOLD, TOLD)
    job.run()
    assert [each.gives_way for each in job.asked] == [gives_way]
    assert (looks == 0) is gives_way


def test_cpu_time_of_the_node() -> None:
    cpus, before = module._node_use()
    assert cpus == len(os.sched_getaffinity(0))
    ends = time.thread_time() + 0.1
    while time.thread_time() < ends:
        pass
    assert module._node_use()[1] > before > 0


def test_it_is_turned_off(tmp_path: Any) -> None:
    job = Job(tmp_path, [], learn="off")
    job.tell(TOLD, TOLD)
    job.run()
    assert (job.asked, job.events) == ([], [])


def test_ranks_are_asked_when_one_is_in_its_second_step(tmp_path: Any) -> None:
    job = Job(tmp_path, [])
    for iterations, stepping in ((((0, 0), (0, 0)), False), (((3, 4), (3, 3)), True)):
        job.iterations = list(iterations)
        assert job.learner._step() is stepping
